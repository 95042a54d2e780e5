#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gpipe {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): 128
/// random bits as a pure function of a 128-bit counter and a 64-bit key.
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                              std::uint64_t key) {
    auto k0 = static_cast<std::uint32_t>(key);
    auto k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        std::uint64_t const p0 = std::uint64_t{0xD2511F53} * counter[0];
        std::uint64_t const p1 = std::uint64_t{0xCD9E8D57} * counter[2];
        counter = {
            static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
            static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    return counter;
}

/// The random numbers of one layer in one step: each depends on (seed, step, layer, sample in the
/// mini-batch, index) only, so that a dropout mask is the same for every K, M and schedule and in a
/// recomputation (promise P2). Only the low 32 bits of the step count.
class SampleRandom {
  public:
    constexpr SampleRandom(std::uint64_t seed, std::uint64_t step, std::uint32_t layer,
                           std::size_t first_sample)
        : seed_(seed), step_(static_cast<std::uint32_t>(step)), layer_(layer),
          first_sample_(first_sample) {}

    /// Four words of 32 random bits; `sample` counts from the start of the micro-batch.
    constexpr std::array<std::uint32_t, 4> bits(std::size_t sample, std::uint32_t block) const {
        return philox({block, static_cast<std::uint32_t>(first_sample_ + sample), layer_, step_},
                      seed_);
    }
    /// Uniform in [0, 1), a multiple of 2^-24.
    constexpr float uniform(std::size_t sample, std::size_t index) const {
        auto const words = bits(sample, static_cast<std::uint32_t>(index / 4));
        return static_cast<float>(words[index % 4] >> 8) * 0x1p-24f;
    }

  private:
    std::uint64_t seed_;
    std::uint32_t step_;
    std::uint32_t layer_;
    std::size_t first_sample_;
};

/// The random numbers that initialise one tensor of one layer: a sequence that depends on (seed,
/// layer, tensor) only. A UniformRandomBitGenerator, so that distributions of <random> take it.
class InitialRandom {
  public:
    using result_type = std::uint32_t;

    constexpr InitialRandom(std::uint64_t seed, std::uint32_t layer, std::uint32_t tensor)
        : seed_(seed), layer_(layer), tensor_(tensor) {}

    static constexpr result_type min() { return 0; }
    static constexpr result_type max() { return 0xFFFFFFFFu; }
    // Not inlined: every layer has an initialize, and none is in a hurry.
    [[gnu::noinline]] constexpr result_type operator()() {
        // No step reaches the last counter word, so these numbers meet those of no step.
        if (next_ % 4 == 0)
            words_ = philox({static_cast<std::uint32_t>(next_ / 4), tensor_, layer_, max()}, seed_);
        return words_[next_++ % 4];
    }

    /// Uniform in [low, high).
    constexpr double uniform(double low = 0, double high = 1) {
        return low + (high - low) * ((*this)() * 0x1p-32);
    }
    /// Normal with mean 0 (Box and Muller, 1958).
    [[gnu::noinline]] double normal(double standard_deviation = 1) {
        double const u = 1 - uniform();
        double const v = uniform();
        return standard_deviation * std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
    }

  private:
    std::uint64_t seed_;
    std::uint32_t layer_;
    std::uint32_t tensor_;
    std::uint64_t next_ = 0;
    std::array<std::uint32_t, 4> words_{};
};

} // namespace gpipe
