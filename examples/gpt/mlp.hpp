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

struct Activate {
    template <class R> GPIPE_HOST_DEVICE R operator()(std::size_t, R before) const {
        return gelu(before);
    }
};

// The gradient of what came after to that of what came before.
struct ActivateBackward {
    template <class R> GPIPE_HOST_DEVICE R operator()(std::size_t, R gradient, R before) const {
        return gradient * gelu_slope(before);
    }
};

} // namespace detail

/// The second half of a block: y = x + dropout(gelu(LayerNorm(x) up) down + bias), with a hidden
/// layer of four times the width. The hidden layer has no bias: the norm's shift gives it one.
template <class T, std::size_t context, std::size_t width, class Operations = HostOperations>
struct Mlp {
    static constexpr std::size_t hidden = 4 * width;

    using R = Real<T>;
    using Input = gpipe::Tensor<T, context, width>;
    using Output = gpipe::Tensor<T, context, width>;
    /// Gain and shift of the norm; up; down and its bias.
    using Parameters = gpipe::Tensors<gpipe::Tensor<R, width>, gpipe::Tensor<R, width>,
                                      gpipe::Tensor<R, hidden, width>,
                                      gpipe::Tensor<R, width, hidden>, gpipe::Tensor<R, width>>;
    /// The norm's statistics; the hidden layer before its GELU, which backward evaluates again.
    using Saved = gpipe::Tensors<gpipe::Tensor<R, context, 2>, gpipe::Tensor<T, context, hidden>>;
    /// The gradient of the hidden layer before its GELU; that of what dropout was given, if
    /// anything is dropped; what the norm's gradients grow by, in the first sample's place.
    using Deferred = gpipe::Tensors<gpipe::Tensor<T, context, hidden>,
                                    gpipe::Tensor<T, context, width>, gpipe::Tensor<R, 2, width>>;
    /// The hidden layer after its GELU, later what else a backward or half of it has room for.
    using Scratch = gpipe::Tensor<T, context, hidden>;
    using Handles = typename Operations::template HandlesFor<T, 2 * width * hidden>;
    static constexpr double cost = 4.0 * context * width * hidden;
    static constexpr float decay[] = {0, 0, 1, 1, 0};
    static constexpr char const* parameter_names[] = {"norm.gain", "norm.shift", "up", "down",
                                                      "bias"};

    Dropout dropout{};

    void initialize(auto& ctx) const {
        auto const [gain, shift, up, down, bias] = ctx.parameters();
        for (R& element : gain) element = 1;
        fill_normal(up, ctx.random(2), weight_deviation);
        fill_normal(down, ctx.random(3), residual_deviation(ctx.layers()));
    }

    void forward(auto& ctx, gpipe::BatchView<T const, context, width> x,
                 gpipe::BatchView<T, context, width> y) const {
        auto const on = Operations::on(ctx);
        auto const [gain, shift, up, down, bias] = ctx.parameters();
        auto const [statistics, before] = ctx.saved();
        auto const after = ctx.scratch();
        auto const [up_factor, down_factor] = on.template factors<T>(up, down);
        std::size_t const rows = x.samples() * context;
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.forward(on, rows, x.data(), statistics.data(), y.data()); // y is free until the end
        on.multiply({rows, hidden, width}, rows_of(y.data(), width), transpose_of(up_factor, width),
                    before.data(), hidden);
        on.map(rows * hidden, after.data(), detail::Activate{}, before.data());
        on.multiply({rows, width, hidden}, rows_of(after.data(), hidden),
                    transpose_of(down_factor, hidden), y.data(), width);
        add_residual<context, width>(on, ctx, dropout, x.data(), bias.data(), y.data());
    }

