#pragma once

// The sweep over how a training runs on a host: by schedules, checkpointings, devices and threads
// or links. On streams: cuda_ways.hpp.

#include "net.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

namespace toy {

/// What a training is on Device beside its options.
template <class Device> struct Way {
    gpipe::schedule::Dynamic schedule;
    gpipe::checkpoint::Dynamic checkpointing;
    std::size_t cells = 1;
    typename Device::Options run;
    std::size_t number = 0; ///< how many went before

    /// Whether backwards run in descending order.
    bool descends() const { return schedule.name() == "GPipe"; }
    /// Those of a training of so many cells.
    template <class Options> Options chosen(Options o) const {
        o.schedule = schedule;
        o.checkpointing = checkpointing;
        o.device = run;
        return o;
    }
};

/// Calls f(way) as each_way() does, and says how many there were.
template <class Device, class F>
void each_training(std::size_t most, std::size_t layers, std::size_t micro_batches,
                   std::size_t one_in, F f) {
    std::size_t trained = 0;
    each_way<Device>(most, layers, micro_batches, one_in,
                     [&](auto schedule, std::size_t cells, auto checkpointing, auto const& run,
                         std::string const& words) {
                         INFO(words);
                         f(Way<Device>{schedule, checkpointing, cells, run, trained});
                         ++trained;
                     });
    MESSAGE(trained << " trainings");
    CHECK(trained > 0); // under sanitizers few
}

} // namespace toy
