#pragma once

#include <gpipe/core/type_list.hpp>

#include <cstddef>
#include <utility>

namespace gpipe {

namespace detail {

template <std::size_t index, class T> struct Held { T value{}; };

// A tuple by indexed inheritance: its cost is linear in the number of members (std::tuple is not).
template <class Indices, class... Ts> struct HolderOf;
template <std::size_t... Is, class... Ts>
struct HolderOf<std::index_sequence<Is...>, Ts...> : Held<Is, Ts>... {
    constexpr HolderOf() = default;
    constexpr explicit HolderOf(Ts... values) requires(sizeof...(Ts) > 0)
        : Held<Is, Ts>{std::move(values)}... {}
};
template <class... Ts> using Holder = HolderOf<std::index_sequence_for<Ts...>, Ts...>;

template <std::size_t index, class T> constexpr T const& held(Held<index, T> const& member) {
    return member.value;
}

} // namespace detail

/// The layers `Layers...` in order, n times over: one type for a stack of equal blocks, so that the
/// time to compile does not depend on n. The repetitions share the run-time members given here;
/// each has parameters of its own.
template <std::size_t n, class... Layers> struct Repeat : detail::Holder<Layers...> {
    static_assert(n > 0 && sizeof...(Layers) > 0,
                  "gpipe: Repeat needs a count of at least 1 and at least one layer");
    using detail::Holder<Layers...>::Holder;
};

namespace detail {

// What all items that are one layer share. layer(): where layer `place` of the group lies that the
// item at this address holds.
struct SingleItem {
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
    static constexpr std::size_t count = n;
    using Group = List<Layers...>;
    using First = typename Group::template at<0>;
    using Last = typename Group::template at<Group::size - 1>;
    static void const* layer(void const* item, std::size_t place) {
        return [&]<std::size_t... Is>(std::index_sequence<Is...>)->void const* {
            auto const& repeat = *static_cast<Repeat<n, Layers...> const*>(item);
            void const* const layers[] = {&held<Is>(repeat)...};
            return layers[place];
        }
        (std::index_sequence_for<Layers...>{});
    }
};

} // namespace detail
} // namespace gpipe
