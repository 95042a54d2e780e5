#pragma once

// CUDA's kernel language for g++, on no GPU: to be included before a .cu file is. One fiber per
// thread of a GPU, two threads of the host that run blocks at a time, and the double of the CUDA
// runtime for all else. Threads take turns only where they wait for each other, in an order that a
// seed chooses. A kernel that uses a barrier or a shuffle as CUDA forbids ends as on a GPU, and the
// double's faults() name kernel, block, thread and place. Under ThreadSanitizer every thread of a
// GPU is one to it, ordered by launches, barriers and shuffles alone: races in kernels are found.
//
// Not there: what kernels of this project do not use (dynamic shared memory, clusters, matrix
// instructions, cooperative groups, printf). Not seen: fused multiplications, occupancy, the memory
// model, alignment; and a loop that waits for another thread's write never ends.

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local // a block is run by one thread of the host
#define __launch_bounds__(...)

extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;

namespace emulation {

/// Of the order of threads in the launches that follow.
void seed(std::uint64_t value);

/// A line of a kernel. (clang 14 has no std::source_location.)
struct Place {
    char const* file = "";
    int line = 0;

    static constexpr Place current(char const* file = __builtin_FILE(),
                                   int line = __builtin_LINE()) {
        return {file, line};
    }
};

/// What a thread brings to a shuffle or a vote.
struct Gift {
    alignas(16) std::byte bytes[16] = {};
    bool vote = false;
};
/// What it gets: the bytes of the lane that it named, and who of all voted.
struct Got {
    std::byte const* bytes;
    unsigned votes;
};

void barrier(Place place);
Got exchange(unsigned mask, unsigned from, Gift const& gift, Place place);
unsigned lane();

cudaError_t launch(cudaLaunchConfig_t const& config, void const* kernel,
                   std::function<void()> thread);

/// As cudaLaunchKernelEx(): arguments are copied now.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(cudaLaunchConfig_t const* config, void (*kernel)(Parameters...),
                          Arguments const&... arguments) {
    return launch(*config, reinterpret_cast<void const*>(kernel),
                  [kernel, ... copies = Parameters(arguments)] { kernel(copies...); });
}

template <class T> T shuffle(unsigned mask, T const& value, unsigned from, Place place) {
    static_assert(sizeof(T) <= sizeof(Gift::bytes) && std::is_trivially_copyable_v<T>);
    Gift gift;
    std::memcpy(gift.bytes, &value, sizeof value);
    T result;
    std::memcpy(&result, exchange(mask, from, gift, place).bytes, sizeof result);
    return result;
}

} // namespace emulation

#define cudaLaunchKernelEx ::emulation::launch_kernel

inline void __syncthreads(emulation::Place place = emulation::Place::current()) {
    emulation::barrier(place);
}
inline void __syncwarp(unsigned mask = ~0u, emulation::Place place = emulation::Place::current()) {
    static_cast<void>(emulation::exchange(mask, emulation::lane(), {}, place));
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32,
              emulation::Place place = emulation::Place::current()) {
    auto const w = static_cast<unsigned>(width);
    return emulation::shuffle(mask, value,
                              emulation::lane() / w * w + static_cast<unsigned>(from) % w, place);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned distance, int width = 32,
                  emulation::Place place = emulation::Place::current()) {
    auto const w = static_cast<unsigned>(width);
    unsigned const own = emulation::lane(), from = own ^ distance;
    return emulation::shuffle(mask, value, from / w > own / w ? own : from, place);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32,
                   emulation::Place place = emulation::Place::current()) {
    auto const w = static_cast<unsigned>(width);
    unsigned const own = emulation::lane();
    return emulation::shuffle(mask, value, own % w + distance < w ? own + distance : own, place);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32,
                 emulation::Place place = emulation::Place::current()) {
    auto const w = static_cast<unsigned>(width);
    unsigned const own = emulation::lane();
    return emulation::shuffle(mask, value, own % w >= distance ? own - distance : own, place);
}
inline unsigned __ballot_sync(unsigned mask, int vote,
                              emulation::Place place = emulation::Place::current()) {
    return emulation::exchange(mask, emulation::lane(), {{}, vote != 0}, place).votes;
}
inline int __any_sync(unsigned mask, int vote,
                      emulation::Place place = emulation::Place::current()) {
    return __ballot_sync(mask, vote, place) != 0;
}
inline int __all_sync(unsigned mask, int vote,
                      emulation::Place place = emulation::Place::current()) {
    return __ballot_sync(mask, vote, place) == mask;
}

template <class T> T atomicAdd(T* at, std::type_identity_t<T> value) {
    return std::atomic_ref(*at).fetch_add(value, std::memory_order_relaxed);
}
template <class T> T atomicMax(T* at, std::type_identity_t<T> value) {
    std::atomic_ref const there(*at);
    T seen = there.load(std::memory_order_relaxed);
    while (seen < value && !there.compare_exchange_weak(seen, value, std::memory_order_relaxed))
        ;
    return seen;
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
    std::atomic_ref(*at).compare_exchange_strong(expected, value, std::memory_order_relaxed);
    return expected;
}
