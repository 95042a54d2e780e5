#pragma once

#include "gpt/attention.hpp"
#include "gpt/cross_entropy.hpp"
#include "gpt/embedding.hpp"
#include "gpt/head.hpp"
#include "gpt/mlp.hpp"

#include <gpipe/pipeline.hpp>

#include <algorithm>
#include <cstddef>

namespace gpt {

/// A decoder-only Transformer (GPT-2's form: Radford et al., 2019) and its loss, as types. Each
/// block is two layers, so that cells can be cut inside it. The vocabulary has room for every byte.
template <class T, std::size_t context_, std::size_t width_, std::size_t heads_,
          std::size_t blocks_>
struct Model {
    static constexpr std::size_t context = context_;
    static constexpr std::size_t width = width_;
    static constexpr std::size_t heads = heads_;
    static constexpr std::size_t blocks = blocks_;
    static constexpr std::size_t vocabulary = 256;

    using Element = T;
    using Blocks =
        gpipe::Repeat<blocks, Attention<T, context, width, heads>, Mlp<T, context, width>>;
    using Net = gpipe::Pipeline<Embedding<T, vocabulary, context, width>, Blocks,
                                Head<T, context, width, vocabulary>>;
    using Loss = CrossEntropy<T, context, vocabulary>;

    /// `used` classes, rounded up to whole vectors; the rest of the vocabulary costs nothing.
    static constexpr std::size_t classes(std::size_t used) {
        return std::min((used + lanes - 1) / lanes * lanes, vocabulary);
    }
    static Net net(std::size_t used = vocabulary, float dropout = 0) {
        return Net{{}, Blocks{{{dropout}}, {{dropout}}}, {.classes = classes(used)}};
    }
    static Loss loss(std::size_t used = vocabulary) { return {classes(used)}; }
};

/// The network of train_gpt and of the benchmarks.
using Standard = Model<float, 64, 128, 4, 4>;

} // namespace gpt
