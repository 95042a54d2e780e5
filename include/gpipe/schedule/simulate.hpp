#pragma once

#include <gpipe/core/ratio.hpp>
#include <gpipe/schedule/walk.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// When each action of a set of programs starts and ends. Time is what the costs are in.
template <class Time> struct SimulatedTimes {
    Array<Time> start; ///< by index of the action among all
    Array<Time> end;
    Time makespan{};
    Time busy{}; ///< summed over devices
};

/// Times programs: each device runs its program strictly in order, an action starts when what it
/// needs is done (`latency` later if it comes from another device). cost(action) gives its
/// duration. Linear in the number of actions. The programs must have passed verify().
template <class Time, class Cost>
constexpr SimulatedTimes<Time> simulate(Programs const& programs, Cost cost, Time latency = {}) {
    SimulatedTimes<Time> times{Array<Time>(programs.size()), Array<Time>(programs.size())};
    Array<Time> now(programs.devices());
    walk(programs, [&](std::size_t i, std::size_t needed) {
        Action const& action = programs[i];
        Time& clock = now[programs.device_of(action.cell)];
        if (needed != no_action) {
            bool const same =
                programs.device_of(programs[needed].cell) == programs.device_of(action.cell);
            Time const arrival = same ? times.end[needed] : times.end[needed] + latency;
            if (clock < arrival) clock = arrival;
        }
        Time const duration = cost(action);
        times.start[i] = clock;
        clock += duration;
        times.end[i] = clock;
        times.busy += duration;
        if (times.makespan < clock) times.makespan = clock;
    });
    return times;
}

/// The unit costs of the literature: forward, recompute, input gradient and weight gradient 1 each,
/// a whole backward 2.
constexpr std::int64_t unit_cost(Action const& action) {
    return action.kind == Kind::backward ? 2 : 1;
}

/// The idle share of device time at unit costs. Of a schedule's own programs (before recomputation
/// is put in) this is the bubble of the literature, e.g. (K - 1) / (M + K - 1) for GPipe.
constexpr Ratio bubble(Programs const& programs) {
    auto const times = simulate<std::int64_t>(programs, unit_cost);
    auto const available = static_cast<std::int64_t>(programs.devices()) * times.makespan;
    return ratio(available - times.busy, available);
}

/// The largest number of (cell, micro-batch) pairs that are between the begin of their forward and
/// the end of their backward (of the weight gradient, where that is apart) on a device.
constexpr std::size_t peak_micro_batches(Programs const& programs, std::size_t device) {
    std::size_t in_flight = 0;
    std::size_t peak = 0;
    for (std::size_t i = programs.begin(device); i < programs.end(device); ++i) {
        if (programs[i].kind == Kind::forward && ++in_flight > peak) peak = in_flight;
        if (ends_backward(programs[i].kind)) --in_flight;
    }
    return peak;
}

} // namespace gpipe
