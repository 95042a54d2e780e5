#pragma once

// The sweep over how a training runs on the double of the CUDA runtime.

#include "cuda_double/cuda_double.hpp"
#include "long_tests.hpp"
#include "net.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace toy {

/// What a training is on streams beside its options.
struct CudaWay {
    gpipe::schedule::Dynamic schedule;
    gpipe::checkpoint::Dynamic checkpointing;
    std::size_t cells = 1, gpus = 1, graphs = 0;
    gpipe::Link link = gpipe::Link::shared;

    /// Whether backwards run in descending order.
    bool descends() const { return schedule.name() == "GPipe"; }
    template <class Options> void choose(Options& o) const {
        o.cells = cells;
        o.schedule = schedule;
        o.checkpointing = checkpointing;
        for (std::size_t d = 0; d < cells; ++d) o.device.gpus.push_back(static_cast<int>(d % gpus));
        o.device.graphs = graphs;
        if (link != gpipe::Link::staged) o.device.link = link;
    }
};

/// Calls f(way) for the whole catalogue with every checkpointing, on one GPU, some, and one for
/// each device, over each of `links`, with graphs of no, two or eight parts; or for one in `one_in`
/// of these. Each has a session of its own, in which nothing may race. Says how many there were.
template <class F>
void each_way_on_streams(std::size_t most, std::size_t layers, std::size_t micro_batches,
                         std::size_t one_in, std::vector<gpipe::Link> const& links, F f) {
    std::size_t point = 0, trained = 0;
    auto const run = [&](CudaWay way, std::string const& checkpointing) {
        if (point++ % one_of(one_in) != 0) return;
        bool const peers = way.link != gpipe::Link::staged;
        if (way.gpus == 1 && !peers) return;
        way.graphs = std::vector<std::size_t>{0, 2, 8}[point / 2 % 3];
        cuda_double::Session const session({.devices = static_cast<int>(way.gpus),
                                            .seed = point % 4,
                                            .peers = [=](int, int) { return peers; }});
        INFO(way.schedule.name(), " of ", way.schedule.cells_per_device(), " cells per device, ",
             checkpointing, ", K = ", way.cells, ", ", way.gpus, " GPUs, link ",
             static_cast<int>(way.link), ", graphs ", way.graphs);
        f(way);
        CHECK(cuda_double::races() == std::vector<std::string>{});
        ++trained;
    };
    each_of_catalogue(
        most, layers, micro_batches, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            for (NamedCheckpointing const& checkpointing : every_checkpointing())
                for (std::size_t const gpus : {std::size_t{1}, (k + 1) / 2, k})
                    for (gpipe::Link const link : links)
                        run({schedule, checkpointing.policy, k, gpus, 0, link}, checkpointing.name);
        });
    MESSAGE(trained << " trainings");
    CHECK(trained > 0); // under sanitizers few
}

} // namespace toy
