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
    constexpr std::uint32_t nobody = 0xFFFFFFFF;
    Programs const& programs = lowered.programs;
    std::size_t const cells = programs.cells();
    struct Program {
        std::size_t next = 0;  // action
        std::size_t seen = 0;  // so many of its needs are merged,
        double ends_at = 0;    // the last of which ends then
        bool open = false;     // whether all are, and there is one; then also:
        std::size_t owner = 0; // the program on whose stream it runs
        std::size_t way = 0;   // how far it is along its micro-batch's
    };
    Array<Program> all(programs.devices());
    Array<std::uint32_t> step_of(programs.size(), nobody); // by action: place in `result`
    Array<std::uint32_t> waiting(programs.size(), nobody); // by action: a program that waits for it
    Array<std::uint32_t> others(programs.devices());       // by program: another that does, too
    Array<double> end(programs.size());
    Array<double> clock(placement.streams);
    Array<std::uint32_t> count(placement.streams);

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
            ready = ready && received == all[program].next + ahead;
            for (std::size_t const needed : lowered.needs[received])
                ready = ready && (needed == send || step_of[needed] != nobody);
        }
        return ready;
    };
    std::size_t received = no_action;

    auto const owner = [&](std::size_t d, Action const& a) {
        return d < lowered.streams() ? d
                                     : lowered.stream_of_end(a.kind, programs.device_of(a.cell));
    };
    // Opens the program, or has it wait for the first need that is not merged.
    auto const look = [&](std::size_t d) {
        Program& program = all[d];
        program.open = false;
        if (program.next == programs.end(d)) return;
        Part<std::uint32_t> const needs = lowered.needs[program.next];
        for (; program.seen < needs.size(); ++program.seen) {
            std::uint32_t const needed = needs[program.seen];
            if (step_of[needed] == nobody) {
                others[d] = waiting[needed];
                waiting[needed] = static_cast<std::uint32_t>(d);
                return;
            }
            if (program.ends_at < end[needed]) program.ends_at = end[needed];
        }
        Action const& a = programs[program.next];
        program.open = true;
        program.owner = owner(d, a);
        program.way = !computes(a.kind)                 ? 2 * cells // everybody waits for it
                      : a.kind == Kind::forward         ? a.cell
                      : a.kind == Kind::weight_gradient ? 0 // nobody
                                                        : 2 * cells - 1 - a.cell;
    };
    Lanes result;
    result.begin = Array<std::size_t>(placement.lanes + 1);
    for (std::size_t d = 0; d < programs.devices(); ++d) {
        all[d].next = programs.begin(d);
        look(d);
        for (Action const& a : programs.program(d)) ++result.begin[placement.lane[owner(d, a)] + 1];
    }
    for (std::size_t lane = 0; lane < placement.lanes; ++lane)
        result.begin[lane + 1] += result.begin[lane];
    Array<std::size_t> at = result.begin;
    result.steps = Array<Step>(programs.size());
    result.waits = Array<Wait>(lowered.needs.count());
    std::size_t waits = 0;
    std::size_t steps = 0; // merged, of those that the end is behind
    for (std::size_t n = 0; n < programs.size(); ++n) {
        std::size_t best = no_action;
        double best_start = 0;
        for (std::size_t d = 0; d < programs.devices(); ++d) {
            Program const& program = all[d];
            if (!program.open) continue;
            double const free = clock[placement.stream[program.owner]];
            double const start = free < program.ends_at ? program.ends_at : free;
            if (best != no_action &&
                (start > best_start || (start == best_start && program.way <= all[best].way)))
                continue;
            std::size_t const i = program.next;
            bool ready = d < lowered.streams() || lowered.immediate ||
                         adds_replicas(programs[i].kind) || steps == programs.begin(d);
            if (!receives.empty() && receives[i] != no_message) ready = ready && receivable(i);
            if (!ready || (received != no_action && received != i)) continue;
            best = d;
            best_start = start;
        }
        if (best == no_action) throw std::logic_error("gpipe: the programs wait for each other");
        std::size_t const i = all[best].next++;
        all[best].seen = 0;
        all[best].ends_at = 0;
        steps += best < lowered.streams();
        bool const sends = !receives.empty() && receives[i] != no_message;
        received = sends ? receives[i] : no_action;
        Action const& a = programs[i];
        std::size_t const stream = placement.stream[all[best].owner];
        double const duration = computes(a.kind) ? cost(a) : 0;
        end[i] = clock[stream] = best_start + duration;
        result.busy += duration;
        if (result.makespan < end[i]) result.makespan = end[i];

        std::size_t const place = at[placement.lane[all[best].owner]]++;
        Step& step = result.steps[place];
        step.kind = a.kind;
        step.cell = a.cell;
        step.micro_batch = a.micro_batch;
        step.action = static_cast<std::uint32_t>(i);
        step.device = static_cast<std::uint32_t>(programs.device_of(a.cell));
        step.stream = static_cast<std::uint32_t>(stream);
        step.position = ++count[stream];
        step.first_wait = static_cast<std::uint32_t>(waits);
        for (std::size_t const needed : lowered.needs[i]) {
            Step& other = result.steps[step_of[needed]];
            if (other.stream == stream) continue;
            other.publishes = other.more = true;
            result.waits[waits++] = {other.stream, other.position};
        }
        step.waits = static_cast<std::uint16_t>(waits - step.first_wait);
        step_of[i] = static_cast<std::uint32_t>(place);
        look(best);
        for (std::uint32_t d = waiting[i]; d != nobody;) {
            std::uint32_t const other = others[d];
            look(d);
            d = other;
        }
    }
    for (std::size_t s = 0; s < placement.streams; ++s)
        if (result.longest < count[s]) result.longest = count[s];
    return result;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
