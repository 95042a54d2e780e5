#pragma once

#include <gpipe/call/call.hpp>
#include <gpipe/chain/info.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/action.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// The bytes of a group of tensors in slots, from the first one's begin to the last one's end.
struct Extent {
    std::size_t before_last = 0; ///< bytes up to the last tensor
    std::size_t last = 0;        ///< for one sample

    /// Bytes for so many samples.
    constexpr std::size_t operator()(std::size_t samples) const {
        return before_last + last * samples;
    }
};
/// Of tensors in slots for `capacity` samples.
GPIPE_INLINE constexpr Extent extent(GroupSizes const& sizes, std::size_t capacity) {
    Extent result;
    for (std::size_t t = 0; t < sizes.count; ++t) {
        if (t > 0) result.before_last += slot_bytes(sizes.bytes[t - 1] * capacity);
        result.last = sizes.bytes[t];
    }
    return result;
}

/// What offloads bring to and from slower memory for a cell.
struct CellRow {
    std::uint32_t first = 0;  ///< layer
    std::size_t retained = 0; ///< bytes, in front of the input
    Extent input;             ///< none where it stays
};
/// No number of a Channel.
inline constexpr std::uint32_t no_channel = 0xFFFFFFFF;
/// What transfers bring over an edge.
struct EdgeRow {
    Extent tensors;   ///< there
    Extent gradients; ///< back
    /// To another rank: the Channel there; the next one goes back.
    std::uint32_t channel = no_channel;
};

/// One action with every address that it needs: a row of a lane's program, a cache line.
struct alignas(64) Step {
    Kind kind = Kind::forward;     ///< of action
    Phase phase = Phase::evaluate; ///< of the layers that it calls
    bool more = false;      ///< whether there is anything to do behind it: either of the next two
    bool publishes = false; ///< its position
    bool delivers = false;  ///< an evaluation's output
    std::uint32_t cell = 0; ///< as in Action
    std::uint32_t micro_batch = 0;  ///< likewise
    std::uint32_t stream = 0;       ///< that it runs on
    std::uint32_t position = 0;     ///< on its stream, from 1
    std::uint32_t first_wait = 0;   ///< among StepTable::waits: of this step's
    std::uint16_t waits = 0;        ///< how many: marks of other streams
    std::uint16_t waits_before = 0; ///< behind these, in the step before, if that may be under way
    std::uint32_t place = 0;        ///< in the linear order of all actions
    std::uint32_t action = 0;       ///< index among all actions of the programs
    std::uint32_t device = 0;       ///< whose action it is
    std::uint32_t calls = 0;        ///< which list: see Calls; of others Action::edge
    /// Among StepTable::addresses, of this micro-batch: by Region. The input of the first cell is
    /// the caller's; the input gradient is null where none crosses. A transfer goes from the input
    /// to the output; an offload from what is retained, and the input, to the output, a fetch from
    /// the input to what is retained, and to the output.
    std::uint32_t first_address = 0;
};

} // namespace gpipe
