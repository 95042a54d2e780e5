#pragma once

#include <gpipe/layer/dtype.hpp>
#include <gpipe/state/state_inline.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace gpipe::detail {

// Whether the other type has every number of the first, and more.
GPIPE_STATE_INLINE bool widens(Dtype from, Dtype to) {
    bool const half = from == Dtype::F16 || from == Dtype::BF16;
    return to == Dtype::F64 ? half || from == Dtype::F32 : to == Dtype::F32 && half;
}

// The number that begins there, of a floating-point type.
GPIPE_STATE_INLINE double number_at(Dtype dtype, std::byte const* at) {
    auto const bits = [&](auto value) {
        std::memcpy(&value, at, sizeof value);
        return value;
    };
    if (dtype == Dtype::F64) return bits(double{});
    if (dtype == Dtype::F32) return bits(float{});
    std::uint32_t const half = bits(std::uint16_t{});
    if (dtype == Dtype::BF16) return std::bit_cast<float>(half << 16);
    int const exponent = static_cast<int>(half >> 10 & 31),
              fraction = static_cast<int>(half & 1023);
    double const size = exponent == 31  ? (fraction ? std::numeric_limits<double>::quiet_NaN()
                                                    : std::numeric_limits<double>::infinity())
                        : exponent == 0 ? std::ldexp(fraction, -24)
                                        : std::ldexp(1024 + fraction, exponent - 25);
    return half >> 15 ? -size : size;
}

// So many numbers as they are in a type that has them all.
GPIPE_STATE_INLINE void widen(Dtype from, std::byte const* numbers, std::size_t count, Dtype to,
                              std::byte* wide) {
    for (std::size_t i = 0; i < count; ++i) {
        double const number = number_at(from, numbers + i * info(from).bytes);
        auto const single = static_cast<float>(number);
        if (to == Dtype::F64)
            std::memcpy(wide + i * sizeof number, &number, sizeof number);
        else
            std::memcpy(wide + i * sizeof single, &single, sizeof single);
    }
}

} // namespace gpipe::detail
