// Replicas of one process on GPUs, all of them on one if there are no more: in every bit what
// replicas on the host give.
#include "support/on_gpu.hpp"

#include <gpipe/replicas.hpp>
#include <gpipe/transport/local_gpus.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace {

// Its update has one right result in every bit.
constexpr gpipe::RMSProp optimizer{1e-2f, 0.9f, 0.5f, 1e-6f, 1e-2f};

template <class Net, class Loss, class Device, class Shard>
using Train = gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>,
                              gpipe::MicroBatches<gpipe::dynamic>, gpipe::Loss<Loss>,
                              gpipe::Optimizer<gpipe::RMSProp>, Device, gpipe::schedule::Dynamic,
                              gpipe::checkpoint::Dynamic, gpipe::Replicas<gpipe::dynamic, Shard>>;

template <class Train> std::vector<float> state_of(Train& train) {
    std::vector<float> all;
    auto const layers = toy::PlainNet<float, true>::layers();
    for (std::size_t l = 0; l < layers.size(); ++l)
        for (std::size_t t = 0; t < layers[l].parameters.count; ++t) {
            std::vector<float> one(layers[l].parameters.bytes[t] / sizeof(float));
            train.read_parameter(l, t, std::span(one));
            all.insert(all.end(), one.begin(), one.end());
        }
    return all;
}

} // namespace

TEST_CASE_TEMPLATE("P1 replicas on GPUs train as those on the host, in every bit", Shard,
                   gpipe::shard::Nothing, gpipe::shard::OptimizerState) {
    using Host =
        Train<toy::PlainNet<float, true>, toy::MeanSquare<float, 3>, gpipe::device::Host, Shard>;
    using OnGpus =
        Train<toy::KernelNet<float, true>, toy::LossOnGpu<toy::kernel::MeanSquare<float, 3>>,
              gpipe::device::Cuda, Shard>;
    auto const present = static_cast<std::size_t>(gpipe::cuda::device_count());
    struct Case {
        gpipe::schedule::Dynamic schedule;
        std::size_t replicas, cells;
    };
    std::size_t trained = 0;
    for (Case const& of :
         {Case{gpipe::schedule::GPipe{}, 2, 1}, Case{gpipe::schedule::BreadthFirst<3>{}, 3, 1},
          Case{gpipe::schedule::Interleaved1F1B<2>{}, 2, 2}})
        for (gpipe::Link const link : {gpipe::Link::shared, gpipe::Link::staged}) {
            if (of.cells == 1 && link != gpipe::Link::shared) continue; // there is none
            toy::Session const session(trained % 4);
            auto const common = [&]<class Options>(Options o) {
                o.samples = 8;
                o.seed = 7;
                o.micro_batches = 2;
                o.cells = of.cells;
                o.replicas = of.replicas;
                o.clip_norm = 0.05;
                o.schedule = of.schedule;
                return o;
            };
            Host host({}, {}, optimizer, common(typename Host::Options{}));
            auto o = common(typename OnGpus::Options{});
            for (std::size_t g = 0; g < of.replicas * of.cells; ++g)
                o.device.gpus.push_back(static_cast<int>(g % present));
            o.device.link = link;
            OnGpus train({}, {}, optimizer, o);
            INFO(of.schedule.name(), ", ", of.replicas, " replicas, K = ", of.cells);
            std::vector<typename OnGpus::Pending> pending;
            std::vector<double> expected, losses;
            for (std::size_t const samples : {16, 15, 1}) {
                toy::Data<float> const data(samples, static_cast<std::uint32_t>(samples));
                expected.push_back(host.step(data.inputs, data.targets).loss);
                pending.push_back(train.start(data.inputs, data.targets));
            }
            for (auto& step : pending) losses.push_back(step.result().loss);
            CHECK((losses == expected));
            CHECK((state_of(train) == state_of(host)));
            toy::Data<float> const held_out(13, 9);
            CHECK(train.evaluate(held_out.inputs, held_out.targets).loss ==
                  host.evaluate(held_out.inputs, held_out.targets).loss);
            ++trained;
        }
    CHECK(trained == 4);
}
