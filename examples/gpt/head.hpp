#pragma once

#include "gpt/blas.hpp"
#include "gpt/initial.hpp"
#include "gpt/layer_norm.hpp"

#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/traits.hpp>
#include <gpipe/layer/view.hpp>

#include <algorithm>
#include <cstddef>

namespace gpt {

/// The last layer: logits of the next token, y = clip(LayerNorm(x) weights), held within [-bound,
/// bound] as the GPipe paper does for deep models (section 5); a logit that was clipped passes no
/// gradient on. The vocabulary is a bound on the classes: tokens from `classes` on get the least
/// logit and no work.
template <class T, std::size_t context, std::size_t width, std::size_t vocabulary> struct Head {
    using Input = gpipe::Tensor<T, context, width>;
    using Output = gpipe::Tensor<T, context, vocabulary>;
    /// Gain and shift of the norm; weights.
    using Parameters = gpipe::Tensors<gpipe::Tensor<T, width>, gpipe::Tensor<T, width>,
                                      gpipe::Tensor<T, vocabulary, width>>;
    using Saved = gpipe::Tensor<T, context, 2>;
    /// Forward: the norm of x. Backward: the gradient of the logits that were not clipped.
    using Scratch = gpipe::Tensor<T, context, std::max(width, vocabulary)>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::both;
    /// Of the classes that a text has, about; more would be work that is never done.
    static constexpr double cost = 2.0 * context * width * std::min<std::size_t>(vocabulary, 96);
    static constexpr float decay[] = {0, 0, 1};

    std::size_t classes = vocabulary;
    T bound = 30;

    void initialize(auto& ctx) const {
        auto const [gain, shift, weights] = ctx.parameters();
        for (T& element : gain) element = 1;
        fill_normal(weights, ctx.random(2), weight_deviation);
    }

    void forward(auto& ctx, gpipe::BatchView<T const, context, width> x,
                 gpipe::BatchView<T, context, vocabulary> y) const {
        auto const [gain, shift, weights] = ctx.parameters();
        auto const statistics = ctx.saved();
        auto const normal = ctx.scratch();
        std::size_t const rows = x.samples() * context;
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.statistics(rows, x.data(), statistics.data());
        norm.apply(rows, x.data(), statistics.data(), normal.data());
        multiply<T>({rows, classes, width}, rows_of<T>(normal.data(), width),
                    transpose_of(weights.data(), width), y.data(), vocabulary);
        for (std::size_t row = 0; row < rows; ++row) {
            T* const out = y.data() + row * vocabulary;
            for (std::size_t i = 0; i < classes; ++i) out[i] = std::clamp(out[i], -bound, bound);
            std::fill(out + classes, out + vocabulary, -bound);
        }
    }

    void backward(auto& ctx, gpipe::BatchView<T const, context, width> x,
                  gpipe::BatchView<T const, context, vocabulary> y,
                  gpipe::BatchView<T const, context, vocabulary> dy,
                  gpipe::BatchView<T, context, width> dx) const {
        auto const [gain, shift, weights] = ctx.parameters();
        auto const [dgain, dshift, dweights] = ctx.gradients();
        auto const statistics = ctx.saved();
        T* const dlogits = ctx.scratch().data();
        std::size_t const rows = x.samples() * context;
        for (std::size_t row = 0; row < rows; ++row) {
            T const* const out = y.data() + row * vocabulary;
            T const* const dout = dy.data() + row * vocabulary;
            T* const din = dlogits + row * classes;
            for (std::size_t i = 0; i < classes; ++i)
                din[i] = out[i] > -bound && out[i] < bound ? dout[i] : T{0};
        }
        // dx holds in turn: the norm of x, its gradient, the result.
        LayerNorm<width, T> const norm{gain.data(), shift.data()};
        norm.apply(rows, x.data(), statistics.data(), dx.data());
        multiply<T>({classes, width, rows}, transpose_of<T>(dlogits, classes),
                    rows_of<T>(dx.data(), width), dweights.data(), width, true);
        multiply<T>({rows, width, classes}, rows_of<T>(dlogits, classes),
                    rows_of(weights.data(), width), dx.data(), width);
        norm.backward(rows, x.data(), statistics.data(), nullptr, dx.data(), dgain.data(),
                      dshift.data());
    }
};

} // namespace gpt
