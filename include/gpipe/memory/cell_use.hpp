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
    ConstantNeeds loss_constants{};    ///< of a step, that the loss reads
    Part<SideInfo> sides{};            ///< side inputs

    /// Whether the gradient of a skip is wanted.
    constexpr bool wants_gradient(SkipPair const& skip) const {
        return skip.gradient_bytes > 0 && skip.from >= lowest_learner;
    }
};

/// What the calls of a cell depend on beside its layers.
struct CellUse {
    std::size_t capacity = 0; ///< samples of a micro-batch
    /// Whether the output of a recompute that nobody reads has room where that of the edge is, and
    /// whether the backward reads what a recompute writes there.
    ///@{
    bool discards = false;
    bool rewrites_output = false;
    ///@}
};

} // namespace gpipe
