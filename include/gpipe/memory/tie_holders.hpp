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
    auto const device_of = [&](std::size_t end) {
        return programs.device_of(cell_of(first, ties[end].layer));
    };
    for (std::uint32_t end = 0, tie = 0; end < ties.size(); ++end) {
        if (ties[end].is_first) tie = end;
        holders[end] = tie;
        while (device_of(holders[end]) != device_of(end)) ++holders[end];
    }
    return holders;
}

/// Whether a parameter tensor is where an earlier end of its tie is.
GPIPE_INLINE constexpr bool is_held(Part<TiedTensor> ties, TieHolders const& holders,
                                    std::size_t layer, std::size_t tensor) {
    for (std::size_t end = 0; end < holders.size(); ++end)
        if (ties[end].layer == layer && ties[end].tensor == tensor) return holders[end] != end;
    return false;
}

/// The slots of a layer's tensors that are: of those that are trained, or the others.
GPIPE_INLINE constexpr std::size_t held_slots(ChainShape const& chain, TieHolders const& holders,
                                              std::size_t layer, bool learned) {
    std::size_t bytes = 0;
    for (std::size_t end = 0; end < holders.size(); ++end)
        if (TiedTensor const& tied = chain.ties[end];
            tied.layer == layer && holders[end] != end &&
            chain.layers[layer].learns(tied.tensor) == learned)
            bytes += slot_bytes(tied.bytes);
    return bytes;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
