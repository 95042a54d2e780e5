#pragma once

#include "gpt/dropout.hpp"
#include "gpt/initial.hpp"
#include "gpt/layer_norm.hpp"
#include "gpt/math.hpp"
#include "gpt/operations.hpp"
#include "gpt/product.hpp"

#include <gpipe/core/host_device.hpp>
#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/view.hpp>

#include <cstddef>

namespace gpt {

namespace detail {

template <class T> struct Activate {
    T const* before;
    T* after;

    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { after[i] = gelu(before[i]); }
};

// In place: the gradient of what came after to that of what came before.
template <class T> struct ActivateBackward {
    T const* before;
    T* gradient;

    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { gradient[i] *= gelu_slope(before[i]); }
};

} // namespace detail

/// The second half of a block: y = x + dropout(gelu(LayerNorm(x) up) down + bias), with a hidden
/// layer of four times the width. The hidden layer has no bias: the norm's shift gives it one.
template <class T, std::size_t context, std::size_t width, class Operations = HostOperations>
struct Mlp {
    static constexpr std::size_t hidden = 4 * width;

    using Input = gpipe::Tensor<T, context, width>;
    using Output = gpipe::Tensor<T, context, width>;
    /// Gain and shift of the norm; up; down and its bias.
    using Parameters = gpipe::Tensors<gpipe::Tensor<T, width>, gpipe::Tensor<T, width>,
                                      gpipe::Tensor<T, hidden, width>,
                                      gpipe::Tensor<T, width, hidden>, gpipe::Tensor<T, width>>;
    /// The norm's statistics; the hidden layer before its GELU, which backward evaluates again.
    using Saved = gpipe::Tensors<gpipe::Tensor<T, context, 2>, gpipe::Tensor<T, context, hidden>>;
    /// The gradient of the hidden layer before its GELU; that of what dropout was given, if
    /// anything is dropped; what the norm's gradients grow by, in the first sample's place.
    using Deferred = gpipe::Tensors<gpipe::Tensor<T, context, hidden>,
                                    gpipe::Tensor<T, context, width>, gpipe::Tensor<T, 2, width>>;
    /// The hidden layer after its GELU; in the weight gradient, later the norm of x.
    using Scratch = gpipe::Tensor<T, context, hidden>;
    using Handles = typename Operations::Handles;
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
        auto const on = Operations::on(ctx);
        auto const [gain, shift, up, down, bias] = ctx.parameters();
        auto const [statistics, before] = ctx.saved();
        auto const after = ctx.scratch();
        std::size_t const rows = x.samples() * context;
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.forward(on, rows, x.data(), statistics.data(), y.data()); // y is free until the end
        on.multiply({rows, hidden, width}, rows_of(y.data(), width), transpose_of(up.data(), width),
                    before.data(), hidden);
        on.for_each_index(rows * hidden, detail::Activate<T>{before.data(), after.data()});
        on.multiply({rows, width, hidden}, rows_of(after.data(), hidden),
                    transpose_of(down.data(), hidden), y.data(), width);
        add_residual<context, width>(on, ctx, dropout, x.data(), bias.data(), y.data());
    }

    void input_gradient(auto& ctx, gpipe::BatchView<T const, context, width> x,
                        gpipe::BatchView<T const, context, width> dy,
                        gpipe::BatchView<T, context, width> dx) const {
        auto const on = Operations::on(ctx);
        auto const [gain, shift, up, down, bias] = ctx.parameters();
        auto const [statistics, before] = ctx.saved();
        auto const [dbefore, dropped, sums] = ctx.deferred();
        std::size_t const rows = x.samples() * context;
        T const* const dz =
            drop_gradient<context, width>(on, ctx, dropout, dy.data(), dropped.data());
        on.multiply({rows, hidden, width}, rows_of(dz, width), rows_of(down.data(), hidden),
                    dbefore.data(), hidden);
        on.for_each_index(rows * hidden,
                          detail::ActivateBackward<T>{before.data(), dbefore.data()});
        on.multiply({rows, width, hidden}, rows_of(dbefore.data(), hidden),
                    rows_of(up.data(), width), dx.data(), width);
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.input_gradient(on, rows, x.data(), statistics.data(), dy.data(), dx.data(),
                            sums.data());
    }

    void weight_gradient(auto& ctx, gpipe::BatchView<T const, context, width> x,
                         gpipe::BatchView<T const, context, width> dy) const {
        auto const on = Operations::on(ctx);
        auto const [gain, shift, up, down, bias] = ctx.parameters();
        auto const [dgain, dshift, dup, ddown, dbias] = ctx.gradients();
        auto const [statistics, before] = ctx.saved();
        auto const [dbefore, dropped, sums] = ctx.deferred();
        T* const room = ctx.scratch().data();
        std::size_t const rows = x.samples() * context;
        T const* const dz = dropout.gradient(dy.data(), dropped.data());
        on.sum_columns(rows, width, ElementAt<T>{dz, width}, dbias.data(), true);
        on.for_each_index(rows * hidden, detail::Activate<T>{before.data(), room});
        on.multiply({width, hidden, rows}, transpose_of(dz, width), rows_of(room, hidden),
                    ddown.data(), hidden, true);
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.apply(on, rows, x.data(), statistics.data(), room);
        on.multiply({hidden, width, rows}, transpose_of(dbefore.data(), hidden),
                    rows_of(room, width), dup.data(), width, true);
        norm.add_sums(on, sums.data(), dgain.data(), dshift.data());
    }
};

} // namespace gpt
