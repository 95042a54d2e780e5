#pragma once

#include <gpipe/core/version.hpp>

#include <cstddef>
#include <type_traits>

namespace gpipe {

/// The absence of a tensor: handed to a layer in place of a gradient that nobody wants, and what a
/// context gives of tensors that its layer does not declare. A layer that can do without an
/// argument writes `if constexpr (gpipe::is_none<decltype(dx)>)`: to ask whether it can be indexed
/// is an error.
struct None {
    /// @cond
    // For their sentence alone, and nothing behind it.
    template <class At> auto operator[](At at) const -> decltype(auto) { return (*this)(at); }
    template <class... At> auto operator()(At...) const -> decltype(auto) {
        constexpr bool there = sizeof...(At) == static_cast<std::size_t>(-1);
        static_assert(there, "gpipe: there is no such tensor: the layer does not declare it "
                             "(Parameters, Saved, Deferred, Scratch), or it is gpipe::none, which "
                             "accepts_none takes in place of a dx that nobody wants");
        float* const nowhere = nullptr;
        return *nowhere;
    }
    template <class... At> auto data(At... at) const -> decltype(auto) { return &(*this)(at...); }
    template <class... At> std::size_t size(At... at) const { return (*this)(at...), 0; }
    template <class... At> std::size_t samples(At... at) const { return (*this)(at...), 0; }
    /// @endcond
};
inline constexpr None none{}; ///< what is handed to the layer
/// Whether an argument of type T is that, by value or reference.
template <class T> inline constexpr bool is_none = std::is_same_v<std::remove_cvref_t<T>, None>;

} // namespace gpipe
