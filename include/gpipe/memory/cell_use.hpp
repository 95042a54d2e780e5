#pragma once

#include <gpipe/chain/chain_ties.hpp>
#include <gpipe/chain/skip_pairs.hpp>

#include <cstddef>

namespace gpipe {

/// The chain as the planner sees it.
struct ChainShape {
    LayerInfo const* layers = nullptr; ///< of the chain, `size` of them
    std::size_t size = 0;              ///< L
    std::size_t lowest_learner = 0;    ///< no layer below it has a backward
    GroupSizes loss_scratch{};         ///< of the loss
    HandleNeeds loss_handles{};        ///< that the loss declares
    Part<SkipPair> skips{};            ///< from layer to layer
    Part<TiedTensor> ties{};           ///< of their parameters

    /// Whether the gradient of a skip is wanted.
    constexpr bool wants_gradient(SkipPair const& skip) const {
        return skip.gradient_bytes > 0 && skip.from >= lowest_learner;
    }
};

/// What a cell's layout depends on beside its layers.
struct CellUse {
    bool adjacent = false;       ///< see CellLayout
    std::size_t capacity = 0;    ///< samples of a micro-batch
    bool recomputes = true;      ///< whether the cell's forward is ever run again
    bool holds_gradient = false; ///< whether the gradient of its input lies here, too
    bool splits = false;         ///< whether the halves of its backward run apart
    bool mixes = false;          ///< whether for some micro-batches only
    /// Whether a recompute has to write the cell's output where its backward reads it.
    bool rewrites_output = false;
    bool runs_again = false; ///< whether there is any recompute
};

} // namespace gpipe
