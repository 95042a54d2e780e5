#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/checked.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/type_list.hpp>

#include <cstddef>
#include <utility>

namespace gpipe {

namespace detail {

// How many times over an item of a chain has how many layers, and whether as a Repeat.
struct ItemExtent {
    std::size_t count = 0, group = 0;
    bool repeats = false;
};

// Calls f(layer, leaf) for each layer of a chain's items in order, of the first `most` repetitions
// of each: what holds for all of two, each beside the other, holds for all of a thousand, and takes
// no longer to compile.
template <class F> constexpr void for_first_layers(Part<ItemExtent> items, F f, std::size_t most) {
    std::size_t layer = 0;
    std::size_t leaf = 0;
    for (auto const [count, group, repeats] : items) {
        for (std::size_t n = 0; n < count && n < most; ++n)
            for (std::size_t g = 0; g < group; ++g) f(layer + n * group + g, leaf + g);
        layer += count * group;
        leaf += group;
    }
}
template <class F> constexpr void for_each_layer(Part<ItemExtent> items, F f) {
    for_first_layers(items, f, static_cast<std::size_t>(-1));
}
GPIPE_INLINE constexpr std::size_t count_layers(Part<ItemExtent> items) {
    std::size_t total = 0;
    for (ItemExtent const& item : items)
        total = checked_sum(total, checked_product(item.count, item.group));
    return total;
}
// A row for each layer, of one for each leaf.
template <class T> constexpr Array<T> by_layer(Part<ItemExtent> items, T const* leaves) {
    Array<T> rows(count_layers(items));
    for_each_layer(items, [&](std::size_t layer, std::size_t leaf) { rows[layer] = leaves[leaf]; });
    return rows;
}

// The objects of a list of types, each value-initialized or moved from one given: a tuple that is
// compiled in a time linear in its members (std::tuple is not, nor, through nvcc, is a class with
// one base per member). put_addresses() writes one address per member.
template <class... Ts> struct Holder {
    void put_addresses(void const**) const {}
};
template <class T, class... Ts> struct Holder<T, Ts...> {
    T value{};
    Holder<Ts...> rest{};

    constexpr Holder() = default;
    constexpr explicit Holder(T first, Ts... values)
        : value(std::move(first)), rest(std::move(values)...) {}
    void put_addresses(void const** out) const {
        *out = &value;
        rest.put_addresses(out + 1);
    }
};
// Eight a step, for long lists.
template <class T0, class T1, class T2, class T3, class T4, class T5, class T6, class T7,
          class... Ts>
struct Holder<T0, T1, T2, T3, T4, T5, T6, T7, Ts...> {
    T0 value0{};
    T1 value1{};
    T2 value2{};
    T3 value3{};
    T4 value4{};
    T5 value5{};
    T6 value6{};
    T7 value7{};
    Holder<Ts...> rest{};

    constexpr Holder() = default;
    constexpr explicit Holder(T0 v0, T1 v1, T2 v2, T3 v3, T4 v4, T5 v5, T6 v6, T7 v7, Ts... values)
        : value0(std::move(v0)), value1(std::move(v1)), value2(std::move(v2)),
          value3(std::move(v3)), value4(std::move(v4)), value5(std::move(v5)),
          value6(std::move(v6)), value7(std::move(v7)), rest(std::move(values)...) {}
    void put_addresses(void const** out) const {
        void const* const here[] = {&value0, &value1, &value2, &value3,
                                    &value4, &value5, &value6, &value7};
        for (void const* address : here) *out++ = address;
        rest.put_addresses(out);
    }
};

} // namespace detail

/// That a Repeat<n, Layers...> repeats something.
template <std::size_t n, std::size_t layers> struct CheckRepeat {
    static consteval bool ok() {
        static_assert(n > 0 && layers > 0,
                      "gpipe: Repeat needs a count of at least 1 and at least one layer");
        return n > 0 && layers > 0;
    }
};

/// The layers `Layers...` in order, n times over: one type for a stack of equal blocks, so that the
/// time to compile does not depend on n. The repetitions share the run-time members given here;
/// each has parameters of its own. Each is a namespace of its own, too: what its layers stash is
/// popped by later ones of the same repetition, and the same tags mean something else outside.
template <std::size_t n, class... Layers> struct Repeat : detail::Holder<Layers...> {
    static_assert(CheckRepeat<n, sizeof...(Layers)>::ok() || true); // one error, not two
    using detail::Holder<Layers...>::Holder;
};

namespace detail {

// What all items that are one layer share. layer(): where layer `place` of the group lies that the
// item at this address holds.
struct SingleItem {
    static constexpr bool repeats = false;
    static void const* layer(void const* item, std::size_t) { return item; }
};
// An item of a Pipeline's list: a layer, or a Repeat of several. `count` times a group of layers.
template <class T> struct ItemOf : SingleItem {
    static constexpr std::size_t count = 1;
    using Group = List<T>;
    using First = T;
    using Last = T;
};
template <std::size_t n, class... Layers> struct ItemOf<Repeat<n, Layers...>> {
    static_assert(sizeof(Repeat<n, Layers...>) > 0); // its own sentences first
    static constexpr bool repeats = true;
    static constexpr std::size_t count = n;
    using Group = List<Layers...>;
    using First = typename Group::template at<0>;
    using Last = typename Group::template at<Group::size - 1>;
    static void const* layer(void const* item, std::size_t place) {
        void const* layers[sizeof...(Layers)];
        static_cast<Repeat<n, Layers...> const*>(item)->put_addresses(layers);
        return layers[place];
    }
};
// Nothing to speak of: the Repeat has said so.
template <std::size_t n> struct ItemOf<Repeat<n>> : SingleItem {
    static_assert(sizeof(Repeat<n>) > 0);
    static constexpr std::size_t count = 0;
    using Group = List<>;
    using First = void;
    using Last = void;
};

} // namespace detail
} // namespace gpipe
