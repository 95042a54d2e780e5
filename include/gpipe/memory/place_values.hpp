#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/value_placer.hpp>
#include <gpipe/plan/evaluation.hpp>

#include <algorithm>
#include <cstddef>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// The slacks that are tried where one is chosen, each less than the one before.
inline constexpr std::size_t slacks_tried[] = {no_wait, 4, 1, 0};

// Whether some of it is moved, and who writes there waits for that.
GPIPE_INLINE bool moves_inputs(MemoryPlan const& plan, std::size_t device) {
    for (std::size_t const c : plan.lowered.programs.cells_of(device))
        if (plan.cells[c].input_moves) return true;
    return false;
}

// Whether there is time for it.
GPIPE_INLINE bool places_values(MemoryPlan const& plan) {
    constexpr std::size_t most = std::size_t{1} << 17; // values
    return plan.operands.values.size() <= most &&
           plan.lowered.programs.size() * plan.lowered.streams() <= 16 * most;
}

// Looks for a room that takes fewer bytes than slots and parts, device by device. An evaluation has
// it for itself, and waits no more than it must. Of several plans, which are equal until then, each
// has its slack, less than the one before, and on no device more bytes: who writes waits only
// where that saves some.
[[gnu::cold]] GPIPE_INLINE void place_values(MemoryPlan* plans, Part<std::size_t> slacks) {
    MemoryPlan const& plan = plans[0];
    if (!places_values(plan)) return;
    std::size_t const looks = looks_per_device(plan.parts.height.size());
    PartTable const parts = plan.part_table(false), evaluated = plan.part_table(true);
    Lowered const evaluation = evaluation_of(plan.lowered);
    Operands const operands = find_operands(evaluation, plan.cells, evaluated);
    ValuePlacer in_steps(plan, plan.lowered, plan.operands, parts);
    ValuePlacer in_evaluations(plan, evaluation, operands, evaluated);
    for (std::size_t n = 0; n < slacks.size(); ++n) {
        plans[n].room.height = plans[n].evaluation_room.height =
            Array<std::size_t>(plan.parts.height.size());
        plans[n].room.at = Array<std::size_t>(plan.operands.values.size());
        plans[n].evaluation_room.at = Array<std::size_t>(operands.values.size());
    }
    for (std::size_t d = 0; d < plan.parts.height.size(); ++d) {
        if (moves_inputs(plan, d)) continue;
        PlacedValues step = in_steps.in_slots(d);
        std::size_t const slots = step.height - plan.parts.height[d];
        std::size_t least = std::max(step.height, slots + plan.parts.evaluation_height[d]);
        std::size_t arriving = 0;
        Array<std::size_t> const own = plan.lowered.programs.cells_of(d);
        for (std::size_t const c : own)
            for (std::uint32_t const e : plan.lowered.edges.into(c))
                arriving += plan.lowered.edges[e].bytes * plan.lowered.programs.micro_batches();
        for (std::size_t n = 0; n < slacks.size(); ++n) {
            std::size_t const before = step.height;
            in_steps.place(d, slacks[n], 0, looks, step);
            if (n > 0 && step.height == before) continue;
            PlacedValues other{{}, ValuePlacer::too_high};
            for (std::size_t const late : slacks_tried) {
                if (other.height <= step.height) break;
                // As if nobody knew of others: then all that comes from there is there at once.
                if (late == no_wait && arriving > step.height) continue;
                other = {};
                in_evaluations.place(d, late, step.height, late == 0 ? looks : 0, other);
            }
            if (std::max(step.height, other.height) >= least) continue;
            least = std::max(step.height, other.height);
            for (std::size_t p = n; p < slacks.size(); ++p) {
                plans[p].room.set(d, step.height, in_steps.values(d), step.at);
                plans[p].evaluation_room.set(d, other.height, in_evaluations.values(d), other.at);
                for (std::size_t const c : own)
                    for (std::uint32_t const e : plan.lowered.edges.into(c))
                        plans[p].pools.pool(Holds::input, e).slots = 0;
            }
        }
    }
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
