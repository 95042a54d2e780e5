#pragma once

#include <gpipe/plan/ending.hpp>
#include <gpipe/runtime/device_work.hpp>
#include <gpipe/runtime/machine_plan.hpp>
#include <gpipe/runtime/make_tables.hpp>
#include <gpipe/runtime/table_proof.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// The tables for one number of lanes.
struct LanePlan {
    StepTable training;     ///< of a step; none in an Inference
    StepTable forward;      ///< of an evaluation
    std::uint64_t hash = 0; ///< of both as they are for all ranks, if there are several
};

/// What the engine of this machine knows. `arenas`, `handles`: by device. Opens channels to other
/// ranks.
template <class Device>
[[gnu::cold]] Tables tables_of([[maybe_unused]] Device& device, MachinePlan<Device> const& machine,
                               Array<std::byte*> const& arenas, Array<HandleSet> const& handles) {
    PoisonWork debug;
    if (machine.debug) debug = {&StepWork<Device>::fill_poison, &StepWork<Device>::find_poison};
    Tables tables = make_tables(machine.model, machine.plan, arenas, handles, machine.learner,
                                machine.ranks, debug);
    if constexpr (joins_ranks<Device>) {
        tables.replicas = detail::replica_parts(machine.model, machine.plan, arenas, machine.ranks,
                                                tables.updates, tables.order);
        device.open(tables, machine.plan.lowered, machine.overlaps);
    }
    return tables;
}

/// How a step of this machine ends.
template <class Device> Ending ending_of(MachinePlan<Device> const& machine) {
    StepChecks const& checks = machine.checks;
    bool const immediate = machine.immediate();
    Ending ending{Array<bool>(machine.plan.cells.size()),
                  immediate ? checks.finite_gradients : checks.squares(), immediate,
                  calls_enqueue<Device>, machine.plan.stages};
    for (std::size_t i = 0; i < machine.model.infos.size(); ++i) {
        LayerInfo const& layer = machine.model.infos[i];
        if (layer.learned_slots() > 0) ending.learns[machine.cell_of(i)] = true;
        if (!layer.has_buffers() && !layer.exchanges()) continue;
        if (ending.buffers.empty()) ending.buffers = Array<CellBuffers>(machine.plan.cells.size());
        CellBuffers& cell = ending.buffers[machine.cell_of(i)];
        cell.any = cell.any || layer.has_buffers();
        cell.exchanges = cell.exchanges || layer.exchanges();
        cell.gathers = cell.gathers || layer.statistics.count > 0;
    }
    ending.ranks = machine.ranks;
    ending.replicas = machine.replication;
    Array<TiedCell> ties(machine.model.ties.size());
    std::size_t learn = 0;
    for (std::uint32_t i = 0; i < ties.size(); ++i) {
        TiedTensor const& end = machine.model.ties[i];
        if (machine.model.infos[end.layer].learns(end.tensor))
            ties[learn++] = {end.tie, static_cast<std::uint32_t>(machine.cell_of(end.layer)), i};
    }
    ending.ties = first_of(ties, learn);
    return ending;
}

/// For one lane, and then for as many as the device has, if that is more; proven as they are
/// walked. `arenas`: by device; `host`: where copies go through.
template <class Device>
[[gnu::cold]] Array<LanePlan> make_lane_plans(MachinePlan<Device> const& machine,
                                              Ending const& ending, std::size_t most,
                                              Array<std::byte*> const& arenas, std::byte* host) {
    MemoryPlan const& plan = machine.plan;
    EndedStep training;
    if (!machine.infers()) training = with_ending(plan.lowered, plan.operands, ending);
    Array<LanePlan> plans(most > 1 ? 2 : 1);
    for (std::size_t n = 0; n < plans.size(); ++n) {
        auto const table = [&](Lowered const& lowered, Operands const& of, bool evaluates) {
            Placement const placement = machine.placement(lowered, n == 0 ? 1 : most);
            StepTable result =
                step_table(plan, lowered, of, placement,
                           merge_lanes(lowered, placement, machine.cost), arenas, host, evaluates);
            result.repeats = machine.overlaps && evaluates == machine.infers();
            if (result.repeats) add_waits_before(result, plan, of);
            check_table(result, plan, lowered, of);
            if constexpr (joins_ranks<Device>)
                result = Device::own_part(result, lowered, placement, plan, machine.ranks,
                                          plans[n].hash);
            return result;
        };
        if (!machine.infers())
            plans[n].training = table(training.lowered, training.operands, false);
        plans[n].forward = table(machine.evaluation, machine.evaluation_operands, true);
    }
    return plans;
}

/// The most positions that a stream has in any of them.
GPIPE_INLINE std::uint32_t longest_of(Array<LanePlan> const& plans) {
    std::uint32_t longest = 0;
    for (LanePlan const& plan : plans)
        longest = std::max({longest, plan.training.longest, plan.forward.longest});
    return longest;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
