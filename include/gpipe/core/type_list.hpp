#pragma once

#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <initializer_list>

namespace gpipe {

namespace detail {

// Sixteen types a step: short chains of instantiations, for lists of a thousand types, too. (The
// common way, a class with one indexed base per type, takes nvcc's front end a time that grows with
// the square of the bases: 8 s for 1,024.)
template <std::size_t index, class... Ts> struct TypeAt;
template <class T, class... Ts> struct TypeAt<0, T, Ts...> { using type = T; };
template <std::size_t index, class T, class... Ts>
    requires(index > 0 && index < 16)
struct TypeAt<index, T, Ts...> : TypeAt<index - 1, Ts...> {};
template <std::size_t index, class T0, class T1, class T2, class T3, class T4, class T5, class T6,
          class T7, class T8, class T9, class T10, class T11, class T12, class T13, class T14,
          class T15, class... Ts>
    requires(index >= 16)
struct TypeAt<index, T0, T1, T2, T3, T4, T5, T6, T7, T8, T9, T10, T11, T12, T13, T14, T15, Ts...>
    : TypeAt<index - 16, Ts...> {};

} // namespace detail

/// A list of types, as a value: `List<int, float>::at<1>` is `float`.
template <class... Ts> struct List {
    /// How many there are.
    static constexpr std::size_t size = sizeof...(Ts);

    /// One of them, counted from 0.
    template <std::size_t index> using at = typename detail::TypeAt<index, Ts...>::type;
};

namespace detail {

// The place of the first that is true, or how many there are: what a list of types is asked for.
GPIPE_INLINE constexpr std::size_t first_true(std::initializer_list<bool> all) {
    std::size_t i = 0;
    while (i < all.size() && !all.begin()[i]) ++i;
    return i;
}

// A, Pack<A> and Pack<A, B> in one form.
template <template <class...> class Pack, class T> struct AsPack { using type = Pack<T>; };
template <template <class...> class Pack, class... Ts> struct AsPack<Pack, Pack<Ts...>> {
    using type = Pack<Ts...>;
};

} // namespace detail

} // namespace gpipe
