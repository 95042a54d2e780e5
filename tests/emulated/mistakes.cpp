// What CUDA forbids ends a kernel, and says where: kernel, block, thread, line.
#include "support/cuda_double/cuda_double.hpp"

#include <gpipe/cuda/launch.cuh>
#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <string>

namespace mistake {

// All but one thread of the last block.
__device__ inline bool most() { return blockIdx.x + 1 < gridDim.x || threadIdx.x != 37; }

template <class T> __global__ void ends_before_barrier(T) {
    if (most()) __syncthreads();
}
__global__ void two_barriers() {
    if (most())
        __syncthreads();
    else
        __syncthreads();
}
__global__ void barrier_alone() {
    if (!most()) __syncthreads();
}
__global__ void one_barrier_more() {
    __syncthreads();
    if (!most()) __syncthreads();
}
__global__ void left_out_of_mask() { __shfl_xor_sync(most() ? ~0u : ~(1u << 5), 1.f, 1); }
__global__ void reads_outside() {
    if (threadIdx.x % 32 < 16) __shfl_sync(0xFFFFu, 1, most() ? 0 : 16);
}
__global__ void ends_before_shuffle() {
    if (most()) __shfl_down_sync(~0u, 1, 1);
}
__global__ void two_shuffles() {
    if (most())
        __shfl_xor_sync(~0u, 1, 1);
    else
        __shfl_xor_sync(~0u, 1, 1);
}
__global__ void two_masks() { __ballot_sync(most() ? ~0u : 1u << 5 | 1u << 6, 1); }
__global__ void half_a_warp() { __syncwarp(); }
__global__ void barrier_and_shuffle() {
    if (most())
        __syncthreads();
    else
        __shfl_sync(~0u, 1, 0);
}
__global__ void right(int* to) {
    __syncthreads();
    if (threadIdx.x == 0) *to += __shfl_sync(1u, 1, 0);
}

// What the double says of it; the device is lost then, as a GPU is.
template <class... Parameters, class... Arguments>
std::string told(dim3 block, void (*kernel)(Parameters...), Arguments... arguments) {
    cuda_double::Session const session({.seed = 3, .protects = false});
    cudaError_t status = cudaSuccess;
    {
        gpipe::cuda::Stream const stream(0);
        gpipe::cuda::launch(stream.get(), 3, block, 0, kernel, arguments...);
        status = cudaStreamSynchronize(stream.get());
    }
    auto const faults = cuda_double::faults();
    static_cast<void>(cuda_double::complaints()); // heard
    CHECK(status == cudaErrorLaunchFailure);
    CHECK(faults.size() == 1);
    return faults.empty() ? "" : faults[0];
}

bool says(std::string const& text, std::initializer_list<char const*> parts) {
    std::size_t at = 0;
    for (char const* part : parts) {
        at = text.find(part, at);
        CAPTURE(text);
        CAPTURE(part);
        CHECK(at != std::string::npos);
        if (at == std::string::npos) return false;
    }
    return true;
}

} // namespace mistake

using namespace mistake;

TEST_CASE("a barrier that not all threads of a block come to is an error of kernel, block and "
          "thread") {
    char const* const thread = ", block (2, 0, 0), thread (";
    for (std::uint64_t seed = 0; seed < 20; ++seed) { // who comes first is open
        emulation::seed(seed);
        says(told(64, ends_before_barrier<int>, 1),
             {"kernel void mistake::ends_before_barrier<int>(int)", thread, "ended"});
        says(told(64, two_barriers),
             {"kernel mistake::two_barriers()", thread, " is at the barrier ",
              "mistakes.cpp:", ", thread (", " at another, ", "mistakes.cpp:"});
        says(told(64, barrier_alone), {"kernel mistake::barrier_alone()", thread, "ended"});
        says(told(64, one_barrier_more), {"kernel mistake::one_barrier_more()", thread, "ended"});
    }
}

TEST_CASE("a shuffle or a vote outside of its mask is an error of kernel, block and thread") {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        emulation::seed(seed);
        says(told(64, left_out_of_mask), {"kernel mistake::left_out_of_mask(), block (2, 0, 0)",
                                          "thread (37, 0, 0): exchanges at ", "mistakes.cpp:",
                                          " with mask 0xffffffdf, which leaves it out"});
        says(told(64, reads_outside), {"kernel mistake::reads_outside(), block (2, 0, 0)",
                                       "thread (37, 0, 0): exchanges at ", "mistakes.cpp:",
                                       " with mask 0x0000ffff, and reads lane 16"});
        says(told(64, ends_before_shuffle),
             {"kernel mistake::ends_before_shuffle(), block (2, 0, 0), thread (", "ended"});
        says(told(64, two_shuffles), {"kernel mistake::two_shuffles(), block (2, 0, 0), thread (",
                                      "exchanges at ", ", thread (", " at "});
        says(told(48, half_a_warp), {"kernel mistake::half_a_warp(), block (", "thread (",
                                     "lane 16 has ended, or is not in the block"});
    }
}

TEST_CASE("threads that wait for each other are an error, not a hang") {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        emulation::seed(seed);
        says(told(64, barrier_and_shuffle),
             {"kernel mistake::barrier_and_shuffle(), block (2, 0, 0), deadlock: thread (",
              "at the barrier ", "mistakes.cpp:", ", thread (37, 0, 0) at ", "mistakes.cpp:"});
        says(told(64, two_masks), {"kernel mistake::two_masks(), block (2, 0, 0)"});
    }
}

TEST_CASE("after a mistake other kernels run") {
    static_cast<void>(told(64, two_barriers));
    cuda_double::reset({.seed = 3, .protects = false});
    gpipe::cuda::Buffer const memory(0, sizeof(int));
    auto* const to = reinterpret_cast<int*>(memory.data());
    *to = 0;
    gpipe::cuda::Stream const stream(0);
    for (int i = 0; i < 3; ++i) gpipe::cuda::launch(stream.get(), 1, 64, 0, right, to);
    stream.synchronize();
    CHECK(*to == 3);
}
