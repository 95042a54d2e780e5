#pragma once

#include "gpt/blas.hpp"
#include "gpt/dropout.hpp"
#include "gpt/initial.hpp"
#include "gpt/layer_norm.hpp"

#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/view.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace gpt {

namespace detail {

/// Causal attention of one head in one sample. Rows of q, k and v are `stride` elements apart, rows
/// of o and do are `width` apart. The probabilities live for one strip of rows only: forward keeps
/// the logarithm of each row's sum, from which backward makes them again (as FlashAttention does,
/// Dao et al., 2022).
template <class T, std::size_t context, std::size_t size, std::size_t stride, std::size_t width>
struct AttentionHead {
    // A strip of rows needs the columns up to its last row only.
    static constexpr std::size_t strip = std::min<std::size_t>(64, context);
    static constexpr std::size_t pitch = (context + lanes - 1) / lanes * lanes;
    // Makes the last elements of 16 vanish from a softmax: from the n-th on, the last n.
    static constexpr auto shaded = [] {
        std::array<T, 2 * lanes> values{};
        for (std::size_t i = lanes; i < 2 * lanes; ++i) values[i] = T(-1e30);
        return values;
    }();
    static inline T const scale = T{1} / std::sqrt(static_cast<T>(size));

    static void forward(T const* q, T const* k, T const* v, T* o, T* log_sums) {
        alignas(64) T p[strip * pitch];
        for (std::size_t first = 0; first < context; first += strip) {
            std::size_t const rows = std::min(strip, context - first);
            std::size_t const columns = first + rows;
            multiply<T>({rows, columns, size}, rows_of(q + first * stride, stride),
                        transpose_of(k, stride), p, pitch, false, scale);
            for (std::size_t i = 0; i < rows; ++i)
                log_sums[first + i] = softmax(p + i * pitch, first + i + 1, columns);
            multiply<T>({rows, size, columns}, rows_of<T>(p, pitch), rows_of(v, stride),
                        o + first * width, width);
        }
    }

    static void backward(T const* q, T const* k, T const* v, T const* o, T const* log_sums,
                         T const* dout, T* dq, T* dk, T* dv) {
        alignas(64) T p[strip * pitch];
        alignas(64) T ds[strip * pitch];
        // From the last strip, which reaches every key and value and so writes every gradient.
        for (std::size_t end = context; end > 0;) {
            std::size_t const first = (end - 1) / strip * strip;
            std::size_t const rows = end - first;
            std::size_t const columns = end;
            bool const add = end < context;
            T const* const dor = dout + first * width;
            multiply<T>({rows, columns, size}, rows_of(q + first * stride, stride),
                        transpose_of(k, stride), p, pitch, false, scale);
            multiply<T>({rows, columns, size}, rows_of(dor, width), transpose_of(v, stride), ds,
                        pitch);
            for (std::size_t i = 0; i < rows; ++i) {
                T const* const orow = o + (first + i) * width;
                T const* const drow = dor + i * width;
                T const dot = sum_over(size, [&](std::size_t j) { return orow[j] * drow[j]; });
                softmax_backward(p + i * pitch, ds + i * pitch, first + i + 1, columns,
                                 log_sums[first + i], dot);
            }
            multiply<T>({rows, size, columns}, rows_of<T>(ds, pitch), rows_of(k, stride),
                        dq + first * stride, stride);
            multiply<T>({columns, size, rows}, transpose_of<T>(ds, pitch),
                        rows_of(q + first * stride, stride), dk, stride, add);
            multiply<T>({columns, size, rows}, transpose_of<T>(p, pitch), rows_of(dor, width), dv,
                        stride, add);
            end = first;
        }
    }

  private:
    // The softmax of the first n elements, the others of the row become 0; the logarithm of the
    // sum.
    static T softmax(T* __restrict p, std::size_t n, std::size_t columns) {
        std::size_t const whole = (n + lanes - 1) / lanes * lanes;
        for (std::size_t j = columns; j < whole; ++j) p[j] = 0; // the product left these out
        // Written in whole vectors: to read one soon after parts of it were written takes long.
        T const* const shade = shaded.data() + (whole - n);
        for (std::size_t l = 0; l < lanes; ++l) p[whole - lanes + l] += shade[l];
        T const most = most_of(p, whole);
        for (std::size_t j = 0; j < whole; ++j) p[j] = exponential(p[j] - most);
        T const sum = sum_over(whole, [&](std::size_t j) { return p[j]; });
        T const factor = T{1} / sum;
        for (std::size_t j = 0; j < whole; ++j) p[j] *= factor;
        for (std::size_t j = n; j < columns; ++j) p[j] = 0;
        return most + std::log(sum);
    }

    // Scores to probabilities, their gradients to those of the products before scaling.
    static void softmax_backward(T* __restrict p, T* __restrict ds, std::size_t n,
                                 std::size_t columns, T log_sum, T dot) {
        for (std::size_t j = 0; j < n; ++j) {
            p[j] = exponential(p[j] - log_sum);
            ds[j] = p[j] * (ds[j] - dot) * scale;
        }
        for (std::size_t j = n; j < columns; ++j) p[j] = ds[j] = 0;
    }
};

} // namespace detail

