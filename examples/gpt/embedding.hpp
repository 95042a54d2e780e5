#pragma once

#include "gpt/initial.hpp"
#include "gpt/math.hpp"
#include "gpt/operations.hpp"

#include <gpipe/core/host_device.hpp>
#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/view.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpt {

namespace detail {

// One row of the output; no numbers where the token is none.
template <std::size_t vocabulary, std::size_t context, std::size_t width, class T> struct Gather {
    std::int32_t const* indices;
    Real<T> const* tokens;
    Real<T> const* positions;
    T* y;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        auto const index = static_cast<std::size_t>(indices[row]);
        using R = Real<T>;
        T* const out = y + row * width;
        if (index < vocabulary)
            team.map(
                width, out, [](std::size_t, R token, R position) { return token + position; },
                tokens + index * width, positions + row % context * width);
        else
            team.map(width, out, [](std::size_t) { return static_cast<R>(NAN); });
    }
};

} // namespace detail

/// Tokens to rows of `width` elements: a learned row per token plus a learned row per position.
/// Throws std::out_of_range for a token that is no number below `vocabulary`; a GPU, which cannot,
/// makes a row of it that is no number, and so is the loss.
template <class T, std::size_t vocabulary, std::size_t context, std::size_t width,
          class Operations = HostOperations>
struct Embedding {
    using Input = gpipe::Tensor<std::int32_t, context>;
    using Output = gpipe::Tensor<T, context, width>;
    using Parameters = gpipe::Tensors<gpipe::Tensor<Real<T>, vocabulary, width>,
                                      gpipe::Tensor<Real<T>, context, width>>;
    static constexpr double cost = static_cast<double>(context * width);
    static constexpr float decay[] = {0, 0};
    static constexpr char const* parameter_names[] = {"tokens", "positions"};

    void initialize(auto& ctx) const {
        auto const [tokens, positions] = ctx.parameters();
        fill_normal(tokens, ctx.random(0), embedding_deviation(width));
        fill_normal(positions, ctx.random(1), embedding_deviation(width));
    }

    void forward(auto& ctx, gpipe::BatchView<std::int32_t const, context> x,
                 gpipe::BatchView<T, context, width> y) const {
        auto const on = Operations::on(ctx);
        auto const [tokens, positions] = ctx.parameters();
        on.check(x.size(), [x](std::size_t i) { check(x.data()[i]); });
        on.for_each_row(x.size(), width,
                        detail::Gather<vocabulary, context, width, T>{x.data(), tokens.data(),
                                                                      positions.data(), y.data()});
    }

    /// Tokens have none.
    void input_gradient(auto&, gpipe::BatchView<std::int32_t const, context>,
                        gpipe::BatchView<T const, context, width>, gpipe::None) const {}
    void weight_gradient(auto& ctx, gpipe::BatchView<std::int32_t const, context> x,
                         gpipe::BatchView<T const, context, width> dy) const {
        auto const on = Operations::on(ctx);
        auto const [tokens, positions] = ctx.gradients();
        on.scatter_add(x.size(), vocabulary, width, x.data(), dy.data(), tokens.data());
        on.sum_columns(x.samples(), context * width, positions.data(), true, Itself{}, dy.data());
    }

  private:
    static void check(std::int32_t token) {
        if (token < 0 || static_cast<std::size_t>(token) >= vocabulary)
            throw std::out_of_range("gpt: token " + std::to_string(token) +
                                    " is not in the vocabulary of " + std::to_string(vocabulary));
    }
};

} // namespace gpt
