#pragma once

#include <gpipe/chain/handle_table.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/runtime/loss_thunk.hpp>
#include <gpipe/runtime/model.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <vector>

namespace gpipe::detail {

// Once its info says that it is frozen.
inline void freeze(LayerParts& layer) {
    if (layer.functions.weight_gradient) layer.functions.backward = layer.functions.input_gradient;
    layer.updates.count = 0;
}

// These layers, too. Throws std::invalid_argument where there is no such layer, and where its
// parameters are one with others.
[[gnu::cold]] inline void freeze(Model& model, std::vector<std::size_t> const& layers) {
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

// A Pipeline with its loss and optimizer as values, which must outlive them.
template <class Device, class Net, class Loss, class Optimizer>
Model model_of(Net const& net, Loss const& loss, Optimizer const& optimizer) {
    using Stream = typename Device::Stream;
    if constexpr (requires { optimizer.check_layers(Net::size); })
        optimizer.check_layers(Net::size);
    auto const objects = net.leaf_objects();
    auto const updates = Net::template leaf_table<UpdatesOf<Optimizer, Device>>();
    Model model;
    model.infos = Array<LayerInfo>(Net::size);
    model.costs = Array<double>(Net::size);
    model.skips = {Net::skips.data(), Net::skips.size()};
    model.ties = {Net::ties.data(), Net::ties.size()};
    model.layers = Array<LayerParts>(Net::size);
    Net::for_each_layer([&](std::size_t layer, std::size_t leaf) {
        model.infos[layer] = Net::leaf_info[leaf];
        model.costs[layer] = Net::leaf_info[leaf].cost;
        model.layers[layer] = {Net::leaf_info[leaf], Net::template leaf_functions<Stream>[leaf],
                               updates[leaf], objects[leaf]};
        if (model.infos[layer].frozen) freeze(model.layers[layer]);
    });
    model.loss = {&loss_thunk<Loss, Net, Stream, true>, &loss_thunk<Loss, Net, Stream, false>,
                  &loss, type_name<Loss>, handle_specs<Loss, Stream>()};
    model.loss_scratch = sizes_of<typename ScratchOf<Loss>::type>();
    model.loss_handles = handle_needs<Loss>();
    model.sums = 2 + loss_metrics<Loss, Net>;
    model.states = states_of(optimizer);
    model.targets = sizes_of<as_tensors<typename Loss::Target>>();
    model.optimizer_bytes = sizeof(Optimizer);
    model.input_tensors = Batch<typename Net::Input>::count;
    model.target_tensors =
        std::max(Batch<typename Loss::Target>::count, Batch<typename Net::Output, true>::count);
    return model;
}

} // namespace gpipe::detail
