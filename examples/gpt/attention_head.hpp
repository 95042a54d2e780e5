#pragma once

#include "gpt/blas.hpp"
#include "gpt/math.hpp"

#include <gpipe/core/host_device.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace gpt {

namespace detail {

// Terms of sums. As lambdas of functions for the host they would be nothing that sum_over may call,
// where that is compiled for kernels, too.
template <class T> struct ValueAt {
    T const* a;

    GPIPE_HOST_DEVICE T operator()(std::size_t i) const { return a[i]; }
};
template <class T> struct ProductAt {
    T const* a;
    T const* b;

    GPIPE_HOST_DEVICE T operator()(std::size_t i) const { return a[i] * b[i]; }
};

} // namespace detail

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
                T const dot = sum_over(size, detail::ProductAt<T>{orow, drow});
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
        T const sum = sum_over(whole, detail::ValueAt<T>{p});
        T const factor = T{1} / sum + (most - most); // of no number none, see exponential()
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

} // namespace gpt