    /// Without this the halves would run one behind the other, in twice the room: what one leaves
    /// for the other, and the hidden layer.
    void backward(auto& ctx, gpipe::BatchView<T const, context, width> x,
                  gpipe::BatchView<T const, context, width> dy,
                  gpipe::BatchView<T, context, width> dx) const {
        auto const on = Operations::on(ctx);
        auto const [gain, shift, up, down, bias] = ctx.parameters();
        auto const [dgain, dshift, dup, ddown, dbias] = ctx.gradients();
        auto const [statistics, before] = ctx.saved();
        auto const [up_factor, down_factor] = on.template factors<T>(up, down);
        T* const room = ctx.scratch().data(); // the hidden layer, its gradient, sums
        std::size_t const rows = x.samples() * context;
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        // dx holds in turn: what dropout gives back, the norm of x, its gradient, the result.
        T const* const dz = drop_gradient<context, width>(on, ctx, dropout, dy.data(), dx.data());
        down_gradients(on, rows, dz, before.data(), room, ddown.data(), dbias.data());
        hidden_gradient(on, rows, dz, down_factor, before.data(), room);
        norm.apply(on, rows, x.data(), statistics.data(), dx.data());
        on.multiply({hidden, width, rows}, transpose_of(room, hidden), rows_of(dx.data(), width),
                    dup.data(), width, true);
        on.multiply({rows, width, hidden}, rows_of(room, hidden), rows_of(up_factor, width),
                    dx.data(), width);
        R* const sums = reinterpret_cast<R*>(room);
        norm.input_gradient(on, rows, x.data(), statistics.data(), dy.data(), dx.data(), sums);
        norm.add_sums(on, sums, dgain.data(), dshift.data());
    }

    void input_gradient(auto& ctx, gpipe::BatchView<T const, context, width> x,
                        gpipe::BatchView<T const, context, width> dy,
                        gpipe::BatchView<T, context, width> dx) const {
        auto const on = Operations::on(ctx);
        auto const [gain, shift, up, down, bias] = ctx.parameters();
        auto const [statistics, before] = ctx.saved();
        auto const [dbefore, dropped, sums] = ctx.deferred();
        auto const [up_factor, down_factor] = on.template factors<T>(up, down);
        std::size_t const rows = x.samples() * context;
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        T const* const dz =
            drop_gradient<context, width>(on, ctx, dropout, dy.data(), dropped.data());
        hidden_gradient(on, rows, dz, down_factor, before.data(), dbefore.data());
        on.multiply({rows, width, hidden}, rows_of(dbefore.data(), hidden),
                    rows_of(up_factor, width), dx.data(), width);
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
        T* const room = ctx.scratch().data(); // the hidden layer, the norm of x
        std::size_t const rows = x.samples() * context;
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        down_gradients(on, rows, dropout.gradient(dy.data(), dropped.data()), before.data(), room,
                       ddown.data(), dbias.data());
        norm.apply(on, rows, x.data(), statistics.data(), room);
        on.multiply({hidden, width, rows}, transpose_of(dbefore.data(), hidden),
                    rows_of(room, width), dup.data(), width, true);
        norm.add_sums(on, sums.data(), dgain.data(), dshift.data());
    }

  private:
    // dz is the gradient of what dropout was given.
    static void hidden_gradient(auto const& on, std::size_t rows, T const* dz, T const* down,
                                T const* before, T* dbefore) {
        on.multiply({rows, hidden, width}, rows_of(dz, width), rows_of(down, hidden), dbefore,
                    hidden);
        on.map(rows * hidden, dbefore, detail::ActivateBackward{}, dbefore, before);
    }
    // Leaves the hidden layer in `after`.
    static void down_gradients(auto const& on, std::size_t rows, T const* dz, T const* before,
                               T* after, R* ddown, R* dbias) {
        on.sum_columns(rows, width, dbias, true, Itself{}, dz);
        on.map(rows * hidden, after, detail::Activate{}, before);
        on.multiply({width, hidden, rows}, transpose_of(dz, width), rows_of(after, hidden), ddown,
                    hidden, true);
    }
};

} // namespace gpt
