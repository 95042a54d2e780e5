#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/value_placer.hpp>
#include <gpipe/plan/evaluation.hpp>

#include <algorithm>
#include <cstddef>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// Whether some of it is moved, and who writes there waits for that.
GPIPE_INLINE bool moves_inputs(MemoryPlan const& plan, std::size_t device) {
    for (std::size_t const c : plan.lowered.programs.cells_of(device))
        if (plan.cells[c].input_moves) return true;
    return false;
}

// Looks for a room that takes fewer bytes than slots and parts, device by device. An evaluation has
// it for itself, and waits no more than it must.
[[gnu::cold]] GPIPE_INLINE void place_values(MemoryPlan& plan, std::size_t slack) {
    constexpr std::size_t most = std::size_t{1} << 17; // values, and else it would take too long
    std::size_t const looks = looks_per_device(plan.parts.height.size());
    if (plan.operands.values.size() > most ||
        plan.lowered.programs.size() * plan.lowered.streams() > 16 * most)
        return;
    PartTable const parts = plan.part_table(false), evaluated = plan.part_table(true);
    Lowered const evaluation = evaluation_of(plan.lowered);
    Operands const operands = find_operands(evaluation, plan.cells, evaluated);
    ValuePlacer in_steps(plan, plan.lowered, plan.operands, parts);
    ValuePlacer in_evaluations(plan, evaluation, operands, evaluated);
    plan.room.height = plan.evaluation_room.height = Array<std::size_t>(plan.parts.height.size());
    plan.room.at = Array<std::size_t>(plan.operands.values.size());
    plan.evaluation_room.at = Array<std::size_t>(operands.values.size());
    for (std::size_t d = 0; d < plan.parts.height.size(); ++d) {
        if (moves_inputs(plan, d)) continue;
        PlacedValues step = in_steps.in_slots(d);
        std::size_t const slots = step.height - plan.parts.height[d];
        std::size_t const before = std::max(step.height, slots + plan.parts.evaluation_height[d]);
        in_steps.place(d, slack, 0, looks, step);
        PlacedValues other{{}, ValuePlacer::too_high};
        std::size_t arriving = 0;
        Array<std::size_t> const own = plan.lowered.programs.cells_of(d);
        for (std::size_t const c : own)
            for (std::uint32_t const e : plan.lowered.edges.into(c))
                arriving += plan.lowered.edges[e].bytes * plan.lowered.programs.micro_batches();
        for (std::size_t const late : {no_wait, std::size_t{4}, std::size_t{1}, std::size_t{0}}) {
            if (other.height <= step.height) break;
            // As if nobody knew of others: then all that comes from there is there at once.
            if (late == no_wait && arriving > step.height) continue;
            other = {};
            in_evaluations.place(d, late, step.height, late == 0 ? looks : 0, other);
        }
        if (std::max(step.height, other.height) >= before) continue;
        plan.room.set(d, step.height, in_steps.values(d), step.at);
        plan.evaluation_room.set(d, other.height, in_evaluations.values(d), other.at);
        for (std::size_t const c : own)
            for (std::uint32_t const e : plan.lowered.edges.into(c))
                plan.pools.pool(Holds::input, e).slots = 0;
    }
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
