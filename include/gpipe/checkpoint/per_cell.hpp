#pragma once

#include <gpipe/checkpoint/reversing.hpp>
#include <gpipe/checkpoint/reversing_policies.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/policy.hpp>
#include <gpipe/core/type_list.hpp>

#include <cstddef>
#include <stdexcept>
#include <string_view>
#include <type_traits>

namespace gpipe {

namespace detail {

/// How a policy reverses a cell as one of PerCell: Never keeps everything, ExceptLast is one
/// segment of all its layers.
template <class Policy>
constexpr Reversal reversal_in_cell(Policy const& policy, CellToReverse const& cell) {
    if constexpr (ReversingPolicy<Policy>)
        return policy.reversal(cell);
    else if constexpr (std::is_same_v<Policy, checkpoint::Never>)
        return keep_everything(cell.costs.layers());
    else
        return equal_segments(cell.costs.layers(), 1);
}
template <class Policy>
inline constexpr bool reverses_in_cell =
    ReversingPolicy<Policy> || std::is_same_v<Policy, checkpoint::Never> ||
    std::is_same_v<Policy, checkpoint::ExceptLast>;

// Throws std::invalid_argument unless there is a policy for each cell.
GPIPE_INLINE constexpr void check_per_cell(std::size_t policies, std::size_t cells) {
    if (policies != cells)
        throw_error<std::invalid_argument>(
            "gpipe: PerCell has %zu checkpointing policies for %zu cells", policies, cells);
}

} // namespace detail

/// That policy `Index` of a PerCell decides about one cell.
template <std::size_t Index, class Policy> struct CheckPolicyInCell {
    static consteval bool ok() {
        constexpr bool reverses = detail::reverses_in_cell<Policy>;
        constexpr bool is_always = std::is_same_v<Policy, checkpoint::Always>;
        static_assert(!is_always, "gpipe: Always runs again what the cell holds as well, whatever "
                                  "its reversal: PerCell takes ExceptLast instead");
        static_assert(is_always || reverses,
                      "gpipe: PerCell takes Never, ExceptLast and policies that reverse one cell "
                      "by itself, with: gpipe::Reversal reversal(gpipe::CellToReverse const& cell) "
                      "const");
        return reverses;
    }
};
/// That a PerCell has policies.
template <std::size_t policies> struct CheckPolicyCount {
    static consteval bool ok() {
        static_assert(policies > 0, "gpipe: PerCell needs a policy for each cell");
        return policies > 0;
    }
};

namespace detail {

template <class... Policies> consteval bool check_policies_in_cells() {
    constexpr std::size_t wrong = first_true({!reverses_in_cell<Policies>...});
    if constexpr (sizeof...(Policies) == 0)
        return CheckPolicyCount<sizeof...(Policies)>::ok();
    else if constexpr (wrong < sizeof...(Policies))
        return CheckPolicyInCell<wrong, typename List<Policies...>::template at<wrong>>::ok();
    else
        return (sound_policy<Policies> && ...);
}

} // namespace detail

namespace checkpoint {

/// A policy for each cell, in their order. Never keeps everything there, ExceptLast is one segment
/// of the whole cell. Throws std::invalid_argument if there are more or fewer cells.
template <class... Policies> struct PerCell {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "per-cell";      ///< what it is found by
    static constexpr std::size_t count = sizeof...(Policies); ///< cells that there must be
    static constexpr bool sound = gpipe::detail::check_policies_in_cells<Policies...>();
    static_assert(sound || true); // says it wherever the type is used

    /// Of one cell, by the policy of that cell.
    static constexpr Reversal reversal(CellToReverse const& cell) {
        using Reverses = Reversal (*)(CellToReverse const&);
        constexpr Reverses each[] = {&reversal_by<Policies>...};
        detail::check_per_cell(count, cell.cells);
        return each[cell.cell](cell);
    }

  private:
    template <class Policy> static constexpr Reversal reversal_by(CellToReverse const& cell) {
        return detail::reversal_in_cell(Policy{}, cell);
    }
};

} // namespace checkpoint

/// That a policy which has one for each cell has as many as there are cells.
template <class Policy, std::size_t policies, std::size_t cells> struct CheckPoliciesOfCells {
    static consteval bool ok() {
        static_assert(policies == cells,
                      "gpipe: PerCell has more or fewer checkpointing policies than there are "
                      "cells");
        return policies == cells;
    }
};

/// @cond
namespace detail {

template <class C, std::size_t> inline constexpr bool fits_cells = true;
template <class... Policies, std::size_t cells>
inline constexpr bool fits_cells<checkpoint::PerCell<Policies...>, cells> =
    CheckPoliciesOfCells<checkpoint::PerCell<Policies...>, sizeof...(Policies), cells>::ok();

} // namespace detail
/// @endcond

} // namespace gpipe
