#pragma once

#include "gpt/math.hpp"

#include <gpipe/core/host_device.hpp>

#include <cstddef>
#include <cstdint>

namespace gpt {

/// Dropout (Srivastava et al., 2014): each element is zero with probability `rate`, a multiple of
/// 2^-16, and the others grow, so that the mean stays. The mask is never stored: backward and
/// recomputation draw the same random numbers again.
struct Dropout {
    float rate = 0;

    /// The gradient of what it was given, of which `dropped` has its own copy only where something
    /// is dropped; else it is dy.
    template <class T> T const* gradient(T const* dy, T const* dropped) const {
        return rate > 0 ? dropped : dy;
    }

    /// f(i, the T that element i is multiplied with) for row `row` of sample `sample`. A block of
    /// Philox makes eight of them, which lie apart, so that neighbouring blocks make neighbours.
    template <std::size_t width, class T, class Team, class Random, class F>
    GPIPE_HOST_DEVICE void each(Team const& team, Random const& random, std::size_t sample,
                                std::size_t row, F f) const {
        static_assert(width % 8 == 0, "gpt: dropout works on rows of a multiple of 8 elements");
        constexpr std::size_t blocks = width / 8;
        auto const threshold = static_cast<std::uint32_t>(rate * 65536.0f);
        T const kept = T{65536} / (T{65536} - static_cast<T>(threshold));
        auto const draw = [&](std::size_t b, auto put) {
            auto const bits = random.bits(sample, static_cast<std::uint32_t>(row * blocks + b));
            for (std::size_t w = 0; w < 4; ++w) {
                put(2 * w * blocks + b, (bits[w] & 0xFFFFu) < threshold ? T{0} : kept);
                put((2 * w + 1) * blocks + b, (bits[w] >> 16) < threshold ? T{0} : kept);
            }
        };
        if constexpr (Team::alone) { // two loops, which vectorise
            T factors[width];
            T* const factor = factors;
            team.each(blocks, [&](std::size_t b) {
                draw(b, [=](std::size_t i, T value) { factor[i] = value; });
            });
            team.each(width, [=](std::size_t i) { f(i, factor[i]); });
        } else {
            team.each(blocks, [&](std::size_t b) { draw(b, f); });
        }
    }
};

namespace detail {

// One row of y = x + (y + bias).
template <std::size_t width, class T> struct AddResidual {
    T const* x;
    Real<T> const* bias;
    T* y;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        using R = Real<T>;
        T* const out = y + row * width;
        team.map(
            width, out, [](std::size_t, R of, R b, R around) { return around + (of + b); }, out,
            bias, x + row * width);
    }
};

// One row of y = x + dropout(y + bias), for samples of `rows` rows.
template <std::size_t rows, std::size_t width, class T, class Random> struct AddDropped {
    Dropout dropout;
    Random random;
    T const* x;
    Real<T> const* bias;
    T* y;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        using R = Real<T>;
        T const* const around = x + row * width;
        R const* const b = bias;
        T* const out = y + row * width;
        dropout.each<width, R>(team, random, row / rows, row % rows, [=](std::size_t i, R factor) {
            out[i] = real(around[i]) + factor * (real(out[i]) + b[i]);
        });
    }
};

// One row of dz = dy where dropout kept an element.
template <std::size_t rows, std::size_t width, class T, class Random> struct DropGradient {
    Dropout dropout;
    Random random;
    T const* dy;
    T* dz;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        T const* const in = dy + row * width;
        T* const out = dz + row * width;
        using R = Real<T>;
        dropout.each<width, R>(team, random, row / rows, row % rows,
                               [=](std::size_t i, R factor) { out[i] = factor * real(in[i]); });
    }
};

} // namespace detail

/// The end of a block: y = x + dropout(y + bias), for samples of `rows` rows.
template <std::size_t rows, std::size_t width, class T>
void add_residual(auto const& on, auto const& ctx, Dropout dropout, T const* x, Real<T> const* bias,
                  T* y) {
    auto const random = ctx.random();
    if (dropout.rate > 0 && ctx.training())
        on.for_each_row(
            ctx.samples() * rows, width,
            detail::AddDropped<rows, width, T, decltype(random)>{dropout, random, x, bias, y});
    else
        on.for_each_row(ctx.samples() * rows, width, detail::AddResidual<width, T>{x, bias, y});
}

/// Its input gradient: returns dropout.gradient(dy, dropped), and writes `dropped` where that is
/// it.
template <std::size_t rows, std::size_t width, class T>
T const* drop_gradient(auto const& on, auto const& ctx, Dropout dropout, T const* dy, T* dropped) {
    auto const random = ctx.random();
    if (dropout.rate > 0)
        on.for_each_row(
            ctx.samples() * rows, width,
            detail::DropGradient<rows, width, T, decltype(random)>{dropout, random, dy, dropped});
    return dropout.gradient(dy, dropped);
}

} // namespace gpt
