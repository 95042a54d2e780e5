#pragma once

// STAND-IN, to be removed: what the library is about to offer itself, under the same names.
// Then: <gpipe/layer/handles.hpp> for Handles, <gpipe/cuda/blas.cuh> for what stand_in.cuh has, and
// `ctx.random()` for `stand_in::random_of(ctx)` in dropout.hpp.

#include <gpipe/core/host_device.hpp>
#include <gpipe/layer/context.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

template <class...> struct Handles {};

} // namespace gpipe

namespace gpt::stand_in {

#ifdef __CUDACC__
struct Words {
    std::uint32_t word[4];
    GPIPE_HOST_DEVICE std::uint32_t operator[](std::size_t i) const { return word[i]; }
};

// gpipe::SampleRandom as kernels can call it.
struct Random {
    std::uint64_t seed;
    std::uint32_t step;
    std::uint32_t layer;
    std::size_t first_sample;

    GPIPE_HOST_DEVICE Words bits(std::size_t sample, std::uint32_t block) const {
        std::uint32_t c[] = {block, static_cast<std::uint32_t>(first_sample + sample), layer, step};
        auto k0 = static_cast<std::uint32_t>(seed);
        auto k1 = static_cast<std::uint32_t>(seed >> 32);
        for (int round = 0; round < 10; ++round) {
            std::uint64_t const p0 = std::uint64_t{0xD2511F53} * c[0];
            std::uint64_t const p1 = std::uint64_t{0xCD9E8D57} * c[2];
            c[0] = static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0;
            c[2] = static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1;
            c[1] = static_cast<std::uint32_t>(p1);
            c[3] = static_cast<std::uint32_t>(p0);
            k0 += 0x9E3779B9;
            k1 += 0xBB67AE85;
        }
        return {{c[0], c[1], c[2], c[3]}};
    }
};
inline Random random_of(auto const& ctx) { return __builtin_bit_cast(Random, ctx.random()); }
#else
inline auto random_of(auto const& ctx) { return ctx.random(); }
#endif

} // namespace gpt::stand_in
