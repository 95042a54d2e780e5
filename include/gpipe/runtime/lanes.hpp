#pragma once

#include <gpipe/balance/partition.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/lowered.hpp>
#include <gpipe/plan/messages.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/step.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// A mark to wait for: `stream` must have come to `position` (1 for its first action).
struct Wait {
    std::uint32_t stream = 0;   ///< whose mark
    std::uint32_t position = 0; ///< from 1
};

/// The programs of all devices merged for a run: one linear program per lane, the hand-written loop
/// of one thread. Every program keeps its order; waits remain only where what is
/// needed runs on another stream, marks only where somebody waits.
struct Lanes {
    Array<std::size_t> begin; ///< by lane; one more at the end
    Array<Step> steps;        ///< lane by lane, without places and addresses
    Array<Wait> waits;        ///< of all steps
    double makespan = 0;      ///< by the costs that merged them
    double busy = 0;          ///< sum of the costs of all actions
    std::size_t longest = 0;  ///< the most positions on a stream

    /// How many there are.
    constexpr std::size_t lanes() const { return begin.size() - 1; }
};

/// Which lane walks each program, and which stream its work goes on.
struct Placement {
    std::size_t lanes = 1;     ///< how many
    std::size_t streams = 1;   ///< how many
    Array<std::size_t> lane;   ///< by program
    Array<std::size_t> stream; ///< by program
};

/// Puts programs on lanes, `lanes` on each rank, or as many as it has. A device that enqueues has
/// one walker and a stream per program; else every lane is a stream and walks neighbouring devices,
/// with all that copies for them, cut by cost as layers are into cells.
template <class Cost>
Placement place_programs(Lowered const& lowered, Ranks const& ranks, std::size_t lanes,
                         bool enqueues, Cost const& cost) {
    Programs const& programs = lowered.programs;
    std::size_t const streams = lowered.streams();
    std::size_t all = 0;
    for (std::size_t r = 0; r < ranks.count; ++r) all += ranks.lanes(r, lanes);
    Placement result{all, enqueues ? streams : all, Array<std::size_t>(streams),
                     Array<std::size_t>(streams)};
    if (enqueues) {
        for (std::size_t s = 0; s < streams; ++s) {
            result.stream[s] = s;
            result.lane[s] = ranks.of(lowered.device[s]);
        }
        return result;
    }
    Array<double> work(lowered.devices());
    for (Action const& a : programs)
        if (computes(a.kind)) work[programs.device_of(a.cell)] += cost(a);
    Array<std::size_t> begin(all + 1);
    Array<std::size_t> lane_of(work.size());
    std::size_t first = 0; // of the rank
    for (std::size_t r = 0; r < ranks.count; first += ranks.lanes(r++, lanes)) {
        std::size_t const own = ranks.lanes(r, lanes), here = ranks.begin(r);
        cut_by_bottleneck(work.data() + here, ranks.end(r) - here, own, begin.data());
        for (std::size_t lane = 0; lane < own; ++lane)
            for (std::size_t d = begin[lane]; d < begin[lane + 1]; ++d)
                lane_of[here + d] = first + lane;
    }
    for (std::size_t s = 0; s < streams; ++s)
        result.lane[s] = result.stream[s] = lane_of[lowered.device[s]];
    return result;
}

