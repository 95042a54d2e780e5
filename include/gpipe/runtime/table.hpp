#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/locate.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/runtime/lanes.hpp>
#include <gpipe/runtime/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// A merged program with all addresses.
struct StepTable {
    Array<std::size_t> begin;            ///< by lane; one more at the end
    Array<Step> steps;                   ///< lane by lane
    Array<Wait> waits;                   ///< of all steps
    Array<std::byte*> skips;             ///< of all steps: see Frame::skips
    std::uint32_t longest = 0;           ///< positions on the busiest stream
    std::size_t streams = 1;             ///< how many
    Array<std::size_t> stream_of_device; ///< that computes
    Array<std::byte*> arenas;            ///< by device: where they begin; then the host's memory
    bool evaluation = false;             ///< forwards alone

    /// How many there are.
    std::size_t lanes() const { return begin.size() - 1; }
    /// Whether this lane puts work on this stream: one lane serves all, several are a stream each.
    bool serves(std::size_t lane, std::size_t stream) const {
        return lanes() == 1 || stream == lane;
    }
    /// What a step waits for in this step, and in the step before.
    ///@{
    Part<Wait> waits_of(Step const& step) const {
        return {waits.data() + step.first_wait, step.waits};
    }
    Part<Wait> waits_before(Step const& step) const {
        return {waits.data() + step.first_wait + step.waits, step.waits_before};
    }
    ///@}
    /// Where a step finds an operand.
    ///@{
    std::byte*& address(Step& step, Operand const& operand) {
        return operand.skip > 0 ? skips[step.first_skip + operand.skip - 1] : step[operand.region];
    }
    std::byte* address(Step const& step, Operand const& operand) const {
        return operand.skip > 0 ? skips[step.first_skip + operand.skip - 1] : step[operand.region];
    }
    ///@}
};

namespace detail {

GPIPE_INLINE Step base_step(Programs const& programs, LaneStep const& lane_step, std::size_t rank) {
    Action const& a = programs[lane_step.action];
    Step step;
    step.kind = a.kind;
    step.publishes = step.more = lane_step.publishes;
    step.cell = a.cell;
    step.micro_batch = a.micro_batch;
    step.stream = lane_step.stream;
    step.position = lane_step.position;
    step.first_wait = lane_step.first_wait;
    step.waits = static_cast<std::uint16_t>(lane_step.waits);
    step.rank = static_cast<std::uint32_t>(rank);
    step.device = static_cast<std::uint32_t>(programs.device_of(a.cell));
    step.action = lane_step.action;
    step.is_first = computes(a.kind) && a.cell == 0;
    step.is_last = computes(a.kind) && a.cell + 1u == programs.cells();
    return step;
}

// The place of each action in the linear order of the devices' programs, whatever copies there are;
// of a copy, that of the last who made what it brings, of a fetch that of the first action that
// finds that: whatever fails before, they run or are skipped together. The end is behind all.
GPIPE_INLINE Array<std::size_t> ranks(Lowered const& lowered, Operands const& operands) {
    Programs const& programs = lowered.programs;
    Programs const actions = lowered.computing();
    Array<std::size_t> rank(programs.size(), actions.size());
    auto const order = linear_order(actions);
    for (std::size_t r = 0; r < order.size(); ++r) rank[order[r]] = r;
    // The first who computes with a value.
    Array<std::size_t> finder(operands.values.size(), no_action);
    for (std::size_t i = 0; i < actions.size(); ++i)
        for (Operand const& operand : operands[i])
            if (operand.use == Use::read)
                finder[operand.value] = std::min(finder[operand.value], rank[i]);
    for (std::uint32_t const i : lowered.order) {
        if (!is_copy(programs[i].kind)) continue;
        bool const fetches = programs[i].kind == Kind::fetch;
        if (!fetches) rank[i] = 0;
        for (Operand const& operand : operands[i])
            if (fetches && operand.use != Use::read)
                rank[i] = std::min(rank[i], finder[operand.value]);
            else if (!fetches && operand.use == Use::read)
                rank[i] = std::max(rank[i], rank[operands.values[operand.value].writer]);
    }
    return rank;
}

GPIPE_INLINE constexpr std::uint32_t calls_at(std::size_t cell, CallList list) {
    return static_cast<std::uint32_t>(cell * call_list_count + static_cast<std::size_t>(list));
}
GPIPE_INLINE constexpr CallList list_of(Kind kind) {
    return kind == Kind::forward          ? CallList::forward
           : kind == Kind::recompute      ? CallList::recompute
           : kind == Kind::input_gradient ? CallList::input_gradient
           : kind == Kind::backward       ? CallList::backward
                                          : CallList::weight_gradient;
}

// The place of the cell's output where that stays inside.
GPIPE_INLINE std::byte* own_output(Step const& step, MemoryPlan const& plan) {
    CellLayout const& layout = plan.layouts[step.cell];
    ReversalLayout const& reversal = plan.reversals[step.cell];
    Place const& place = reversal.calls.empty() ? layout.places[layout.places.size() - 1].output
                         : step.is_last         ? reversal.output
                                                : reversal.again;
    return step[place.region] + place.offset;
}

// What is to be called, and for which phase.
GPIPE_INLINE void fill_calls(Step& step, bool passes, bool evaluation) {
    step.phase = evaluation                          ? Phase::evaluate
                 : step.kind == Kind::forward        ? Phase::forward
                 : step.kind == Kind::recompute      ? Phase::recompute
                 : step.kind == Kind::input_gradient ? Phase::input_gradient
                 : step.kind == Kind::backward       ? Phase::backward
                                                     : Phase::weight_gradient;
    step.calls = calls_at(step.cell, evaluation                   ? CallList::evaluate
                                     : passes                     ? CallList::pass
                                     : step.kind == Kind::offload ? CallList::offload
                                     : step.kind == Kind::fetch   ? CallList::fetch
                                                                  : list_of(step.kind));
}

} // namespace detail

