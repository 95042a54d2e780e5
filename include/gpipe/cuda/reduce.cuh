#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/core/ordered_sum.hpp>
#include <gpipe/cuda/launch.cuh>

#include <cstddef>

#include <cuda_runtime.h>

namespace gpipe::cuda {

namespace detail {

// Not cub::DeviceReduce: its order is its own, and another on another GPU.
template <class Add, class T>
__global__ void ordered_sum_kernel(T const* data, std::size_t count, double* results) {
    __shared__ double sums[sum_threads];
    std::size_t const t = threadIdx.x;
    sums[t] = gpipe::detail::thread_sum<Add>(data, count, blockIdx.x * sum_threads + t,
                                             gridDim.x * sum_threads);
    for (std::size_t half = sum_threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) sums[t] += sums[t + half];
    }
    if (t == 0) results[blockIdx.x] = sums[0];
}

template <class Add, class T>
void ordered_sum(cudaStream_t stream, T const* data, std::size_t count, double* result,
                 void* workspace) {
    auto* const sums = static_cast<double*>(workspace);
    auto const blocks = static_cast<unsigned>(sum_blocks(count));
    if (blocks > 0)
        launch(stream, blocks, sum_threads, 0, ordered_sum_kernel<Add, T>, data, count, sums);
    launch(stream, 1, sum_threads, 0, ordered_sum_kernel<gpipe::detail::AddValue, double>, sums,
           blocks, result);
}

} // namespace detail

/// Bytes of the workspace that a reduction of this many elements needs.
constexpr std::size_t reduction_workspace(std::size_t elements) {
    return slot_bytes(sum_blocks(elements) * sizeof(double));
}

/// Enqueues the sum of `count` numbers of the device's memory, of a floating-point type or one of
/// 16 bits that becomes float. The result is bitwise that of ordered_sum() on the host, on every
/// GPU; see sum_threads for the order. Throws Error.
template <class T>
void sum(cudaStream_t stream, T const* data, std::size_t count, double* result, void* workspace) {
    detail::ordered_sum<gpipe::detail::AddValue>(stream, data, count, result, workspace);
}
/// The same for the sum of their squares and ordered_sum_of_squares().
template <class T>
void sum_of_squares(cudaStream_t stream, T const* data, std::size_t count, double* result,
                    void* workspace) {
    detail::ordered_sum<gpipe::detail::AddSquare>(stream, data, count, result, workspace);
}

} // namespace gpipe::cuda
