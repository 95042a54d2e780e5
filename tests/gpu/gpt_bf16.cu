// The GPT's layers on a GPU in bf16, with parameters, their gradients and sums in float, against
// the host's in double.
#include "support/gpt_layer.cuh"
#include "support/gpu_memory.hpp"

#include <gpt/attention.hpp>
#include <gpt/embedding.hpp>
#include <gpt/head.hpp>
#include <gpt/layer_norm.hpp>
#include <gpt/mlp.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include <cuda_bf16.h>

namespace bf16_on_gpu {

// Heads of a multiple of 16 bytes, and others.
template <class T, class O> using Attention = gpt::Attention<T, 40, 48, 3, O>;
template <class T, class O> using NarrowAttention = gpt::Attention<T, 21, 40, 4, O>;
template <class T, class O> using Mlp = gpt::Mlp<T, 20, 40, O>;
template <class T, class O> using Head = gpt::Head<T, 20, 24, 60, O>;
template <class T, class O> struct Embedding : gpt::Embedding<T, 11, 40, 24, O> {
    static constexpr std::size_t vocabulary_size = 11;
};

} // namespace bf16_on_gpu

namespace {

using namespace gpu_test;
using namespace bf16_on_gpu;

TEST_CASE("attention in bf16 is the host's") {
    compare_with_host<Attention, __nv_bfloat16>(WithDropout{});
    compare_with_host<NarrowAttention, __nv_bfloat16>(Default{});
}

TEST_CASE("the perceptron in bf16 is the host's") {
    compare_with_host<Mlp, __nv_bfloat16>(WithDropout{});
}

// Where logits are held within a bound, 16 bits may decide whether a gradient passes.
struct Fewer {
    template <class L> L operator()() const { return {.classes = L::Output::extents[1] - 5}; }
};

TEST_CASE("the head in bf16 is the host's") { compare_with_host<Head, __nv_bfloat16>(Fewer{}); }

TEST_CASE("the embedding in bf16 is the host's") {
    compare_with_host<Embedding, __nv_bfloat16>(Default{});
}

TEST_CASE("statistics and sums of bf16 are floats") {
    constexpr std::size_t width = 24;
    struct Streamed {
        cudaStream_t its;
        cudaStream_t stream() const { return its; }
    };
    gpipe::cuda::Stream const stream(0);
    Streamed const context{stream.get()};
    gpt::detail::CudaOn<Streamed, gpt::Precision::fp32> const on(context);
    for (std::size_t const rows : {63u, 300u}) { // by a thread and by a block for each column
        CAPTURE(rows);
        std::vector<__nv_bfloat16> x(rows * width);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(4 + i % 5);
        std::vector<float> const gain(width, 1);
        gpipe::cuda::Buffer const in(0, x.size() * 2), y(0, x.size() * 2), sums(0, width * 4),
            gains(0, width * 4), found(0, rows * 8);
        toy::write(in, x);
        toy::write(gains, gain);
        auto const* const from = reinterpret_cast<__nv_bfloat16 const*>(in.data());
        auto* const statistics = reinterpret_cast<float*>(found.data());
        on.sum_columns(rows, width, reinterpret_cast<float*>(sums.data()), false, gpt::Itself{},
                       from);
        auto const* const ones = reinterpret_cast<float const*>(gains.data());
        gpt::LayerNorm<width, __nv_bfloat16>{ones, ones}.forward(
            on, rows, from, statistics, reinterpret_cast<__nv_bfloat16*>(y.data()));
        stream.synchronize();
        auto const of_columns = toy::read<float>(sums, width);
        auto const of_rows = toy::read<float>(found, 2 * rows);
        for (std::size_t i = 0; i < width; ++i) {
            float sum = 0;
            for (std::size_t r = 0; r < rows; ++r) sum += static_cast<float>(x[r * width + i]);
            CHECK(of_columns[i] == sum);
        }
        for (std::size_t r = 0; r < rows; ++r) {
            double mean = 0, variance = 0;
            for (std::size_t i = 0; i < width; ++i)
                mean += static_cast<float>(x[r * width + i]) / double(width);
            for (std::size_t i = 0; i < width; ++i)
                variance += std::pow(static_cast<float>(x[r * width + i]) - mean, 2) / width;
            CHECK(of_rows[2 * r] == doctest::Approx(mean).epsilon(1e-6));
            CHECK(of_rows[2 * r + 1] ==
                  doctest::Approx(1 / std::sqrt(variance + 1e-5)).epsilon(1e-6));
        }
    }
}

} // namespace
