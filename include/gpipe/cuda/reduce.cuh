#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/core/exact_sum.hpp>
#include <gpipe/core/ordered_sum.hpp>
#include <gpipe/cuda/launch.cuh>

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

namespace gpipe::cuda {

namespace detail {

// What a block of so many adds, for all its threads to call. (Not cub::DeviceReduce: its order is
// its own, and another on another GPU.)
template <class Add, class T>
__device__ void ordered_block_sum(T const* data, std::size_t count, std::size_t block,
                                  std::size_t blocks, double* result) {
    __shared__ double sums[sum_threads];
    std::size_t const t = threadIdx.x;
    sums[t] =
        gpipe::detail::thread_sum<Add>(data, count, block * sum_threads + t, blocks * sum_threads);
    for (std::size_t half = sum_threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) sums[t] += sums[t + half];
    }
    if (t == 0) *result = sums[0];
}

// So many tensors, summed up at once. Their blocks leave sums one behind the other.
template <class T, std::size_t most> struct SumRows {
    struct Row {
        T const* data;
        std::size_t count;
        unsigned end; // of its blocks
    };
    Row rows[most];

    // How many blocks the first so many have, which then know them.
    unsigned blocks(unsigned count) {
        unsigned all = 0;
        for (unsigned r = 0; r < count; ++r)
            rows[r].end = all += static_cast<unsigned>(sum_blocks(rows[r].count));
        return all;
    }
    __device__ unsigned begin(unsigned row) const { return row > 0 ? rows[row - 1].end : 0; }
    __device__ unsigned row_of(unsigned block) const {
        unsigned r = 0;
        while (block >= rows[r].end) ++r;
        return r;
    }
};
template <class Add, class T, std::size_t most>
__global__ void block_sums_kernel(SumRows<T, most> const all, double* sums) {
    unsigned const r = all.row_of(blockIdx.x), begin = all.begin(r);
    ordered_block_sum<Add>(all.rows[r].data, all.rows[r].count, blockIdx.x - begin,
                           all.rows[r].end - begin, sums + blockIdx.x);
}
template <class T, std::size_t most>
__global__ void total_sums_kernel(SumRows<T, most> const all, double const* sums, double* results) {
    unsigned const r = blockIdx.x, begin = all.begin(r);
    ordered_block_sum<gpipe::detail::AddValue>(sums + begin, all.rows[r].end - begin, 0, 1,
                                               results + r);
}

template <class Add, class T, std::size_t most>
void ordered_sums(cudaStream_t stream, SumRows<T, most> rows, unsigned count, double* results,
                  void* workspace) {
    auto* const sums = static_cast<double*>(workspace);
    if (unsigned const blocks = rows.blocks(count); blocks > 0)
        launch(stream, blocks, sum_threads, 0, block_sums_kernel<Add, T, most>, rows, sums);
    launch(stream, count, sum_threads, 0, total_sums_kernel<T, most>, rows, sums, results);
}

// Slots by warps. Integers, so that it does not matter who adds when.
template <class T, std::size_t most>
__global__ void exact_squares_kernel(SumRows<T, most> const all, std::uint64_t* words) {
    using Word = unsigned long long; // as atomicAdd has it
    __shared__ Word sums[exact_words];
    constexpr std::size_t slot = gpipe::detail::slot_elements<T>;
    constexpr std::size_t lanes = gpipe::detail::slot_threads;
    std::size_t const lane = threadIdx.x % lanes, warps = blockDim.x / lanes;
    unsigned const r = all.row_of(blockIdx.x), begin = all.begin(r);
    std::size_t const block = blockIdx.x - begin, blocks = all.rows[r].end - begin;
    T const* const data = all.rows[r].data;
    std::size_t const count = all.rows[r].count;
    for (std::size_t i = threadIdx.x; i < exact_words; i += blockDim.x) sums[i] = 0;
    __syncthreads();
    for (std::size_t s = block * warps + threadIdx.x / lanes; s * slot < count;
         s += blocks * warps) {
        std::size_t const left = count - s * slot;
        double sum = gpipe::detail::thread_sum<gpipe::detail::AddSquare>(
            data + s * slot, left < slot ? left : slot, lane, lanes);
        for (unsigned half = lanes / 2; half > 0; half /= 2)
            sum += __shfl_down_sync(~0u, sum, half);
        if (lane > 0) continue;
        gpipe::detail::ExactDigits const digits = gpipe::detail::exact_digits(sum);
        for (std::size_t d = 0; d < 3; ++d)
            atomicAdd(&sums[digits.at + d], static_cast<Word>(digits.digit[d]));
    }
    __syncthreads();
    for (std::size_t i = threadIdx.x; i < exact_words; i += blockDim.x)
        if (sums[i] > 0) atomicAdd(reinterpret_cast<Word*>(words) + i, sums[i]);
}
template <class T, std::size_t most>
void add_squares_exactly(cudaStream_t stream, SumRows<T, most> rows, unsigned count,
                         std::uint64_t* words) {
    if (unsigned const blocks = rows.blocks(count); blocks > 0)
        launch(stream, blocks, sum_threads, 0, exact_squares_kernel<T, most>, rows, words);
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
    detail::ordered_sums<gpipe::detail::AddValue>(stream, detail::SumRows<T, 1>{{{data, count, 0}}},
                                                  1, result, workspace);
}
/// The same for the sum of their squares and ordered_sum_of_squares().
template <class T>
void sum_of_squares(cudaStream_t stream, T const* data, std::size_t count, double* result,
                    void* workspace) {
    detail::ordered_sums<gpipe::detail::AddSquare>(
        stream, detail::SumRows<T, 1>{{{data, count, 0}}}, 1, result, workspace);
}
/// Enqueues what add_squares_exactly() does: `words` lie in the device's memory. Throws Error.
template <class T>
void add_squares_exactly(cudaStream_t stream, std::uint64_t* words, T const* data,
                         std::size_t count) {
    detail::add_squares_exactly(stream, detail::SumRows<T, 1>{{{data, count, 0}}}, 1, words);
}

} // namespace gpipe::cuda
