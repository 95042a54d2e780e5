#pragma once

#include <gpipe/checkpoint/reversing.hpp>

#include <string_view>
#include <type_traits>

namespace gpipe::checkpoint {

/// What Policy keeps from a cell's forward to its reversal, the cell's input included, waits in the
/// host's memory, for every micro-batch that is away long enough: see Offloads for which are, and
/// when they leave and come back. With Never that is all that backwards read, with ExceptLast the
/// inputs of cells alone. On a device only few micro-batches take memory then, whatever the
/// schedule; the copies run beside the layers, on streams of their own, and cost nothing if they
/// end in time: see offload_times(). What a cell reads or writes at its ends while it waits, the
/// output that a backward reads again, say, is not moved. (ZeRO-Offload, Ren et al. 2021; vDNN,
/// Rhu et al. 2016.)
///
/// A device whose memory is the host's has nothing to gain: there it is one copy more.
template <class Policy> struct Offload {
    using policy_kind = policy::Checkpointing;
    static_assert(ReversingPolicy<Policy> || std::is_same_v<Policy, Never> ||
                      std::is_same_v<Policy, ExceptLast>,
                  "gpipe: Offload<Policy> needs Never, ExceptLast or a policy that reverses cells");
    static constexpr std::string_view name = "offload";
    static constexpr Reversal reversal(CellToReverse const& cell) {
        Reversal result;
        if constexpr (std::is_same_v<Policy, Never>)
            result = keep_everything(cell.costs.layers());
        else if constexpr (std::is_same_v<Policy, ExceptLast>)
            result = equal_segments(cell.costs.layers(), 1);
        else
            result = Policy::reversal(cell);
        result.offload = true;
        return result;
    }
};

} // namespace gpipe::checkpoint
