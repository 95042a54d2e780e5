// The bodies of the kernels in support/bodies.hpp, run on the host: tests/gpu compares the kernels
// with the plain layers, which shows something of the GPU only if these two agree in every bit.

#include "support/kernels.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using gpipe::device::Host;

template <class T> struct Sweep {
    using Result = toy::PlainResult<T, true, gpipe::RMSProp>;
    using Train = toy::KernelTrain<T, true, gpipe::RMSProp, Host>;
    static constexpr gpipe::RMSProp optimizer{1e-2f, 0.9f, 0.5f, 1e-6f, 1e-2f};
};

} // namespace

TEST_CASE_TEMPLATE("the bodies of kernels, in any order of their indices, compute what the plain "
                   "layers compute, in every bit",
                   T, float, double) {
    for (std::size_t micro_batches : {1, 2, 3, 8})
        for (toy::NamedSchedule const& schedule : toy::schedules) {
            typename Sweep<T>::Result const expected(Sweep<T>::optimizer, micro_batches,
                                                     schedule.policy, {8, 7, 1, 8});
            for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
                for (std::size_t cells = 1; cells <= 4; ++cells)
                    for (std::size_t first : {0, 1, 4, 7}) {
                        typename Sweep<T>::Train::Options options;
                        options.samples = Sweep<T>::Result::most;
                        options.seed = Sweep<T>::Result::seed;
                        options.cells = cells;
                        options.micro_batches = micro_batches;
                        options.clip_norm = toy::clip_of(micro_batches);
                        options.schedule = schedule.policy;
                        options.checkpointing = checkpointing.policy;
                        options.device.threads = 1;
                        toy::Watch watch;
                        toy::body::first_index = first;
                        typename Sweep<T>::Train train(watched(toy::kernel::Net<T, true>{}, watch),
                                                       {}, Sweep<T>::optimizer, options);
                        INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells,
                             ", M = ", micro_batches, ", first index ", first);
                        CHECK(expected.differs(train) == "");
                        CHECK(watch.count(0, gpipe::Phase::backward) +
                                  watch.count(0, gpipe::Phase::weight_gradient) >
                              0);
                    }
        }
}
