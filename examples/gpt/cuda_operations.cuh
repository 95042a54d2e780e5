#pragma once

#include "gpt/attention_strips.hpp"
#include "gpt/cuda_products.cuh"
#include "gpt/cuda_team.cuh"
#include "gpt/operations.hpp"
#include "gpt/scatter.hpp"

#include <gpipe/cuda/for_each_index.cuh>
#include <gpipe/cuda/launch.cuh>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <cuda_runtime.h>

namespace gpt {

namespace detail {

inline constexpr unsigned row_threads = 256; // of a block

template <unsigned threads, class Row>
__global__ void __launch_bounds__(row_threads) for_each_row_kernel(std::size_t rows, Row row) {
    constexpr unsigned teams = row_threads / threads;
    CudaTeam<threads> const team;
    for (std::size_t r = std::size_t{blockIdx.x} * teams + threadIdx.x / threads; r < rows;
         r += std::size_t{gridDim.x} * teams)
        row(team, r);
}

// A block sums some columns: thread y rows y, y + high, ...; then the threads meet in a tree.
template <class T> inline constexpr unsigned sum_columns_high = sizeof(T) > 4 ? 256 : 512;
template <class T, class F, class... From>
__global__ void sum_columns_kernel(std::size_t rows, std::size_t columns, T* to, bool add, F f,
                                   From const*... from) {
    constexpr unsigned high = sum_columns_high<T>, wide = Run<T>::length;
    __shared__ T sums[high][wide];
    std::size_t const first = std::size_t{blockIdx.x} * wide;
    std::size_t const left = columns - first, count = left < wide ? left : wide;
    bool const at_once = columns % wide == 0 && has_runs<From...>(from...);
    T sum[wide] = {};
    auto const add_run = [&](std::size_t row, Run<From> const... runs) {
        for (unsigned k = 0; k < wide; ++k) sum[k] += f(row, real(runs.elements[k])...);
    };
    std::size_t row = threadIdx.x;
    if (at_once) {
        constexpr unsigned together = 4; // rows: so it waits for memory a quarter as often
        for (; row + (together - 1) * high < rows; row += together * high)
            for (unsigned n = 0; n < together; ++n)
                add_run(row + n * high, run_at(from + (row + n * high) * columns + first)...);
        for (; row < rows; row += high) add_run(row, run_at(from + row * columns + first)...);
    } else {
        for (; row < rows; row += high)
            for (unsigned k = 0; k < wide; ++k)
                if (k < count) sum[k] += f(row, real(from[row * columns + first + k])...);
    }
    for (unsigned k = 0; k < wide; ++k) sums[threadIdx.x][k] = sum[k];
    for (unsigned half = high / 2; half > 0; half /= 2) {
        __syncthreads();
        for (unsigned i = threadIdx.x; i < half * wide; i += high)
            sums[i / wide][i % wide] += sums[half + i / wide][i % wide];
    }
    if (threadIdx.x >= count) return;
    std::size_t const column = first + threadIdx.x;
    T const total = sums[0][threadIdx.x];
    to[column] = add ? to[column] + total : total;
}

// A column's sum by one thread: where there are few rows and many columns.
template <class T, class F, class... From>
__global__ void sum_few_rows_kernel(std::size_t rows, std::size_t columns, T* to, bool add, F f,
                                    From const*... from) {
    std::size_t const column = std::size_t{blockIdx.x} * row_threads + threadIdx.x;
    if (column >= columns) return;
    T sum{};
    for (std::size_t row = 0; row < rows; ++row)
        sum += f(row, real(from[row * columns + column])...);
    to[column] = add ? to[column] + sum : sum;
}

// What attention has of memory per sample: scores, and for each head the places of a product's
// matrices. 512 rows at once: with 256 or 1,024 of GPT-2's, steps in TF32 take 2 or 3 % longer on
// an H200. Fewer where they were more than 128 MiB.
template <class T, std::size_t context, std::size_t heads> struct AttentionMemory {
    static constexpr std::size_t fit =
        (std::size_t{128} << 20) / (score_elements_of(heads, 1, context) * sizeof(T));
    static constexpr std::size_t strip =
        std::min({context, std::size_t{512}, std::max(fit, std::size_t{1})});
    static constexpr std::size_t of_pointer = sizeof(void*) / sizeof(T);
    static constexpr std::size_t scores = // in whole pointers, which stand behind them
        (score_elements_of(heads, strip, context) + of_pointer - 1) / of_pointer * of_pointer;
    static constexpr std::size_t places = 3 * heads * of_pointer;
};

template <class To, class F, class... From>
__global__ void map_kernel(std::size_t n, To* to, F f, From const*... from) {
    map_runs(std::size_t{blockIdx.x} * blockDim.x + threadIdx.x,
             std::size_t{gridDim.x} * blockDim.x, n, to, f, from...);
}

// A handle: room for the weights of any one of a device's layers, rounded to T.
template <class T, std::size_t weights> struct RoundedWeights {
    static constexpr std::size_t workspace = weights * sizeof(T);

    RoundedWeights(gpipe::cuda::StreamRef, std::byte* memory)
        : data(reinterpret_cast<T*>(memory)) {}

    T* data;
};

// Operations that are enqueued for one call of a layer.
template <class Context, Precision precision> class CudaOn {
  public:
    explicit CudaOn(Context const& context) : context_(context) {}

    template <class T, class C>
    void multiply(Extents extents, Factor<T> a, Factor<T> b, C* c, std::size_t stride,
                  bool add = false, Real<T> scale = 1) const {
        gpt::multiply(gpipe::cuda::blas(context_), precision, {}, extents, a, b, c, stride, add,
                      scale);
    }
    template <class T, class... Weights>
    std::array<T const*, sizeof...(Weights)> factors(Weights const&... weights) const {
        if constexpr (std::is_same_v<T, Real<T>>) {
            return {weights.data()...};
        } else {
            T* room = gpipe::handle<RoundedWeights<T, (Weights::size() + ...)>>(context_).data;
            auto const round = [&](auto const& of) {
                map(of.size(), room, Itself{}, of.data());
                room += of.size();
                return room - of.size();
            };
            return {round(weights)...};
        }
    }
    template <class Each> void for_each_index(std::size_t count, Each each) const {
        gpipe::cuda::for_each_index(context_.stream(), count, Prepared<Each>{each});
    }
    template <class To, class F, class... From>
    void map(std::size_t n, To* to, F f, From const*... from) const {
        if (n == 0) return;
        constexpr std::size_t of_block = row_threads * Run<To>::length, most_blocks = 65'536;
        auto const blocks =
            static_cast<unsigned>(std::min((n + of_block - 1) / of_block, most_blocks));
        gpipe::cuda::launch(context_.stream(), blocks, row_threads, 0, map_kernel<To, F, From...>,
                            n, to, f, from...);
    }
    template <class Row> void for_each_row(std::size_t rows, std::size_t length, Row row) const {
        if (length <= 1024)
            launch_rows<32>(rows, row);
        else
            launch_rows<row_threads>(rows, row);
    }
    template <class T, class F, class... From>
    void sum_columns(std::size_t rows, std::size_t columns, T* to, bool add, F f,
                     From const*... from) const {
        bool const few = rows < 64;
        std::size_t const of_block = few ? row_threads : Run<T>::length;
        gpipe::cuda::launch(
            context_.stream(), static_cast<unsigned>((columns + of_block - 1) / of_block),
            few ? row_threads : sum_columns_high<T>, 0,
            few ? sum_few_rows_kernel<T, F, From...> : sum_columns_kernel<T, F, From...>, rows,
            columns, to, add, f, from...);
    }
    template <class T>
    void scatter_add(std::size_t rows, std::size_t vocabulary, std::size_t width,
                     std::int32_t const* indices, T const* from, Real<T>* to) const {
        launch_rows<row_threads>(rows, ScatterRow<T>{rows, vocabulary, width, indices, from, to});
    }
    // Nothing can be thrown by what runs later.
    template <class F> void check(std::size_t, F) const {}

    template <class T>
    void multiply_each(Products products, Extents extents, Factor<T> a, Factor<T> b, T* c,
                       std::size_t stride, bool add = false, Real<T> scale = 1) const {
        gpt::multiply_each(gpipe::cuda::blas(context_), context_.stream(), precision, products,
                           extents, a, b, c, stride, add, scale, places_);
    }
    template <std::size_t context, std::size_t width, std::size_t heads, class T>
    void attend(std::size_t samples, T const* qkv, T* out, Real<T>* log_sums, T* scores) const {
        Strips<T, context, width, heads>::forward(with_places<T, context, heads>(samples, scores),
                                                  samples, qkv, out, log_sums, scores);
    }
    template <std::size_t context, std::size_t width, std::size_t heads, class T>
    void attend_backward(std::size_t samples, T const* qkv, T const* out, Real<T> const* log_sums,
                         T const* dout, T* dqkv, T* scores) const {
        Strips<T, context, width, heads>::backward(with_places<T, context, heads>(samples, scores),
                                                   samples, qkv, out, log_sums, dout, dqkv, scores);
    }

  private:
    template <class T, std::size_t context, std::size_t width, std::size_t heads>
    using Strips =
        AttentionStrips<T, context, width, heads, AttentionMemory<T, context, heads>::strip>;
    template <class T, std::size_t context, std::size_t heads>
    CudaOn with_places(std::size_t samples, T* scores) const {
        CudaOn on = *this;
        on.places_ = reinterpret_cast<void const**>(
            scores + samples * AttentionMemory<T, context, heads>::scores);
        return on;
    }

    template <unsigned threads, class Row> void launch_rows(std::size_t rows, Row row) const {
        constexpr unsigned teams = row_threads / threads;
        constexpr std::size_t most_blocks = 65'536;
        auto const blocks =
            static_cast<unsigned>(std::min((rows + teams - 1) / teams, most_blocks));
        gpipe::cuda::launch(context_.stream(), blocks, row_threads, 0,
                            for_each_row_kernel<threads, Row>, rows, row);
    }

    Context const& context_;
    void const** places_ = nullptr;
};

} // namespace detail

/// What layers are made of, as cuBLAS and kernels: each call enqueues, and nothing else. Sums have
/// one order, and no two threads add to one number: results do not depend on timing. With `tf32`
/// the products of floats of the layers that are made of them are rounded so.
template <Precision precision> struct CudaOperationsIn {
    using Handles = gpipe::Handles<gpipe::cuda::Blas>;
    template <class T, std::size_t weights>
    using HandlesFor =
        std::conditional_t<std::is_same_v<T, Real<T>>, Handles,
                           gpipe::Handles<gpipe::cuda::Blas, detail::RoundedWeights<T, weights>>>;
    /// What multiplies, for the user to read.
    static std::string kernels() {
        int version[3] = {};
        libraryPropertyType const parts[] = {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL};
        for (int i = 0; i < 3; ++i)
            gpipe::cuda::check_blas("cublasGetProperty", cublasGetProperty(parts[i], version + i));
        return "cuBLAS " + std::to_string(version[0]) + '.' + std::to_string(version[1]) + '.' +
               std::to_string(version[2]);
    }
    template <class Context> static detail::CudaOn<Context, precision> on(Context const& context) {
        return detail::CudaOn<Context, precision>(context);
    }
    /// Per sample, for attend and attend_backward.
    template <class T, std::size_t context, std::size_t heads>
    static constexpr std::size_t score_elements =
        detail::AttentionMemory<T, context, heads>::scores +
        detail::AttentionMemory<T, context, heads>::places;
};
using CudaOperations = CudaOperationsIn<Precision::fp32>;

} // namespace gpt
