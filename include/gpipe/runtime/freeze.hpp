#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/runtime/model.hpp>
#include <gpipe/runtime/training_options.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::detail {

// Once its info says that it is frozen: its backward is what gives the input's gradient, and
// nothing is updated.
[[gnu::cold]] GPIPE_INLINE void freeze(LayerParts& layer) {
    if (layer.functions.weight_gradient) layer.functions.backward = layer.functions.input_gradient;
    layer.updates = {layer.updates.data(), 0}; // what they would be is still there
}

// These layers and parameters, too. Throws std::invalid_argument where there is no such layer or
// tensor, and where a parameter is one with others that learn.
[[gnu::cold]] GPIPE_INLINE void freeze(Model& model, std::vector<std::size_t> const& layers,
                                       std::vector<FrozenParameter> const& parameters) {
    auto const check = [&](char const* option, std::size_t layer) {
        if (layer >= model.layers.size())
            throw_error<std::invalid_argument>(
                "gpipe: Options::%s names layer %zu: the layers of the pipeline are 0 to %zu",
                option, layer, model.layers.size() - 1);
    };
    for (std::size_t const layer : layers) {
        check("frozen", layer);
        model.infos[layer].freeze();
    }
    for (auto const& [layer, tensor] : parameters) {
        check("frozen_parameters", layer);
        LayerInfo& info = model.infos[layer];
        if (tensor >= info.parameters.count || tensor >= 64)
            throw_error<std::invalid_argument>(
                "gpipe: Options::frozen_parameters names parameter tensor %zu of layer %zu (%s), "
                "which has %zu; those from 64 on are frozen with their layer only",
                tensor, layer, std::string(info.name).c_str(), info.parameters.count);
        info.freeze_tensors(std::uint64_t{1} << tensor);
    }
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
        model.layers[i].info = model.infos[i];
        if (model.infos[i].frozen) freeze(model.layers[i]);
    }
    TiedTensor first;
    for (TiedTensor const& end : model.ties) {
        if (end.is_first) first = end;
        bool const learns = model.infos[end.layer].learns(end.tensor);
        if (learns == model.infos[first.layer].learns(first.tensor)) continue;
        auto const [frozen, other] = learns ? std::pair(first, end) : std::pair(end, first);
        throw_error<std::invalid_argument>(
            "gpipe: parameter tensor %zu of layer %zu is frozen, but tensor %zu of layer %zu is "
            "tied to it and is not: they are one parameter",
            std::size_t{frozen.tensor}, std::size_t{frozen.layer}, std::size_t{other.tensor},
            std::size_t{other.layer});
    }
}

} // namespace gpipe::detail
