#pragma once

#include <gpipe/call/handle_specs.hpp>
#include <gpipe/chain/chain_ties.hpp>
#include <gpipe/chain/info.hpp>
#include <gpipe/chain/layer_functions.hpp>
#include <gpipe/chain/skip_pairs.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/type_name.hpp>
#include <gpipe/runtime/device_work.hpp>
#include <gpipe/runtime/told_rates.hpp>
#include <gpipe/runtime/update.hpp>
#include <gpipe/transport/local.hpp>

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

namespace gpipe {

/// How one parameter tensor of a layer type is updated.
struct UpdateSpec {
    UpdateFunction update = nullptr;   ///< of the optimizer, for the element type
    SquaresFunction squares = nullptr; ///< of the gradient
    AddFunction add = nullptr;         ///< to the gradient, if it is tied or may be
    std::size_t elements = 0;          ///< of the tensor
    float decay = 1;                   ///< its share of weight decay
    std::string_view type{};           ///< of its elements
};

/// The specs of one layer type's parameter tensors.
using UpdateSpecs = Part<UpdateSpec>;

namespace detail {

// L: a layer that says something of its parameters, or void for all others, which share their
// specs. Optimizer: void where nothing updates.
template <class Optimizer, class Device, class L, class Group> struct SpecsOf;
template <class Optimizer, class Device, class L, class... Ts>
struct SpecsOf<Optimizer, Device, L, Tensors<Ts...>> {
    using Work = StepWork<Device>;
    template <class T> static constexpr AddFunction add() {
        // Or to those of replicas.
        constexpr bool adds = joins_ranks<Device> && requires(T & sum, T const& x) { sum += x; };
        if constexpr (ties_parameters<L> || adds)
            return &Work::template add<T>;
        else
            return nullptr;
    }
    template <class T> static constexpr UpdateSpec spec() {
        using Element = typename T::Element;
        UpdateSpec result;
        if constexpr (!std::is_void_v<Optimizer>)
            result = {&Work::template update<Element, Optimizer>, &Work::template squares<Element>,
                      add<Element>()};
        result.elements = T::size;
        result.type = type_name<Element>;
        return result;
    }
    static constexpr std::array<UpdateSpec, sizeof...(Ts)> make() {
        std::array<UpdateSpec, sizeof...(Ts)> specs{spec<Ts>()...};
        if constexpr (!std::is_void_v<L>) {
            std::size_t t = 0;
            for (UpdateSpec& spec : specs) spec.decay = LayerTraits<L>::decay(t++);
        }
        return specs;
    }
    static constexpr std::array<UpdateSpec, sizeof...(Ts)> value = make();
};

// For Pipeline::leaf_table.
template <class Optimizer, class Device> struct UpdatesOf {
    using Value = UpdateSpecs;
    template <class L> static constexpr Value of() {
        constexpr bool says = LayerTraits<L>::has_decay || ties_parameters<L>;
        using Specs = SpecsOf<Optimizer, Device, std::conditional_t<says, L, void>,
                              typename LayerTraits<L>::Parameters>;
        return {Specs::value.data(), Specs::value.size()};
    }
};

} // namespace detail

/// One layer as values: everything that its type says to the machine.
struct LayerParts {
    LayerFunctions functions;     ///< what the engine calls
    UpdateSpecs updates;          ///< of its parameters
    void const* object = nullptr; ///< the layer
};

/// The loss as a layer on top of the chain, whose backward it begins.
struct LossParts {
    CallFunction train = nullptr;    ///< writes the gradient of the chain's output
    CallFunction scale = nullptr;    ///< scales that, see LossScale
    CallFunction scaled = nullptr;   ///< both
    CallFunction evaluate = nullptr; ///< no gradient is wanted
    void const* object = nullptr;    ///< the functor
    std::string_view name;           ///< its type
    HandleSpecs handles;             ///< that it declares
    HandleNeeds handle_needs;        ///< what these take
    ConstantNeeds constants;         ///< that it declares
    GroupSizes scratch;              ///< see LayerTraits::Scratch
    bool scales = false;             ///< whether the gradient is to be scaled
};

/// A chain, its loss and its optimizer as values. What is built from here on knows no layer type.
struct Model {
    Array<LayerParts> layers;               ///< of the chain
    Array<LayerInfo> infos;                 ///< likewise
    Part<SkipPair> skips;                   ///< of the chain
    Part<TiedTensor> ties;                  ///< likewise
    Part<SideInfo> sides;                   ///< likewise: behind the first layer's tensors
    LossParts loss;                         ///< on top
    std::size_t sums = 2;                   ///< numbers that the loss leaves per micro-batch
    std::size_t states = 0;                 ///< arrays per parameter tensor of the optimizer
    GroupSizes targets;                     ///< of the loss, or outputs that are staged
    std::size_t optimizer_bytes = 0;        ///< of the functor itself
    ToldRatesFunction told_rates = nullptr; ///< likewise
    /// Throws where one is not finite, or wants other state.
    void (*check_rates)(void const* optimizer, std::size_t planned_states) = nullptr;
    StepConstants constants; ///< as the caller sets them
};

} // namespace gpipe
