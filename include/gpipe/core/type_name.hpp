#pragma once

#include <string_view>

namespace gpipe {

namespace detail {

template <class T> constexpr std::string_view function_name() { return __PRETTY_FUNCTION__; }

// How much the compiler prints around the type: measured on a type whose name is known.
inline constexpr std::size_t name_prefix = function_name<int>().find("int");
inline constexpr std::size_t name_suffix = function_name<int>().size() - name_prefix - 3;

} // namespace detail

/// The name of T as the compiler writes it, for messages.
template <class T> constexpr std::string_view type_name() {
    std::string_view name = detail::function_name<T>();
    name.remove_prefix(detail::name_prefix);
    name.remove_suffix(detail::name_suffix);
    return name;
}

} // namespace gpipe
