#pragma once

#include "gpt/causal_softmax.hpp"
#include "gpt/product.hpp"

#include <cmath>
#include <cstddef>

namespace gpt {

/// Of the scores of `count` heads of a sample, and of the gradients of these.
template <std::size_t context, std::size_t count>
inline constexpr std::size_t score_elements_of = 2 * count* context* context;

/// What the heads of attention do, with the scores of `count` heads at once in memory: products
/// that a GPU is good at, one for each head of a sample, and rows in between. Half of each square
/// is multiplied to no use.
template <class T, std::size_t context, std::size_t width, std::size_t heads, std::size_t count>
struct GroupedAttention {
    static_assert(heads % count == 0);

    static void forward(auto const& on, std::size_t samples, T const* qkv, T* out, T* log_sums,
                        T* scores) {
        for (std::size_t first = 0; first < heads; first += count) {
            for (std::size_t s = 0; s < samples; ++s) {
                T const* const q = qkv + in_qkv(s, first);
                on.multiply_each(to_squares, {context, context, size}, rows_of(q, 3 * width),
                                 transpose_of(q + width, 3 * width), scores + in_scores(s), context,
                                 scale());
            }
            on.for_each_row(samples * count * context, context,
                            CausalSoftmax<context, T>{{first, count, heads}, scores, log_sums});
            for (std::size_t s = 0; s < samples; ++s)
                on.multiply_each(from_squares, {context, size, context},
                                 rows_of(scores + in_scores(s), context),
                                 rows_of(qkv + in_qkv(s, first) + 2 * width, 3 * width),
                                 out + in_out(s, first), width);
        }
    }

    static void backward(auto const& on, std::size_t samples, T const* qkv, T const* out,
                         T const* log_sums, T const* dout, T* dqkv, T* scores) {
        T* const gradients = scores + in_scores(samples);
        for (std::size_t first = 0; first < heads; first += count) {
            for (std::size_t s = 0; s < samples; ++s) {
                T const* const q = qkv + in_qkv(s, first);
                Extents const extents{context, context, size};
                on.multiply_each(to_squares, extents, rows_of(q, 3 * width),
                                 transpose_of(q + width, 3 * width), scores + in_scores(s), context,
                                 scale());
                on.multiply_each(to_squares, extents, rows_of(dout + in_out(s, first), width),
                                 transpose_of(q + 2 * width, 3 * width), gradients + in_scores(s),
                                 context);
            }
            on.for_each_row(
                samples * count * context, context,
                CausalSoftmaxBackward<context, size, T>{
                    {first, count, heads}, scale(), log_sums, out, dout, scores, gradients});
            for (std::size_t s = 0; s < samples; ++s) {
                T const* const q = qkv + in_qkv(s, first);
                T* const dq = dqkv + in_qkv(s, first);
                T const* const p = scores + in_scores(s);
                T const* const ds = gradients + in_scores(s);
                Extents const extents{context, size, context};
                on.multiply_each(from_squares, extents, rows_of(ds, context),
                                 rows_of(q + width, 3 * width), dq, 3 * width);
                on.multiply_each(from_squares, extents, transpose_of(ds, context),
                                 rows_of(q, 3 * width), dq + width, 3 * width);
                on.multiply_each(from_squares, extents, transpose_of(p, context),
                                 rows_of(dout + in_out(s, first), width), dq + 2 * width,
                                 3 * width);
            }
        }
    }

  private:
    static constexpr std::size_t size = width / heads;
    static constexpr std::size_t square = context * context;
    // From one head to the next.
    static constexpr Products to_squares{count, size, size, square};
    static constexpr Products from_squares{count, square, size, size};

    // Where the heads from `first` on begin in a sample; the scores are of one group.
    static std::size_t in_qkv(std::size_t sample, std::size_t first) {
        return sample * context * 3 * width + first * size;
    }
    static std::size_t in_out(std::size_t sample, std::size_t first) {
        return sample * context * width + first * size;
    }
    static std::size_t in_scores(std::size_t sample) { return sample * count * square; }
    static T scale() { return T{1} / std::sqrt(static_cast<T>(size)); }
};

} // namespace gpt
