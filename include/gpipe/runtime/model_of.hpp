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
template <class Output, class Device> void scale_thunk(Call const& call, Frame const& frame) {
    scale_tensors<Device>(as_tensors<Output>{}, call, frame);
    check_call<typename Device::Stream>(frame);
}
template <class Loss, class Output, class Device>
void scaled_loss_thunk(Call const& call, Frame const& frame) {
    loss_thunk<Loss, Output, typename Device::Stream, true>(call, frame);
    scale_thunk<Output, Device>(call, frame);
}

// What the type of a Pipeline says of its layers, for a kind of device, by leaf; Optimizer: void
// where nothing updates their parameters.
struct ChainParts {
    Part<ItemExtent> extents;
    LayerInfo const* infos;
    LayerFunctions const* functions;
    UpdateSpecs const* updates;
    Part<SkipPair> skips;
    Part<TiedTensor> ties;
    Part<SideInfo> sides;
};
template <class Device, class Optimizer, class Net>
inline constexpr auto leaf_updates = Net::template leaf_table<UpdatesOf<Optimizer, Device>>();
template <class Device, class Optimizer, class Net>
inline constexpr ChainParts chain_parts{
    Net::extents(),
    Net::leaf_info.data(),
    Net::template leaf_functions<typename Device::Stream>.data(),
    leaf_updates<Device, Optimizer, Net>.data(),
    {Net::skips.data(), Net::skips.size()},
    {Net::ties.data(), Net::ties.size()},
    {Net::sides.data(), Net::sides.size()}};

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

// The layers of a Pipeline, whose objects, by leaf, must outlive them.
[[gnu::cold]] GPIPE_INLINE void make_layers(Model& model, ChainParts const& parts,
                                            void const* const* objects) {
    model.infos = by_layer(parts.extents, parts.infos);
    model.layers = Array<LayerParts>(model.infos.size());
    model.skips = parts.skips;
    model.ties = parts.ties;
    model.sides = parts.sides;
    for_each_layer(parts.extents, [&](std::size_t i, std::size_t leaf) {
        LayerParts& layer = model.layers[i];
        layer = {parts.functions[leaf], parts.updates[leaf], objects[leaf]};
        if (model.infos[i].frozen) freeze(layer);
    });
}
template <class Device, class Optimizer, class Net> void make_layers(Model& model, Net const& net) {
    make_layers(model, chain_parts<Device, Optimizer, Net>, net.leaf_objects().data());
}

// A Pipeline that is only evaluated.
template <class Device, class Net> void make_inference_model(Model& model, Net const& net) {
    make_layers<Device, void>(model, net);
    only_evaluate(model.infos);
    model.sums = 0;
}

// A Pipeline with its loss and optimizer, which must outlive the model.
template <class Device, class Net, class Loss, class Optimizer>
void make_model(Model& model, Net const& net, Loss const& loss, Optimizer const& optimizer) {
    using Stream = typename Device::Stream;
    using Output = typename Net::Output;
    if constexpr (requires { optimizer.check_layers(Net::size); })
        optimizer.check_layers(Net::size);
    make_layers<Device, Optimizer>(model, net);
    if constexpr (requires(std::span<UpdateContext const> all) { optimizer.check_tensors(all); }) {
        Array<UpdateContext> const told = told_tensors(model);
        optimizer.check_tensors(std::span(told.data(), told.size()));
    }
    static constexpr LossParts constant{&loss_thunk<Loss, Output, Stream, true>,
                                        &scale_thunk<Output, Device>,
                                        &scaled_loss_thunk<Loss, Output, Device>,
                                        &loss_thunk<Loss, Output, Stream, false>,
                                        nullptr,
                                        type_name<Loss>,
                                        handle_specs<Loss, Stream>(),
                                        handle_needs<Loss>(),
                                        constant_needs<Loss>(),
                                        sizes_of<typename ScratchOf<Loss>::type>()};
    model.loss = constant;
    model.loss.object = &loss;
    model.sums = 2 + loss_metrics<Loss, Output>;
    model.states = states_of(optimizer);
    model.targets = sizes_of<as_tensors<typename Loss::Target>>();
    model.optimizer_bytes = sizeof(Optimizer);
    if constexpr (joins_ranks<Device>) {
        model.told_rates = &told_rates<Optimizer>;
        model.check_rates = &check_rates<Optimizer>;
    }
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
