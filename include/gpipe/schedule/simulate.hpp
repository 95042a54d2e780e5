#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/ratio.hpp>
#include <gpipe/schedule/costs.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace gpipe {

/// When each action of a set of programs starts and ends. Time is what the costs are in.
template <class Time> struct SimulatedTimes {
    Array<Time> start; ///< by index of the action among all
    Array<Time> end;   ///< by index of the action among all
    /// The last end.
    Time makespan{};
    Time busy{}; ///< summed over devices
};

/// A bandwidth at which transfers take no time but the latency.
template <class Time> inline constexpr Time unlimited = std::numeric_limits<Time>::max();

namespace detail {

// A device on its way through its program.
template <class Time> struct SimulatedDevice {
    std::size_t next = 0; // action
    std::size_t end = 0;
    std::size_t waits_for = static_cast<std::size_t>(-1); // an arrival, or none
    Time clock{};
};

} // namespace detail

/// Times programs: each device runs its program strictly in order, an action starts when what it
/// needs has arrived. cost(action) gives its duration. From a device to another a boundary's tensor
/// takes cost.bytes(action) / bandwidth, if the cost function has bytes, during which the way from
/// the one to the other is taken: tensors go over it one after the other, in the order in which
/// they are there, those of an action's skips behind its boundary's; `latency` later it has
/// arrived. What the cost function's skips carry (see ChainCosts) is waited for by the forward of
/// the cell that they lead to, and by the backward of the one that they come from. Linear in the
/// number of actions, and of skips, and, where transfers take time, of pairs of devices. The
/// programs must have passed verify().
template <class Time, class Cost>
constexpr SimulatedTimes<Time> simulate(Programs const& programs, Cost const& cost,
                                        Time latency = {}, Time bandwidth = unlimited<Time>) {
    constexpr Time never = std::numeric_limits<Time>::max();
    std::size_t const last = programs.cells() - 1;
    std::size_t const micro_batches = programs.micro_batches();
    SimulatedTimes<Time> times{Array<Time>(programs.size()), Array<Time>(programs.size())};
    // By the cell that waits for it, output or gradient, and micro-batch.
    Array<Time> arrivals(2 * programs.cells() * micro_batches, never);
    Array<detail::SimulatedDevice<Time>> devices(programs.devices());
    Array<std::size_t> ready(programs.devices()); // a stack
    std::size_t ready_count = 0;
    for (std::size_t d = programs.devices(); d-- > 0;) {
        devices[d].next = programs.begin(d);
        devices[d].end = programs.end(d);
        ready[ready_count++] = d;
    }
    constexpr bool has_bytes = requires(Action const& action) { cost.bytes(action); };
    bool const ways = has_bytes && bandwidth != unlimited<Time>;
    Part<SkipCosts<Time>> skips;
    if constexpr (requires { cost.skips.data(); })
        if (ways) skips = {cost.skips.data(), cost.skips.size()};
    std::size_t const device_count = programs.devices();
    Array<Time> way_free(ways ? device_count * device_count : 0); // by the devices from and to
    Array<Time> skips_arrived(2 * skips.size() * micro_batches);  // as arrivals, by skip

    // Addresses: in constant evaluation a call costs as much as the rest of a line.
    Time busy{};
    Action const* const actions = programs.actions();
    Time* const start = times.start.data();
    Time* const end = times.end.data();
    Time* const arrived = arrivals.data();
    std::size_t const* const owner = programs.view().device_of;
    detail::SimulatedDevice<Time>* const all = devices.data();
    while (ready_count > 0) {
        std::size_t const d = ready[--ready_count];
        Time clock = all[d].clock;
        std::size_t i = all[d].next;
        for (std::size_t const stop = all[d].end; i < stop; ++i) {
            Action const& a = actions[i];
            bool const gradient = gives_gradient(a.kind);
            bool const crosses = gradient || a.kind == Kind::forward;
            std::size_t const key = (2 * a.cell + gradient) * micro_batches + a.micro_batch;
            if (crosses && a.cell != (gradient ? last : 0)) {
                if (arrived[key] == never) {
                    all[d].waits_for = key;
                    break;
                }
                if (clock < arrived[key]) clock = arrived[key];
                // The cells between have run, so that of a skip has been sent.
                for (std::size_t s = 0; s < skips.size(); ++s) {
                    if ((gradient ? skips[s].from : skips[s].to) != a.cell) continue;
                    Time const there =
                        skips_arrived[(2 * s + gradient) * micro_batches + a.micro_batch];
                    if (clock < there) clock = there;
                }
            }
            start[i] = clock;
            end[i] = clock += static_cast<Time>(cost(a));
            busy += clock - start[i];
            if (!crosses || a.cell == (gradient ? 0 : last)) continue;
            std::size_t const to = gradient ? key - 2 * micro_batches : key + 2 * micro_batches;
            std::size_t const receiver = owner[gradient ? a.cell - 1 : a.cell + 1];
            Time arrival = clock;
            if (receiver != d) {
                if constexpr (has_bytes) {
                    if (ways) {
                        Time& free = way_free[d * device_count + receiver];
                        if (free < clock) free = clock;
                        arrival = free += cost.bytes(a) / bandwidth;
                    }
                }
                arrival += latency;
            }
            arrived[to] = arrival;
            for (std::size_t s = 0; s < skips.size(); ++s) {
                SkipCosts<Time> const& skip = skips[s];
                if ((gradient ? skip.to : skip.from) != a.cell) continue;
                Time const bytes = gradient ? skip.gradient_bytes : skip.output_bytes;
                std::size_t const other = owner[gradient ? skip.from : skip.to];
                if (bytes == Time{} || other == d) continue;
                Time& free = way_free[d * device_count + other];
                if (free < clock) free = clock;
                free += bytes / bandwidth;
                skips_arrived[(2 * s + gradient) * micro_batches + a.micro_batch] = free + latency;
            }
            if (all[receiver].waits_for == to) ready[ready_count++] = receiver;
        }
        all[d].next = i;
        all[d].clock = clock;
        if (times.makespan < clock) times.makespan = clock;
    }
    times.busy = busy;
    return times;
}

/// The idle share of device time until the last device is done, 0 where no time passes: exact where
/// time is whole numbers.
template <class Time>
constexpr auto bubble(SimulatedTimes<Time> const& times, std::size_t devices) {
    Time const available = static_cast<Time>(devices) * times.makespan;
    if constexpr (std::is_integral_v<Time>)
        return ratio(available - times.busy, available);
    else
        return available > 0 ? (available - times.busy) / available : Time{};
}
/// The idle share of device time at unit costs. Of a schedule's own programs (before recomputation
/// is put in) this is the bubble of the literature, e.g. (K - 1) / (M + K - 1) for GPipe.
GPIPE_INLINE constexpr Ratio bubble(Programs const& programs) {
    return bubble(simulate<std::int64_t>(programs, unit_cost), programs.devices());
}

/// The largest number of (cell, micro-batch) pairs that are between the begin of their forward and
/// the end of their backward (of the weight gradient, where that is apart) on a device.
GPIPE_INLINE constexpr std::size_t peak_micro_batches(Programs const& programs,
                                                      std::size_t device) {
    std::size_t in_flight = 0;
    std::size_t peak = 0;
    for (std::size_t i = programs.begin(device); i < programs.end(device); ++i) {
        if (programs[i].kind == Kind::forward && ++in_flight > peak) peak = in_flight;
        if (ends_backward(programs[i].kind)) --in_flight;
    }
    return peak;
}

} // namespace gpipe
