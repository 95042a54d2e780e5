#pragma once

#include "gpt/math.hpp"

#include <gpipe/core/host_device.hpp>

#include <cmath>
#include <cstddef>

namespace gpt {

namespace detail {

// One row of y = (x - mean) / deviation * gain + shift.
template <std::size_t width, class T> struct NormApply {
    Real<T> const* gain;
    Real<T> const* shift;
    T const* x;
    Real<T> const* statistics;
    T* y;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        apply(team, row, statistics[2 * row], statistics[2 * row + 1]);
    }
    template <class Team>
    GPIPE_HOST_DEVICE void apply(Team const& team, std::size_t row, Real<T> mean,
                                 Real<T> scale) const {
        using R = Real<T>;
        team.map(
            width, y + row * width,
            [=](std::size_t, R in, R g, R s) { return (in - mean) * scale * g + s; },
            x + row * width, gain, shift);
    }
};

// The same, and the statistics first.
template <std::size_t width, class T> struct NormForward {
    NormApply<width, T> norm;
    Real<T>* statistics;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        using R = Real<T>;
        T const* const in = norm.x + row * width;
        R const mean = team.sum(
                           width, [](std::size_t, R value) { return value; }, in) /
                       R{width};
        R const variance =
            team.sum(
                width, [=](std::size_t, R value) { return (value - mean) * (value - mean); }, in) /
            R{width};
        R const scale = R{1} / std::sqrt(variance + R(1e-5));
        R* const to = statistics + 2 * row;
        team.once([=] {
            to[0] = mean;
            to[1] = scale;
        });
        norm.apply(team, row, mean, scale);
    }
};

// What one row adds to the gradient of the gain.
template <class R> struct NormGainTerm {
    R const* statistics;

    GPIPE_HOST_DEVICE R operator()(std::size_t row, R dy, R x) const {
        return dy * ((x - statistics[2 * row]) * statistics[2 * row + 1]);
    }
};

// One row of the gradient of y to that of x, in place.
template <std::size_t width, class T> struct NormBackward {
    Real<T> const* gain;
    T const* x;
    Real<T> const* statistics;
    T const* residual;
    T* dx;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        using R = Real<T>;
        R const mean = statistics[2 * row];
        R const scale = statistics[2 * row + 1];
        T const* const in = x + row * width;
        R const* const g = gain;
        T* const d = dx + row * width;
        R const a = team.sum(
                        width, [](std::size_t, R dy, R by) { return dy * by; }, d, g) /
                    R{width};
        R const b = team.sum(
                        width,
                        [=](std::size_t, R dy, R by, R value) {
                            return dy * by * ((value - mean) * scale);
                        },
                        d, g, in) /
                    R{width};
        auto const gradient = [=](std::size_t, R dy, R by, R value, auto... around) {
            R const normal = (value - mean) * scale;
            return ((scale * (dy * by - a - normal * b)) + ... + around);
        };
        if (residual)
            team.map(width, d, gradient, d, g, in, residual + row * width);
        else
            team.map(width, d, gradient, d, g, in);
    }
};

} // namespace detail

/// Layer normalisation (Ba, Kiros and Hinton, 2016) of rows of `width` elements: the pre-norm that
/// every block begins with. What backward needs besides its input are two numbers per row,
/// `statistics`: the mean, and one over the standard deviation.
template <std::size_t width, class T> struct LayerNorm {
    using R = Real<T>;
    R const* gain;
    R const* shift;

    /// Writes the statistics, too.
    void forward(auto const& on, std::size_t rows, T const* x, R* statistics, T* y) const {
        on.for_each_row(rows, width,
                        detail::NormForward<width, T>{{gain, shift, x, statistics, y}, statistics});
    }
    /// The same result from the statistics.
    void apply(auto const& on, std::size_t rows, T const* x, R const* statistics, T* y) const {
        on.for_each_row(rows, width, detail::NormApply<width, T>{gain, shift, x, statistics, y});
    }
    /// Turns the gradient of the result, in `dx`, into the gradient of x; writes to `sums` what
    /// add_sums() adds. `residual`, if not null, is the gradient that goes around the block and is
    /// added to dx.
    void input_gradient(auto const& on, std::size_t rows, T const* x, R const* statistics,
                        T const* residual, T* dx, R* sums) const {
        on.sum_columns(rows, width, sums, false, detail::NormGainTerm<R>{statistics}, dx, x);
        on.sum_columns(rows, width, sums + width, false, Itself{}, dx);
        on.for_each_row(rows, width,
                        detail::NormBackward<width, T>{gain, x, statistics, residual, dx});
    }
    /// The gradients of gain and shift: sums of two rows' length wait better than all rows of dx.
    static void add_sums(auto const& on, R const* sums, R* dgain, R* dshift) {
        on.sum_columns(1, width, dgain, true, Itself{}, sums);
        on.sum_columns(1, width, dshift, true, Itself{}, sums + width);
    }
};

} // namespace gpt
