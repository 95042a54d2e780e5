#pragma once

#include <gpipe/cuda/launch.cuh>

#include <algorithm>
#include <cstddef>
#include <new>
#include <type_traits>

#include <cuda_runtime.h>

namespace gpipe::cuda {

namespace detail {

template <class Prepare> __global__ void for_each_index_kernel(std::size_t count, Prepare prepare) {
    using Each = std::remove_cvref_t<decltype(prepare())>;
    alignas(Each) __shared__ unsigned char shared[sizeof(Each)];
    if (threadIdx.x == 0) new (shared) Each(prepare());
    __syncthreads();
    Each const each = *reinterpret_cast<Each const*>(shared);
    std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
    for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
        each(i);
}

} // namespace detail

/// Enqueues each(i) for i in [0, count), in no order; `each` is a copy of what prepare() returns,
/// which one thread of each block calls: so it can read what changes from step to step from the
/// device's memory. Both are __device__ functors, copied to the device. Throws Error.
template <class Prepare>
void for_each_index(cudaStream_t stream, std::size_t count, Prepare prepare) {
    if (count == 0) return;
    constexpr std::size_t threads = 256;
    constexpr std::size_t most_blocks = 2048;
    auto const blocks =
        static_cast<unsigned>(std::min((count + threads - 1) / threads, most_blocks));
    launch(stream, blocks, threads, 0, detail::for_each_index_kernel<Prepare>, count, prepare);
}

} // namespace gpipe::cuda
