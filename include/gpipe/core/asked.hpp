#pragma once

#include <gpipe/core/version.hpp>

#include <type_traits>

namespace gpipe::detail {

// In `return {Net{}, Loss{}, {}, {.samples = 8}};` g++ 12 wants to know whether the members that
// are not named throw, and ends with an internal error unless somebody has asked before.
template <class... Ts>
inline constexpr bool asked = ((std::is_nothrow_default_constructible_v<Ts> || true) && ...);

} // namespace gpipe::detail
