#pragma once

#include <gpipe/core/version.hpp>

#include <type_traits>

namespace gpipe::detail {

// The type that a function object's first parameter has.
template <class F> struct FirstParameter { using type = void; };
template <class R, class C, class T, class... Ts, bool n>
struct FirstParameter<R (C::*)(T, Ts...) noexcept(n)> {
    using type = T;
};
template <class R, class C, class T, class... Ts, bool n>
struct FirstParameter<R (C::*)(T, Ts...) const noexcept(n)> {
    using type = T;
};
// Whether an F that is called with these takes the first by value, as far as that can be seen.
template <class F, class T, class... Ts> consteval bool takes_copy() {
    if constexpr (requires { &F::operator(); })
        return std::is_same_v<typename FirstParameter<decltype(&F::operator())>::type, T>;
    else if constexpr (requires { &F::template operator()<T, Ts...>; })
        return std::is_same_v<
            typename FirstParameter<decltype(&F::template operator()<T, Ts...>)>::type, T>;
    else
        return false;
}

} // namespace gpipe::detail