/// Merges programs onto lanes by list scheduling: again and again the action that can start first;
/// of several, the one that is furthest along its micro-batch's way, since others wait for it.
/// cost(action) gives durations; all but calls of layers takes no time. Actions are merged in an
/// order in which nothing is waited for that has not been put on its stream. What receives a
/// message comes right behind what sends it. The end of a step, on the streams of its devices,
/// comes behind all else unless it is immediate; but for the sums over replicas.
template <class Cost>
[[gnu::cold]] constexpr Lanes merge_lanes(Lowered const& lowered, Placement const& placement,
                                          Cost cost) {
    Programs const& programs = lowered.programs;
    std::size_t const cells = programs.cells();
    Array<std::size_t> next(programs.devices());
    for (std::size_t d = 0; d < programs.devices(); ++d) next[d] = programs.begin(d);
    Array<std::size_t> step_of(programs.size(), no_action); // by action: place in `merged`
    Array<double> end(programs.size());
    Array<double> clock(placement.streams);
    // Of the next of each program: how many needs are merged, and when the last of these ends.
    Array<std::size_t> seen(programs.devices());
    Array<double> ends_at(programs.devices());
    Array<std::uint32_t> count(placement.streams);
    Array<Step> merged(programs.size());
    Array<std::size_t> lane_of(programs.size()); // by place in `merged`

    Array<std::uint32_t> const receives = messages_of(lowered);
    Array<std::size_t> program_of(receives.size());
    for (std::size_t d = 0; d < programs.devices() && !receives.empty(); ++d)
        for (std::size_t i = programs.begin(d); i < programs.end(d); ++i) program_of[i] = d;
    // Whether nothing but the send is left to wait for, and so on for what comes right behind.
    auto const receivable = [&](std::size_t send) {
        bool ready = true;
        for (std::size_t ahead = 0; receives[send] != no_message; send = receives[send]) {
            std::size_t const received = receives[send], program = program_of[received];
            ahead = program == program_of[send] ? ahead + 1 : 0;
            ready = ready && received == next[program] + ahead;
            for (std::size_t const needed : lowered.needs[received])
                ready = ready && (needed == send || step_of[needed] != no_action);
        }
        return ready;
    };
    std::size_t received = no_action;

    auto const owner = [&](std::size_t d, Action const& a) {
        return d < lowered.streams() ? d
                                     : lowered.stream_of_end(a.kind, programs.device_of(a.cell));
    };
    Lanes result;
    result.waits = Array<Wait>(lowered.needs.count());
    std::size_t waits = 0;
    std::size_t steps = 0; // merged, of those that the end is behind
    for (std::size_t n = 0; n < programs.size(); ++n) {
        std::size_t best = no_action;
        double best_start = 0;
        std::size_t best_way = 0;
        for (std::size_t d = 0; d < programs.devices(); ++d) {
            if (next[d] == programs.end(d)) continue;
            std::size_t const i = next[d];
            Action const& a = programs[i];
            Part<std::uint32_t> const needs = lowered.needs[i];
            for (; seen[d] < needs.size() && step_of[needs[seen[d]]] != no_action; ++seen[d])
                if (ends_at[d] < end[needs[seen[d]]]) ends_at[d] = end[needs[seen[d]]];
            if (seen[d] < needs.size()) continue;
            double const free = clock[placement.stream[owner(d, a)]];
            double const start = free < ends_at[d] ? ends_at[d] : free;
            if (best != no_action && start > best_start) continue;
            bool ready = d < lowered.streams() || lowered.immediate || adds_replicas(a.kind) ||
                         steps == programs.begin(d);
            if (!receives.empty() && receives[i] != no_message) ready = ready && receivable(i);
            if (!ready || (received != no_action && received != i)) continue;
            std::size_t const way = !computes(a.kind)         ? 2 * cells // everybody waits for it
                                    : a.kind == Kind::forward ? a.cell
                                    : a.kind == Kind::weight_gradient ? 0 // nobody
                                                                      : 2 * cells - 1 - a.cell;
            if (best == no_action || start < best_start ||
                (start == best_start && way > best_way)) {
                best = d;
                best_start = start;
                best_way = way;
            }
        }
        if (best == no_action) throw std::logic_error("gpipe: the programs wait for each other");
        std::size_t const i = next[best]++;
        seen[best] = 0;
        ends_at[best] = 0;
        steps += best < lowered.streams();
        bool const sends = !receives.empty() && receives[i] != no_message;
        received = sends ? receives[i] : no_action;
        Action const& a = programs[i];
        std::size_t const stream = placement.stream[owner(best, a)];
        double const duration = computes(a.kind) ? cost(a) : 0;
        end[i] = clock[stream] = best_start + duration;
        result.busy += duration;
        if (result.makespan < end[i]) result.makespan = end[i];

        Step step;
        step.kind = a.kind;
        step.cell = a.cell;
        step.micro_batch = a.micro_batch;
        step.action = static_cast<std::uint32_t>(i);
        step.device = static_cast<std::uint32_t>(programs.device_of(a.cell));
        step.stream = static_cast<std::uint32_t>(stream);
        step.position = ++count[stream];
        step.first_wait = static_cast<std::uint32_t>(waits);
        for (std::size_t const needed : lowered.needs[i]) {
            Step& other = merged[step_of[needed]];
            if (other.stream == stream) continue;
            other.publishes = other.more = true;
            result.waits[waits++] = {other.stream, other.position};
        }
        step.waits = static_cast<std::uint16_t>(waits - step.first_wait);
        step_of[i] = n;
        merged[n] = step;
        lane_of[n] = placement.lane[owner(best, a)];
    }

    // Sorted by lane, in the order of merging.
    result.begin = Array<std::size_t>(placement.lanes + 1);
    result.steps = Array<Step>(programs.size());
    for (std::size_t const lane : lane_of) ++result.begin[lane + 1];
    for (std::size_t lane = 0; lane < placement.lanes; ++lane)
        result.begin[lane + 1] += result.begin[lane];
    Array<std::size_t> at = result.begin;
    for (std::size_t n = 0; n < merged.size(); ++n) result.steps[at[lane_of[n]]++] = merged[n];
    for (std::size_t s = 0; s < placement.streams; ++s)
        if (result.longest < count[s]) result.longest = count[s];
    return result;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
