#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/plan/parts.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// A tensor of a micro-batch that stays inside of its cell, from the call that writes it to the
/// last that reads it.
struct CellTensor {
    std::size_t bytes = 0;   ///< of a slot
    std::uint32_t begin = 0; ///< index of the call
    std::uint32_t end = 0;   ///< likewise
};

/// A tensor of a call: the number of one that stays inside of the cell, or one of these.
namespace tensor {
inline constexpr std::uint32_t none = 0xFFFFFFFF;            ///< of no bytes
inline constexpr std::uint32_t input = 0xFFFFFFFE;           ///< of the cell
inline constexpr std::uint32_t output = 0xFFFFFFFD;          ///< likewise
inline constexpr std::uint32_t output_gradient = 0xFFFFFFFC; ///< likewise
inline constexpr std::uint32_t input_gradient = 0xFFFFFFFB;  ///< likewise
} // namespace tensor

/// Which function of a layer is called, or the loss.
enum class CallKind : std::uint8_t { forward, backward, input_gradient, weight_gradient, loss };

/// A call with its tensors.
struct CellCall {
    CallKind kind = CallKind::forward; ///< of which function
    bool saving = false;               ///< whether a backward reads what it saves
    std::uint32_t layer = 0;           ///< in the cell; of the loss, their number
    /// As in Call.
    ///@{
    std::uint32_t x = tensor::none;
    std::uint32_t y = tensor::none;
    std::uint32_t dy = tensor::none;
    std::uint32_t dx = tensor::none;
    std::uint32_t saved = tensor::none;
    std::uint32_t deferred = tensor::none;
    std::uint32_t scratch = tensor::none;
    ///@}
    std::uint32_t skips = 0; ///< where the ends of its layer begin in CellCalls::skips
};

/// The end of a skip in a call. Of one to another cell what nobody wants: the tensor as a recompute
/// stashes it again, the gradient where none is passed on.
struct CellSkip {
    std::uint32_t value = tensor::none;    ///< the tensor
    std::uint32_t gradient = tensor::none; ///< its gradient
};

/// Everything that a cell does on a micro-batch, in one of its ways, as one sequence of calls.
struct CellCalls {
    Array<CellCall> calls;     ///< in the order in which they run
    Array<CellTensor> tensors; ///< in the order in which they are written
    Array<CellSkip> skips;     ///< of the calls' layers, as in SkipEnds
    Array<std::uint32_t> begin =
        Array<std::uint32_t>(stage_count + 1); ///< by stage: where its calls begin
    /// Behind these the forward's calls are those that run again first, if any does.
    std::uint32_t restart = 0;

    /// Whether the forward leaves a tensor for what follows.
    constexpr bool waits(std::size_t t) const {
        return tensors[t].begin < restart && tensors[t].end >= begin[1];
    }
    /// Whose calls these are.
    constexpr Stage stage_of(std::size_t call) const {
        std::size_t s = 0;
        while (begin[s + 1] <= call) ++s;
        return static_cast<Stage>(s);
    }
};

} // namespace gpipe
