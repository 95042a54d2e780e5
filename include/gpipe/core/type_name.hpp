#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/version.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpipe {

namespace detail {

// One function per type: a layer's name is taken for every layer of a chain.
template <class T>
constexpr std::string_view function_name(std::size_t prefix = 0, std::size_t suffix = 0) {
    return {__PRETTY_FUNCTION__ + prefix, sizeof(__PRETTY_FUNCTION__) - 1 - prefix - suffix};
}

// How much the compiler prints around the type: measured on a type whose name is known.
inline constexpr std::size_t name_prefix = function_name<int>().find("int");
inline constexpr std::size_t name_suffix = function_name<int>().size() - name_prefix - 3;

} // namespace detail

/// The name of T as the compiler writes it, for messages.
template <class T>
inline constexpr std::string_view type_name = detail::function_name<T>(detail::name_prefix,
                                                                       detail::name_suffix);

/// A number for a type's name, never 0 (FNV-1a).
GPIPE_INLINE constexpr std::uint64_t type_number(std::string_view name) {
    std::uint64_t number = 14695981039346656037u;
    for (char const c : name)
        number = (number ^ static_cast<unsigned char>(c)) * std::uint64_t{1099511628211};
    return number | 1;
}
/// The number of type T: the same wherever the host's compiler works it out.
template <class T> inline constexpr std::uint64_t type_id = type_number(type_name<T>);

namespace detail {

// Its address is one of its own for each T: what is looked up by types, between steps or in calls,
// is known by these.
template <class T> inline char type_mark = 0;

} // namespace detail

} // namespace gpipe
