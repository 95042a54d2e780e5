#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/host_device.hpp>

#include <array>
#include <cstddef>

namespace gpipe {

/// Every tensor starts at a multiple of this many bytes of its arena, on every device: the
/// alignment of cudaMalloc, and what makes results independent of where a tensor lies (promise P1).
inline constexpr std::size_t slot_alignment = 256;

/// The bytes that a tensor of this many bytes takes in an arena.
GPIPE_HOST_DEVICE constexpr std::size_t slot_bytes(std::size_t bytes) {
    return (bytes + slot_alignment - 1) / slot_alignment * slot_alignment;
}

/// Where tensors of these bytes start if they lie one after the other in an arena.
template <std::size_t count>
constexpr std::array<std::size_t, count> slot_offsets(std::array<std::size_t, count> const& bytes) {
    std::array<std::size_t, count> offsets{};
    for (std::size_t i = 1; i < count; ++i) offsets[i] = offsets[i - 1] + slot_bytes(bytes[i - 1]);
    return offsets;
}

inline namespace literals {

/// So many times 1,024, 1,024^2, 1,024^3 bytes.
///@{
GPIPE_INLINE constexpr std::size_t operator""_KiB(unsigned long long n) { return n << 10; }
GPIPE_INLINE constexpr std::size_t operator""_MiB(unsigned long long n) { return n << 20; }
GPIPE_INLINE constexpr std::size_t operator""_GiB(unsigned long long n) { return n << 30; }
///@}

} // namespace literals
} // namespace gpipe
