#pragma once

#include "gpt/blas.hpp"
#include "gpt/dropout.hpp"
#include "gpt/initial.hpp"
#include "gpt/layer_norm.hpp"
#include "gpt/math.hpp"

#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/view.hpp>

#include <cstddef>

namespace gpt {

/// The second half of a block: y = x + dropout(gelu(LayerNorm(x) up) down + bias), with a hidden
/// layer of four times the width. The hidden layer has no bias: the norm's shift gives it one.
template <class T, std::size_t context, std::size_t width> struct Mlp {
    static constexpr std::size_t hidden = 4 * width;

    using Input = gpipe::Tensor<T, context, width>;
    using Output = gpipe::Tensor<T, context, width>;
    /// Gain and shift of the norm; up; down and its bias.
    using Parameters = gpipe::Tensors<gpipe::Tensor<T, width>, gpipe::Tensor<T, width>,
                                      gpipe::Tensor<T, hidden, width>,
                                      gpipe::Tensor<T, width, hidden>, gpipe::Tensor<T, width>>;
    /// The norm's statistics; the hidden layer before its GELU, which backward evaluates again.
    using Saved = gpipe::Tensors<gpipe::Tensor<T, context, 2>, gpipe::Tensor<T, context, hidden>>;
    /// The hidden layer after its GELU, later its gradient; the gradient of what dropout was given.
    using Scratch =
        gpipe::Tensors<gpipe::Tensor<T, context, hidden>, gpipe::Tensor<T, context, width>>;
    static constexpr double cost = 4.0 * context * width * hidden;
    static constexpr float decay[] = {0, 0, 1, 1, 0};

    Dropout dropout{};

    void initialize(auto& ctx) const {
        auto const [gain, shift, up, down, bias] = ctx.parameters();
        for (T& element : gain) element = 1;
        fill_normal(up, ctx.random(2), weight_deviation);
        fill_normal(down, ctx.random(3), residual_deviation(ctx.layers()));
    }

    void forward(auto& ctx, gpipe::BatchView<T const, context, width> x,
                 gpipe::BatchView<T, context, width> y) const {
        auto const [gain, shift, up, down, bias] = ctx.parameters();
        auto const [statistics, before] = ctx.saved();
        auto const [after, unused] = ctx.scratch();
        std::size_t const rows = x.samples() * context;
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.statistics(rows, x.data(), statistics.data());
        norm.apply(rows, x.data(), statistics.data(), y.data()); // y is free until the end
        multiply<T>({rows, hidden, width}, rows_of<T>(y.data(), width),
                    transpose_of(up.data(), width), before.data(), hidden);
        activate(rows * hidden, before.data(), after.data());
        multiply<T>({rows, width, hidden}, rows_of<T>(after.data(), hidden),
                    transpose_of(down.data(), hidden), y.data(), width);
        add_residual<context, width>(ctx, dropout, x.data(), bias.data(), y.data());
    }

    void backward(auto& ctx, gpipe::BatchView<T const, context, width> x,
                  gpipe::BatchView<T const, context, width> dy,
                  gpipe::BatchView<T, context, width> dx) const {
        auto const [gain, shift, up, down, bias] = ctx.parameters();
        auto const [dgain, dshift, dup, ddown, dbias] = ctx.gradients();
        auto const [statistics, before] = ctx.saved();
        auto const [after, room] = ctx.scratch();
        std::size_t const rows = x.samples() * context;
        T const* const dz =
            residual_backward<context, width>(ctx, dropout, dy.data(), room.data(), dbias.data());
        activate(rows * hidden, before.data(), after.data());
        multiply<T>({width, hidden, rows}, transpose_of(dz, width),
                    rows_of<T>(after.data(), hidden), ddown.data(), hidden, true);
        multiply<T>({rows, hidden, width}, rows_of(dz, width), rows_of(down.data(), hidden),
                    after.data(), hidden);
        activate_backward(rows * hidden, before.data(), after.data());
        // dx holds in turn: the norm of x, its gradient, the result.
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.apply(rows, x.data(), statistics.data(), dx.data());
        multiply<T>({hidden, width, rows}, transpose_of<T>(after.data(), hidden),
                    rows_of<T>(dx.data(), width), dup.data(), width, true);
        multiply<T>({rows, width, hidden}, rows_of<T>(after.data(), hidden),
                    rows_of(up.data(), width), dx.data(), width);
        norm.backward(rows, x.data(), statistics.data(), dy.data(), dx.data(), dgain.data(),
                      dshift.data());
    }

  private:
    static void activate(std::size_t n, T const* __restrict before, T* __restrict after) {
        for (std::size_t i = 0; i < n; ++i) after[i] = gelu(before[i]);
    }
    static void activate_backward(std::size_t n, T const* __restrict before,
                                  T* __restrict gradient) {
        for (std::size_t i = 0; i < n; ++i) gradient[i] *= gelu_slope(before[i]);
    }
};

} // namespace gpt
