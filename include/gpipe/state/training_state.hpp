#pragma once

#include <gpipe/state/layer_state.hpp>
#include <gpipe/state/safetensors.hpp>
#include <gpipe/training.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpipe {

/// All that a step may change, and what says whose it is; as values. Nothing in it depends on where
/// layers are cut, on M, on schedule or checkpointing, or on the kind of device.
struct TrainingState {
    std::vector<safetensors::Entry> tensors; ///< in the order in which a file has them
    std::vector<std::string> layers;         ///< in words, by layer
    std::string optimizer;                   ///< its type
    std::uint64_t seed = 0;                  ///< see Options::seed
    std::uint64_t steps = 0;                 ///< trained so far
};

namespace detail {

inline std::string tensor_name(std::size_t layer, LayerState const& state, std::size_t tensor) {
    char number[32];
    std::snprintf(number, sizeof number, "layer.%04zu.", layer);
    return number + (state.names ? std::string(state.names[tensor]) : std::to_string(tensor));
}

inline std::string in_words(TensorTypes types) {
    std::string words;
    for (TensorType const& type : types) {
        words += words.empty() ? "" : ", ";
        if (type.dtype == Dtype::other) words += std::to_string(type.element.bytes) + " bytes, ";
        words += described(type.dtype,
                           std::vector<std::uint64_t>(type.extents, type.extents + type.rank));
    }
    return words;
}

// Waits for all steps.
template <class Device>
TrainingState state_of(Machine<Device>& machine, std::vector<LayerState> const& layers,
                       std::string optimizer) {
    machine.engine().check_whole();
    TrainingState state{
        {}, {}, std::move(optimizer), machine.engine().seed(), machine.engine().steps()};
    std::size_t const states = machine.model().states;
    for (std::size_t i = 0, next = 0; i < layers.size(); ++i) {
        LayerState const& layer = layers[i];
        state.layers.push_back(bare_name(layer.type) + ' ' + in_words(layer.input()) + " -> " +
                               in_words(layer.output()));
        for (std::size_t t = 0; t < layer.parameters.count; ++t) {
            if (machine.engine().tied().is_repeated(i, t)) continue;
            TensorType const& type = layer.parameters.first[t];
            UpdateRow const& row = machine.tensor(next++);
            safetensors::Entry entry{tensor_name(i, layer, t),
                                     type.dtype,
                                     {type.extents, type.extents + type.rank},
                                     0,
                                     0,
                                     row.parameter};
            std::string const name = entry.name;
            state.tensors.push_back(entry);
            for (std::size_t s = 0; s < states; ++s) {
                entry.name = "optimizer." + std::to_string(s) + '.' + name;
                entry.memory = row.state + s * slot_bytes(row.elements * type.element.bytes);
                state.tensors.push_back(entry);
            }
        }
    }
    safetensors::arrange(state.tensors);
    return state;
}
template <class Net, class... Policies> TrainingState state_of(Training<Net, Policies...>& train) {
    auto const leaves = Net::template leaf_table<StateOfLayer>();
    std::vector<LayerState> layers(Net::size);
    Net::for_each_layer([&](std::size_t layer, std::size_t leaf) { layers[layer] = leaves[leaf]; });
    return state_of(MachineAccess::of(train), layers, bare_name(chosen_name(train.optimizer())));
}

} // namespace detail
} // namespace gpipe
