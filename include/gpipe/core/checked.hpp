#pragma once

#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <initializer_list>
#include <limits>

namespace gpipe {

/// What sizes computed from a user's numbers become instead of wrapping: whoever uses such a size
/// compares it with the most that it allows, and says which number was too large.
inline constexpr std::size_t too_large = std::numeric_limits<std::size_t>::max();

/// The sum, or too_large.
GPIPE_INLINE constexpr std::size_t checked_sum(std::size_t a, std::size_t b) {
    return a > too_large - b ? too_large : a + b;
}
/// The product, or too_large.
GPIPE_INLINE constexpr std::size_t checked_product(std::size_t a, std::size_t b) {
    return b != 0 && a > too_large / b ? too_large : a * b;
}
/// The product of all, or too_large.
GPIPE_INLINE constexpr std::size_t checked_product(std::initializer_list<std::size_t> factors) {
    std::size_t product = 1;
    for (std::size_t const factor : factors) product = checked_product(product, factor);
    return product;
}

/// The most bytes that an object may have, that addresses in it can be counted forwards and back.
inline constexpr std::size_t most_bytes = std::numeric_limits<std::ptrdiff_t>::max();

} // namespace gpipe
