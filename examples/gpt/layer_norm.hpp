#pragma once

#include "gpt/math.hpp"

#include <cmath>
#include <cstddef>

namespace gpt {

/// Layer normalisation (Ba, Kiros and Hinton, 2016) of rows of `width` elements: the pre-norm that
/// every block begins with. What backward needs besides its input are two numbers per row,
/// `statistics`: the mean, and one over the standard deviation.
template <std::size_t width, class T> struct LayerNorm {
    T const* gain;
    T const* shift;

    void statistics(std::size_t rows, T const* x, T* statistics) const {
        for (std::size_t row = 0; row < rows; ++row, x += width, statistics += 2) {
            T const mean = sum_over(width, [&](std::size_t i) { return x[i]; }) / T{width};
            T const variance =
                sum_over(width, [&](std::size_t i) { return (x[i] - mean) * (x[i] - mean); }) /
                T{width};
            statistics[0] = mean;
            statistics[1] = T{1} / std::sqrt(variance + T(1e-5));
        }
    }

    void apply(std::size_t rows, T const* __restrict x, T const* __restrict statistics,
               T* __restrict y) const {
        for (std::size_t row = 0; row < rows; ++row, x += width, y += width, statistics += 2)
            for (std::size_t i = 0; i < width; ++i)
                y[i] = (x[i] - statistics[0]) * statistics[1] * gain[i] + shift[i];
    }

    /// Turns the gradient of the result, in `dx`, into the gradient of x; adds to dgain and dshift.
    /// `residual`, if not null, is the gradient that goes around the block and is added to dx.
    void backward(std::size_t rows, T const* __restrict x, T const* __restrict statistics,
                  T const* __restrict residual, T* __restrict dx, T* dgain, T* dshift) const {
        T gain_sum[width] = {};
        T shift_sum[width] = {};
        for (std::size_t row = 0; row < rows; ++row) {
            T const mean = statistics[2 * row];
            T const scale = statistics[2 * row + 1];
            T const* const xr = x + row * width;
            T* const dr = dx + row * width;
            T normal[width];
            T slope[width];
            for (std::size_t i = 0; i < width; ++i) {
                normal[i] = (xr[i] - mean) * scale;
                gain_sum[i] += dr[i] * normal[i];
                shift_sum[i] += dr[i];
                slope[i] = dr[i] * gain[i];
            }
            T const a = sum_over(width, [&](std::size_t i) { return slope[i]; }) / T{width};
            T const b =
                sum_over(width, [&](std::size_t i) { return slope[i] * normal[i]; }) / T{width};
            for (std::size_t i = 0; i < width; ++i) dr[i] = scale * (slope[i] - a - normal[i] * b);
            if (residual) {
                T const* const rr = residual + row * width;
                for (std::size_t i = 0; i < width; ++i) dr[i] += rr[i];
            }
        }
        for (std::size_t i = 0; i < width; ++i) {
            dgain[i] += gain_sum[i];
            dshift[i] += shift_sum[i];
        }
    }
};

} // namespace gpt
