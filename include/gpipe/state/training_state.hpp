#pragma once

#include <gpipe/state/layer_state.hpp>
#include <gpipe/state/safetensors.hpp>
#include <gpipe/state/state_inline.hpp>
#include <gpipe/training.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpipe {

template <class Net, class... Policies> class Inference;

/// What a rank has of a tensor of a state, in its memory.
struct OwnPart {
    std::size_t tensor = 0;      ///< which of TrainingState::tensors
    std::uint64_t first = 0;     ///< of its elements
    std::uint64_t count = 0;     ///< how many
    std::byte* memory = nullptr; ///< where they are
    bool saves = false;          ///< whether nobody else saves them
};

/// A parameter tensor that learns: `tensor` of TrainingState::tensors, with its optimizer state
/// behind it.
struct LearnedTensor {
    std::size_t tensor = 0;          ///< which
    std::size_t states = 0;          ///< how many arrays that is
    std::vector<std::uint32_t> rows; ///< of Tables::updates: several of a tied one
    std::uint64_t begun = 0;         ///< see UpdateRow
};

/// All that a step may change, and what says whose it is; as values. Nothing in it but what is own
/// depends on where layers are cut, on M, on schedule or checkpointing, on ranks and replicas, or
/// on the kind of device.
struct TrainingState {
    std::vector<safetensors::Entry> tensors; ///< of all ranks, in the order of the chain
    std::vector<OwnPart> own;                ///< what of them is here
    std::vector<LearnedTensor> learned;      ///< likewise in the order of the chain
    std::vector<std::string> layers;         ///< in words, by layer
    std::string optimizer;                   ///< its type
    std::uint64_t seed = 0;                  ///< see Options::seed
    std::uint64_t steps = 0;                 ///< trained so far
    bool scales = false;                     ///< whether there is a loss scale
    LossScaleState scale{};                  ///< then that
    bool infers = false;                     ///< whether there is no optimizer
    /// By the name that a tied tensor would have in another of its layers: the one that it has.
    std::map<std::string, std::string, std::less<>> tied{};
};

