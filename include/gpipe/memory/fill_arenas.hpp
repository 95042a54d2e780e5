#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/exact_sum.hpp>
#include <gpipe/memory/memory_plan.hpp>

#include <algorithm>
#include <cstddef>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// The layers of a device, in the order of the chain.
GPIPE_INLINE constexpr Array<std::size_t>
layers_on(std::size_t device, Array<std::size_t> const& first, Programs const& programs) {
    Array<std::size_t> layers(first[programs.cells()]);
    std::size_t count = 0;
    for (std::size_t const c : programs.cells_of(device))
        for (std::size_t i = first[c]; i < first[c + 1]; ++i) layers[count++] = i;
    return first_of(layers, count);
}

// All that layers and the loss read.
GPIPE_INLINE constexpr ConstantTable all_constants(ChainShape const& chain) {
    ConstantTable table;
    for (std::size_t i = 0; i < chain.size; ++i) table.add(chain.layers[i].constants);
    table.add(chain.loss_constants);
    return table;
}

// The bytes of what these layers train.
GPIPE_INLINE constexpr std::size_t learned_bytes(LayerInfo const* layers, std::size_t first,
                                                 std::size_t last) {
    std::size_t bytes = 0;
    for (std::size_t i = first; i < last; ++i) bytes += layers[i].learned_slots();
    return bytes;
}