/// The table of a training step, or of an `evaluation` over the same memory: the actions of
/// `lowered` with the addresses of all their `operands`. `arenas`: where each device's arena
/// begins; `host`: the memory that copies go to or through.
GPIPE_INLINE StepTable step_table(MemoryPlan const& plan, Lowered const& lowered,
                                  Operands const& operands, Placement const& placement,
                                  Lanes const& lanes, Array<std::byte*> const& arenas,
                                  std::byte* host, bool evaluation = false) {
    auto const rank = detail::ranks(lowered, operands);
    Located const located(plan, operands, evaluation);
    StepTable table;
    table.begin = lanes.begin;
    table.waits = lanes.waits;
    table.longest = static_cast<std::uint32_t>(lanes.longest);
    table.evaluation = evaluation;
    table.streams = placement.streams;
    table.stream_of_device = placement.stream;
    table.arenas = Array<std::byte*>(arenas.size() + 1);
    for (std::size_t d = 0; d < arenas.size(); ++d) table.arenas[d] = arenas[d];
    table.arenas[arenas.size()] = host;
    table.steps = Array<Step>(lanes.steps.size());
    std::uint32_t skips = 0;
    for (LaneStep const& step : lanes.steps)
        if (Action const& a = lowered.programs[step.action]; computes(a.kind))
            skips += 2u * plan.skip_slots[a.cell];
    table.skips = Array<std::byte*>(skips);
    skips = 0;
    for (std::size_t i = 0; i < lanes.steps.size(); ++i) {
        std::uint32_t const action = lanes.steps[i].action;
        Step& step = table.steps[i] =
            detail::base_step(lowered.programs, lanes.steps[i], rank[action]);
        bool const computing = computes(step.kind);
        // Layers may add offsets to where they have nothing.
        if (computing)
            for (std::size_t r = 0; r <= static_cast<std::size_t>(Region::output); ++r)
                step.base[r] = arenas[step.device];
        step.first_skip = skips;
        if (computing) skips += 2u * plan.skip_slots[step.cell];
        bool gives = false;  // its output to anybody outside
        bool passes = false; // whether no backward will read what it leaves
        for (Operand const& operand : operands[action]) {
            Value const& value = operands.values[operand.value];
            Location const& at = located[operand.value];
            if (at.begin == at.end && is_of_edge(value.holds)) continue;
            if (!has_bytes(value.holds)) continue;
            table.address(step, operand) =
                (at.space < arenas.size() ? arenas[at.space] : host) + at.begin;
            gives = gives || (operand.region == Region::output && operand.skip == 0);
            passes = passes ||
                     (value.holds == Holds::kept && step.kind == Kind::forward &&
                      operands.number(Holds::kept, step.cell, step.micro_batch) != operand.value);
        }
        if (is_transfer(step.kind) || step.kind == Kind::reduce) {
            step.calls = lowered.programs[action].edge;
            continue;
        }
        if (!computing && !is_offload(step.kind)) continue;
        detail::fill_calls(step, passes, evaluation);
        if (!computing) continue;
        step[Region::temporary] = arenas[step.device] + plan.temporaries_at(step.cell);
        if (!gives) step[Region::output] = detail::own_output(step, plan);
        step.delivers = evaluation && step.is_last;
        step.more = step.more || step.delivers;
    }
    return table;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
