#pragma once

#include <gpipe/balance/cell_of.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/memory/cell_use.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// By end of a tie: the first on its device, whose parameter and optimizer state it has. Empty:
/// each has its own.
using TieHolders = Array<std::uint32_t>;

/// For cells that begin with layer `first`, and end with the last.
[[gnu::cold]] GPIPE_INLINE constexpr TieHolders
tie_holders(Part<TiedTensor> ties, Array<std::size_t> const& first, Programs const& programs) {
    TieHolders holders(ties.size());
    Array<std::uint32_t> first_there(
        programs.devices()); // by device: 1 + end, of this tie or before
    std::uint32_t tie = 0;
    std::size_t cell = 0;
    for (std::uint32_t end = 0; end < ties.size(); ++end) {
        if (ties[end].is_first) tie = end, cell = 0;
        while (first[cell + 1] <= ties[end].layer) ++cell;
        std::uint32_t& there = first_there[programs.device_of(cell)];
        if (there <= tie) there = end + 1;
        holders[end] = there - 1;
    }
    return holders;
}

/// The earlier end of its tie that a parameter tensor is where it is; null: it has its own place.
GPIPE_INLINE constexpr TiedTensor const* holder_of(Part<TiedTensor> ties, TieHolders const& holders,
                                                   std::size_t layer, std::size_t tensor) {
    for (std::size_t end = 0; end < holders.size(); ++end)
        if (ties[end].layer == layer && ties[end].tensor == tensor && holders[end] != end)
            return &ties[holders[end]];
    return nullptr;
}

/// By layer the slots of its tensors that are: of those that are trained, or the others.
GPIPE_INLINE constexpr Array<std::size_t> held_slots(ChainShape const& chain,
                                                     TieHolders const& holders, bool learned) {
    Array<std::size_t> bytes(chain.size);
    for (std::size_t end = 0; end < holders.size(); ++end)
        if (TiedTensor const& tied = chain.ties[end];
            holders[end] != end && chain.layers[tied.layer].learns(tied.tensor) == learned)
            bytes[tied.layer] += slot_bytes(tied.bytes);
    return bytes;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
