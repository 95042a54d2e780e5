#pragma once

#include "gpt/initial.hpp"

#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/view.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpt {

/// Tokens to rows of `width` elements: a learned row per token plus a learned row per position.
/// Throws std::out_of_range for a token that is no number below `vocabulary`.
template <class T, std::size_t vocabulary, std::size_t context, std::size_t width>
struct Embedding {
    using Input = gpipe::Tensor<std::int32_t, context>;
    using Output = gpipe::Tensor<T, context, width>;
    using Parameters =
        gpipe::Tensors<gpipe::Tensor<T, vocabulary, width>, gpipe::Tensor<T, context, width>>;
    static constexpr double cost = static_cast<double>(context * width);
    static constexpr float decay[] = {0, 0};

    void initialize(auto& ctx) const {
        auto const [tokens, positions] = ctx.parameters();
        fill_normal(tokens, ctx.random(0), embedding_deviation);
        fill_normal(positions, ctx.random(1), embedding_deviation);
    }

    void forward(auto& ctx, gpipe::BatchView<std::int32_t const, context> x,
                 gpipe::BatchView<T, context, width> y) const {
        auto const [tokens, positions] = ctx.parameters();
        for (std::size_t sample = 0; sample < x.samples(); ++sample)
            for (std::size_t t = 0; t < context; ++t) {
                T const* __restrict token = tokens.data() + index(x(sample, t)) * width;
                T const* __restrict position = positions.data() + t * width;
                T* __restrict out = &y(sample, t, std::size_t{0});
                for (std::size_t i = 0; i < width; ++i) out[i] = token[i] + position[i];
            }
    }

    void backward(auto& ctx, gpipe::BatchView<std::int32_t const, context> x,
                  gpipe::BatchView<T const, context, width> dy, gpipe::None) const {
        auto const [tokens, positions] = ctx.gradients();
        for (std::size_t sample = 0; sample < x.samples(); ++sample)
            for (std::size_t t = 0; t < context; ++t) {
                T const* __restrict in = &dy(sample, t, std::size_t{0});
                T* __restrict token = tokens.data() + index(x(sample, t)) * width;
                T* __restrict position = positions.data() + t * width;
                for (std::size_t i = 0; i < width; ++i) token[i] += in[i];
                for (std::size_t i = 0; i < width; ++i) position[i] += in[i];
            }
    }

  private:
    static std::size_t index(std::int32_t token) {
        if (token < 0 || static_cast<std::size_t>(token) >= vocabulary)
            throw std::out_of_range("gpt: token " + std::to_string(token) +
                                    " is not in the vocabulary of " + std::to_string(vocabulary));
        return static_cast<std::size_t>(token);
    }
};

} // namespace gpt
