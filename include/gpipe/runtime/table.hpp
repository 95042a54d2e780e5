#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/locate.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/runtime/calls.hpp>
#include <gpipe/runtime/lanes.hpp>
#include <gpipe/runtime/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// A merged program with all addresses.
struct StepTable {
    Array<std::size_t> begin;            ///< by lane; one more at the end
    Array<Step> steps;                   ///< lane by lane
    Array<Wait> waits;                   ///< of all steps
    Array<std::byte*> addresses;         ///< of all steps
    std::uint32_t longest = 0;           ///< positions on the busiest stream
    std::size_t actions = 0;             ///< that the steps are of, of all ranks
    std::size_t streams = 1;             ///< how many
    Array<std::size_t> stream_of_device; ///< that computes
    Array<std::byte*> arenas;            ///< by device: where they begin; then the host's memory
    bool evaluation = false;             ///< forwards alone
    bool repeats = false;                ///< whether it may begin while a walk of it is under way
    /// Of an evaluation, the lane whose last action is behind all losses; else none.
    std::size_t sums_up = static_cast<std::size_t>(-1);

    /// How many there are.
    std::size_t lanes() const { return begin.size() - 1; }
    /// Whether this lane puts work on this stream: one lane serves all, several are a stream each.
    bool serves(std::size_t lane, std::size_t stream) const {
        return lanes() == 1 || stream == lane;
    }
    /// What a step waits for in this step, and in the step before.
    ///@{
    [[gnu::always_inline]] Part<Wait> waits_of(Step const& step) const {
        return {waits.data() + step.first_wait, step.waits};
    }
    [[gnu::always_inline]] Part<Wait> waits_before(Step const& step) const {
        return {waits.data() + step.first_wait + step.waits, step.waits_before};
    }
    ///@}
    /// A step's addresses, by Region.
    ///@{
    [[gnu::always_inline]] std::byte** of(Step const& step) {
        return addresses.data() + step.first_address;
    }
    [[gnu::always_inline]] std::byte* const* of(Step const& step) const {
        return addresses.data() + step.first_address;
    }
    [[gnu::always_inline]] std::byte* of(Step const& step, Region region) const {
        return of(step)[static_cast<std::size_t>(region)];
    }
    ///@}
};

namespace detail {

// The place of each action in the linear order of the devices' programs, whatever copies there are;
// of a copy, that of the last who made what it brings, of a fetch that of the first action that
// finds that: whatever fails before, they run or are skipped together. The end is behind all.
GPIPE_INLINE Array<std::size_t> places(Lowered const& lowered, Operands const& operands) {
    Programs const& programs = lowered.programs;
    Programs const actions = lowered.computing();
    Array<std::size_t> place(programs.size(), actions.size());
    auto const order = linear_order(actions);
    for (std::size_t r = 0; r < order.size(); ++r) place[order[r]] = r;
    // The first who computes with a value.
    Array<std::size_t> finder(operands.values.size(), no_action);
    for (std::size_t i = 0; i < actions.size(); ++i)
        for (Operand const& operand : operands[i])
            if (operand.use == Use::read)
                finder[operand.value] = std::min(finder[operand.value], place[i]);
    for (std::uint32_t const i : lowered.order) {
        if (!is_copy(programs[i].kind)) continue;
        bool const fetches = programs[i].kind == Kind::fetch;
        if (!fetches) place[i] = 0;
        for (Operand const& operand : operands[i])
            if (fetches && operand.use != Use::read)
                place[i] = std::min(place[i], finder[operand.value]);
            else if (!fetches && operand.use == Use::read)
                place[i] = std::max(place[i], place[operands.values[operand.value].writer]);
    }
    return place;
}

// How many addresses an action has, and which way its cell goes.
struct ActionTensors {
    std::size_t addresses = 0;
    std::uint8_t way = 0;
};
GPIPE_INLINE ActionTensors tensors_of(MemoryPlan const& plan, Action const& a, bool evaluation) {
    if (ends_step(a.kind)) return {};
    if (!computes(a.kind)) return {static_cast<std::size_t>(Region::inside)};
    std::uint8_t const way = evaluation ? way_evaluates : plan.parts.way(a.cell, a.micro_batch);
    return {first_part_address(plan.cells[a.cell]) +
                plan.parts.of(a.cell, way).parts[stage_of(a.kind)].size(),
            way};
}
GPIPE_INLINE Phase phase_of(Kind kind, bool evaluation) {
    return evaluation                     ? Phase::evaluate
           : kind == Kind::forward        ? Phase::forward
           : kind == Kind::recompute      ? Phase::recompute
           : kind == Kind::input_gradient ? Phase::input_gradient
           : kind == Kind::backward       ? Phase::backward
                                          : Phase::weight_gradient;
}
// Of the chain, in an evaluation: what its loss reads.
GPIPE_INLINE std::size_t own_output(MemoryPlan const& plan, Located const& located,
                                    PartTable const& parts, Step const& step) {
    CellWay const& way = plan.parts.of(step.cell, way_evaluates);
    TensorPlace const place = way.places[way.calls.calls[way.calls.calls.size() - 1].y];
    std::size_t const micro_batches = plan.lowered.programs.micro_batches();
    return located[parts.begin[step.cell * micro_batches + step.micro_batch] + place.part].begin +
           place.offset;
}

} // namespace detail

