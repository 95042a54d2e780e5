#pragma once

#include <gpipe/checkpoint/fastest_cell.hpp>
#include <gpipe/checkpoint/fastest_reversal.hpp>
#include <gpipe/checkpoint/least_cell.hpp>
#include <gpipe/checkpoint/least_reversal.hpp>
#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/checkpoint/reversal_costs.hpp>
#include <gpipe/checkpoint/revolve.hpp>
#include <gpipe/checkpoint/slots.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <stdexcept>
#include <utility>

namespace gpipe {

/// What optimal() finds.
struct OptimalReversal {
    bool possible = false;       ///< whether anything fits
    Reversal reversal;           ///< the fastest that does
    double time = 0.0;           ///< of the layers that run again, for one micro-batch
    ReversalBytes bytes;         ///< what it takes, exactly
    std::size_t least_bytes = 0; ///< the least budget that is possible, exactly
};

/// The reversal of a cell that runs its layers again for the least time, within a budget that so
/// many micro-batches in flight share: in_flight * retained + working bytes, see reversal_bytes().
/// Every layer is kept whole by the forward or lies in a piece, whose first input the forward
/// stores unless it is there; the piece is reversed later by rotor(). So it keeps everything where
/// that fits.
///
/// Sizes are rounded up to the budget by `slots`, as by rotor(), with the same consequences: it is
/// possible if and only if the budget is at least least_bytes, and a larger budget never makes it
/// slower. Nothing that keep_everything(), every_segment(), equal_segments() and revolve() make is
/// faster within the budget, whatever the rounding; nor, but for the rounding, is any other
/// reversal in which what is kept of a layer stays until its backward.
///
/// Throws as check_reversal_costs, and std::invalid_argument if in_flight or slots is zero.
GPIPE_INLINE constexpr OptimalReversal optimal(ReversalCosts const& costs, std::size_t in_flight,
                                               std::size_t budget_bytes, std::size_t slots) {
    check_reversal_costs(costs);
    detail::check_slots(slots);
    if (in_flight == 0)
        throw std::invalid_argument("gpipe: there is at least one micro-batch in flight");
    std::size_t const layers = costs.layers();
    detail::LeastReversals const least(costs, 0, layers);
    detail::LeastCell least_cell(costs, least, in_flight);
    OptimalReversal result;
    result.least_bytes = least_cell.bytes();
    if (result.least_bytes > budget_bytes) return result;

    auto const take = [&](Reversal&& other) { // if it is faster than what there is, and fits
        double const time = extra_time(other, costs);
        if (result.possible && time >= result.time) return;
        ReversalBytes const bytes = reversal_bytes(other, costs);
        if (bytes.working > budget_bytes ||
            bytes.retained > (budget_bytes - bytes.working) / in_flight)
            return;
        result.possible = true;
        result.reversal = std::move(other);
        result.time = time;
        result.bytes = bytes;
    };
    take(keep_everything(layers));
    if (result.possible) return result;
    detail::Slots const unit{budget_bytes, slots};
    detail::FastestReversals const fastest(costs, 0, layers, unit);
    detail::FastestCell cell(costs, fastest, unit, in_flight);
    if (cell.time() < detail::never) take(cell.reversal());
    take(least_cell.reversal());
    for (std::size_t n = 1; n <= layers; ++n) {
        take(equal_segments(layers, n));
        take(every_segment(layers, n));
        take(revolve(layers, n - 1));
    }
    return result;
}

} // namespace gpipe
