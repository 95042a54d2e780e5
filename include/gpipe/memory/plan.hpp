#pragma once

#include <gpipe/memory/blocks.hpp>
#include <gpipe/memory/boundary_slots.hpp>
#include <gpipe/memory/cell_layout.hpp>
#include <gpipe/memory/offloaded.hpp>
#include <gpipe/memory/reversal_layout.hpp>
#include <gpipe/memory/window.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// Bytes of a device's arena by what they are for; slots, with their padding.
struct DeviceBytes {
    std::size_t parameters = 0;
    std::size_t gradients = 0;
    std::size_t optimizer = 0;
    std::size_t boundary = 0;
    std::size_t activations = 0; ///< kept blocks and temporaries
    std::size_t staging = 0;     ///< the mini-batch and the state of a step, see Staging
    std::size_t handles = 0;     ///< what library handles work with

    constexpr std::size_t total() const {
        return parameters + gradients + optimizer + boundary + activations + staging + handles;
    }
};

/// What an arena holds beside the tensors of layers on a device whose work cannot read the host's
/// memory; nothing on one that can.
struct Staging {
    GroupSizes inputs;         ///< of the chain: on the device of the first cell
    GroupSizes targets;        ///< of the loss: on the device of the last
    std::size_t samples = 0;   ///< largest mini-batch
    std::size_t sums = 0;      ///< bytes of the loss's numbers: on the device of the last cell
    std::size_t state = 0;     ///< bytes of what changes from step to step: on every device
    std::size_t optimizer = 0; ///< bytes of the optimizer: where updates are
    /// Bytes that summing up the squares of a gradient takes: where updates are. If any, there is
    /// room for the sums, too: where updates are, and for all on the device of the last cell.
    std::size_t squares = 0;
    std::size_t steps = 1; ///< mini-batches that there is room for at once
};

/// The sending side of a boundary that is no Link::shared.
struct Transfers {
    Outbox outbox;
    bool keeps =
        false; ///< whether backward reads the output there, and a recompute writes it again
    std::size_t slot_size = 0; ///< of the outbox and of staged tensors
    std::size_t outbox_at = 0; ///< in the arena of the device of the cell before
    StagingSlots outputs;      ///< if the link is staged
    StagingSlots gradients;
    std::size_t outputs_at = 0; ///< in the host's memory
    std::size_t gradients_at = 0;
};

/// Every byte of a training, before the run: an arena per device, and an offset in it for every
/// tensor of every action.
struct MemoryPlan {
    Array<std::size_t> first; ///< layer that each cell begins with, and L
    Array<DeviceBytes> devices;
    Array<std::size_t> parameters; ///< by layer: offset in its device's arena
    Array<std::size_t> gradients;
    Array<std::size_t> optimizer;      ///< the states of a layer's tensors, tensor by tensor
    Array<CellLayout> layouts;         ///< by cell
    Array<ReversalLayout> reversals;   ///< by cell: where it is reversed piece by piece
    Array<CellUse> uses;               ///< by cell: what its layout depends on beside its layers
    Array<std::size_t> retained_at;    ///< by cell: offset of its first block of retained tensors
    Array<std::size_t> blocks_at;      ///< of kept, likewise
    Array<std::size_t> held_at;        ///< of held, likewise
    Array<std::size_t> deferred_at;    ///< of deferred, likewise
    Array<std::size_t> temporaries_at; ///< by cell: offset of the region of temporaries
    Array<BoundarySlots> boundaries;   ///< by cell; of the first, empty
    Array<std::size_t> slots_at;       ///< by cell: offset of its boundary slots
    Array<std::size_t> slot_size;      ///< by cell
    /// By cell: whether the gradient of its input lies among its temporaries, in no slot. So it is
    /// with one micro-batch: nothing follows that would need the room.
    Array<bool> holds_gradient;
    Blocks blocks;
    std::size_t capacity = 0;         ///< samples in a micro-batch
    std::size_t inputs_at = 0;        ///< offset of the staged inputs in the first cell's arena
    std::size_t targets_at = 0;       ///< of the staged targets in the last cell's
    std::size_t sums_at = 0;          ///< of the loss's numbers, likewise
    Array<std::size_t> states_at;     ///< by device: offset of a step's state
    Array<std::size_t> optimizers_at; ///< by device: offset of the optimizer
    Array<std::size_t> squares_at;    ///< by device: what sums of squares take, then the sums
    std::size_t all_squares_at = 0;   ///< on the device of the last cell: those of all tensors
    std::size_t order_at = 0;         ///< likewise: their order in the chain
    Array<std::size_t> handles_at;    ///< by device: offset of the handles' workspaces
    Lowered lowered;                  ///< what the plan is for: the programs with all transfers
    Array<Link> links;                ///< by cell: of the boundary before it
    Array<bool> crosses;              ///< likewise: whether a gradient does
    Array<Transfers> transfers;       ///< likewise
    Array<Offloaded> offloaded;       ///< likewise: what the cell moves to the host's memory
    std::size_t staged_inputs = 0;  ///< bytes of one mini-batch's inputs, and targets, where these
    std::size_t staged_targets = 0; ///< are staged: several lie one behind the other
    std::size_t host = 0;           ///< bytes of the host's memory that copies go to or through

