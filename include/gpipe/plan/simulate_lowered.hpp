#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/lowered.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <cstddef>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Times programs with all their copies: every stream runs its actions in order, an action starts
/// when all that it needs has ended. cost(action) gives durations, those of copies, too; busy does
/// not count these. Linear in the number of actions. Throws std::logic_error if streams wait for
/// each other.
template <class Time, class Cost>
constexpr SimulatedTimes<Time> simulate(Lowered const& lowered, Cost const& cost) {
    Programs const& programs = lowered.programs;
    std::size_t const streams = lowered.streams();
    SimulatedTimes<Time> times{Array<Time>(programs.size()), Array<Time>(programs.size())};
    Array<bool> ended(programs.size());
    Array<std::size_t> waiting(programs.size(), no_action); // by action: a stream that waits for it
    Array<std::size_t> others(streams, no_action);          // by stream: another that does, too
    Array<std::size_t> next(streams);
    Array<Time> clock(streams);
    Array<std::size_t> ready(streams); // a stack
    std::size_t ready_count = 0;
    for (std::size_t s = 0; s < streams; ++s) {
        next[s] = programs.begin(s);
        ready[ready_count++] = s;
    }
    std::size_t left = programs.size();
    while (ready_count > 0) {
        std::size_t const s = ready[--ready_count];
        for (; next[s] < programs.end(s); ++next[s], --left) {
            std::size_t const i = next[s];
            std::size_t missing = no_action;
            for (std::size_t const needed : lowered.needs[i]) {
                if (!ended[needed])
                    missing = needed;
                else if (clock[s] < times.end[needed])
                    clock[s] = times.end[needed];
            }
            if (missing != no_action) {
                others[s] = waiting[missing];
                waiting[missing] = s;
                break;
            }
            Time const duration = cost(programs[i]);
            times.start[i] = clock[s];
            times.end[i] = clock[s] += duration;
            ended[i] = true;
            if (!is_copy(programs[i].kind)) times.busy += duration;
            if (times.makespan < clock[s]) times.makespan = clock[s];
            for (std::size_t w = waiting[i]; w != no_action; w = others[w])
                ready[ready_count++] = w;
        }
    }
    if (left > 0) throw std::logic_error("gpipe: the programs wait for each other");
    return times;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
