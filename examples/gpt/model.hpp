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
/// block is two layers, so that cells can be cut inside it. The vocabulary has room for every byte
/// unless it is told otherwise. `Operations` says what its devices are made for; include that
/// header, too (operations.hpp).
template <class T, std::size_t context_, std::size_t width_, std::size_t heads_,
          std::size_t blocks_, class Operations = HostOperations, std::size_t vocabulary_ = 256>
struct Model {
    static constexpr std::size_t context = context_;
    static constexpr std::size_t width = width_;
    static constexpr std::size_t heads = heads_;
    static constexpr std::size_t blocks = blocks_;
    static constexpr std::size_t vocabulary = vocabulary_;

    using Element = T;
    using Blocks = gpipe::Repeat<blocks, Attention<T, context, width, heads, Operations>,
                                 Mlp<T, context, width, Operations>>;
    using Net = gpipe::Pipeline<Embedding<T, vocabulary, context, width, Operations>, Blocks,
                                Head<T, context, width, vocabulary, Operations>>;
    using Loss = CrossEntropy<T, context, vocabulary, Operations>;

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
template <class Operations> using StandardOn = Model<float, 64, 128, 4, 4, Operations>;
using Standard = StandardOn<HostOperations>;

/// GPT-2's smallest shape (124 million parameters there), its vocabulary of 50,257 rounded up to a
/// multiple of 64. There the head's weights are the embedding's; here they are its own, which makes
/// 39 million more, and neither queries, keys and values nor the hidden layer have a bias.
template <class Operations> struct Gpt2On : Model<float, 1024, 768, 12, 12, Operations, 50304> {
    static_assert(Gpt2On::Net::parameters() == 163'044'864);
};

} // namespace gpt
