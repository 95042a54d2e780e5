#pragma once

#include <gpipe/checkpoint/fastest_reversal.hpp>
#include <gpipe/checkpoint/least_reversal.hpp>
#include <gpipe/checkpoint/piece.hpp>
#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/checkpoint/reversal_costs.hpp>
#include <gpipe/checkpoint/slots.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <stdexcept>

namespace gpipe {

/// What rotor() finds.
struct PieceReversal {
    bool possible = false;       ///< whether anything fits
    Array<ReversalStep> steps;   ///< of the layers, by their number in the cell
    double time = 0.0;           ///< of the forwards in the steps
    std::size_t least_bytes = 0; ///< the least budget that is possible, exactly
};

/// The fastest reversal of layers [first, last) of a cell, beginning with the input of `first`,
/// that takes at most budget_bytes beyond that input. Sizes are
/// rounded up to the budget by `slots`, so it never takes more, but may be slower than the best
/// that fits: not if all sizes are multiples of that, nor if the budget is less bytes than slots.
/// Possible if and only if the budget is at least least_bytes: where rounding leaves nothing, it is
/// the reversal that takes the least. A larger budget never makes it slower.
///
/// A 64-layer chain in 500 slots takes about 25 million additions; in constant evaluation 12 layers
/// in 16 slots are within the default limits of g++, clang and nvcc.
///
/// Throws as check_reversal_costs, and std::invalid_argument unless first < last <= layers and
/// slots is not zero.
GPIPE_INLINE constexpr PieceReversal rotor(ReversalCosts const& costs, std::size_t first,
                                           std::size_t last, std::size_t budget_bytes,
                                           std::size_t slots) {
    check_reversal_costs(costs);
    detail::check_slots(slots);
    if (first >= last || last > costs.layers())
        throw std::invalid_argument("gpipe: there is no such piece of the cell");
    detail::LeastReversals const least(costs, first, last);
    PieceReversal result;
    result.least_bytes = least.bytes(first, last);
    result.possible = result.least_bytes <= budget_bytes;
    if (!result.possible) return result;
    detail::FastestReversals const fastest(costs, first, last, {budget_bytes, slots});
    detail::StepList steps;
    result.time = fastest.times(first, last)[fastest.slots()];
    if (result.time < least.time(first, last)) {
        detail::append_piece(fastest, first, last, fastest.slots(), steps);
    } else {
        result.time = least.time(first, last);
        detail::append_piece(least, first, last, 0, steps);
    }
    result.steps = steps.steps();
    return result;
}

} // namespace gpipe
