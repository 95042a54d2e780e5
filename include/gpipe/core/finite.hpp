#pragma once

#include <gpipe/core/host_device.hpp>

#include <cstdint>

namespace gpipe::detail {

// Whether a number is one, and not infinite: by its bits, for -ffast-math lets a compiler assume
// that all are.
GPIPE_HOST_DEVICE constexpr bool is_finite(double x) {
    constexpr std::uint64_t exponent = std::uint64_t{0x7ff} << 52;
    return (__builtin_bit_cast(std::uint64_t, x) & exponent) != exponent;
}
// Whether it is none, likewise.
GPIPE_HOST_DEVICE constexpr bool is_nan(double x) {
    constexpr std::uint64_t infinity = std::uint64_t{0x7ff} << 52;
    return (__builtin_bit_cast(std::uint64_t, x) & ~std::uint64_t{0} >> 1) > infinity;
}

} // namespace gpipe::detail
