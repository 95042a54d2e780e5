#pragma once

#include <gpipe/runtime/tables.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {
namespace detail {

// Where the tensors of layers lie: those that are trained one behind the other, and the others.
[[gnu::cold]] GPIPE_INLINE void fill_layers(Tables& tables, Model const& model,
                                            MemoryPlan const& plan,
                                            Array<std::byte*> const& arenas) {
    Programs const& programs = plan.lowered.programs;
    tables.layers = Array<LayerMemory>(model.layers.size());
    std::size_t tensors = 0;
    for (LayerInfo const& info : model.infos) tensors += info.parameters.count;
    tables.tensors = Array<std::byte*>(2 * tensors);
    std::byte** next = tables.tensors.data();
    for (std::size_t c = 0; c < programs.cells(); ++c) {
        std::size_t const device = programs.device_of(c);
        std::byte* const arena = arenas[device];
        for (std::size_t i = plan.first[c]; i < plan.first[c + 1]; ++i) {
            LayerInfo const& info = model.infos[i];
            if (!tables.ranks.own(device)) continue;
            std::size_t const count = info.parameters.count;
            tables.layers[i].parameters = next;
            tables.layers[i].gradients = next + count;
            std::byte* own[]{arena + plan.frozen[i], arena + plan.parameters[i]}; // if it learns
            std::byte* gradients[]{arena + plan.begin[device].unwanted, arena + plan.gradients[i]};
            for (std::size_t t = 0; t < count; ++t) {
                bool const learns = info.learns(t);
                std::size_t const bytes = slot_bytes(info.parameters.bytes[t]);
                TiedTensor const* const holder = holder_of(model.ties, plan.holders, i, t);
                next[t] =
                    holder ? tables.layers[holder->layer].parameters[holder->tensor] : own[learns];
                next[count + t] = gradients[learns];
                if (!holder) own[learns] += bytes;
                gradients[learns] += bytes;
            }
            next += 2 * count;
        }
    }
}

[[gnu::cold]] GPIPE_INLINE void fill_updates(Tables& tables, Model const& model,
                                             MemoryPlan const& plan,
                                             Array<std::byte*> const& arenas) {
    Programs const& programs = plan.lowered.programs;
    std::size_t const devices = plan.devices.size();
    std::size_t tensors = 0;
    for (LayerInfo const& layer : model.infos) tensors += layer.learned_tensors();
    tables.updates = Array<UpdateRow>(tensors);
    tables.updates_at = Array<std::size_t>(devices + 1);
    tables.devices = Array<Tables::OnDevice>(devices);
    bool const shards = plan.replication.count > 1 && plan.replication.shards;
    Array<std::uint32_t> first_row(model.layers.size()); // by layer
    std::size_t at = 0;
    auto const add = [&](std::size_t layer, bool own, std::byte* states) {
        LayerMemory const& row = tables.layers[layer];
        UpdateSpecs const& specs = model.layers[layer].updates;
        std::size_t offset = 0;
        first_row[layer] = static_cast<std::uint32_t>(at);
        for (std::size_t t = 0; t < specs.size(); ++t) {
            if (!model.infos[layer].learns(t)) continue;
            UpdateSpec const& spec = specs[t];
            bool const held = holder_of(model.ties, plan.holders, layer, t) != nullptr;
            UpdateRow& update = tables.updates[at++];
            if (own) { // else another rank's: that there is one
                if (!held) update.update = spec.update, update.squares = spec.squares;
                update.add = spec.add;
                update.parameter = row.parameters[t];
                update.gradient = row.gradients[t];
                if (states) update.state = states + model.states * offset;
            }
            update.elements = spec.elements;
            update.decay = spec.decay;
            update.layer = static_cast<std::uint32_t>(layer);
            update.number = static_cast<std::uint32_t>(t);
            update.type = type_number(model.infos[layer].name);
            update.states = static_cast<std::uint32_t>(model.states);
            if (!held) offset += slot_bytes(model.infos[layer].parameters.bytes[t]);
        }
    };
    for (std::size_t d = 0; d < devices; ++d) {
        bool const own = tables.ranks.own(d);
        if (own)
            tables.devices[d].gradients = {arenas[d] + plan.devices[d].parameters,
                                           plan.devices[d].gradients};
        for (std::size_t const c : programs.cells_of(d))
            for (std::size_t i = plan.first[c]; i < plan.first[c + 1]; ++i)
                add(i, own, shards || !own ? nullptr : arenas[d] + plan.optimizer[i]);
        tables.updates_at[d + 1] = at;
    }

    auto const row_of = [&](std::size_t layer, std::size_t tensor) {
        return first_row[layer] +
               static_cast<std::uint32_t>(model.infos[layer].learned_before(tensor));
    };
    Array<bool> repeats(tensors);
    std::size_t const ends = model.ties.size();
    tables.tied = Array<std::uint32_t>(ends);
    tables.holders = Array<std::uint32_t>(ends);
    tables.ties = Array<Tables::Tie>(ends > 0 ? model.ties[ends - 1].tie + 1 : 0);
    for (std::size_t i = 0; i < ends; ++i) {
        TiedTensor const& end = model.ties[i];
        Tables::Tie& tie = tables.ties[end.tie];
        if (end.is_first) tie = {i, i, end.bytes};
        tie.last = i + 1;
        bool const learns = model.infos[end.layer].learns(end.tensor);
        tables.tied[i] = learns ? row_of(end.layer, end.tensor) : Tables::no_row;
        tables.holders[i] = tables.tied[plan.holders.empty() ? i : plan.holders[i]];
        if (end.is_first || !learns) continue;
        UpdateRow& row = tables.updates[tables.tied[i]];
        repeats[tables.tied[i]] = true;
        // The same to the optimizer and in messages.
        UpdateRow const& first = tables.updates[tables.tied[tie.first]];
        row.decay = first.decay;
        row.layer = first.layer;
        row.number = first.number;
        row.type = first.type;
        row.state = tables.updates[tables.holders[i]].state;
    }
    tables.order = Array<std::uint32_t>(
        tensors - static_cast<std::size_t>(std::count(repeats.begin(), repeats.end(), true)));
    std::size_t next = 0;
    for (std::size_t i = 0; i < model.layers.size(); ++i)
        for (std::uint32_t t = 0; t < model.infos[i].learned_tensors(); ++t)
            if (!repeats[first_row[i] + t]) tables.order[next++] = first_row[i] + t;
}

[[gnu::cold]] GPIPE_INLINE void fill_cells(Tables& tables, Model const& model,
                                           MemoryPlan const& plan) {
    std::size_t const cells = plan.lowered.programs.cells();
    tables.cells = Array<CellRow>(cells);
    for (std::size_t c = 0; c < cells; ++c) {
        tables.cells[c] = {static_cast<std::uint32_t>(plan.first[c]),
                           plan.pools.pool(Holds::retained, c).bytes,
                           {}};
        if (plan.cells[c].input_moves)
            tables.cells[c].input = extent(model.infos[plan.first[c]].input, plan.capacity);
    }
    Edges const& edges = plan.lowered.edges;
    tables.edges = Array<EdgeRow>(edges.size());
    for (std::size_t e = 0; e < edges.size(); ++e) {
        LayerInfo const& layer = model.infos[plan.first[edges[e].to]];
        tables.edges[e] = {extent(layer.input, plan.capacity),
                           extent(layer.input_gradient, plan.capacity), no_channel};
    }
    for (std::size_t s = 0; s < plan.skip_edges.size(); ++s)
        if (std::uint32_t const e = plan.skip_edges[s]; e != Operands::none)
            tables.edges[e] = {
                {0, model.skips[s].bytes}, {0, model.skips[s].gradient_bytes}, no_channel};
    tables.last_device = plan.lowered.programs.device_of(cells - 1);
}

// Where a step's state lies on a device that cannot read the host's memory.
[[gnu::cold]] GPIPE_INLINE void fill_staging(Tables& tables, MemoryPlan const& plan,
                                             Array<std::byte*> const& arenas) {
    std::size_t const devices = plan.devices.size();
    for (std::size_t d = 0; d < devices; ++d) {
        DeviceOffsets const& begin = plan.begin[d];
        Tables::OnDevice& own = tables.devices[d];
        own.state = reinterpret_cast<StepState*>(arenas[d] + begin.state);
        own.optimizer = arenas[d] + begin.optimizer;
        if (begin.constants > 0) own.constants = arenas[d] + begin.constants;
        own.squares = arenas[d] + begin.squares;
    }
    std::byte* const last = arenas[tables.last_device];
    tables.all_squares = reinterpret_cast<double*>(last + plan.all_squares_at);
    tables.order_there = reinterpret_cast<std::uint32_t*>(last + plan.order_at);
    tables.loss_sums = reinterpret_cast<double*>(arenas[tables.last_device] + plan.sums_at);
}

// Where gradients of ties come which the device of the first end cannot read where they are.
[[gnu::cold]] GPIPE_INLINE void fill_brought(Tables& tables, MemoryPlan const& plan,
                                             Array<std::byte*> const& arenas, Ranks const& ranks) {
    tables.brought = Array<std::byte*>(tables.tied.size());
    for (Tables::Tie const& tie : tables.ties)
        for (std::size_t end = tie.first + 1; end < tie.last && tables.learns(tie); ++end) {
            std::size_t const from = tables.device_of_end(end),
                              to = tables.device_of_end(tie.first);
            if (from != to && (plan.stages || ranks.of(from) != ranks.of(to)))
                tables.brought[end] = arenas[to] + plan.brought[end];
        }
}

} // namespace detail

