#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

namespace gpipe {

namespace detail {

// Indexed inheritance: the index-th type is found by one overload resolution, without recursion, in
// time that does not depend on index.
template <std::size_t index, class T> struct IndexedType {};

template <class Indices, class... Ts> struct IndexedTypes;
template <std::size_t... Is, class... Ts>
struct IndexedTypes<std::index_sequence<Is...>, Ts...> : IndexedType<Is, Ts>... {};

template <std::size_t index, class T> std::type_identity<T> find_type(IndexedType<index, T> const*);

} // namespace detail

/// A list of types, as a value: `List<int, float>::at<1>` is `float`.
template <class... Ts> struct List {
    static constexpr std::size_t size = sizeof...(Ts);

    template <std::size_t index>
    using at = typename decltype(detail::find_type<index>(
        static_cast<detail::IndexedTypes<std::index_sequence_for<Ts...>, Ts...> const*>(
            nullptr)))::type;
};

} // namespace gpipe
