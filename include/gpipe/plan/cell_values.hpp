#pragma once

#include <gpipe/call/address.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Which values actions of a cell have beside the tensors of its edges and its parts.
struct CellValues {
    bool retained = false;    ///< what the forward leaves, in a place from where it can be moved
    bool discards = false;    ///< the output of a recompute, in a place of an edge
    bool input_moves = false; ///< whether what is offloaded includes the input
    std::uint16_t skips = 0;  ///< ends of skips to other cells, see Edge::giver_slot
};

/// The first address of an action's own parts.
GPIPE_INLINE constexpr std::size_t first_part_address(CellValues const& cell) {
    return static_cast<std::size_t>(Region::inside) + 2u * cell.skips;
}

/// The address of a skip to another cell, or of its gradient. `slot`: see Edge::giver_slot.
GPIPE_INLINE constexpr Region skip_address(std::uint16_t slot, bool gradient) {
    return static_cast<Region>(static_cast<std::size_t>(Region::inside) + 2u * slot - 2 + gradient);
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
