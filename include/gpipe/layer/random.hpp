#pragma once

#include <gpipe/call/step_state.hpp>
#include <gpipe/core/host_device.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gpipe {

/// Four words of 32 bits. Not a std::array: kernels index it, too.
struct RandomWords {
    std::uint32_t word[4]; ///< by number

    /// One of them, 0 to 3.
    GPIPE_HOST_DEVICE constexpr std::uint32_t operator[](std::size_t i) const { return word[i]; }
    friend constexpr bool operator==(RandomWords const&, RandomWords const&) = default;
};

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): 128
/// random bits as a pure function of a 128-bit counter and a 64-bit key.
GPIPE_HOST_DEVICE constexpr RandomWords philox(RandomWords counter, std::uint64_t key) {
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

namespace detail {

// Of the 24 upper bits of a word: in [0, 1).
GPIPE_HOST_DEVICE constexpr float uniform_of(std::uint32_t word) {
    return static_cast<float>(word >> 8) * 0x1p-24f;
}
// Two words make two normal numbers.
GPIPE_HOST_DEVICE inline float normal_of(RandomWords const& words, std::size_t index) {
    std::size_t const pair = index % 4 / 2 * 2;
    float const radius = std::sqrt(-2 * std::log(1 - uniform_of(words[pair])));
    float const angle = 6.2831853f * uniform_of(words[pair + 1]);
    return radius * (index % 2 ? std::sin(angle) : std::cos(angle));
}
// Where a number is: blocks of normal ones are others than those of uniform ones.
GPIPE_HOST_DEVICE constexpr std::uint32_t uniform_block(std::size_t index) {
    return static_cast<std::uint32_t>(index / 4);
}
GPIPE_HOST_DEVICE constexpr std::uint32_t normal_block(std::size_t index) {
    return uniform_block(index) | 0x80000000;
}

} // namespace detail

class SampleNumbers;

/// The random numbers of one layer in one step: each depends on (seed, step, layer, sample in the
/// mini-batch, index) only, so that a dropout mask is the same for every K, M and schedule and in a
/// recomputation (promise P2). Only the low 32 bits of the step count.
class SampleRandom {
  public:
    /// `first_sample`: the place of the micro-batch in the mini-batch.
    GPIPE_HOST_DEVICE constexpr SampleRandom(std::uint64_t seed, std::uint64_t step,
                                             std::uint32_t layer, std::size_t first_sample)
        : seed_(seed), step_(static_cast<std::uint32_t>(step)), layer_(layer),
          first_sample_(first_sample) {}

    /// Four words of 32 random bits; `sample` counts from the start of the micro-batch.
    GPIPE_HOST_DEVICE constexpr RandomWords bits(std::size_t sample, std::uint32_t block) const {
        return philox({block, static_cast<std::uint32_t>(first_sample_ + sample), layer_, step_},
                      seed_);
    }
    /// Uniform in [0, 1), a multiple of 2^-24; `index` below 2^33.
    GPIPE_HOST_DEVICE constexpr float uniform(std::size_t sample, std::size_t index) const {
        return detail::uniform_of(bits(sample, detail::uniform_block(index))[index % 4]);
    }
    /// Normal with mean 0 and variance 1, independent of the uniform number of this index (Box and
    /// Muller, 1958); at most 5.8 from 0. The last bits differ between the host and a GPU.
    GPIPE_HOST_DEVICE float normal(std::size_t sample, std::size_t index) const {
        return detail::normal_of(bits(sample, detail::normal_block(index)), index);
    }
    /// A sample's, for who draws them one after the other.
    GPIPE_HOST_DEVICE constexpr SampleNumbers of(std::size_t sample) const;

  private:
    std::uint64_t seed_;
    std::uint32_t step_;
    std::uint32_t layer_;
    std::size_t first_sample_;
};

/// The numbers of one sample, the same as SampleRandom's: in ascending order four come of one
/// philox().
class SampleNumbers {
  public:
    /// `sample` counts from the start of the micro-batch.
    GPIPE_HOST_DEVICE constexpr SampleNumbers(SampleRandom const& random, std::size_t sample)
        : random_(random), sample_(sample), words_(random.bits(sample, 0)) {}

    /// As of SampleRandom.
    ///@{
    GPIPE_HOST_DEVICE constexpr float uniform(std::size_t index) {
        return detail::uniform_of(block(detail::uniform_block(index))[index % 4]);
    }
    GPIPE_HOST_DEVICE float normal(std::size_t index) {
        return detail::normal_of(block(detail::normal_block(index)), index);
    }
    ///@}

  private:
    GPIPE_HOST_DEVICE constexpr RandomWords const& block(std::uint32_t block) {
        if (block != block_) words_ = random_.bits(sample_, block_ = block);
        return words_;
    }
    SampleRandom random_;
    std::size_t sample_;
    std::uint32_t block_ = 0;
    RandomWords words_; ///< of that block
};

GPIPE_HOST_DEVICE constexpr SampleNumbers SampleRandom::of(std::size_t sample) const {
    return {*this, sample};
}

/// The same numbers for work that is enqueued once and may run in many steps: seed and step are
/// read where and when the numbers are drawn. Handed to kernels by value; elsewhere it is of no use
/// unless the step's state lies in memory that can be read there.
class StepRandom {
  public:
    /// `first_sample`: the place of the micro-batch in the mini-batch.
    GPIPE_HOST_DEVICE constexpr StepRandom(StepState const* state, std::uint32_t layer,
                                           std::size_t first_sample)
        : state_(state), first_sample_(first_sample), layer_(layer) {}

    /// The numbers of the step that runs: for a thread that draws many, one look at the state.
    GPIPE_HOST_DEVICE constexpr SampleRandom now() const {
        return {state_->seed, state_->step, layer_, first_sample_};
    }
    /// As of SampleRandom.
    GPIPE_HOST_DEVICE constexpr RandomWords bits(std::size_t sample, std::uint32_t block) const {
        return now().bits(sample, block);
    }
    /// Uniform in [0, 1); `sample` counts from the start of the micro-batch.
    GPIPE_HOST_DEVICE constexpr float uniform(std::size_t sample, std::size_t index) const {
        return now().uniform(sample, index);
    }
    /// As of SampleRandom.
    ///@{
    GPIPE_HOST_DEVICE float normal(std::size_t sample, std::size_t index) const {
        return now().normal(sample, index);
    }
    GPIPE_HOST_DEVICE constexpr SampleNumbers of(std::size_t sample) const {
        return now().of(sample);
    }
    ///@}

  private:
    StepState const* state_;
    std::size_t first_sample_;
    std::uint32_t layer_;
};

/// The random numbers that initialise one tensor of one layer: a sequence that depends on (seed,
/// layer, tensor) only. A UniformRandomBitGenerator, so that the distributions of
/// the standard library take it.
class InitialRandom {
  public:
    using result_type = std::uint32_t; ///< a word of 32 bits

    /// The sequence from its begin.
    constexpr InitialRandom(std::uint64_t seed, std::uint32_t layer, std::uint32_t tensor)
        : seed_(seed), layer_(layer), tensor_(tensor) {}

    /// Of the words.
    ///@{
    static constexpr result_type min() { return 0; }
    static constexpr result_type max() { return 0xFFFFFFFFu; }
    ///@}
    // Not inlined: every layer has an initialize, and none is in a hurry.
    /// The next word of the sequence.
    [[gnu::noinline]] constexpr result_type operator()() {
        // No step reaches the last counter word, so these numbers meet those of no step.
        if (next_ % 4 == 0)
            words_ = philox({static_cast<std::uint32_t>(next_ / 4), tensor_, layer_, max()}, seed_);
        return words_[next_++ % 4];
    }

    /// Uniform in [low, high), but for rounding: 2^32 values, of which the last as a float is high.
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
    RandomWords words_{};
};

} // namespace gpipe
