// What kernels may rely on, on fibers as on a GPU.
#include "support/cuda_double/cuda_double.hpp"

#include <gpipe/cuda/launch.cuh>
#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

namespace language {

// The host may look at a device's memory where kernels are emulated.
template <class T> struct Numbers {
    gpipe::cuda::Buffer memory;
    std::size_t count;
    explicit Numbers(std::size_t size) : memory(0, size * sizeof(T)), count(size) {
        std::fill_n(data(), count, T{});
    }
    T* data() const { return reinterpret_cast<T*>(memory.data()); }
    std::vector<T> values() const { return {data(), data() + count}; }
};

template <class... Parameters, class... Arguments>
void run(dim3 grid, dim3 block, void (*kernel)(Parameters...), Arguments... arguments) {
    gpipe::cuda::Stream const stream(0);
    gpipe::cuda::launch(stream.get(), grid, block, 0, kernel, arguments...);
    stream.synchronize();
}

__global__ void meet_each(unsigned* counts) {
    unsigned const block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned const thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    ++counts[block * blockDim.x * blockDim.y * blockDim.z + thread];
}

// Each thread takes what its right neighbour has, as often as there are threads.
__global__ void rotate(unsigned* values) {
    __shared__ unsigned shared[256];
    unsigned const t = threadIdx.x;
    unsigned own = values[blockIdx.x * blockDim.x + t];
    for (unsigned round = 0; round < blockDim.x; ++round) {
        shared[t] = own;
        __syncthreads();
        own = shared[(t + 1) % blockDim.x];
        __syncthreads();
    }
    values[blockIdx.x * blockDim.x + t] = own;
}

struct Shuffled {
    double idx, exclusive, down, up;
};
__global__ void shuffle_all(unsigned mask, int width, unsigned by, Shuffled* results) {
    unsigned const lane = threadIdx.x % 32;
    if (!(mask >> lane & 1)) return;
    double const own = threadIdx.x + 0.5;
    auto const source = static_cast<int>(by);
    Shuffled& to = results[threadIdx.x];
    to.idx = __shfl_sync(mask, own, source, width);
    to.exclusive = __shfl_xor_sync(mask, own, by, width);
    to.down = __shfl_down_sync(mask, own, by, width);
    to.up = __shfl_up_sync(mask, own, by, width);
}

struct Voted {
    unsigned ballot;
    int any, all;
};
__global__ void vote(unsigned yes, Voted* results) {
    unsigned const lane = threadIdx.x % 32, mask = lane < 16 ? 0xFFFFu : 0xFFFF0000u;
    int const own = yes >> lane & 1;
    Voted& to = results[threadIdx.x];
    to = {__ballot_sync(mask, own), __any_sync(mask, own), __all_sync(mask, own)};
    __syncwarp();
}

__global__ void count(unsigned* total, double* sum, unsigned* most) {
    unsigned const own = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(total, 1u);
    atomicAdd(sum, 0.5);
    for (unsigned seen = atomicAdd(most, 0u); seen < own;) {
        unsigned const now = atomicCAS(most, seen, own);
        if (now == seen) break;
        seen = now;
    }
}

__global__ void take_turns(unsigned* next, unsigned* order) {
    order[atomicAdd(next, 1u)] = threadIdx.x;
}

__global__ void copy(unsigned value, unsigned* to) {
    if (threadIdx.x + threadIdx.y == 0) *to = value;
}

} // namespace language

using namespace language;

TEST_CASE("each thread of each block runs once, whatever the shape") {
    for (dim3 grid : {dim3(1), dim3(7), dim3(3, 2), dim3(2, 1, 5)})
        for (dim3 block : {dim3(1), dim3(33), dim3(16, 32), dim3(4, 3, 2), dim3(1024)}) {
            Numbers<unsigned> const counts(std::size_t{grid.x} * grid.y * grid.z * block.x *
                                           block.y * block.z);
            run(grid, block, meet_each, counts.data());
            CHECK(counts.values() == std::vector<unsigned>(counts.count, 1));
        }
}

TEST_CASE("threads see what others of their block did before a barrier, blocks have their own "
          "shared memory") {
    for (unsigned threads : {1u, 2u, 31u, 64u, 100u})
        for (std::uint64_t seed = 0; seed < 5; ++seed) {
            emulation::seed(seed);
            Numbers<unsigned> const values(5 * threads);
            std::iota(values.data(), values.data() + values.count, 0u);
            auto const before = values.values();
            run(5, threads, rotate, values.data());
            CHECK(values.values() == before);
        }
}

