#pragma once

#include <gpipe/checkpoint/offload.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe::checkpoint {

/// What Policy does, but in a schedule that runs the halves of backwards apart every layer's weight
/// half comes at once, later, or later with the layer run again, see WeightHalf: the first takes
/// the fewest bytes, the second the least time; the third keeps little and runs layers again twice.
/// Under VMin, where many micro-batches wait for their second half, that pays.
template <WeightHalf half, class Policy> struct WeightHalves {
    using policy_kind = policy::Checkpointing;
    static constexpr bool sound = CheckInCell<Policy>::ok();
    static_assert(sound || true);                               // says it wherever the type is used
    static constexpr std::string_view name = gpipe::name(half); ///< what it is found by
    /// What decides about the rest.
    [[no_unique_address]] Policy policy{};

    /// Of one cell, by `policy`.
    constexpr Reversal reversal(CellToReverse const& cell) const {
        Reversal result = gpipe::detail::reversal_in_cell(policy, cell);
        result.weights = Array<WeightHalf>(result.layers(), half);
        return result;
    }
};

} // namespace gpipe::checkpoint

/// @cond
namespace gpipe::detail {

template <WeightHalf half, class Policy, std::size_t cells>
inline constexpr bool fits_cells<checkpoint::WeightHalves<half, Policy>, cells> =
    fits_cells<Policy, cells>;

} // namespace gpipe::detail
/// @endcond
