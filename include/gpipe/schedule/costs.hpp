#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/action.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace gpipe {

/// The unit costs of the literature: forward, recompute, input gradient and weight gradient 1 each,
/// a whole backward 2.
GPIPE_INLINE constexpr std::int64_t unit_cost(Action const& action) {
    return action.kind == Kind::backward ? 2 : 1;
}

/// What a cell costs per micro-batch, in any unit of time; the cost function of a chain of equal
/// cells.
template <class Time> struct CellCosts {
    /// Of one micro-batch through the cell.
    Time forward{};
    /// Of the forward that runs again.
    Time recompute{};
    /// Of that half of the backward.
    Time input_gradient{};
    /// Of that half of the backward.
    Time weight_gradient{};
    std::optional<Time> backward{}; ///< if it is not the sum of the two gradients
    Time output_bytes{};            ///< to the next cell
    Time gradient_bytes{};          ///< to the cell before

    /// How long an action takes; 0 for any other kind.
    constexpr Time operator()(Action const& action) const {
        switch (action.kind) {
        case Kind::forward:
            return forward;
        case Kind::recompute:
            return recompute;
        case Kind::backward:
            return backward ? *backward : input_gradient + weight_gradient;
        case Kind::input_gradient:
            return input_gradient;
        case Kind::weight_gradient:
            return weight_gradient;
        default:
            return {};
        }
    }
    /// What a forward, backward or input gradient sends to the neighbouring cell.
    constexpr Time bytes(Action const& action) const {
        return action.kind == Kind::forward ? output_bytes : gradient_bytes;
    }
};

/// What a skip carries past cells, for a micro-batch.
template <class Time> struct SkipCosts {
    std::size_t from = 0;  ///< cell
    std::size_t to = 0;    ///< a later one
    Time output_bytes{};   ///< there
    Time gradient_bytes{}; ///< and back
};

/// The cost function of a chain of cells that differ.
template <class Time> struct ChainCosts {
    Array<CellCosts<Time>> cells;   ///< by cell
    Array<SkipCosts<Time>> skips{}; ///< between them

    /// What an action takes.
    constexpr Time operator()(Action const& action) const { return cells[action.cell](action); }
    /// What it sends on.
    constexpr Time bytes(Action const& action) const { return cells[action.cell].bytes(action); }
};

} // namespace gpipe
