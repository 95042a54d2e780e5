#pragma once

#include "gpt/attention.hpp"
#include "gpt/cross_entropy.hpp"
#include "gpt/embedding.hpp"
#include "gpt/head.hpp"
#include "gpt/mlp.hpp"

#include <gpipe/layer/tie.hpp>
#include <gpipe/pipeline.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace gpt {

struct TokenTable; // the tag
/// Layer L, whose parameter tensor `place` is the token table of the whole model.
template <class L, std::size_t place> struct WithTable : L {
    using Tied = gpipe::Tie<TokenTable, place>;
};

/// A decoder-only Transformer (GPT-2's form: Radford et al., 2019) and its loss, as types. Each
/// block is two layers, so that cells can be cut inside it. The vocabulary has room for every byte
/// unless it is told otherwise. `T` is what activations are kept as: with __nv_bfloat16 parameters,
/// their gradients and all sums are float. `Operations` says what its devices are made for; include
/// that header, too (operations.hpp). `tied`: whether the head's weights are the embedding's, as
/// GPT-2's are.
template <class T, std::size_t context_, std::size_t width_, std::size_t heads_,
          std::size_t blocks_, class Operations = HostOperations, std::size_t vocabulary_ = 256,
          bool tied = false>
struct Model {
    static constexpr std::size_t context = context_;
    static constexpr std::size_t width = width_;
    static constexpr std::size_t heads = heads_;
    static constexpr std::size_t blocks = blocks_;
    static constexpr std::size_t vocabulary = vocabulary_;

    using Element = T;
    using Blocks = gpipe::Repeat<blocks, Attention<T, context, width, heads, Operations>,
                                 Mlp<T, context, width, Operations>>;
    template <class L, std::size_t place>
    using MayTie = std::conditional_t<tied, WithTable<L, place>, L>;
    using First = Embedding<T, vocabulary, context, width, Operations>;
    using Last = Head<T, context, width, vocabulary, Operations>;
    using Net = gpipe::Pipeline<MayTie<First, 0>, Blocks, MayTie<Last, 2>>;
    using Loss = CrossEntropy<T, context, vocabulary, Operations>;

    /// `used` classes, rounded up to whole vectors; the rest of the vocabulary costs nothing.
    static constexpr std::size_t classes(std::size_t used) {
        return std::min((used + lanes - 1) / lanes * lanes, vocabulary);
    }
    static Net net(std::size_t used = vocabulary, float dropout = 0) {
        return Net{{}, Blocks{{{dropout}}, {{dropout}}}, {Last{.classes = classes(used)}}};
    }
    static Loss loss(std::size_t used = vocabulary) { return {classes(used)}; }
};

/// The network of train_gpt and of the benchmarks.
template <class Operations, bool tied = false>
using StandardOn = Model<float, 64, 128, 4, 4, Operations, 256, tied>;
using Standard = StandardOn<HostOperations>;

/// GPT-2's smallest shape (124 million parameters there), its vocabulary of 50,257 rounded up to a
/// multiple of 64, and its head's weights the embedding's; neither queries, keys and values nor the
/// hidden layer have a bias.
template <class Operations, class T = float>
struct Gpt2On : Model<T, 1024, 768, 12, 12, Operations, 50304, true> {
    static_assert(Gpt2On::Net::parameters() == 124'411'392);
};

} // namespace gpt
