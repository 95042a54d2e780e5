#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/runtime/model.hpp>

#include <cstddef>
#include <stdexcept>
#include <vector>

namespace gpipe::detail {

// Once its info says that it is frozen: its backward is what gives the input's gradient, and
// nothing is updated.
[[gnu::cold]] GPIPE_INLINE void freeze(LayerParts& layer) {
    if (layer.functions.weight_gradient) layer.functions.backward = layer.functions.input_gradient;
    layer.updates.count = 0;
}

// These layers, too. Throws std::invalid_argument where there is no such layer, and where its
// parameters are one with others.
[[gnu::cold]] GPIPE_INLINE void freeze(Model& model, std::vector<std::size_t> const& layers) {
    for (std::size_t const layer : layers) {
        if (layer >= model.layers.size())
            throw_error<std::invalid_argument>(
                "gpipe: Options::frozen names layer %zu: the layers of the pipeline are 0 to %zu",
                layer, model.layers.size() - 1);
        model.infos[layer].freeze();
        model.layers[layer].info = model.infos[layer];
        freeze(model.layers[layer]);
    }
    for (TiedTensor const& end : model.ties)
        if (model.infos[end.layer].frozen)
            throw_error<std::invalid_argument>(
                "gpipe: layer %zu is frozen, but its parameter tensor %zu is tied to others",
                std::size_t{end.layer}, std::size_t{end.tensor});
}

} // namespace gpipe::detail
