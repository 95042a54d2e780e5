// The GPT's layers on a GPU in bf16, with parameters, their gradients and sums in float, against
// the host's in double.
#include "support/gpt_layer.cuh"

#include <gpt/attention.hpp>
#include <gpt/embedding.hpp>
#include <gpt/head.hpp>
#include <gpt/mlp.hpp>

#include <doctest/doctest.h>

#include <cstddef>

#include <cuda_bf16.h>

namespace gpu_test {

// Heads of a multiple of 16 bytes, and others.
template <class T, class O> using Attention = gpt::Attention<T, 40, 48, 3, O>;
template <class T, class O> using NarrowAttention = gpt::Attention<T, 21, 40, 4, O>;
template <class T, class O> using Mlp = gpt::Mlp<T, 20, 40, O>;
template <class T, class O> using Head = gpt::Head<T, 20, 24, 60, O>;
template <class T, class O> struct Embedding : gpt::Embedding<T, 11, 40, 24, O> {
    static constexpr std::size_t vocabulary_size = 11;
};

} // namespace gpu_test

namespace {

using namespace gpu_test;

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

} // namespace
