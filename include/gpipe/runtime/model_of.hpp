#pragma once

#include <gpipe/chain/handle_table.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/type_name.hpp>
#include <gpipe/optimizer/optimizer.hpp>
#include <gpipe/runtime/loss_thunk.hpp>
#include <gpipe/runtime/model.hpp>
#include <gpipe/runtime/training_options.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// Once its info says that it is frozen: its backward is what gives the input's gradient.
[[gnu::cold]] GPIPE_INLINE void freeze(LayerParts& layer) {
    if (layer.functions.weight_gradient) layer.functions.backward = layer.functions.input_gradient;
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
    for (std::size_t i = 0; i < model.layers.size(); ++i)
        if (model.infos[i].frozen) freeze(model.layers[i]);
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

template <class Device, class... Ts>
void scale_tensors(Tensors<Ts...>, Call const& call, Frame const& frame) {
    std::byte* at = call.dy.in(frame);
    auto const scale = [&]<class T>(T*) {
        if constexpr (CarriesGradient<typename T::Element>::value) {
            StepWork<Device>::template scale<typename T::Element>(
                {at, T::size * frame.samples, frame.shared->state, frame.shared->stream});
            at += slot_bytes(T::bytes * frame.shared->capacity);
        }
    };
    (scale(static_cast<Ts*>(nullptr)), ...);
}
// Behind a loss: scales its gradient.
template <class Net, class Device> void scale_thunk(Call const& call, Frame const& frame) {
    scale_tensors<Device>(as_tensors<typename Net::Output>{}, call, frame);
    check_call<typename Device::Stream>(frame);
}
template <class Loss, class Net, class Device>
void scaled_loss_thunk(Call const& call, Frame const& frame) {
    loss_thunk<Loss, Net, typename Device::Stream, true>(call, frame);
    scale_thunk<Net, Device>(call, frame);
}

// A Pipeline as values, which must outlive them: no loss, and nothing that updates.
template <class Device, class Net> Model layers_of(Net const& net) {
    auto const objects = net.leaf_objects();
    Model model;
    model.infos = Array<LayerInfo>(Net::size);
    model.skips = {Net::skips.data(), Net::skips.size()};
    model.ties = {Net::ties.data(), Net::ties.size()};
    model.sides = {Net::sides.data(), Net::sides.size()};
    model.layers = Array<LayerParts>(Net::size);
    Net::for_each_layer([&](std::size_t layer, std::size_t leaf) {
        model.infos[layer] = Net::leaf_info[leaf];
        model.layers[layer] = {
            Net::template leaf_functions<typename Device::Stream>[leaf], {}, objects[leaf]};
        if (model.infos[layer].frozen) freeze(model.layers[layer]);
    });
    return model;
}

// The same with the parameters as tensors, which this Optimizer updates, or nobody.
template <class Device, class Optimizer, class Net> Model parameters_of(Net const& net) {
    auto const updates = Net::template leaf_table<UpdatesOf<Optimizer, Device>>();
    Model model = layers_of<Device>(net);
    Net::for_each_layer(
        [&](std::size_t layer, std::size_t leaf) { model.layers[layer].updates = updates[leaf]; });
    return model;
}

// What an update is told of each parameter tensor, or would be if none were frozen: of tied ones of
// the first end.
GPIPE_INLINE Array<UpdateContext> told_tensors(Model const& model) {
    std::size_t count = 0;
    for (LayerInfo const& layer : model.infos) count += layer.parameters.count;
    Array<UpdateContext> told(count);
    count = 0;
    for (std::size_t layer = 0; layer < model.layers.size(); ++layer)
        for (std::size_t t = 0; t < model.infos[layer].parameters.count; ++t) {
            TiedTensor const* const end = tied_end(model.ties, layer, t);
            if (end && !end->is_first) continue;
            UpdateContext& tensor = told[count++];
            tensor.layer = static_cast<std::uint32_t>(layer);
            tensor.tensor = static_cast<std::uint32_t>(t);
            tensor.type = type_number(model.infos[layer].name);
            tensor.decay = model.layers[layer].updates[t].decay;
        }
    return first_of(told, count);
}

// A Pipeline that is only evaluated, as values, which it must outlive.
template <class Device, class Net> Model inference_model(Net const& net) {
    Model model = parameters_of<Device, void>(net);
    only_evaluate(model.infos);
    model.sums = 0;
    return model;
}

// A Pipeline with its loss and optimizer as values, which must outlive them.
template <class Device, class Net, class Loss, class Optimizer>
Model model_of(Net const& net, Loss const& loss, Optimizer const& optimizer) {
    using Stream = typename Device::Stream;
    if constexpr (requires { optimizer.check_layers(Net::size); })
        optimizer.check_layers(Net::size);
    Model model = parameters_of<Device, Optimizer>(net);
    if constexpr (requires(std::span<UpdateContext const> all) { optimizer.check_tensors(all); }) {
        Array<UpdateContext> const told = told_tensors(model);
        optimizer.check_tensors(std::span(told.data(), told.size()));
    }
    model.loss = {&loss_thunk<Loss, Net, Stream, true>,
                  &scale_thunk<Net, Device>,
                  &scaled_loss_thunk<Loss, Net, Device>,
                  &loss_thunk<Loss, Net, Stream, false>,
                  &loss,
                  type_name<Loss>,
                  handle_specs<Loss, Stream>()};
    model.loss_scratch = sizes_of<typename ScratchOf<Loss>::type>();
    model.loss_handles = handle_needs<Loss>();
    model.loss_constants = constant_needs<Loss>();
    model.sums = 2 + loss_metrics<Loss, Net>;
    model.states = states_of(optimizer);
    model.targets = sizes_of<as_tensors<typename Loss::Target>>();
    model.optimizer_bytes = sizeof(Optimizer);
    if constexpr (joins_ranks<Device>) {
        model.told_rates = &told_rates<Optimizer>;
        model.check_rates = &check_rates<Optimizer>;
    }
    return model;
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
