#pragma once

#include <gpipe/chain/chain_skips.hpp>
#include <gpipe/chain/chain_ties.hpp>
#include <gpipe/chain/check_layer.hpp>
#include <gpipe/chain/check_neighbours.hpp>
#include <gpipe/chain/check_skip.hpp>
#include <gpipe/chain/check_tie.hpp>
#include <gpipe/chain/info.hpp>
#include <gpipe/chain/item.hpp>
#include <gpipe/chain/thunk.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/checked.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpipe {

/// The functions of one layer type as the engine needs them, for one kind of stream.
struct LayerFunctions {
    CallFunction forward = nullptr;         ///< in training and in evaluation
    CallFunction backward = nullptr;        ///< writes the gradient of its input
    CallFunction lowest_backward = nullptr; ///< where nobody wants that gradient
    /// The halves; of a layer that has none, its backward and nothing.
    CallFunction input_gradient = nullptr;
    CallFunction lowest_input_gradient = nullptr; ///< null if it leaves nothing behind
    CallFunction weight_gradient = nullptr;       ///< the second half
    /// Writes the parameters of layer `index` of `layers`.
    void (*initialize)(void const* layer, std::byte* parameters, std::uint64_t seed,
                       std::size_t index, std::size_t layers) = nullptr;
    HandleSpecs handles; ///< that the layer declares
};

