#pragma once

#include <gpipe/core/host_device.hpp>

#include <cmath>
#include <cstddef>

namespace gpt {

namespace detail {

// One row of y = (x - mean) / deviation * gain + shift.
template <std::size_t width, class T> struct NormApply {
    T const* gain;
    T const* shift;
    T const* x;
    T const* statistics;
    T* y;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        apply(team, row, statistics[2 * row], statistics[2 * row + 1]);
    }
    template <class Team>
    GPIPE_HOST_DEVICE void apply(Team const& team, std::size_t row, T mean, T scale) const {
        T const* const in = x + row * width;
        T* const out = y + row * width;
        T const* const g = gain;
        T const* const s = shift;
        team.each(width, [=](std::size_t i) { out[i] = (in[i] - mean) * scale * g[i] + s[i]; });
    }
};

// The same, and the statistics first.
template <std::size_t width, class T> struct NormForward {
    NormApply<width, T> norm;
    T* statistics;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        T const* const in = norm.x + row * width;
        T const mean = team.sum(width, [=](std::size_t i) { return in[i]; }) / T{width};
        T const variance = team.sum(width, [=](std::size_t i) {
            return (in[i] - mean) * (in[i] - mean);
        }) / T{width};
        T const scale = T{1} / std::sqrt(variance + T(1e-5));
        T* const to = statistics + 2 * row;
        team.at(0, [=] {
            to[0] = mean;
            to[1] = scale;
        });
        norm.apply(team, row, mean, scale);
    }
};

// What one row adds to the gradient of the gain.
template <std::size_t width, class T> struct NormGainTerm {
    T const* x;
    T const* statistics;
    T const* dy;

    GPIPE_HOST_DEVICE T operator()(std::size_t row, std::size_t i) const {
        return dy[row * width + i] *
               ((x[row * width + i] - statistics[2 * row]) * statistics[2 * row + 1]);
    }
};

// One row of the gradient of y to that of x, in place.
template <std::size_t width, class T> struct NormBackward {
    T const* gain;
    T const* x;
    T const* statistics;
    T const* residual;
    T* dx;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        T const mean = statistics[2 * row];
        T const scale = statistics[2 * row + 1];
        T const* const in = x + row * width;
        T const* const g = gain;
        T* const d = dx + row * width;
        T const a = team.sum(width, [=](std::size_t i) { return d[i] * g[i]; }) / T{width};
        T const b = team.sum(width, [=](std::size_t i) {
            return d[i] * g[i] * ((in[i] - mean) * scale);
        }) / T{width};
        if (residual) {
            T const* const around = residual + row * width;
            team.each(width, [=](std::size_t i) {
                T const normal = (in[i] - mean) * scale;
                d[i] = scale * (d[i] * g[i] - a - normal * b) + around[i];
            });
        } else {
            team.each(width, [=](std::size_t i) {
                T const normal = (in[i] - mean) * scale;
                d[i] = scale * (d[i] * g[i] - a - normal * b);
            });
        }
    }
};

} // namespace detail

/// An element of a row-major matrix, as a term of a sum over columns.
template <class T> struct ElementAt {
    T const* data;
    std::size_t stride;

    GPIPE_HOST_DEVICE T operator()(std::size_t row, std::size_t i) const {
        return data[row * stride + i];
    }
};

/// Layer normalisation (Ba, Kiros and Hinton, 2016) of rows of `width` elements: the pre-norm that
/// every block begins with. What backward needs besides its input are two numbers per row,
/// `statistics`: the mean, and one over the standard deviation.
template <std::size_t width, class T> struct LayerNorm {
    T const* gain;
    T const* shift;

    /// Writes the statistics, too.
    void forward(auto const& on, std::size_t rows, T const* x, T* statistics, T* y) const {
        on.for_each_row(rows, width,
                        detail::NormForward<width, T>{{gain, shift, x, statistics, y}, statistics});
    }
    /// The same result from the statistics.
    void apply(auto const& on, std::size_t rows, T const* x, T const* statistics, T* y) const {
        on.for_each_row(rows, width, detail::NormApply<width, T>{gain, shift, x, statistics, y});
    }
    /// Turns the gradient of the result, in `dx`, into the gradient of x; writes to `sums` what
    /// add_sums() adds. `residual`, if not null, is the gradient that goes around the block and is
    /// added to dx.
    void input_gradient(auto const& on, std::size_t rows, T const* x, T const* statistics,
                        T const* residual, T* dx, T* sums) const {
        on.sum_columns(rows, width, detail::NormGainTerm<width, T>{x, statistics, dx}, sums, false);
        on.sum_columns(rows, width, ElementAt<T>{dx, width}, sums + width, false);
        on.for_each_row(rows, width,
                        detail::NormBackward<width, T>{gain, x, statistics, residual, dx});
    }
    /// The gradients of gain and shift: sums of two rows' length wait better than all rows of dx.
    static void add_sums(auto const& on, T const* sums, T* dgain, T* dshift) {
        on.sum_columns(1, width, ElementAt<T>{sums, width}, dgain, true);
        on.sum_columns(1, width, ElementAt<T>{sums + width, width}, dshift, true);
    }
};

} // namespace gpt
