#pragma once

#include "gpt/dropout.hpp"
#include "gpt/initial.hpp"
#include "gpt/layer_norm.hpp"
#include "gpt/operations.hpp"
#include "gpt/product.hpp"

#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/view.hpp>

#include <algorithm>
#include <cstddef>

namespace gpt {

/// The first half of a block: y = x + dropout(attention(LayerNorm(x)) projection + bias), with
/// causal attention of `heads` heads. Queries, keys and values have no bias: the norm's shift gives
/// them one.
template <class T, std::size_t context, std::size_t width, std::size_t heads,
          class Operations = HostOperations>
struct Attention {
    static_assert(width % heads == 0, "gpt: the heads must share the width equally");

    using R = Real<T>;
    using Input = gpipe::Tensor<T, context, width>;
    using Output = gpipe::Tensor<T, context, width>;
    /// Gain and shift of the norm; queries, keys and values; the projection and its bias.
    using Parameters = gpipe::Tensors<gpipe::Tensor<R, width>, gpipe::Tensor<R, width>,
                                      gpipe::Tensor<R, 3 * width, width>,
                                      gpipe::Tensor<R, width, width>, gpipe::Tensor<R, width>>;
    /// The norm's statistics; queries, keys and values; what the heads give; logarithms of the
    /// sums.
    using Saved =
        gpipe::Tensors<gpipe::Tensor<R, context, 2>, gpipe::Tensor<T, context, 3 * width>,
                       gpipe::Tensor<T, context, width>, gpipe::Tensor<R, heads, context>>;
    /// The gradients of queries, keys and values; that of what dropout was given, if anything is
    /// dropped; what the norm's gradients grow by, in the first sample's place.
    using Deferred = gpipe::Tensors<gpipe::Tensor<T, context, 3 * width>,
                                    gpipe::Tensor<T, context, width>, gpipe::Tensor<R, 2, width>>;
    /// Scores, where they take memory, and what finds them; in the weight gradient the norm of x.
    using Scratch =
        gpipe::Tensor<T, std::max(context* width,
                                  Operations::template score_elements<T, context, heads>)>;
    using Handles = typename Operations::template HandlesFor<T, 4 * width * width>;
    static constexpr double cost = 8.0 * context * width * width + 4.0 * context * context * width;
    /// It keeps as much as Mlp, for little more than half of the work.
    static constexpr bool recompute_is_cheap = true;
    static constexpr float decay[] = {0, 0, 1, 1, 0};
    static constexpr char const* parameter_names[] = {"norm.gain", "norm.shift", "qkv",
                                                      "projection", "bias"};

    Dropout dropout{};

    void initialize(auto& ctx) const {
        auto const [gain, shift, into, out, bias] = ctx.parameters();
        for (R& element : gain) element = 1;
        fill_normal(into, ctx.random(2), weight_deviation);
        fill_normal(out, ctx.random(3), residual_deviation(ctx.layers()));
    }

    void forward(auto& ctx, gpipe::BatchView<T const, context, width> x,
                 gpipe::BatchView<T, context, width> y) const {
        auto const on = Operations::on(ctx);
        auto const [gain, shift, into, out, bias] = ctx.parameters();
        auto const [statistics, qkv, heads_out, log_sums] = ctx.saved();
        auto const [in_factor, out_factor] = on.template factors<T>(into, out);
        std::size_t const rows = x.samples() * context;
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.forward(on, rows, x.data(), statistics.data(), y.data()); // y is free until the end
        on.multiply({rows, 3 * width, width}, rows_of(y.data(), width),
                    transpose_of(in_factor, width), qkv.data(), 3 * width);
        on.template attend<context, width, heads, T>(x.samples(), qkv.data(), heads_out.data(),
                                                     log_sums.data(), ctx.scratch().data());
        on.multiply({rows, width, width}, rows_of(heads_out.data(), width),
                    transpose_of(out_factor, width), y.data(), width);
        add_residual<context, width>(on, ctx, dropout, x.data(), bias.data(), y.data());
    }

    void input_gradient(auto& ctx, gpipe::BatchView<T const, context, width> x,
                        gpipe::BatchView<T const, context, width> dy,
                        gpipe::BatchView<T, context, width> dx) const {
        auto const on = Operations::on(ctx);
        auto const [gain, shift, into, out, bias] = ctx.parameters();
        auto const [statistics, qkv, heads_out, log_sums] = ctx.saved();
        auto const [dqkv, dropped, sums] = ctx.deferred();
        auto const [in_factor, out_factor] = on.template factors<T>(into, out);
        std::size_t const rows = x.samples() * context;
        // dx holds in turn: the gradient of what the heads gave, that of the norm of x, the result.
        T const* const dz =
            drop_gradient<context, width>(on, ctx, dropout, dy.data(), dropped.data());
        on.multiply({rows, width, width}, rows_of(dz, width), rows_of(out_factor, width), dx.data(),
                    width);
        on.template attend_backward<context, width, heads, T>(
            x.samples(), qkv.data(), heads_out.data(), log_sums.data(), dx.data(), dqkv.data(),
            ctx.scratch().data());
        on.multiply({rows, width, 3 * width}, rows_of(dqkv.data(), 3 * width),
                    rows_of(in_factor, width), dx.data(), width);
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.input_gradient(on, rows, x.data(), statistics.data(), dy.data(), dx.data(),
                            sums.data());
    }

    void weight_gradient(auto& ctx, gpipe::BatchView<T const, context, width> x,
                         gpipe::BatchView<T const, context, width> dy) const {
        auto const on = Operations::on(ctx);
        auto const [gain, shift, into, out, bias] = ctx.parameters();
        auto const [dgain, dshift, dinto, dout, dbias] = ctx.gradients();
        auto const [statistics, qkv, heads_out, log_sums] = ctx.saved();
        auto const [dqkv, dropped, sums] = ctx.deferred();
        T* const normal = ctx.scratch().data();
        std::size_t const rows = x.samples() * context;
        T const* const dz = dropout.gradient(dy.data(), dropped.data());
        on.sum_columns(rows, width, dbias.data(), true, Itself{}, dz);
        on.multiply({width, width, rows}, transpose_of(dz, width), rows_of(heads_out.data(), width),
                    dout.data(), width, true);
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.apply(on, rows, x.data(), statistics.data(), normal);
        on.multiply({3 * width, width, rows}, transpose_of(dqkv.data(), 3 * width),
                    rows_of(normal, width), dinto.data(), width, true);
        norm.add_sums(on, sums.data(), dgain.data(), dshift.data());
    }
};

} // namespace gpt
