#pragma once

#include <gpipe/checkpoint/cell_to_reverse.hpp>
#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/checkpoint/reversal_costs.hpp>
#include <gpipe/checkpoint/revolve.hpp>
#include <gpipe/core/dynamic.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe {

/// The layers in a segment of EverySegment<n>.
template <std::size_t n> struct CheckSegment {
    static consteval bool ok() {
        static_assert(n > 0, "gpipe: EverySegment<n> needs segments of at least one layer");
        return n > 0;
    }
};

} // namespace gpipe

/// Checkpointing policies that reverse each cell by itself. As with the extents of mdspan, their
/// numbers are constants or `dynamic`, and then given to the object.
namespace gpipe::checkpoint {

/// Segments of n layers inside of each cell, the last one of what is left: the forward keeps their
/// inputs; each, the last first, is run again right before its backwards.
template <std::size_t n> struct EverySegment {
    static constexpr bool sound = CheckSegment<n>::ok();
    static_assert(sound || true); // says it wherever the type is used
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "every-segment"; ///< what it is found by
    /// Of one cell.
    static constexpr Reversal reversal(CellToReverse const& cell) {
        return every_segment(cell.costs.layers(), n);
    }
};
/// Throws std::invalid_argument if n is zero.
template <> struct EverySegment<dynamic> {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "every-segment"; ///< what it is found by
    std::size_t n = 0;                                        ///< layers in a segment
    /// Of one cell.
    constexpr Reversal reversal(CellToReverse const& cell) const {
        return every_segment(cell.costs.layers(), n);
    }
};

/// As many segments as take the least memory by the square root rule, with all micro-batches in
/// flight counted: see square_root().
struct SquareRoot {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "square-root"; ///< what it is found by
    /// Of one cell.
    static constexpr Reversal reversal(CellToReverse const& cell) {
        return square_root(cell.costs, cell.in_flight);
    }
};

/// The fewest forwards with `slots` inputs of layers stored inside of each cell, for layers of
/// equal cost: see revolve(). One layer at a time is kept whole.
template <std::size_t slots> struct Revolve {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "revolve"; ///< what it is found by
    /// Of one cell.
    static constexpr Reversal reversal(CellToReverse const& cell) {
        return revolve(cell.costs.layers(), slots);
    }
};
/// The same with a number chosen at construction.
template <> struct Revolve<dynamic> {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "revolve"; ///< what it is found by
    std::size_t slots = 0; ///< inputs of layers that are stored at a time
    /// Of one cell.
    constexpr Reversal reversal(CellToReverse const& cell) const {
        return revolve(cell.costs.layers(), slots);
    }
};

/// Selective recomputation (Korthikanti et al. 2022): layers that declare recompute_is_cheap run
/// again, each run of them right before its backwards; all others are kept whole.
struct Selective {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "selective"; ///< what it is found by
    /// Of one cell.
    static constexpr Reversal reversal(CellToReverse const& cell) {
        Array<bool> expensive(cell.costs.layers());
        for (std::size_t l = 0; l < expensive.size(); ++l) expensive[l] = !cell.cheap[l];
        return selective(expensive);
    }
};

} // namespace gpipe::checkpoint
