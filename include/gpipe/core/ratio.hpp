#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/version.hpp>

#include <cstdint>
#include <numeric>

namespace gpipe {

/// An exact fraction in lowest terms, with a positive denominator. Bubbles are ratios, so that they
/// can be compared with the closed forms in a static_assert.
struct Ratio {
    std::int64_t numerator = 0;   ///< signed, so that differences can be written
    std::int64_t denominator = 1; ///< positive

    __extension__ using Wide = __int128; ///< what has room for a product

    /// Member by member.
    friend constexpr bool operator==(Ratio const&, Ratio const&) = default;
    /// By cross multiplication: exact.
    friend constexpr bool operator<(Ratio const& a, Ratio const& b) {
        return Wide{a.numerator} * b.denominator < Wide{b.numerator} * a.denominator;
    }
    /// The nearest double.
    constexpr explicit operator double() const {
        return static_cast<double>(numerator) / static_cast<double>(denominator);
    }
};

/// numerator / denominator in lowest terms; a denominator of 0 is not a ratio and gives 0/1.
GPIPE_INLINE constexpr Ratio ratio(std::int64_t numerator, std::int64_t denominator) {
    if (denominator == 0) return {};
    std::int64_t const sign = denominator < 0 ? -1 : 1;
    std::int64_t const divisor = std::gcd(numerator, denominator);
    return {sign * numerator / divisor, sign * denominator / divisor};
}

} // namespace gpipe