/// Fills them from a model, which must outlive them, and its plan. `arenas`, `handles`: by device;
/// `learner`: lowest_learner(); `debug`: if calls are to be looked at. Of other ranks' devices
/// there are names and numbers alone. Of replicas there is nothing, see replica_parts().
[[gnu::cold]] GPIPE_INLINE Tables make_tables(Model const& model, MemoryPlan const& plan,
                                              Array<std::byte*> const& arenas,
                                              Array<HandleSet> const& handles, std::size_t learner,
                                              Ranks const& ranks, PoisonWork debug = {}) {
    Tables tables;
    tables.model = &model;
    tables.ranks = ranks;
    detail::fill_layers(tables, model, plan, arenas);
    tables.buffers = detail::buffer_rows(tables.layers, model, plan, arenas, ranks);
    tables.calls = make_calls(model, plan, tables.layers, learner, ranks);
    if (debug.find) tables.debug = debug_calls(tables.calls, model, plan, debug, ranks);
    detail::fill_updates(tables, model, plan, arenas);
    detail::fill_cells(tables, model, plan);
    tables.handles = handles.data();
    if (plan.stages) detail::fill_staging(tables, plan, arenas);
    detail::fill_brought(tables, plan, arenas, ranks);
    tables.sums = model.sums;
    tables.loss_row = model.sums + (debug.find != nullptr);
    tables.micro_batches = plan.lowered.programs.micro_batches();
    tables.capacity = plan.capacity;
    return tables;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