// Puts all that a plan has into the devices' arenas and the host's memory.
[[gnu::cold]] GPIPE_INLINE constexpr void fill_arenas(MemoryPlan& plan, PlanRequest const& request,
                                                      Programs const& programs) {
    ChainShape const& chain = request.chain;
    Array<std::size_t> const& first = request.first;
    Staging const& staging = request.staging;
    std::size_t const cells = programs.cells();
    std::size_t const devices = programs.devices();
    bool const trains = !programs.evaluates();
    bool const shards = request.replication.count > 1 && request.replication.shards;
    plan.devices = Array<DeviceBytes>(devices);
    for (auto* by_layer : {&plan.parameters, &plan.gradients, &plan.optimizer, &plan.buffers,
                           &plan.statistics, &plan.exchanged, &plan.frozen})
        *by_layer = Array<std::size_t>(chain.size);
    plan.begin = Array<DeviceOffsets>(devices);
    plan.stages = staging.state > 0;
    plan.replication = request.replication;
    plan.brought = Array<std::size_t>(chain.ties.size());
    if (!shards) plan.holders = tie_holders(chain.ties, first, programs);
    plan.staged_inputs = staging.inputs.slots(staging.samples);
    plan.staged_targets = staging.targets.slots(staging.samples);

    ConstantTable const constants = detail::all_constants(chain);
    auto const put_on_host = [&](Pool& pool) {
        pool.space = devices;
        pool.at = plan.host;
        plan.host += pool.total();
    };
    Array<std::size_t> const held = held_slots(chain, plan.holders, true);
    Array<std::size_t> const held_frozen = held_slots(chain, plan.holders, false);
    for (std::size_t d = 0; d < devices; ++d) {
        DeviceBytes& bytes = plan.devices[d];
        DeviceOffsets& begin = plan.begin[d];
        begin.host = plan.host;
        std::size_t at = 0;
        Array<std::size_t> const own = programs.cells_of(d);
        Array<std::size_t> const layers = detail::layers_on(d, first, programs);
        auto const reserve = [&](Array<std::size_t>& offsets, std::size_t times) {
            std::size_t const before = at;
            for (std::size_t const i : layers) {
                offsets[i] = at;
                at += times * (chain.layers[i].learned_slots() - held[i]);
            }
            return at - before;
        };
        bytes.parameters = reserve(plan.parameters, 1);
        for (std::size_t const i : layers) {
            LayerInfo const& layer = chain.layers[i];
            plan.gradients[i] = at;
            if (trains) at += layer.learned_slots() + (layer.learns() ? request.guard : 0);
        }
        bytes.gradients = at - bytes.parameters;
        bytes.optimizer = reserve(plan.optimizer, shards ? 0 : request.states);
        std::size_t message = 0; // between replicas
        for (std::size_t const c : own) {
            std::size_t const learned = learned_bytes(chain.layers, first[c], first[c + 1]);
            message = std::max(message, request.replication.message(learned));
            // A part may begin and end in the midst of a tensor, whose arrays are as long as it.
            if (shards) bytes.optimizer += request.states * request.replication.most(learned);
        }
        if (shards) at += bytes.optimizer;

        begin.frozen = at;
        for (std::size_t const i : layers) {
            plan.frozen[i] = at;
            at += chain.layers[i].frozen_slots() - held_frozen[i];
        }
        begin.unwanted = at;
        std::size_t unwanted = 0;
        for (std::size_t const i : layers)
            if (i >= chain.lowest_learner)
                unwanted = std::max(unwanted, chain.layers[i].unwanted_slots());
        at += unwanted;
        bytes.frozen = at - begin.frozen;

        std::size_t const before_buffers = at;
        auto const reserve_whole = [&](Array<std::size_t>& offsets, GroupSizes LayerInfo::*which,
                                       std::size_t guard = 0) {
            for (std::size_t const i : layers) {
                std::size_t const slots = (chain.layers[i].*which).slots(1);
                offsets[i] = at;
                at += slots + (slots > 0 ? guard : 0);
            }
        };
        begin.buffers = at;
        reserve_whole(plan.buffers, &LayerInfo::buffers);
        begin.next = at;
        if (trains) at += at - begin.buffers;
        begin.statistics = at;
        reserve_whole(plan.statistics, &LayerInfo::statistics, request.guard);
        // One behind the other those of all replicas, of all micro-batches, and what nobody merges.
        std::size_t const statistics = at - begin.statistics;
        begin.part = begin.statistics;
        if (trains) {
            begin.part += request.replication.count * statistics;
            at = begin.part + (programs.micro_batches() + 1) * statistics;
        }
        std::size_t told = 0;
        for (std::size_t const i : layers) {
            if (!trains) continue;
            LayerInfo const& layer = chain.layers[i];
            plan.exchanged[i] = at;
            at += programs.micro_batches() * request.replication.count * layer.exchanged.slots(1);
            told = std::max(told, layer.exchanged_gradient.slots(1));
        }
        begin.exchanged = at;
        at += request.replication.count * told;
        bytes.buffers = at - before_buffers;

        auto const put = [&](Pool& pool, std::size_t& purpose) {
            pool.space = d;
            pool.at = at;
            at += pool.total();
            purpose += pool.total();
        };
        Pools& pools = plan.pools;
        for (std::size_t const c : own) {
            for (std::uint32_t const e : plan.lowered.edges.out_of(c))
                put(pools.pool(Holds::output, e), bytes.boundary);
            for (std::uint32_t const e : plan.lowered.edges.into(c))
                put(pools.pool(Holds::input, e), bytes.boundary);
        }
        begin.evaluation = at;
        bool const has_room = plan.has_room(d);
        if (has_room) at += plan.room.height[d];
        for (std::size_t const c : own) {
            for (std::uint32_t const e : plan.lowered.edges.into(c))
                put(pools.pool(Holds::input_back, e), bytes.activations);
            put(pools.pool(Holds::retained, c), bytes.activations);
            for (std::uint32_t const e : plan.lowered.edges.out_of(c))
                for (Holds const holds : {Holds::staged_output, Holds::staged_gradient})
                    put_on_host(pools.pool(holds, e));
            put_on_host(pools.pool(Holds::offloaded, c));
        }
        // An evaluation has all that for itself.
        begin.parts = at;
        at = std::max(at + (has_room ? 0 : plan.parts.height[d]),
                      begin.evaluation + (has_room ? plan.evaluation_room.height[d]
                                                   : plan.parts.evaluation_height[d]));
        bytes.activations = at - begin.evaluation;

        std::size_t const staged = at;
        auto const stage = [&](std::size_t& offset, std::size_t size) {
            offset = at;
            at += size;
        };
        bool const last = programs.device_of(cells - 1) == d;
        bool const updates = bytes.parameters > 0;
        stage(begin.state, slot_bytes(staging.state));
        stage(begin.optimizer, updates ? slot_bytes(staging.optimizer) : 0);
        bool reads = last && chain.loss_constants.size() > 0;
        for (std::size_t const i : layers) {
            reads = reads || chain.layers[i].constants.size() > 0;
        }
        if (reads && plan.stages) stage(begin.constants, slot_bytes(constants.bytes()));
        if (staging.squares > 0) {
            std::size_t tensors = 0;
            std::size_t all = 0;
            auto const count = [&](std::size_t i) { return chain.layers[i].learned_tensors(); };
            for (std::size_t const i : layers) {
                tensors += count(i);
            }
            for (std::size_t i = 0; i < chain.size; ++i) all += count(i);
            std::size_t const exact = request.replication.count > 1 ? exact_words : 0;
            if (updates)
                stage(begin.squares,
                      staging.squares + slot_bytes((tensors + exact) * sizeof(double)));
            if (last) {
                stage(plan.all_squares_at,
                      slot_bytes(request.replication.count * (all + exact * plan.devices.size()) *
                                 sizeof(double)));
                stage(plan.order_at, slot_bytes(all * sizeof(std::uint32_t)));
            }
        }
        bool adds = false; // what ends of a tie have
        for (std::size_t e = 0; e < chain.ties.size() && staging.ties && trains; ++e) {
            TiedTensor const& end = chain.ties[e];
            std::size_t const on = programs.device_of(cell_of(first, end.layer));
            if (end.is_first) adds = on == d && chain.layers[end.layer].learns(end.tensor);
            if (adds && on != d) stage(plan.brought[e], slot_bytes(end.bytes));
        }
        stage(begin.replicas, request.replication.room(message));
        if (programs.device_of(0) == d) stage(plan.inputs_at, staging.steps * plan.staged_inputs);
        for (SideInfo const& side : chain.sides) {
            bool read = false;
            for (std::size_t const i : layers) {
                read = read || has(chain.layers[i].sides, side.tag);
            }
            if (read && plan.stages) begin.staged_sides += slot_bytes(staging.samples * side.bytes);
        }
        stage(begin.sides, staging.steps * begin.staged_sides);
        if (last) {
            // Outputs are brought to the caller before the next run begins.
            stage(plan.targets_at, (trains ? staging.steps : 1) * plan.staged_targets);
            stage(plan.sums_at, slot_bytes(staging.sums));
        }
        bytes.staging = at - staged;
        HandlePlan handles;
        for (std::size_t const i : layers) {
            handles.add(chain.layers[i].handles);
        }
        if (last) handles.add(chain.loss_handles);
        begin.handles = at;
        bytes.handles = handles.bytes();
    }
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
