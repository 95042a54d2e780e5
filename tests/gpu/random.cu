// Random numbers drawn by kernels are those of the host.
#include "support/gpu_memory.hpp"

#include <gpipe/cuda/launch.cuh>
#include <gpipe/device/cuda_memory.hpp>
#include <gpipe/layer/random.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

constexpr std::size_t samples = 64;
constexpr std::size_t blocks = 32;
constexpr std::uint32_t layer = 3;
constexpr std::size_t first = 17;

struct Drawn {
    gpipe::RandomWords words[samples][blocks];
    float uniform[samples][blocks], ordered[samples][blocks], normal[samples][blocks];
};

template <class Random> __global__ void draw(Random random, Drawn* drawn) {
    std::size_t const sample = blockIdx.x;
    std::size_t const block = threadIdx.x;
    drawn->words[sample][block] = random.bits(sample, static_cast<std::uint32_t>(block));
    drawn->uniform[sample][block] = random.uniform(sample, block);
    drawn->ordered[sample][block] = random.of(sample).uniform(block);
    drawn->normal[sample][block] = random.normal(sample, block);
}

// How many of the numbers are not those that the host draws.
std::size_t mistakes(Drawn const& drawn, gpipe::SampleRandom const& random) {
    std::size_t count = 0;
    for (std::size_t sample = 0; sample < samples; ++sample)
        for (std::size_t block = 0; block < blocks; ++block) {
            auto const words = random.bits(sample, static_cast<std::uint32_t>(block));
            count += !(drawn.words[sample][block] == words);
            count += drawn.uniform[sample][block] != random.uniform(sample, block);
            count += drawn.ordered[sample][block] != random.uniform(sample, block);
            float const normal = random.normal(sample, block); // but for its last bits
            count += !(std::abs(drawn.normal[sample][block] - normal) < 1e-5f);
        }
    return count;
}

} // namespace

TEST_CASE("kernels draw the host's numbers, and those of the step that they run in") {
    gpipe::cuda::Stream const stream(0);
    gpipe::cuda::Buffer const memory(0, sizeof(Drawn));
    gpipe::cuda::Buffer const state(0, sizeof(gpipe::StepState));
    gpipe::cuda::PinnedBuffer const copy(sizeof(Drawn));
    auto* const drawn = reinterpret_cast<Drawn*>(memory.data());
    auto const seen = [&]() -> Drawn const& {
        gpipe::cuda::check("cudaMemcpyAsync",
                           cudaMemcpyAsync(copy.data(), memory.data(), sizeof(Drawn),
                                           cudaMemcpyDefault, stream.get()));
        stream.synchronize();
        return *reinterpret_cast<Drawn const*>(copy.data());
    };
    auto const draw_all = [&]<class Random>(Random const& random) {
        gpipe::cuda::launch(stream.get(), samples, blocks, 0, draw<Random>, random, drawn);
    };
    std::uint64_t const seed = std::uint64_t{5} << 34;

    gpipe::SampleRandom const fixed(seed, 2, layer, first);
    draw_all(fixed);
    CHECK(mistakes(seen(), fixed) == 0);
    CHECK(mistakes(seen(), gpipe::SampleRandom(seed, 3, layer, first)) > samples * blocks);

    gpipe::StepRandom const read(reinterpret_cast<gpipe::StepState*>(state.data()), layer, first);
    for (std::uint64_t step = 0; step < 3; ++step) {
        gpipe::StepState const now{seed, step, 0, 0};
        toy::write(state, std::vector{now});
        draw_all(read);
        CHECK(mistakes(seen(), gpipe::SampleRandom(seed, step, layer, first)) == 0);
    }
}
