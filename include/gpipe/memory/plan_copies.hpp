#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/memory_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

/// The parts of a plan that copies make: what crosses between devices that share no memory, and
/// what goes to the host's memory and back.
namespace gpipe::detail {

// Whether the weight gradient of a cell's layer runs apart from the rest of its backward.
GPIPE_INLINE constexpr bool runs_apart(MemoryPlan const& plan, ChainShape const& chain,
                                       std::size_t cell, std::size_t layer) {
    return plan.blocks.splits[cell] && chain.layers[layer].splits && layer >= chain.lowest_learner;
}

// Where the boundaries have to be crossed by transfers: their slots outside the receiving cell, and
// what writers have to wait for because these are few.
[[gnu::cold]] GPIPE_INLINE constexpr void plan_transfers(MemoryPlan& plan, ChainShape const& chain,
                                                         Array<std::uint32_t> const& order,
                                                         HappensBefore const& happens_before) {
    if (plan.lowered.streams() == plan.devices.size()) return;
    for (std::size_t c = 1; c < plan.transfers.size(); ++c) {
        Edge const& edge = plan.edge_before(c);
        if (edge.shared()) continue;
        Transfers& transfers = plan.transfers[c];
        LayerInfo const& layer = chain.layers[plan.first[c]];
        transfers.slot_size = layer.input.slots(plan.capacity);
        if (edge.gradient)
            transfers.slot_size =
                std::max(transfers.slot_size, layer.input_gradient.slots(plan.capacity));
        transfers.keeps = edge.written_again();
        transfers.outbox =
            assign_outbox(plan.lowered, order, happens_before, c, edge.link, transfers.keeps,
                          runs_apart(plan, chain, c - 1, plan.first[c] - 1));
        if (edge.link != Link::staged) continue;
        auto const stage = [&](StagingSlots& slots, std::size_t& at, std::size_t cell,
                               bool gradients) {
            slots = assign_staging(plan.lowered, order, happens_before, cell, gradients);
            at = plan.host;
            plan.host += slots.slots * transfers.slot_size;
        };
        stage(transfers.outputs, transfers.outputs_at, c - 1, false);
        if (edge.gradient) stage(transfers.gradients, transfers.gradients_at, c, true);
    }
}

// Of so many micro-batches in flight a cell keeps the inputs on the device: two blocks, and four
// slots of the boundary, would hold as many.
inline constexpr std::size_t most_with_inputs = 5;

// What of a cell waits between its forward and its reversal, and is worth to be moved.
struct Waits {
    bool retained = false;
    bool input = false;
};
GPIPE_INLINE constexpr Waits waits(ChainShape const& chain, MemoryPlan const& plan,
                                   Reversal const& reversal, std::size_t cell) {
    std::size_t const first = plan.first[cell];
    if (chain.lowest_learner >= plan.first[cell + 1]) return {};
    bool const read = first_layer_again(reversal).at_all ||
                      (chain.lowest_learner <= first && chain.layers[first].reads_input);
    // In the cell before it may have to stay, as its output.
    bool const stays =
        cell == 0 || (plan.edge_before(cell).shared() && plan.edge_before(cell).giver_reverses);
    CellUse use;
    use.capacity = plan.capacity;
    ReversalLayout const layout =
        lay_out_reversal(chain, first, plan.first[cell + 1], use, reversal);
    return {layout.retained > 0,
            read && !stays && plan.blocks.retained.count[cell] > most_with_inputs};
}

// What cells move to the host's memory, and what writers have to wait for because there are few
// blocks for it on the device.
[[gnu::cold]] GPIPE_INLINE constexpr void plan_offloads(MemoryPlan& plan, Array<Waits> const& waits,
                                                        Array<std::uint32_t> const& order,
                                                        HappensBefore const& happens_before) {
    if (plan.lowered.streams() == plan.devices.size()) return;
    Programs const& programs = plan.lowered.programs;
    for (std::size_t c = 0; c < waits.size(); ++c) {
        if (!waits[c].retained && !waits[c].input) continue;
        Offloaded& cell = plan.offloaded[c];
        cell = assign_offloads(plan.lowered, order, happens_before, c);
        if (!cell.moves()) continue;
        cell.with_input = waits[c].input;
        plan.blocks.retained.count[c] = cell.blocks;
        for (std::size_t i = 0; i < plan.blocks.retained.of_action.size(); ++i) {
            Action const& a = programs[i];
            if (a.cell != c) continue;
            bool const later = a.kind != Kind::forward && cell.moved(a.micro_batch);
            plan.blocks.retained.of_action[i] =
                later ? cell.returned[a.micro_batch] : cell.block[a.micro_batch];
        }
    }
}

} // namespace gpipe::detail