TEST_CASE("shuffles take from the lane that CUDA's guide names, in masks and widths") {
    for (unsigned mask : {0xFFFFFFFFu, 0xFFFFu, 0xFFFF0000u})
        for (int width : {2, 8, 16, 32})
            for (unsigned by : {0u, 1u, 3u, 15u}) {
                auto const w = static_cast<unsigned>(width);
                auto const in_mask = [&](unsigned lane) { return lane < 32 && (mask >> lane & 1); };
                auto const of = [&](unsigned lane) {
                    unsigned const begin = lane / w * w;
                    return std::vector<unsigned>{begin + by % w,
                                                 (lane ^ by) < begin + w ? lane ^ by : lane,
                                                 lane + by < begin + w ? lane + by : lane,
                                                 lane >= begin + by ? lane - by : lane};
                };
                bool allowed = true;
                for (unsigned lane = 0; lane < 32; ++lane)
                    for (unsigned from : of(lane)) allowed &= !in_mask(lane) || in_mask(from);
                if (!allowed) continue;
                Numbers<Shuffled> const results(64);
                run(1, 64, shuffle_all, mask, width, by, results.data());
                std::size_t wrong = 0;
                for (unsigned t = 0; t < 64; ++t) {
                    if (!in_mask(t % 32)) continue;
                    auto const from = of(t % 32);
                    Shuffled const& got = results.data()[t];
                    double const warp = t / 32 * 32 + 0.5;
                    wrong += got.idx != warp + from[0] || got.exclusive != warp + from[1] ||
                             got.down != warp + from[2] || got.up != warp + from[3];
                }
                INFO("mask ", mask, ", width ", width, ", by ", by);
                CHECK(wrong == 0);
            }
}

TEST_CASE("votes count the lanes of their mask alone") {
    for (unsigned yes : {0u, 0x00010001u, 0x0000FFFFu, 0xFFFFFFFFu, 0xFFFF0000u}) {
        Numbers<Voted> const results(96);
        run(1, 96, vote, yes, results.data());
        for (unsigned t = 0; t < 96; ++t) {
            unsigned const mask = t % 32 < 16 ? 0xFFFFu : 0xFFFF0000u;
            Voted const& got = results.data()[t];
            CHECK(got.ballot == (yes & mask));
            CHECK(got.any == ((yes & mask) != 0));
            CHECK(got.all == ((yes & mask) == mask));
        }
    }
}

TEST_CASE("atomic operations of several blocks lose nothing") {
    Numbers<unsigned> const total(1), most(1);
    Numbers<double> const sum(1);
    run(200, 128, count, total.data(), sum.data(), most.data());
    CHECK(*total.data() == 200 * 128);
    CHECK(*sum.data() == 100 * 128);
    CHECK(*most.data() == 200 * 128 - 1);
}

// For ThreadSanitizer.
TEST_CASE("blocks that write the same number" * doctest::skip()) {
    Numbers<unsigned> const to(1);
    run(2, 1, copy, 1u, to.data());
}

TEST_CASE("the seed permutes the order of threads") {
    auto const order = [](std::uint64_t seed) {
        emulation::seed(seed);
        Numbers<unsigned> const next(1), result(64);
        run(1, 64, take_turns, next.data(), result.data());
        return result.values();
    };
    std::set<std::vector<unsigned>> orders;
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        auto seen = order(seed);
        CHECK(seen == order(seed));
        std::size_t neighbours = 0; // none but by chance
        for (std::size_t i = 0; i < 64; ++i) neighbours += (seen[i] + 1) % 64 == seen[(i + 1) % 64];
        CHECK(neighbours < 8);
        orders.insert(seen);
        std::sort(seen.begin(), seen.end());
        CHECK(std::unique(seen.begin(), seen.end()) == seen.end());
    }
    CHECK(orders.size() == 10);
}

TEST_CASE("a kernel's arguments are those of its launch") {
    Numbers<unsigned> const to(2);
    gpipe::cuda::Stream const stream(0);
    unsigned value = 3;
    gpipe::cuda::launch(stream.get(), 1, 1, 0, copy, value, to.data());
    value = 4;
    gpipe::cuda::launch(stream.get(), 1, 1, 0, copy, value, to.data() + 1);
    value = 5;
    CHECK(to.values() == std::vector{0u, 0u}); // nothing has run yet
    stream.synchronize();
    CHECK(to.values() == std::vector{3u, 4u});
}

TEST_CASE("a launch throws its own status, not what failed before") {
    Numbers<unsigned> const to(1);
    gpipe::cuda::Stream const stream(0);
    void* none = nullptr;
    CHECK(cudaMalloc(&none, std::size_t{1} << 40) == cudaErrorMemoryAllocation); // and no one asks
    CHECK_NOTHROW(gpipe::cuda::launch(stream.get(), 1, 1, 0, copy, 1u, to.data()));
    stream.synchronize();
    CHECK(*to.data() == 1);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);

    auto const status = [&](dim3 grid, dim3 block) {
        try {
            gpipe::cuda::launch(stream.get(), grid, block, 0, copy, 1u, to.data());
        } catch (gpipe::cuda::Error const& error) {
            CHECK(std::string(error.what()).find("gpipe: a kernel launch failed with ") == 0);
            CHECK(cudaGetLastError() == cudaSuccess);
            return error.code();
        }
        return cudaSuccess;
    };
    for (auto [grid, block] :
         {std::pair<dim3, dim3>{0, 1}, {1, 0}, {1, 1025}, {1, dim3(32, 33)}, {dim3(1, 0x10000), 1}})
        CHECK(status(grid, block) == cudaErrorInvalidConfiguration);
    CHECK(status(1, dim3(32, 32)) == cudaSuccess);
    stream.synchronize();
}
