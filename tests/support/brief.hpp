#pragma once

#include <gpipe/layer/tensor.hpp>

#include <bit>
#include <cstdint>
#include <type_traits>

namespace toy {

/// A type of a user's own: the upper half of a float, rounded to nearest: what CUDA calls bf16.
struct Brief {
    std::uint16_t bits;

    Brief() = default;
    explicit Brief(float value) {
        auto const word = std::bit_cast<std::uint32_t>(value);
        bits = static_cast<std::uint16_t>((word + 0x7FFF + (word >> 16 & 1)) >> 16);
    }
    operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

} // namespace toy

template <> struct gpipe::CarriesGradient<toy::Brief> : std::true_type {};
