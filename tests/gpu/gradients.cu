// check_gradients() on device::Cuda: the layers' kernels on copies of what they are given, nothing
// of the training touched.
#include "support/on_gpu.hpp"

#include <gpipe/check_gradients.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>

namespace {

template <class T> using Train = toy::CudaTrain<T, gpipe::RMSProp>;

template <class T> std::unique_ptr<Train<T>> made(toy::Watch& watch, std::size_t graphs) {
    typename Train<T>::Options options;
    options.samples = 8;
    options.seed = 7;
    options.cells = 3;
    options.micro_batches = 2;
    options.device.gpus = {0, 0, 0};
    options.device.graphs = graphs;
    toy::LossOnGpu<toy::kernel::MeanSquare<T, 3>> loss;
    loss.watch = &watch;
    return std::make_unique<Train<T>>(watched(toy::KernelNet<T, true>{}, watch), loss,
                                      gpipe::RMSProp{}, options);
}

} // namespace

TEST_CASE_TEMPLATE("gradients of kernels are right, and a check changes nothing", T, float,
                   double) {
    for (std::size_t graphs : {0, 1}) {
        toy::Session const session(graphs);
        toy::Watch watch, other_watch;
        auto const train = made<T>(watch, graphs);
        auto const other = made<T>(other_watch, graphs);
        using Result = toy::PlainResult<T, true, gpipe::RMSProp>;
        for (std::uint32_t step = 0; step < 4; ++step) {
            toy::Data<T> const data(8, step);
            CHECK(train->step(data.inputs, data.targets).loss ==
                  other->step(data.inputs, data.targets).loss);
            if (step % 3 != 1) continue;
            auto const report =
                gpipe::check_gradients(*train, data.inputs, data.targets, {.entries = 4});
            INFO(report);
            CHECK(report.passed());
            CHECK(report.rows.size() == 17);
            for (gpipe::GradientRow const& row : report.rows) CHECK(row.checked > row.left_out);
            CHECK(Result::state_of(*train) == Result::state_of(*other));
        }
    }
}
