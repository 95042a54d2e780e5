#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/window.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpipe {

/// Where what a cell offloads lies: blocks on the device, which a micro-batch has from its forward
/// until it is in the host's memory and from when it comes back until its backward, slots for cell
/// inputs that come back, and slots in the host's memory, where the input lies behind the rest. Two
/// blocks are enough for GPipe to copy while the device works, because a writer may wait for a
/// block; programs in which much is under way at once have more.
struct Offloaded {
    std::size_t blocks = 0;      ///< on the device
    Array<std::size_t> block;    ///< by micro-batch: that of its forward
    Array<std::size_t> returned; ///< by micro-batch: that which it comes back to; no_slot: it stays
    StagingSlots inputs;         ///< of inputs that are back, if they are moved
    StagingSlots host;           ///< in the host's memory
    std::size_t inputs_at = 0;   ///< offset in the device's arena
    std::size_t host_at = 0;     ///< in the host's memory
    std::size_t retained = 0;    ///< bytes of a block
    std::size_t input = 0;       ///< of the cell's input, if it is moved
    bool with_input = false;     ///< whether it is

    /// Whether anything is: micro-batches may all be back too soon.
    constexpr bool moves() const { return host.slots > 0; }
    /// Of one micro-batch.
    constexpr std::size_t bytes() const { return retained + input; }

    /// Whether this micro-batch is.
    constexpr bool moved(std::size_t micro_batch) const {
        return !returned.empty() && returned[micro_batch] != no_slot;
    }
};

/// Plans that for one cell; bytes and offsets are left to the caller. `order` is
/// linear_order(lowered).
[[gnu::cold]] GPIPE_INLINE constexpr Offloaded assign_offloads(Lowered const& lowered,
                                                               Array<std::uint32_t> const& order,
                                                               HappensBefore const& happens_before,
                                                               std::size_t cell) {
    Programs const& programs = lowered.programs;
    std::size_t const micro_batches = programs.micro_batches();
    Offloaded result;
    result.block = result.returned = Array<std::size_t>(micro_batches, no_slot);
    result.inputs.slot = result.host.slot = result.block;
    Array<bool> leaves(micro_batches);
    for (std::size_t i = 0; i < programs.size(); ++i)
        if (programs[i].cell == cell && programs[i].kind == Kind::offload)
            leaves[programs[i].micro_batch] = true;

    detail::Window blocks(happens_before, std::min<std::size_t>(2, micro_batches),
                          2 * micro_batches);
    // Nobody waits for room in the host's memory.
    detail::Window host(happens_before, micro_batches, micro_batches);
    for (std::size_t rank = 0; rank < order.size(); ++rank) {
        std::size_t const i = order[rank];
        Action const a = programs[i];
        std::size_t const m = a.micro_batch;
        if (a.cell != cell) continue;
        if (a.kind == Kind::forward) result.block[m] = blocks.take(i, rank);
        if (a.kind == Kind::offload) {
            blocks.use(result.block[m], i);
            blocks.give_back(result.block[m], rank);
            result.host.slot[m] = host.take(i, rank);
        }
        if (a.kind == Kind::fetch) {
            host.use(result.host.slot[m], i);
            host.give_back(result.host.slot[m], rank);
            result.returned[m] = blocks.take(i, rank);
        }
        if (ends_backward(a.kind)) {
            std::size_t const block = leaves[m] ? result.returned[m] : result.block[m];
            blocks.use(block, i);
            blocks.give_back(block, rank);
        }
    }
    result.blocks = blocks.count();
    result.host.slots = host.count();
    // An input has a slot with each block that anything comes back to.
    Array<std::size_t> slot_of(result.blocks, no_slot);
    for (std::size_t m = 0; m < micro_batches; ++m) {
        if (!leaves[m]) continue;
        std::size_t& slot = slot_of[result.returned[m]];
        if (slot == no_slot) slot = result.inputs.slots++;
        result.inputs.slot[m] = slot;
    }
    return result;
}

} // namespace gpipe
