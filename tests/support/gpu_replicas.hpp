#pragma once

// Replicas on GPUs, on the double of CUDA: what those of one process on the host give.

#include "exchange_layers.hpp"
#include "net.hpp"

#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace toy {

/// A net of layers that report to a watch.
template <class Net> Net made_with(Watch& watch) {
    return [&]<class... Layers>(gpipe::Pipeline<Layers...> const*) {
        return gpipe::Pipeline<Layers...>(Layers(watch)...);
    }(static_cast<Net const*>(nullptr));
}

/// Some replicas of some devices, and what their steps are to give.
struct ReplicaCase {
    std::size_t number = 0;
    std::size_t replicas = 0, cells = 0;
    gpipe::schedule::Dynamic schedule{};
    NamedCheckpointing checkpointing{};
    std::vector<std::size_t> sizes{}; ///< of mini-batches; before odd ones comes a part
    std::vector<double> losses{};
    bool clips = true; ///< gradients, in some cases

    static Data<float> data(std::size_t size) {
        return Data<float>(size, static_cast<std::uint32_t>(size));
    }
    Data<float> held_out() const { return Data<float>(8 * replicas - 1, 9); }
    /// What host and GPUs are told alike.
    template <class Options> Options common(Options options = {}) const {
        options.samples = 8;
        options.seed = 7;
        options.micro_batches = 3;
        options.replicas = replicas;
        options.clip_norm = number % 3 == 0 || !clips ? 0 : 0.05;
        return options;
    }
    template <class Options> Options on_gpus() const {
        auto options = common<Options>();
        options.schedule = schedule;
        options.checkpointing = checkpointing.policy;
        return options;
    }
    std::string text() const {
        return std::to_string(replicas) + " replicas, " + std::string(schedule.name()) + ", " +
               checkpointing.name + ", K = " + std::to_string(cells) + ", case " +
               std::to_string(number);
    }
};

/// Calls f(case, host, watch) for one of so many points of schedules, checkpointings, devices and
/// replicas, where `host`, whose net is on_host(watch), has made the steps.
template <class Shard, class Loss, auto on_host, class F>
void each_replica_case(std::size_t points, bool clips, F f) {
    using Net = decltype(on_host(std::declval<Watch&>()));
    using Host = gpipe::Training<Net, gpipe::Cells<1>, gpipe::MicroBatches<gpipe::dynamic>,
                                 gpipe::Loss<Loss>, gpipe::Optimizer<gpipe::Adam>,
                                 gpipe::schedule::Dynamic, gpipe::Replicas<gpipe::dynamic, Shard>>;
    std::size_t point = 0, count = 0;
    for (std::size_t const replicas : {2, 3})
        each_of_catalogue(3, Net::size, 3, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            for (NamedCheckpointing const& checkpointing : every_checkpointing()) {
                if (k * replicas > 6 || point++ % one_of(points) != 0) continue;
                // Equal parts of other beginnings; not as many everywhere; none in the last one.
                std::size_t const most = 8 * replicas;
                ReplicaCase of{
                    count++,
                    replicas,
                    k,
                    schedule,
                    checkpointing,
                    {most, most, most, most - 1, most - 1, most - 2, most - 2, replicas - 1, most},
                    {},
                    clips};
                auto options = of.common<typename Host::Options>();
                if (schedule.name() != "GPipe")
                    options.schedule = gpipe::schedule::GPipeAscending{};
                Watch watch;
                Host host(on_host(watch), {}, gpipe::Adam{1e-2f}, options);
                for (std::size_t const size : of.sizes) {
                    auto const data = of.data(size);
                    if (size % 2 == 1) host.accumulate(data.inputs, data.targets);
                    of.losses.push_back(host.step(data.inputs, data.targets).loss);
                }
                INFO(of.text());
                f(std::as_const(of), host, watch);
            }
        });
    CHECK(count > 0);
    MESSAGE(count << " trainings");
}

} // namespace toy