/// The first half of a block: y = x + dropout(attention(LayerNorm(x)) projection + bias), with
/// causal attention of `heads` heads. Queries, keys and values have no bias: the norm's shift gives
/// them one.
template <class T, std::size_t context, std::size_t width, std::size_t heads> struct Attention {
    static_assert(width % heads == 0, "gpt: the heads must share the width equally");
    static constexpr std::size_t size = width / heads;

    using Input = gpipe::Tensor<T, context, width>;
    using Output = gpipe::Tensor<T, context, width>;
    /// Gain and shift of the norm; queries, keys and values; the projection and its bias.
    using Parameters = gpipe::Tensors<gpipe::Tensor<T, width>, gpipe::Tensor<T, width>,
                                      gpipe::Tensor<T, 3 * width, width>,
                                      gpipe::Tensor<T, width, width>, gpipe::Tensor<T, width>>;
    /// The norm's statistics; queries, keys and values; what the heads give; logarithms of the
    /// sums.
    using Saved =
        gpipe::Tensors<gpipe::Tensor<T, context, 2>, gpipe::Tensor<T, context, 3 * width>,
                       gpipe::Tensor<T, context, width>, gpipe::Tensor<T, heads, context>>;
    /// The gradients of queries, keys and values.
    using Scratch = gpipe::Tensor<T, context, 3 * width>;
    static constexpr double cost = 8.0 * context * width * width + 4.0 * context * context * width;
    static constexpr float decay[] = {0, 0, 1, 1, 0};

    Dropout dropout{};

    void initialize(auto& ctx) const {
        auto const [gain, shift, into, out, bias] = ctx.parameters();
        for (T& element : gain) element = 1;
        fill_normal(into, ctx.random(2), weight_deviation);
        fill_normal(out, ctx.random(3), residual_deviation(ctx.layers()));
    }

    void forward(auto& ctx, gpipe::BatchView<T const, context, width> x,
                 gpipe::BatchView<T, context, width> y) const {
        auto const [gain, shift, into, out, bias] = ctx.parameters();
        auto const [statistics, qkv, heads_out, log_sums] = ctx.saved();
        std::size_t const rows = x.samples() * context;
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.statistics(rows, x.data(), statistics.data());
        norm.apply(rows, x.data(), statistics.data(), y.data()); // y is free until the end
        multiply<T>({rows, 3 * width, width}, rows_of<T>(y.data(), width),
                    transpose_of(into.data(), width), qkv.data(), 3 * width);
        for (std::size_t sample = 0; sample < x.samples(); ++sample)
            for (std::size_t head = 0; head < heads; ++head) {
                T const* const q = qkv.data() + sample * context * 3 * width + head * size;
                Head::forward(q, q + width, q + 2 * width,
                              heads_out.data() + sample * context * width + head * size,
                              log_sums.data() + (sample * heads + head) * context);
            }
        multiply<T>({rows, width, width}, rows_of<T>(heads_out.data(), width),
                    transpose_of(out.data(), width), y.data(), width);
        add_residual<context, width>(ctx, dropout, x.data(), bias.data(), y.data());
    }

    void backward(auto& ctx, gpipe::BatchView<T const, context, width> x,
                  gpipe::BatchView<T const, context, width> dy,
                  gpipe::BatchView<T, context, width> dx) const {
        auto const [gain, shift, into, out, bias] = ctx.parameters();
        auto const [dgain, dshift, dinto, dout, dbias] = ctx.gradients();
        auto const [statistics, qkv, heads_out, log_sums] = ctx.saved();
        auto const dqkv = ctx.scratch();
        std::size_t const rows = x.samples() * context;

        // dx holds in turn: the gradient of what the heads gave, the norm of x, its gradient, the
        // result.
        T const* const dz =
            residual_backward<context, width>(ctx, dropout, dy.data(), dqkv.data(), dbias.data());
        multiply<T>({width, width, rows}, transpose_of(dz, width),
                    rows_of<T>(heads_out.data(), width), dout.data(), width, true);
        multiply<T>({rows, width, width}, rows_of(dz, width), rows_of(out.data(), width), dx.data(),
                    width);
        for (std::size_t sample = 0; sample < x.samples(); ++sample)
            for (std::size_t head = 0; head < heads; ++head) {
                std::size_t const at = sample * context * width + head * size;
                std::size_t const at3 = sample * context * 3 * width + head * size;
                T const* const q = qkv.data() + at3;
                T* const dq = dqkv.data() + at3;
                Head::backward(q, q + width, q + 2 * width, heads_out.data() + at,
                               log_sums.data() + (sample * heads + head) * context, dx.data() + at,
                               dq, dq + width, dq + 2 * width);
            }
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.apply(rows, x.data(), statistics.data(), dx.data());
        multiply<T>({3 * width, width, rows}, transpose_of<T>(dqkv.data(), 3 * width),
                    rows_of<T>(dx.data(), width), dinto.data(), width, true);
        multiply<T>({rows, width, 3 * width}, rows_of<T>(dqkv.data(), 3 * width),
                    rows_of(into.data(), width), dx.data(), width);
        norm.backward(rows, x.data(), statistics.data(), dy.data(), dx.data(), dgain.data(),
                      dshift.data());
    }

  private:
    using Head = detail::AttentionHead<T, context, size, 3 * width, width>;
};

} // namespace gpt
