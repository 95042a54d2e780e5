#pragma once

#include <gpipe/chain/chain_sides.hpp>
#include <gpipe/chain/chain_skips.hpp>
#include <gpipe/chain/chain_ties.hpp>
#include <gpipe/chain/info.hpp>
#include <gpipe/chain/item.hpp>
#include <gpipe/chain/layer_fits.hpp>
#include <gpipe/chain/layer_functions.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/checked.hpp>

#include <array>
#include <cstddef>

namespace gpipe::detail {

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

// One value per layer of an item's group, written behind `out`. Items are visited through an array
// of such functions: no recursion and no fold over the list, whatever its length.
struct LayerChecks {
    bool ok = false;
    bool has_cost = false;
    bool has_side = false; // reads any side input
};
struct InfoOf {
    using Value = LayerInfo;
    template <class L> static constexpr Value of() { return layer_info<L>(); }
};
struct ChecksOf {
    using Value = LayerChecks;
    template <class L> static constexpr Value of() {
        bool const has_cost = requires { L::cost; };
        bool const has_side = requires { typename L::Side; };
        return {layer_fits<L>(), has_cost, has_side};
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

    static constexpr std::size_t layers() { return count_layers({extents, items}); }
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

    // The first layer with each fault; the number of layers where there is none.
    struct Verdict {
        std::size_t layer, neighbours, cost;
        bool has_sides = false;
    };
    static constexpr Verdict check() {
        auto const checks = table<ChecksOf>();
        std::size_t const none_found = layers();
        Verdict verdict{none_found, none_found, none_found};
        std::size_t without_cost = none_found;
        bool costs = false;
        auto const look = [&](std::size_t layer, std::size_t leaf) {
            if (!checks[leaf].ok && verdict.layer == none_found) verdict.layer = layer;
            if (checks[leaf].has_side) verdict.has_sides = true;
            if (checks[leaf].has_cost)
                costs = true;
            else if (without_cost == none_found)
                without_cost = layer;
        };
        for_first_layers({extents, items}, look, 1);
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
        return each_skip(table<InfoOf>().data(), {extents, items}, [](SkipPair const&) {});
    }
    static constexpr TieFault tie_fault() {
        return each_tied(table<InfoOf>().data(), {extents, items}, [](TiedTensor const&) {});
    }
    static constexpr SideFault side_fault() {
        return each_side(table<InfoOf>().data(), leaves(), [](SideInfo const&) {});
    }
};

// All that each(f) calls f with, in that order.
template <class T, class Each> consteval auto collected(Each each) {
    constexpr std::size_t count = [] {
        std::size_t result = 0;
        Each{}([&](T const&) { ++result; });
        return result;
    }();
    std::array<T, count> all{};
    std::size_t at = 0;
    each([&](T const& one) { all[at++] = one; });
    return all;
}

// Of one that is there.
template <std::size_t index, std::size_t layers> consteval std::size_t layer_number() {
    static_assert(index < layers,
                  "gpipe: the chain has no layer of this number (index): they count "
                  "from 0, those in a Repeat as often as they are there");
    return index < layers ? index : 0;
}

template <class Chain, std::size_t layer, class... Items>
using LayerAt = typename ItemOf<typename List<Items...>::template at<Chain::position(layer).item>>::
    Group::template at<Chain::position(layer).place>;

} // namespace gpipe::detail
