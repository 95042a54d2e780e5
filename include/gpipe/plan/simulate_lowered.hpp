#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/messages.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

namespace detail {

// Every stream runs its actions in order, an action starts when all that it needs has ended:
// each_need(i, f) calls f(action) for that. What receives a message, see messages_of(), runs with
// what sends it, which waits until both can. A stream that waits is looked at again only when what
// it waits for has run, so time is linear in the number of actions.
template <class Time, class EachNeed, class Cost>
constexpr SimulatedTimes<Time> run_streams(Lowered const& lowered,
                                           Array<std::uint32_t> const& receives,
                                           EachNeed const& each_need, Cost const& cost) {
    Programs const& programs = lowered.programs;
    std::size_t const streams = lowered.streams();
    constexpr std::uint32_t nobody = 0xFFFFFFFF;
    SimulatedTimes<Time> times{Array<Time>(programs.size()), Array<Time>(programs.size())};
    Array<bool> ended(programs.size());
    Array<std::uint32_t> waiting(programs.size(), nobody); // by action: a stream that waits for it
    Array<std::uint32_t> others(streams, nobody);          // by stream: another that does, too
    Array<std::uint32_t> stream_of(receives.size());
    Array<std::size_t> next(streams);
    Array<Time> clock(streams);
    Array<std::uint32_t> ready(streams); // a stack
    std::size_t ready_count = 0;
    for (std::uint32_t s = 0; s < streams; ++s) {
        next[s] = programs.begin(s);
        ready[ready_count++] = s;
        for (std::size_t i = next[s]; i < programs.end(s) && !receives.empty(); ++i)
            stream_of[i] = s;
    }
    std::size_t left = programs.size();
    auto const run_next = [&](std::size_t s, Time start, Time end) {
        std::size_t const i = next[s]++;
        times.start[i] = start;
        times.end[i] = clock[s] = end;
        ended[i] = true;
        --left;
        for (std::uint32_t w = waiting[i]; w != nobody; w = others[w]) ready[ready_count++] = w;
    };
    while (ready_count > 0) {
        std::uint32_t const s = ready[--ready_count];
        while (next[s] < programs.end(s)) {
            std::size_t const i = next[s];
            std::size_t missing = no_action;
            Time now = clock[s];
            each_need(i, [&](std::size_t needed) {
                if (!ended[needed])
                    missing = needed;
                else if (now < times.end[needed])
                    now = times.end[needed];
            });
            std::uint32_t const received = receives.empty() ? no_message : receives[i];
            if (received != no_message) { // who receives has to be there, too
                std::uint32_t const r = stream_of[received];
                if (now < clock[r]) now = clock[r];
                if (next[r] < received) missing = received - 1;
            }
            if (missing != no_action) {
                others[s] = waiting[missing];
                waiting[missing] = s;
                break;
            }
            auto const duration = static_cast<Time>(cost(programs[i]));
            Time const end = now + duration;
            if (!is_copy(programs[i].kind)) times.busy += duration;
            if (times.makespan < end) times.makespan = end;
            run_next(s, now, end);
            if (received != no_message) run_next(stream_of[received], now, end);
        }
    }
    if (left > 0) throw std::logic_error("gpipe: the programs wait for each other");
    return times;
}

} // namespace detail

/// Times programs with all their copies: every stream runs its actions in order, an action starts
/// when all that it needs has ended. cost(action) gives durations, those of copies, too; busy does
/// not count these. Linear in the number of actions. Throws std::logic_error if streams wait for
/// each other.
template <class Time, class Cost>
constexpr SimulatedTimes<Time> simulate(Lowered const& lowered, Cost const& cost) {
    auto const each_need = [&](std::size_t i, auto const& need) {
        for (std::size_t const needed : lowered.needs[i]) need(needed);
    };
    return detail::run_streams<Time>(lowered, {}, each_need, cost);
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