    /// Of all arenas.
    constexpr std::size_t total() const {
        std::size_t bytes = 0;
        for (DeviceBytes const& device : devices) bytes += device.total();
        return bytes;
    }
};

namespace detail {

// Whether the weight gradient of a cell's layer runs apart from the rest of its backward.
constexpr bool runs_apart(MemoryPlan const& plan, ChainShape const& chain, std::size_t cell,
                          std::size_t layer) {
    return plan.blocks.splits[cell] && chain.layers[layer].splits && layer >= chain.lowest_learner;
}

// Where the boundaries have to be crossed by transfers: their slots outside the receiving cell, and
// what writers have to wait for because these are few.
[[gnu::cold]] constexpr void plan_transfers(MemoryPlan& plan, ChainShape const& chain,
                                            Array<std::size_t> const& order) {
    if (plan.lowered.streams() == plan.devices.size()) return;
    HappensBefore const happens_before(plan.lowered, order);
    for (std::size_t c = 1; c < plan.transfers.size(); ++c) {
        if (plan.links[c] == Link::shared) continue;
        Transfers& transfers = plan.transfers[c];
        LayerInfo const& layer = chain.layers[plan.first[c]];
        transfers.slot_size = layer.input.slots(plan.capacity);
        if (plan.crosses[c])
            transfers.slot_size =
                std::max(transfers.slot_size, layer.input_gradient.slots(plan.capacity));
        transfers.keeps = plan.crosses[c] && chain.layers[plan.first[c] - 1].reads_output;
        transfers.outbox =
            assign_outbox(plan.lowered, order, happens_before, c, plan.links[c], transfers.keeps,
                          runs_apart(plan, chain, c - 1, plan.first[c] - 1));
        if (plan.links[c] != Link::staged) continue;
        auto const stage = [&](StagingSlots& slots, std::size_t& at, std::size_t cell,
                               bool gradients) {
            slots = assign_staging(plan.lowered, order, happens_before, cell, gradients);
            at = plan.host;
            plan.host += slots.slots * transfers.slot_size;
        };
        stage(transfers.outputs, transfers.outputs_at, c - 1, false);
        if (plan.crosses[c]) stage(transfers.gradients, transfers.gradients_at, c, true);
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
constexpr Waits waits(ChainShape const& chain, MemoryPlan const& plan, Reversal const& reversal,
                      std::size_t cell) {
    std::size_t const first = plan.first[cell];
    if (chain.lowest_learner >= plan.first[cell + 1]) return {};
    bool const read = first_layer_again(reversal).at_all ||
                      (chain.lowest_learner <= first && chain.layers[first].reads_input);
    // In the cell before it may have to stay, as its output.
    bool const stays = cell == 0 || (plan.links[cell] == Link::shared && plan.crosses[cell] &&
                                     chain.layers[first - 1].reads_output);
    return {keeps_anything(reversal),
            read && !stays && plan.blocks.retained.count[cell] > most_with_inputs};
}

// What cells move to the host's memory, and what writers have to wait for because there are few
// blocks for it on the device.
[[gnu::cold]] constexpr void plan_offloads(MemoryPlan& plan, Array<Waits> const& waits,
                                           Array<std::size_t> const& order) {
    if (plan.lowered.streams() == plan.devices.size()) return;
    Programs const& programs = plan.lowered.programs;
    HappensBefore const happens_before(plan.lowered, order);
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

} // namespace detail

/// Plans the memory of `programs` (with their recomputes) over a chain cut at `first`, for
/// micro-batches of up to `capacity` samples and an optimizer with `states` arrays per parameter
/// tensor. `links[c]`: how the tensors before cell c get there; empty: all are shared.
/// `reversals[c]`: how cell c is reversed piece by piece; one that is_whole(), or none at all: its
/// forward or recompute keeps every layer whole.
[[gnu::cold]] constexpr MemoryPlan
plan_memory(ChainShape const& chain, Array<std::size_t> const& first, Programs const& programs,
            std::size_t states, std::size_t capacity, Staging const& staging = {},
            Array<Link> const& links = {}, Array<Reversal> const& reversals = {}) {
    std::size_t const cells = programs.cells();
    std::size_t const devices = programs.devices();
    Array<bool> crosses(cells); // whether a gradient leaves the cell
    for (std::size_t c = 1; c < cells; ++c) crosses[c] = chain.lowest_learner < first[c];
    MemoryPlan plan;
    plan.first = first;
    plan.devices = Array<DeviceBytes>(devices);
    for (auto* by_layer : {&plan.parameters, &plan.gradients, &plan.optimizer})
        *by_layer = Array<std::size_t>(chain.size);
    for (auto* by_cell : {&plan.retained_at, &plan.blocks_at, &plan.held_at, &plan.deferred_at,
                          &plan.temporaries_at, &plan.slots_at, &plan.slot_size})
        *by_cell = Array<std::size_t>(cells);
    for (auto* by_device :
         {&plan.states_at, &plan.optimizers_at, &plan.squares_at, &plan.handles_at})
        *by_device = Array<std::size_t>(devices);
    plan.layouts = Array<CellLayout>(cells);
    plan.reversals = Array<ReversalLayout>(cells);
    plan.uses = Array<CellUse>(cells);
    plan.boundaries = Array<BoundarySlots>(cells);
    plan.transfers = Array<Transfers>(cells);
    plan.holds_gradient = Array<bool>(cells);
    plan.links = Array<Link>(cells);
    plan.crosses = crosses;
    plan.blocks = assign_blocks(programs);
    plan.capacity = capacity;
    plan.offloaded = Array<Offloaded>(cells);
    Array<detail::Waits> waits(cells);
    Array<bool> offloads(cells);
    bool copies = !links.empty();
    if (!links.empty()) plan.links = links;
    for (std::size_t c = 0; c < reversals.size(); ++c) {
        if (!reversals[c].offload) continue;
        waits[c] = detail::waits(chain, plan, reversals[c], c);
        offloads[c] = waits[c].retained || waits[c].input;
        copies = copies || offloads[c];
    }
    if (copies)
        plan.lowered = lower(programs, plan.links, crosses, linear_order(programs), offloads);
    else
        plan.lowered = lower(programs);
    plan.staged_inputs = staging.inputs.slots(staging.samples);
    plan.staged_targets = staging.targets.slots(staging.samples);

    auto const order = linear_order(plan.lowered);
    detail::plan_transfers(plan, chain, order);
    detail::plan_offloads(plan, waits, order);
    HappensBefore const happens_before(plan.lowered, order);
    Array<bool> recomputes(cells);
    Array<bool> discards(cells);
    for (std::size_t i = 0; i < programs.size(); ++i)
        if (programs[i].kind == Kind::recompute) recomputes[programs[i].cell] = true;
    bool one_each = true; // no device with two cells; a schedule may leave another without
    for (std::size_t c = 1; c < cells; ++c)
        for (std::size_t b = 0; b < c; ++b)
            one_each = one_each && programs.device_of(b) != programs.device_of(c);
    auto const reversed = [&](std::size_t c) {
        return !reversals.empty() && (!is_whole(reversals[c]) || plan.offloaded[c].moves());
    };
    auto const kept_in_outbox = [&](std::size_t c) {
        return c + 1 < cells && plan.transfers[c + 1].keeps;
    };
    for (std::size_t d = 0; d < devices; ++d) {
        DeviceBytes& bytes = plan.devices[d];
        std::size_t at = 0;
        auto const each_layer = [&](auto f) {
            for (std::size_t c = 0; c < cells; ++c)
                if (programs.device_of(c) == d)
                    for (std::size_t i = first[c]; i < first[c + 1]; ++i) f(i);
        };
        auto const reserve = [&](Array<std::size_t>& offsets, std::size_t times) {
            std::size_t const begin = at;
            each_layer([&](std::size_t i) {
                offsets[i] = at;
                at += times * chain.layers[i].parameters.slots(1);
            });
            return at - begin;
        };
        bytes.parameters = reserve(plan.parameters, 1);
        bytes.gradients = reserve(plan.gradients, 1);
        bytes.optimizer = reserve(plan.optimizer, states);

        std::size_t blocks = 0;
        for (std::size_t c = 0; c < cells; ++c) {
            if (programs.device_of(c) != d) continue;
            blocks += plan.blocks.kept.count[c];
            if (c + 1 < cells) { // the sending side of the boundary behind the cell
                plan.transfers[c + 1].outbox_at = at;
                std::size_t const size =
                    plan.transfers[c + 1].outbox.slots * plan.transfers[c + 1].slot_size;
                bytes.boundary += size;
                at += size;
            }
            plan.slots_at[c] = at;
            if (c == 0) continue;
            LayerInfo const& layer = chain.layers[first[c]];
            plan.holds_gradient[c] =
                crosses[c] && programs.micro_batches() == 1 && one_each && !plan.blocks.splits[c];
            bool const gradient = crosses[c] && !plan.holds_gradient[c];
            bool const shared = plan.links[c] == Link::shared;
            plan.slot_size[c] = layer.input.slots(capacity);
            if (gradient)
                plan.slot_size[c] =
                    std::max(plan.slot_size[c], layer.input_gradient.slots(capacity));
            // The output of a recompute, where it needs room at all, goes where the gradient will.
            LayerInfo const& top = chain.layers[first[c + 1] - 1];
            discards[c] = gradient && recomputes[c] && c + 1 < cells && top.saved.count > 0 &&
                          !kept_in_outbox(c) && top.output.slots(capacity) <= plan.slot_size[c];
            bool const keeps_output =
                shared && crosses[c] && chain.layers[first[c] - 1].reads_output;
            BoundaryUse use{c,
                            gradient,
                            chain.lowest_learner < first[c + 1] &&
                                ((reversed(c) && first_layer_again(reversals[c]).in_backward) ||
                                 (chain.lowest_learner <= first[c] && layer.reads_input)),
                            keeps_output,
                            discards[c],
                            detail::runs_apart(plan, chain, c, first[c]),
                            detail::runs_apart(plan, chain, c - 1, first[c] - 1),
                            plan.links[c]};
            auto const assign = [&] {
                return assign_boundary_slots(plan.lowered.programs, order, happens_before, use);
            };
            plan.boundaries[c] = assign();
            if (Offloaded& moved = plan.offloaded[c]; moved.with_input) {
                use.moved = Array<bool>(programs.micro_batches());
                for (std::size_t m = 0; m < use.moved.size(); ++m) use.moved[m] = moved.moved(m);
                Array<Needs> needs = plan.lowered.needs;
                use.waits = needs.data();
                BoundarySlots fewer = assign();
                // Not where inputs wait for the forward rather than for the reversal.
                moved.with_input = fewer.slots + moved.inputs.slots < plan.boundaries[c].slots;
                if (moved.with_input) {
                    plan.boundaries[c] = static_cast<BoundarySlots&&>(fewer);
                    plan.lowered.needs = static_cast<Array<Needs>&&>(needs);
                }
            }
            bytes.boundary += plan.boundaries[c].slots * plan.slot_size[c];
            at += plan.boundaries[c].slots * plan.slot_size[c];
        }

        // Blocks of all cells, then one region of temporaries as high as the highest.
        std::size_t const begin = at;
        bool const adjacent = blocks == 1;
        std::size_t temporary = 0;
        for (std::size_t c = 0; c < cells; ++c) {
            if (programs.device_of(c) != d) continue;
            bool const recomputes_output = recomputes[c] && !discards[c] && !kept_in_outbox(c) &&
                                           chain.lowest_learner < first[c + 1];
            CellUse const& cell = plan.uses[c] = {adjacent,
                                                  capacity,
                                                  recomputes_output,
                                                  plan.holds_gradient[c],
                                                  plan.blocks.splits[c],
                                                  plan.blocks.mixes[c],
                                                  kept_in_outbox(c)};
            if (reversed(c)) {
                ReversalLayout& reversal = plan.reversals[c];
                reversal = lay_out_reversal(chain, first[c], first[c + 1], cell, reversals[c]);
                plan.layouts[c].kept = reversal.kept;
                plan.layouts[c].temporary = reversal.temporary;
                plan.layouts[c].adjacent = adjacent;
                plan.layouts[c].input_gradient = reversal.input_gradient;
                Offloaded& moved = plan.offloaded[c];
                moved.retained = reversal.retained;
                if (moved.with_input) moved.input = chain.layers[first[c]].input.slots(capacity);
                moved.host_at = plan.host;
                plan.host += moved.host.slots * moved.bytes();
            } else {
                plan.layouts[c] = lay_out_cell(chain, first[c], first[c + 1], cell);
            }
            auto const put = [&](Array<std::size_t>& offsets, BlockUse const& use,
                                 std::size_t size) {
                offsets[c] = at;
                at += use.count[c] * size;
            };
            put(plan.retained_at, plan.blocks.retained, plan.reversals[c].retained);
            plan.offloaded[c].inputs_at = at;
            at += plan.offloaded[c].inputs.slots * plan.offloaded[c].input;
            put(plan.held_at, plan.blocks.held, plan.layouts[c].held);
            put(plan.deferred_at, plan.blocks.deferred, plan.layouts[c].deferred);
            put(plan.blocks_at, plan.blocks.kept, adjacent ? 0 : plan.layouts[c].kept);
            temporary = std::max(temporary, plan.layouts[c].temporary);
        }
        for (std::size_t c = 0; c < cells; ++c)
            if (programs.device_of(c) == d) plan.temporaries_at[c] = at;
        bytes.activations = at - begin + temporary;

        std::size_t const staged = at + temporary;
        at = staged;
        auto const stage = [&](std::size_t& offset, std::size_t size) {
            offset = at;
            at += size;
        };
        bool const last = programs.device_of(cells - 1) == d;
        bool const updates = bytes.parameters > 0;
        stage(plan.states_at[d], slot_bytes(staging.state));
        stage(plan.optimizers_at[d], updates ? slot_bytes(staging.optimizer) : 0);
        if (staging.squares > 0) {
            std::size_t tensors = 0;
            std::size_t all = 0;
            each_layer([&](std::size_t i) { tensors += chain.layers[i].parameters.count; });
            for (std::size_t i = 0; i < chain.size; ++i) all += chain.layers[i].parameters.count;
            if (updates)
                stage(plan.squares_at[d], staging.squares + slot_bytes(tensors * sizeof(double)));
            if (last) {
                stage(plan.all_squares_at, slot_bytes(all * sizeof(double)));
                stage(plan.order_at, slot_bytes(all * sizeof(std::uint32_t)));
            }
        }
        if (programs.device_of(0) == d) stage(plan.inputs_at, staging.steps * plan.staged_inputs);
        if (last) {
            stage(plan.targets_at, staging.steps * plan.staged_targets);
            stage(plan.sums_at, slot_bytes(staging.sums));
        }
        bytes.staging = at - staged;
        HandlePlan handles;
        each_layer([&](std::size_t i) { handles.add(chain.layers[i].handles); });
        if (last) handles.add(chain.loss_handles);
        plan.handles_at[d] = at;
        bytes.handles = handles.bytes();
    }
    return plan;
}

} // namespace gpipe
