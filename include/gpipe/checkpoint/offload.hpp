#pragma once

#include <gpipe/checkpoint/per_cell.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe {

/// That what is put around Policy, Offload or WeightHalves, knows how it reverses a cell.
template <class Policy> struct CheckInCell {
    static consteval bool ok() {
        constexpr bool reverses = detail::reverses_in_cell<Policy>;
        static_assert(reverses,
                      "gpipe: Offload and WeightHalves take Never, ExceptLast or a policy "
                      "that reverses one cell by itself, with: gpipe::Reversal "
                      "reversal(gpipe::CellToReverse const& cell) const");
        return reverses && detail::sound_policy<Policy>;
    }
};

} // namespace gpipe

namespace gpipe::checkpoint {

/// What Policy keeps from a cell's forward to its reversal, the cell's input included, waits in the
/// host's memory, for every micro-batch that is away long enough: see Offloads for which are, and
/// when they leave and come back. With Never that is all that backwards read, with ExceptLast the
/// inputs of cells alone. On a device only few micro-batches take memory then, whatever the
/// schedule; the copies run beside the layers, on streams of their own, and cost nothing if they
/// end in time: see offload_times(). (vDNN, Rhu et al. 2016; ZeRO-Offload, Ren et al. 2021.)
///
/// Not moved are inputs that the cell before reads again, as its output, and those that wait for
/// the forward: the last cell's, where that runs right before its backward. A device whose memory
/// is the host's has nothing to gain: there it is one copy more.
template <class Policy> struct Offload {
    using policy_kind = policy::Checkpointing;
    static constexpr bool sound = CheckInCell<Policy>::ok();
    static_assert(sound || true);                       // says it wherever the type is used
    static constexpr std::string_view name = "offload"; ///< what it is found by
    /// What decides about the layers.
    [[no_unique_address]] Policy policy{};

    /// Of one cell, by `policy`, and moved to the host's memory.
    constexpr Reversal reversal(CellToReverse const& cell) const {
        Reversal result = gpipe::detail::reversal_in_cell(policy, cell);
        result.offload = true;
        return result;
    }
};

/// The fastest reversals within so many bytes of each device as Optimal has them, where what cells
/// keep may wait in the host's memory. That is simulated, too, and chosen where a step is shorter
/// by it; copies take as long as Policy's bandwidth says, if it has one, else no time.
template <BudgetPolicy Policy> struct Offload<Policy> {
    using policy_kind = policy::Checkpointing;
    static constexpr bool sound = gpipe::detail::sound_policy<Policy>;
    static constexpr std::string_view name = "offload"; ///< what it is found by
    /// What has the numbers.
    [[no_unique_address]] Policy policy{};

    /// The numbers, as fit_budget() takes them.
    constexpr Budget budget() const {
        Budget result = policy.budget();
        result.offloads = true;
        return result;
    }
};

} // namespace gpipe::checkpoint

/// @cond
namespace gpipe::detail {

template <class Policy, std::size_t cells>
inline constexpr bool fits_cells<checkpoint::Offload<Policy>, cells> = fits_cells<Policy, cells>;

} // namespace gpipe::detail
/// @endcond
