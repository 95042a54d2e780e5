#pragma once

#include "gpt/causal_softmax.hpp"
#include "gpt/product.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace gpt {

/// Of the scores of `strip` rows of the heads of a sample, and of the gradients of these.
constexpr std::size_t score_elements_of(std::size_t heads, std::size_t strip, std::size_t context) {
    return 2 * heads * strip * context;
}

/// What all heads of all samples do, `strip` rows of their scores at once in memory: products that
/// a GPU is good at, one for each head of a sample, and rows in between. A strip needs the columns
/// up to its last row only: two multiply 3/4 of what one does, four 5/8.
template <class T, std::size_t context, std::size_t width, std::size_t heads, std::size_t strip>
struct AttentionStrips {
    static void forward(auto const& on, std::size_t samples, T const* qkv, T* out,
                        Real<T>* log_sums, T* scores) {
        for (std::size_t first = 0; first < context; first += strip) {
            std::size_t const rows = std::min(strip, context - first), columns = first + rows;
            on.multiply_each({samples, heads, in_qkv, in_qkv, in_scores}, {rows, columns, size},
                             rows_of(qkv + first * 3 * width, 3 * width),
                             transpose_of(qkv + width, 3 * width), scores, context, false, scale());
            on.for_each_row(samples * heads * rows, context,
                            CausalSoftmax<context, T>{{first, rows, strip}, scores, log_sums});
            on.multiply_each({samples, heads, in_scores, in_qkv, in_out}, {rows, size, columns},
                             rows_of(scores, context), rows_of(qkv + 2 * width, 3 * width),
                             out + first * width, width);
        }
    }

    static void backward(auto const& on, std::size_t samples, T const* qkv, T const* out,
                         Real<T> const* log_sums, T const* dout, T* dqkv, T* scores) {
        T* const gradients = scores + samples * heads * strip * context;
        // From the last strip, which reaches every key and value and so writes every gradient.
        for (std::size_t end = context; end > 0;) {
            std::size_t const first = (end - 1) / strip * strip, rows = end - first;
            bool const add = end < context;
            T const* const q = qkv + first * 3 * width;
            T const* const d = dout + first * width;
            on.multiply_each({samples, heads, in_qkv, in_qkv, in_scores}, {rows, end, size},
                             rows_of(q, 3 * width), transpose_of(qkv + width, 3 * width), scores,
                             context, false, scale());
            on.multiply_each({samples, heads, in_out, in_qkv, in_scores}, {rows, end, size},
                             rows_of(d, width), transpose_of(qkv + 2 * width, 3 * width), gradients,
                             context);
            on.for_each_row(
                samples * heads * rows, context,
                CausalSoftmaxBackward<context, heads, size, T>{
                    {first, rows, strip}, scale(), log_sums, out, dout, scores, gradients});
            on.multiply_each({samples, heads, in_scores, in_qkv, in_qkv}, {rows, size, end},
                             rows_of<T>(gradients, context), rows_of(qkv + width, 3 * width),
                             dqkv + first * 3 * width, 3 * width);
            on.multiply_each({samples, heads, in_scores, in_qkv, in_qkv}, {end, size, rows},
                             transpose_of<T>(gradients, context), rows_of(q, 3 * width),
                             dqkv + width, 3 * width, add);
            on.multiply_each({samples, heads, in_scores, in_out, in_qkv}, {end, size, rows},
                             transpose_of<T>(scores, context), rows_of(d, width), dqkv + 2 * width,
                             3 * width, add);
            end = first;
        }
    }

  private:
    static_assert(width % heads == 0);
    static constexpr std::size_t size = width / heads;
    static constexpr Steps in_qkv{context * 3 * width, size};
    static constexpr Steps in_out{context * width, size};
    static constexpr Steps in_scores{heads * strip * context, strip* context};
    static Real<T> scale() { return Real<T>{1} / std::sqrt(static_cast<Real<T>>(size)); }
};

} // namespace gpt