/// The table of a training step, or of an `evaluation` over the same memory: the actions of
/// `lowered` with the addresses of all their `operands`. `arenas`: where each device's arena
/// begins; `host`: the memory that copies go to or through.
GPIPE_INLINE StepTable step_table(MemoryPlan const& plan, Lowered const& lowered,
                                  Operands const& operands, Placement const& placement, Lanes lanes,
                                  Array<std::byte*> const& arenas, std::byte* host,
                                  bool evaluation = false) {
    auto const place = detail::places(lowered, operands);
    Located const located(plan, operands, evaluation);
    PartTable const parts = plan.part_table(evaluation);
    StepTable table;
    table.begin = std::move(lanes.begin);
    table.steps = std::move(lanes.steps);
    table.waits = std::move(lanes.waits);
    table.longest = static_cast<std::uint32_t>(lanes.longest);
    table.actions = lowered.programs.size();
    table.evaluation = evaluation;
    table.streams = placement.streams;
    table.stream_of_device = placement.stream;
    if (evaluation) {
        Programs const& programs = lowered.programs;
        table.sums_up = placement.lane[programs.device_of(programs.cells() - 1)];
    }
    table.arenas = Array<std::byte*>(arenas.size() + 1);
    for (std::size_t d = 0; d < arenas.size(); ++d) table.arenas[d] = arenas[d];
    table.arenas[arenas.size()] = host;
    std::size_t addresses = 0;
    for (Step const& step : table.steps)
        addresses += detail::tensors_of(plan, lowered.programs[step.action], evaluation).addresses;
    table.addresses = Array<std::byte*>(addresses);
    addresses = 0;
    for (Step& step : table.steps) {
        Action const& action = lowered.programs[step.action];
        auto const tensors = detail::tensors_of(plan, action, evaluation);
        step.place = static_cast<std::uint32_t>(place[step.action]);
        step.first_address = static_cast<std::uint32_t>(addresses);
        addresses += tensors.addresses;
        step.calls = action.edge;
        if (ends_step(step.kind)) continue;
        // Layers may add offsets to where they have nothing.
        std::byte** const at = table.of(step);
        for (Region const r : {Region::nothing, Region::input, Region::output, Region::retained})
            at[static_cast<std::size_t>(r)] = arenas[step.device];
        for (Operand const& operand : operands[step.action]) {
            Span const& there = located[operand.value];
            if (there.begin < there.end)
                at[operand.address] =
                    (there.space < arenas.size() ? arenas[there.space] : host) + there.begin;
        }
        if (!computes(step.kind)) continue;
        step.phase = detail::phase_of(step.kind, evaluation);
        step.calls = static_cast<std::uint32_t>(step.cell * call_list_count +
                                                call_list(tensors.way, stage_of(step.kind)));
        if (!evaluation || step.cell + 1u < lowered.programs.cells()) continue;
        at[static_cast<std::size_t>(Region::output)] =
            arenas[step.device] + detail::own_output(plan, located, parts, step);
        step.delivers = step.more = true;
    }
    return table;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
