#pragma once

#include "gpt/initial.hpp"
#include "gpt/layer_norm.hpp"
#include "gpt/operations.hpp"
#include "gpt/product.hpp"

#include <gpipe/core/host_device.hpp>
#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/traits.hpp>
#include <gpipe/layer/view.hpp>

#include <algorithm>
#include <cstddef>

namespace gpt {

namespace detail {

// One row of logits: held within the bound; no class beyond the first `classes`.
template <class T> struct Clip {
    std::size_t classes, vocabulary;
    Real<T> bound;
    T* logits;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        using R = Real<T>;
        T* const out = logits + row * vocabulary;
        R const most = bound;
        team.map(
            classes, out,
            [=](std::size_t, R logit) {
                R const held = logit < -most ? -most : logit;
                return most < held ? most : held;
            },
            out);
        team.map(vocabulary - classes, out + classes, [=](std::size_t) { return -most; });
    }
};

// One row of the gradient of the logits before they were held, without gaps between rows.
template <class T> struct ClipBackward {
    std::size_t classes, vocabulary;
    Real<T> bound;
    T const* logits;
    T const* dy;
    T* dlogits;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        using R = Real<T>;
        R const most = bound;
        team.map(
            classes, dlogits + row * classes,
            [=](std::size_t, R logit, R gradient) {
                return logit > -most && logit < most ? gradient : R{0};
            },
            logits + row * vocabulary, dy + row * vocabulary);
    }
};

} // namespace detail

/// The last layer: logits of the next token, y = clip(LayerNorm(x) weights), held within [-bound,
/// bound] as the GPipe paper does for deep models (section 5); a logit that was clipped passes no
/// gradient on. The vocabulary is a bound on the classes: tokens from `classes` on get the least
/// logit and no work.
template <class T, std::size_t context, std::size_t width, std::size_t vocabulary,
          class Operations = HostOperations>
struct Head {
    using R = Real<T>;
    using Input = gpipe::Tensor<T, context, width>;
    using Output = gpipe::Tensor<T, context, vocabulary>;
    /// Gain and shift of the norm; weights.
    using Parameters = gpipe::Tensors<gpipe::Tensor<R, width>, gpipe::Tensor<R, width>,
                                      gpipe::Tensor<R, vocabulary, width>>;
    using Saved = gpipe::Tensor<R, context, 2>;
    /// The gradient of the logits before they were clipped; what the norm's gradients grow by, in
    /// the first sample's place.
    using Deferred =
        gpipe::Tensors<gpipe::Tensor<T, context, vocabulary>, gpipe::Tensor<R, 2, width>>;
    /// The norm of x.
    using Scratch = gpipe::Tensor<T, context, width>;
    using Handles = typename Operations::template HandlesFor<T, vocabulary * width>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::both;
    /// Of bytes as many as a text has, about; more would be work that is never done.
    static constexpr double cost =
        2.0 * context * width *
        (vocabulary > 256 ? vocabulary : std::min<std::size_t>(vocabulary, 96));
    static constexpr float decay[] = {0, 0, 1};
    static constexpr char const* parameter_names[] = {"norm.gain", "norm.shift", "weight"};

    std::size_t classes = vocabulary;
    R bound = 30;

    void initialize(auto& ctx) const {
        auto const [gain, shift, weights] = ctx.parameters();
        for (R& element : gain) element = 1;
        fill_normal(weights, ctx.random(2), weight_deviation);
    }

    void forward(auto& ctx, gpipe::BatchView<T const, context, width> x,
                 gpipe::BatchView<T, context, vocabulary> y) const {
        auto const on = Operations::on(ctx);
        auto const [gain, shift, weights] = ctx.parameters();
        auto const statistics = ctx.saved();
        auto const normal = ctx.scratch();
        auto const [factor] = on.template factors<T>(weights);
        std::size_t const rows = x.samples() * context;
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.forward(on, rows, x.data(), statistics.data(), normal.data());
        on.multiply({rows, classes, width}, rows_of(normal.data(), width),
                    transpose_of(factor, width), y.data(), vocabulary);
        on.for_each_row(rows, vocabulary, detail::Clip<T>{classes, vocabulary, bound, y.data()});
    }

    void input_gradient(auto& ctx, gpipe::BatchView<T const, context, width> x,
                        gpipe::BatchView<T const, context, vocabulary> y,
                        gpipe::BatchView<T const, context, vocabulary> dy,
                        gpipe::BatchView<T, context, width> dx) const {
        auto const on = Operations::on(ctx);
        auto const [gain, shift, weights] = ctx.parameters();
        auto const statistics = ctx.saved();
        auto const [dlogits, sums] = ctx.deferred();
        auto const [factor] = on.template factors<T>(weights);
        std::size_t const rows = x.samples() * context;
        on.for_each_row(rows, classes,
                        detail::ClipBackward<T>{classes, vocabulary, bound, y.data(), dy.data(),
                                                dlogits.data()});
        on.multiply({rows, width, classes}, rows_of(dlogits.data(), classes),
                    rows_of(factor, width), dx.data(), width);
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.input_gradient(on, rows, x.data(), statistics.data(), nullptr, dx.data(), sums.data());
    }

    void weight_gradient(auto& ctx, gpipe::BatchView<T const, context, width> x,
                         gpipe::BatchView<T const, context, vocabulary>,
                         gpipe::BatchView<T const, context, vocabulary>) const {
        auto const on = Operations::on(ctx);
        auto const [gain, shift, weights] = ctx.parameters();
        auto const [dgain, dshift, dweights] = ctx.gradients();
        auto const statistics = ctx.saved();
        auto const [dlogits, sums] = ctx.deferred();
        T* const normal = ctx.scratch().data();
        std::size_t const rows = x.samples() * context;
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.apply(on, rows, x.data(), statistics.data(), normal);
        on.multiply({classes, width, rows}, transpose_of(dlogits.data(), classes),
                    rows_of(normal, width), dweights.data(), width, true);
        norm.add_sums(on, sums.data(), dgain.data(), dshift.data());
    }
};

} // namespace gpt
