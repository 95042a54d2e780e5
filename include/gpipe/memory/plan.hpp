#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/countable.hpp>
#include <gpipe/memory/locate.hpp>
#include <gpipe/memory/memory_plan.hpp>
#include <gpipe/memory/plan_copies.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace gpipe {

/// Plans the bytes of `programs` (with their recomputes) over a chain cut at `first`, for
/// micro-batches of up to `capacity` samples and an optimizer with `states` arrays per parameter
/// tensor. `links[c]`: how the tensors before cell c get there; empty: all are shared.
/// `reversals[c]`: how cell c is reversed piece by piece; one that is_whole(), or none at all: its
/// forward or recompute keeps every layer whole. Throws std::invalid_argument where there are more
/// bytes than can be counted.
[[gnu::cold]] GPIPE_INLINE constexpr MemoryPlan
plan_bytes(ChainShape const& chain, Array<std::size_t> const& first, Programs const& programs,
           std::size_t states, std::size_t capacity, Staging const& staging = {},
           Array<Link> const& links = {}, Array<Reversal> const& reversals = {}) {
    std::size_t const cells = programs.cells();
    std::size_t const devices = programs.devices();
    if (!countable(chain, programs.micro_batches(), states, capacity, staging))
        throw std::invalid_argument("gpipe: a plan for micro-batches of so many samples has more "
                                    "bytes than memory has addresses");
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
    plan.cells = Array<CellBlocks>(cells);
    plan.holds_gradient = Array<bool>(cells);
    Edges edges = neighbours(cells);
    for (std::size_t c = 1; c < cells; ++c) {
        LayerInfo const& layer = chain.layers[first[c]];
        Edge& edge = edges[c - 1];
        edge.gradient = crosses[c];
        if (!links.empty()) edge.link = links[c];
        edge.giver_reverses = crosses[c] && chain.layers[first[c] - 1].reads_output;
        edge.bytes = layer.input.slots(capacity);
        edge.gradient_bytes = crosses[c] ? layer.input_gradient.slots(capacity) : 0;
    }
    plan.lowered.edges = edges;
    plan.blocks = assign_blocks(programs, reversals);
    plan.capacity = capacity;
    plan.offloaded = Array<Offloaded>(cells);
    Array<detail::Waits> waits(cells);
    Array<bool> offloads(cells);
    for (std::size_t c = 0; c < reversals.size(); ++c) {
        if (!reversals[c].offload) continue;
        waits[c] = detail::waits(chain, plan, reversals[c], c);
        offloads[c] = waits[c].retained || waits[c].input;
    }
    Array<std::size_t> const computing = linear_order(programs);
    plan.lowered =
        detail::put_copies_in(programs, static_cast<Edges&&>(edges), computing, offloads);
    plan.staged_inputs = staging.inputs.slots(staging.samples);
    plan.staged_targets = staging.targets.slots(staging.samples);

    // Without copies programs say it all, at a tenth of the steps in constant evaluation.
    Array<std::uint32_t> order(computing.size());
    HappensBefore happens_before;
    if (plan.lowered.streams() == devices) {
        for (std::size_t r = 0; r < order.size(); ++r)
            order[r] = static_cast<std::uint32_t>(computing[r]);
        happens_before = HappensBefore(programs, computing);
    } else {
        Operands const operands = find_operands(plan.lowered, any_blocks(cells));
        Walk walk = walk_of(plan.lowered, operands);
        happens_before = HappensBefore(walk, operands);
        order = static_cast<Array<std::uint32_t>&&>(walk.order);
    }
    detail::plan_transfers(plan, chain, order, happens_before);
    detail::plan_offloads(plan, waits, order, happens_before);
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
            Edge& edge = plan.lowered.edges[c - 1];
            plan.slot_size[c] = layer.input.slots(capacity);
            if (gradient)
                plan.slot_size[c] =
                    std::max(plan.slot_size[c], layer.input_gradient.slots(capacity));
            // The output of a recompute, where it needs room at all, goes where the gradient will.
            LayerInfo const& top = chain.layers[first[c + 1] - 1];
            discards[c] = gradient && recomputes[c] && c + 1 < cells && top.saved.count > 0 &&
                          !kept_in_outbox(c) && top.output.slots(capacity) <= plan.slot_size[c];
            edge.taker_reverses = chain.lowest_learner < first[c + 1] &&
                                  ((reversed(c) && first_layer_again(reversals[c]).in_backward) ||
                                   (chain.lowest_learner <= first[c] && layer.reads_input));
            edge.taker_weighs = detail::runs_apart(plan, chain, c, first[c]);
            edge.giver_weighs = detail::runs_apart(plan, chain, c - 1, first[c] - 1);
            BoundaryUse use{c,
                            gradient,
                            edge.taker_reverses,
                            edge.shared() && edge.giver_reverses,
                            discards[c],
                            edge.taker_weighs,
                            edge.giver_weighs,
                            edge.link};
            auto const assign = [&] {
                return assign_boundary_slots(plan.lowered.programs, order, happens_before, use);
            };
            plan.boundaries[c] = assign();
            if (Offloaded& moved = plan.offloaded[c]; moved.with_input) {
                use.moved = Array<bool>(programs.micro_batches());
                for (std::size_t m = 0; m < use.moved.size(); ++m) use.moved[m] = moved.moved(m);
                BoundarySlots fewer = assign();
                // Not where inputs wait for the forward rather than for the reversal.
                moved.with_input = fewer.slots + moved.inputs.slots < plan.boundaries[c].slots;
                if (moved.with_input) plan.boundaries[c] = static_cast<BoundarySlots&&>(fewer);
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
            std::size_t const stack = adjacent ? plan.layouts[c].kept : 0;
            plan.cells[c] = {plan.reversals[c].retained,
                             plan.layouts[c].kept,
                             plan.layouts[c].held,
                             plan.layouts[c].deferred,
                             plan.layouts[c].temporary - stack,
                             discards[c] ? chain.layers[first[c + 1] - 1].output.slots(capacity)
                                         : 0,
                             plan.blocks.splits[c],
                             plan.blocks.in_backward[c],
                             plan.offloaded[c].with_input,
                             plan.holds_gradient[c]};
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

/// The same with what actions read and write, and all that they have to wait for.
[[gnu::cold]] GPIPE_INLINE constexpr MemoryPlan
plan_memory(ChainShape const& chain, Array<std::size_t> const& first, Programs const& programs,
            std::size_t states, std::size_t capacity, Staging const& staging = {},
            Array<Link> const& links = {}, Array<Reversal> const& reversals = {}) {
    MemoryPlan plan =
        plan_bytes(chain, first, programs, states, capacity, staging, links, reversals);
    plan.operands = find_operands(plan.lowered, plan.cells);
    plan.lowered.needs = find_needs(walk_of(plan.lowered, plan.operands), plan.operands,
                                    Located(plan, plan.operands));
    return plan;
}

} // namespace gpipe