namespace detail {

// Whether what A gives is what B takes; true where CheckLayer says what is missing.
template <class A, class B> consteval bool layers_fit() {
    if constexpr (NamesOutput<A> && NamesInput<B>)
        return same_tensors<typename A::Output, typename B::Input>;
    else
        return true;
}

// Of an item that is one layer there is nothing to ask; one function for all of them.
struct FitsAlone {
    static constexpr bool at(std::size_t) { return true; }
};
// Layer by layer: whether As[i] fits Bs[i].
template <class As, class Bs> struct PairsFit;
template <class... As, class... Bs> struct PairsFit<List<As...>, List<Bs...>> {
    static constexpr std::array<bool, sizeof...(As)> all() { return {layers_fit<As, Bs>()...}; }
    static constexpr bool at(std::size_t i) { return all()[i]; }
};
template <class L> struct Rotated;
template <class First, class... Rest> struct Rotated<List<First, Rest...>> {
    using type = List<Rest..., First>;
};
// Whether each layer of an item's group fits the next; the last entry: whether the last fits the
// first.
template <class Item>
struct FitsInside
    : PairsFit<typename ItemOf<Item>::Group, typename Rotated<typename ItemOf<Item>::Group>::type> {
};
template <class Item>
    requires(ItemOf<Item>::count == 1 && ItemOf<Item>::Group::size == 1)
struct FitsInside<Item> : FitsAlone {};

template <class L>
[[gnu::cold]] void initialize_thunk(void const* layer, std::byte* parameters, std::uint64_t seed,
                                    std::size_t index, std::size_t layers) {
    if constexpr (TensorGroup<typename LayerTraits<L>::Parameters>::count > 0) {
        InitializeContextOf<L> context{parameters, seed, index, layers};
        static_cast<L const*>(layer)->initialize(context);
    }
}

template <class L, class Stream> constexpr LayerFunctions layer_functions() {
    LayerFunctions functions;
    functions.forward = &forward_thunk<L, Stream>;
    functions.initialize = &initialize_thunk<L>;
    functions.handles = handle_specs<L, Stream>();
    if constexpr (TensorGroup<typename L::Output>::carries_gradient) {
        constexpr bool unwanted = !accepts_none<L>; // it has to write that all the same
        if constexpr (!splits_backward<L> || names_backward<L>) {
            functions.backward = &backward_thunk<L, Stream, true>;
            functions.lowest_backward = &backward_thunk<L, Stream, unwanted>;
        } else {
            functions.backward = &halves_thunk<L, Stream, true>;
            functions.lowest_backward = &halves_thunk<L, Stream, false>;
        }
        if constexpr (splits_backward<L>) {
            functions.input_gradient = &input_gradient_thunk<L, Stream, true>;
            if constexpr (LayerTraits<L>::defers)
                functions.lowest_input_gradient = &input_gradient_thunk<L, Stream, unwanted>;
            functions.weight_gradient = &weight_gradient_thunk<L, Stream>;
        } else {
            functions.input_gradient = functions.backward;
            functions.lowest_input_gradient = functions.lowest_backward;
        }
    }
    return functions;
}

// One value per layer of an item's group, written behind `out`. Items are visited through an array
// of such functions: no recursion and no fold over the list, whatever its length.
struct LayerChecks {
    bool ok = false;
    bool has_cost = false;
};
struct InfoOf {
    using Value = LayerInfo;
    template <class L> static constexpr Value of() { return layer_info<L>(); }
};
struct ChecksOf {
    using Value = LayerChecks;
    template <class L> static constexpr Value of() {
        bool const has_cost = requires { L::cost; };
        return {layer_fits<L>(), has_cost};
    }
};
template <class Stream> struct FunctionsOf {
    using Value = LayerFunctions;
    template <class L> static constexpr Value of() { return layer_functions<L, Stream>(); }
};

template <class Of, class Group> struct WriteGroup;
template <class Of, class... Layers> struct WriteGroup<Of, List<Layers...>> {
    static constexpr void write(typename Of::Value* out) {
        typename Of::Value const values[] = {Of::template of<Layers>()...};
        for (auto const& value : values) *out++ = value;
    }
};

// The list of items as values. All that is computed is computed by functions of this class, which
// is complete before Pipeline takes its constants from it.
template <class... Items> struct Chain {
    static constexpr std::size_t items = sizeof...(Items);

    static constexpr ItemExtent extents[items + 1] = {
        {ItemOf<Items>::count, ItemOf<Items>::Group::size, ItemOf<Items>::repeats}..., {}};

    static constexpr std::size_t layers() {
        std::size_t total = 0;
        for (ItemExtent const& extent : extents)
            total = checked_sum(total, checked_product(extent.count, extent.group));
        return total;
    }
    static constexpr std::size_t leaves() {
        std::size_t total = 0;
        for (ItemExtent const& extent : extents) total += extent.group;
        return total;
    }

    // Whether an item is a Repeat of nothing, which has its own sentence.
    static constexpr bool repeats_nothing() {
        for (std::size_t i = 0; i < items; ++i)
            if (extents[i].count * extents[i].group == 0) return true;
        return false;
    }

    // One value per leaf.
    template <class Of> static constexpr auto table() {
        using Value = typename Of::Value;
        if constexpr (leaves() == items && items > 0) // no groups: nothing to write by parts
            return std::array<Value, items>{Of::template of<typename ItemOf<Items>::First>()...};
        using Write = void (*)(Value*);
        Write const writes[items + 1] = {&WriteGroup<Of, typename ItemOf<Items>::Group>::write...,
                                         nullptr};
        std::array<Value, leaves()> values{};
        std::size_t at = 0;
        for (std::size_t i = 0; i < items; ++i) {
            writes[i](values.data() + at);
            at += extents[i].group;
        }
        return values;
    }

    // Item of a layer, and place in the item's group.
    struct Position {
        std::size_t item, place;
    };
    static constexpr Position position(std::size_t layer) {
        std::size_t item = 0;
        while (layer >= extents[item].count * extents[item].group) {
            layer -= extents[item].count * extents[item].group;
            ++item;
        }
        return {item, layer % extents[item].group};
    }

    template <class F> static constexpr void for_each_layer(F f) {
        for_first_layers(f, static_cast<std::size_t>(-1));
    }
    // The same for the first `most` repetitions of each item: what holds for all of two, each
    // beside the other, holds for all of a thousand, and takes no longer to compile.
    template <class F> static constexpr void for_first_layers(F f, std::size_t most) {
        std::size_t layer = 0;
        std::size_t leaf = 0;
        for (std::size_t i = 0; i < items; ++i) {
            auto const [count, group, repeats] = extents[i];
            for (std::size_t n = 0; n < count && n < most; ++n)
                for (std::size_t g = 0; g < group; ++g) f(layer + n * group + g, leaf + g);
            layer += count * group;
            leaf += group;
        }
    }

    // The first layer with each fault; the number of layers where there is none.
    struct Verdict {
        std::size_t layer, neighbours, cost;
    };
    static constexpr Verdict check() {
        auto const checks = table<ChecksOf>();
        std::size_t const none_found = layers();
        Verdict verdict{none_found, none_found, none_found};
        std::size_t without_cost = none_found;
        bool costs = false;
        auto const look = [&](std::size_t layer, std::size_t leaf) {
            if (!checks[leaf].ok && verdict.layer == none_found) verdict.layer = layer;
            if (checks[leaf].has_cost)
                costs = true;
            else if (without_cost == none_found)
                without_cost = layer;
        };
        for_first_layers(look, 1);
        if (costs) verdict.cost = without_cost;

        using FitsAt = bool (*)(std::size_t);
        FitsAt const inside[] = {&FitsInside<Items>::at...};
        using Between = PairsFit<List<typename ItemOf<Items>::Last...>,
                                 typename Rotated<List<typename ItemOf<Items>::First...>>::type>;
        auto const between = Between::all();
        std::size_t layer = 0;
        for (std::size_t i = 0; i < items; ++i) {
            std::size_t const group = extents[i].group;
            std::size_t const size = extents[i].count * group;
            // Inside the group, from its last layer to the next repetition, and to the next item.
            for (std::size_t n = 0; n + 1 < size && n < group; ++n)
                if (!inside[i](n) && verdict.neighbours == none_found)
                    verdict.neighbours = layer + n;
            layer += size;
            if (i + 1 < items && !between[i] && verdict.neighbours == none_found)
                verdict.neighbours = layer - 1;
        }
        return verdict;
    }
    // Of a chain whose layers are sound.
    static constexpr SkipFault skip_fault() {
        return each_skip(table<InfoOf>().data(), {extents, items}, [](auto...) {});
    }
    static constexpr TieFault tie_fault() {
        return each_tied(table<InfoOf>().data(), {extents, items}, [](TiedTensor const&) {});
    }
};

template <class Chain, std::size_t layer, class... Items>
using LayerAt = typename ItemOf<typename List<Items...>::template at<Chain::position(layer).item>>::
    Group::template at<Chain::position(layer).place>;

template <std::size_t layers> struct CheckNotEmpty {
    static consteval bool ok() {
        static_assert(layers > 0, "gpipe: a Pipeline needs at least one layer");
        return layers > 0;
    }
};

template <std::size_t layers> struct CheckLayerCount {
    static consteval bool ok() {
        static_assert(layers <= 0xFFFFFFFF, "gpipe: the layers of this Pipeline, with all that "
                                            "Repeat repeats, are more than 2^32");
        return layers <= 0xFFFFFFFF;
    }
};

// The fault of a skip, whose ends are leaves.
template <class Shape, class... Items> consteval bool check_skip() {
    constexpr SkipFault fault = Shape::skip_fault();
    constexpr std::size_t index = layer_of(fault.leaf, Shape::extents);
    constexpr std::size_t other_index = layer_of(fault.other, Shape::extents);
    using L = LayerAt<Shape, index, Items...>;
    using Other = LayerAt<Shape, other_index, Items...>;
    using S = SkipAt<L, fault.end>;
    return CheckSkip<fault.kind, index, L, typename SkipOf<S>::tag, other_index, Other,
                     typename SkipOf<S>::Tensor>::ok();
}

// The same of a tie.
template <class Shape, class... Items> consteval bool check_tie() {
    constexpr TieFault fault = Shape::tie_fault();
    constexpr std::size_t index = layer_of(fault.leaf, Shape::extents);
    constexpr std::size_t first = layer_of(fault.first, Shape::extents);
    using L = LayerAt<Shape, index, Items...>;
    using End = typename ties_of<L>::template at<fault.end>;
    return CheckTie<fault.kind, index, L, typename End::tag, first, LayerAt<Shape, first, Items...>,
                    typename End::Tensor>::ok();
}

// Turns the first fault into its sentence. Whether there is none.
template <class... Items> consteval bool check_layers() {
    using Shape = Chain<Items...>;
    constexpr auto verdict = Shape::check();
    if constexpr (verdict.layer < Shape::layers())
        return CheckLayer<verdict.layer, LayerAt<Shape, verdict.layer, Items...>>::ok();
    else if constexpr (verdict.neighbours < Shape::layers())
        return CheckNeighbours<verdict.neighbours, LayerAt<Shape, verdict.neighbours, Items...>,
                               LayerAt<Shape, verdict.neighbours + 1, Items...>>::ok();
    else if constexpr (Shape::skip_fault().kind != SkipFault::Kind::nothing)
        return check_skip<Shape, Items...>();
    else if constexpr (Shape::tie_fault().kind != TieFault::Kind::nothing)
        return check_tie<Shape, Items...>();
    else if constexpr (verdict.cost < Shape::layers())
        return CheckCost<verdict.cost, LayerAt<Shape, verdict.cost, Items...>>::ok();
    else
        return true;
}
template <class... Items> consteval bool check_chain() {
    if constexpr (sizeof...(Items) == 0)
        return CheckNotEmpty<sizeof...(Items)>::ok();
    else if constexpr (Chain<Items...>::repeats_nothing())
        return false;
    else if constexpr (!CheckLayerCount<Chain<Items...>::layers()>::ok())
        return false;
    else
        return check_layers<Items...>();
}

// What stands for a layer of a list that is none.
struct AnyLayer {
    using Input = Tensor<float>;
    using Output = Input;
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};

} // namespace detail
} // namespace gpipe
