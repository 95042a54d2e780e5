#pragma once

#include <gpipe/layer/random.hpp>

#include <cstdint>

namespace gpipe {

/// A permutation of 0 to size - 1 that takes no memory: each place is worked out by itself, from
/// (size, seed, number) alone. A Feistel network over the next power of four (Luby and Rackoff,
/// "How to construct pseudorandom permutations", 1988), walked on from where it leaves the range
/// (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002), with Philox as its function.
class Shuffle {
  public:
    /// `size`: more than 0; `number`: of the epoch, say.
    constexpr Shuffle(std::uint64_t size, std::uint64_t seed, std::uint64_t number)
        : size_(size), seed_(seed), number_(number) {
        while (bits_ < 31 && std::uint64_t{1} << 2 * bits_ < size) ++bits_;
    }

    /// What stands at a place.
    constexpr std::uint64_t operator[](std::uint64_t place) const {
        do place = mixed(place);
        while (place >= size_);
        return place;
    }

  private:
    constexpr std::uint64_t mixed(std::uint64_t place) const {
        std::uint64_t const mask = (std::uint64_t{1} << bits_) - 1;
        std::uint64_t left = place >> bits_, right = place & mask;
        // Halves of few bits are far from random functions in four rounds.
        std::uint32_t const rounds = bits_ < 4 ? 12 : 4;
        for (std::uint32_t round = 0; round < rounds; ++round) {
            RandomWords const words = philox({static_cast<std::uint32_t>(right), round,
                                              static_cast<std::uint32_t>(number_),
                                              static_cast<std::uint32_t>(number_ >> 32)},
                                             seed_);
            std::uint64_t const next = left ^ (words[0] & mask);
            left = right;
            right = next;
        }
        return left << bits_ | right;
    }

    std::uint64_t size_, seed_, number_;
    unsigned bits_ = 1; // of each half
};

} // namespace gpipe
