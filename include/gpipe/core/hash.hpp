#pragma once

#include <gpipe/core/compiled.hpp>

#include <bit>
#include <cstdint>

namespace gpipe::detail {

// A hash with one number more: FNV-1a with words for bytes. Generated profiles hold such hashes.
GPIPE_INLINE constexpr std::uint64_t mixed(std::uint64_t hash, std::uint64_t number) {
    return (std::rotl(hash, 5) ^ number) * 0x100000001B3u;
}

// Of several numbers, of 64 bits each.
template <class... Numbers> constexpr std::uint64_t hash_of_all(Numbers... numbers) {
    std::uint64_t hash = 0;
    ((hash = mixed(hash, std::bit_cast<std::uint64_t>(numbers))), ...);
    return hash;
}

} // namespace gpipe::detail