namespace detail {

// By `names`, if the layer has any, else by its number.
GPIPE_STATE_INLINE std::string tensor_name(std::size_t layer, std::string_view const* names,
                                           std::string const& before_numbers, std::size_t tensor) {
    char begin[32];
    std::snprintf(begin, sizeof begin, "layer.%04zu.", layer);
    return begin + (names ? std::string(names[tensor]) : before_numbers + std::to_string(tensor));
}
GPIPE_STATE_INLINE std::string parameter_name(std::size_t layer, LayerState const& state,
                                              std::size_t tensor) {
    return tensor_name(layer, state.names, "", tensor);
}
GPIPE_STATE_INLINE safetensors::Entry entry_of(std::string name, TensorType const& type) {
    return {std::move(name), type.dtype, {type.extents, type.extents + type.rank}};
}

GPIPE_STATE_INLINE std::string in_words(TensorTypes types) {
    std::string words;
    for (TensorType const& type : types) {
        words += words.empty() ? "" : ", ";
        if (type.dtype == Dtype::other) words += std::to_string(type.element.bytes) + " bytes, ";
        words += described(type.dtype, entry_of({}, type).shape);
    }
    return words;
}

// A parameter tensor and its optimizer state, as far as a rank has them: one end, if it is tied.
GPIPE_STATE_INLINE void add_own(TrainingState& state, Tables const& tables,
                                std::uint32_t row_number, std::size_t tensor, std::size_t states,
                                std::size_t element, bool saves) {
    UpdateRow const& row = tables.updates[row_number];
    if (!row.parameter) return; // another rank's
    bool const shards = tables.replicas.any() && tables.replicas.replication.shards;
    bool const is_first = tables.ranks.replica == 0;
    state.own.push_back({tensor, 0, row.elements, row.parameter, saves && is_first});
    UpdateRow const& updated = shards ? tables.replicas.rows[row_number] : row;
    std::size_t const before = static_cast<std::size_t>(updated.parameter - row.parameter);
    for (std::size_t s = 0; s < states && updated.elements > 0; ++s)
        state.own.push_back({tensor + 1 + s, before / element, updated.elements,
                             updated.state + s * slot_bytes(updated.elements * element),
                             saves && (shards || is_first)});
}

// A tensor that is as it is on all replicas, at `memory` if it is here.
GPIPE_STATE_INLINE void add_lasting(TrainingState& state, std::string name, TensorType const& type,
                                    std::byte* memory, bool saves) {
    if (memory) state.own.push_back({state.tensors.size(), 0, type.count, memory, saves});
    state.tensors.push_back(entry_of(std::move(name), type));
}

// Waits for all steps.
template <class Device>
TrainingState state_of(Machine<Device>& machine, std::vector<LayerState> const& layers,
                       std::string optimizer) {
    machine.finish();
    machine.engine().runs().refuse_if_torn();
    TrainingState state;
    state.optimizer = std::move(optimizer);
    state.seed = machine.engine().seed();
    state.steps = machine.engine().steps();
    state.scales = machine.engine().runs().scales();
    state.scale = machine.engine().runs().scale();
    state.infers = machine.programs().evaluates();
    Tables const& tables = machine.engine().tables();
    auto const& tied = machine.engine().tied();
    bool const keeps = tables.ranks.replica == 0;
    std::size_t const states = machine.model().states;
    for (std::size_t i = 0, next = 0; i < layers.size(); ++i) {
        LayerState const& layer = layers[i];
        state.layers.push_back(bare_name(layer.type) + ' ' + in_words(layer.input()) + " -> " +
                               in_words(layer.output()));
        LayerMemory const& memory = tables.layers[i];
        LayerInfo const& info = machine.model().infos[i];
        for (std::size_t t = 0; t < layer.buffers.size(); ++t)
            add_lasting(state, tensor_name(i, layer.buffer_names, "buffer.", t), layer.buffers[t],
                        info.buffers.find(memory.buffers.buffers, t), keeps);
        for (std::size_t t = 0; t < layer.parameters.size(); ++t) {
            TensorType const& type = layer.parameters[t];
            std::string const name = parameter_name(i, layer, t);
            TiedTensor const* const own = tied_end(machine.model().ties, i, t);
            Tables::Tie const tie = own ? tables.ties[own->tie] : Tables::Tie{};
            if (own && !own->is_first) {
                TiedTensor const& first = machine.model().ties[tie.first];
                state.tied[name] = parameter_name(first.layer, layers[first.layer], first.tensor);
                continue;
            }
            std::size_t const tensor = state.tensors.size();
            if (!info.learns(t)) {
                TieHolders const& holders = machine.plan().holders;
                for (std::size_t e = tie.first + 1; e < tie.last; ++e)
                    if (std::byte* const other = tied.parameter(e);
                        other && (holders.empty() || holders[e] == e))
                        state.own.push_back({tensor, 0, type.count, other, false});
                add_lasting(state, name, type, memory.parameters ? memory.parameters[t] : nullptr,
                            keeps);
                continue;
            }
            std::uint32_t const row = tables.order[next++];
            LearnedTensor learned{tensor, states, {row}, machine.engine().runs().begun(row)};
            if (tie.first != tie.last)
                learned.rows.assign(tables.tied.begin() + tie.first,
                                    tables.tied.begin() + tie.last);
            for (std::uint32_t const end : learned.rows) // each place once
                if (end == row || std::count(tables.holders.begin(), tables.holders.end(), end) > 0)
                    add_own(state, tables, end, tensor, states, type.element.bytes, end == row);
            state.learned.push_back(std::move(learned));
            state.tensors.push_back(entry_of(name, type));
            for (std::size_t s = 0; s < states; ++s)
                state.tensors.push_back(
                    entry_of("optimizer." + std::to_string(s) + '.' + name, type));
        }
    }
    return state;
}
template <class Net> std::vector<LayerState> layer_states() {
    auto const leaves = Net::template leaf_table<StateOfLayer>();
    std::vector<LayerState> layers(Net::size);
    Net::for_each_layer([&](std::size_t layer, std::size_t leaf) { layers[layer] = leaves[leaf]; });
    return layers;
}
// Of a machine of this training, or the machine of an inference.
template <class Device, class Net, class... Policies>
TrainingState state_of(Machine<Device>& machine, Training<Net, Policies...> const& train) {
    return state_of(machine, layer_states<Net>(), bare_name(chosen_name(train.optimizer())));
}
template <class Device, class Net, class... Policies>
TrainingState state_of(Machine<Device>& machine, Inference<Net, Policies...> const&) {
    return state_of(machine, layer_states<Net>(), {});
}

} // namespace detail
} // namespace gpipe
