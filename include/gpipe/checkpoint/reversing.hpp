#pragma once

#include <gpipe/checkpoint/budget.hpp>
#include <gpipe/checkpoint/cell_to_reverse.hpp>
#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/checkpoint/weight_halves.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/halves.hpp>

#include <concepts>
#include <cstddef>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// A checkpointing policy that decides how the layers inside of a cell are reversed: what its
/// forward keeps, and what its backward runs again. Everything follows from `reversal`: the
/// recompute is what that has in front of its first backward, and is left out for the holder (see
/// checkpoint::ExceptLast) and where there is nothing. Of halves that a schedule has apart those
/// come late that the reversal says, see WeightHalf.
template <class C>
concept ReversingPolicy = requires(C const& policy, CellToReverse const& cell) {
    { policy.reversal(cell) } -> std::same_as<Reversal>;
};

/// Whether a policy reverses cells piece by piece, each by itself or all within a budget.
template <class C> inline constexpr bool reverses_cells = ReversingPolicy<C> || BudgetPolicy<C>;

/// By cell how a policy reverses it; none where it leaves that to the default.
template <class Checkpointing>
constexpr Array<Reversal> reversals_of(CutChain const& chain, Programs const& schedule,
                                       Checkpointing const& policy = {}) {
    if constexpr (!ReversingPolicy<Checkpointing>) {
        return {};
    } else {
        Array<Reversal> result(schedule.cells());
        Array<CellToReverse> const cells = cells_to_reverse(chain, schedule);
        for (std::size_t c = 0; c < result.size(); ++c) result[c] = policy.reversal(cells[c]);
        return result;
    }
}

/// A schedule's programs with backwards whole in the cells of which no half of a layer comes later;
/// as they are if no layers are known. `reversals`: by cell, or none. What is then proven, timed
/// and drawn is what runs.
GPIPE_INLINE constexpr Programs with_joined_halves(CutChain const& chain, Programs const& schedule,
                                                   Array<Reversal> const& reversals = {}) {
    if (chain.size == 0) return schedule;
    return join_halves(schedule, split_cells(chain, schedule.cells(), reversals));
}

/// The same where cells are reversed so, with recomputes.
GPIPE_INLINE constexpr Programs lower_reversed(CutChain const& chain, Programs const& schedule,
                                               Array<Reversal> const& reversals) {
    Array<bool> recomputes(reversals.size());
    for (std::size_t c = 0; c < reversals.size(); ++c) recomputes[c] = begins_again(reversals[c]);
    return recompute_if_not_held(with_joined_halves(chain, schedule, reversals), recomputes);
}

/// What a checkpointing policy makes of a schedule.
struct Checkpointed {
    Programs programs;         ///< with recomputes
    Array<Reversal> reversals; ///< by cell, or none
    /// If it is given, programs are the schedule's, and reversals yet to be chosen within it, once
    /// everything is known that memory is planned for.
    Budget budget{};
};

/// What the policy makes of a schedule over these layers, with backwards whole in cells of which no
/// layer has halves. Throws std::invalid_argument where a
/// policy chosen at construction refuses the cut.
template <class Checkpointing>
constexpr Checkpointed apply_checkpointing(CutChain const& chain, Programs schedule,
                                           Checkpointing const& policy = {}) {
    schedule = with_joined_halves(chain, schedule);
    if constexpr (ReversingPolicy<Checkpointing>) {
        Array<Reversal> reversals = reversals_of(chain, schedule, policy);
        Programs programs = lower_reversed(chain, schedule, reversals);
        return {static_cast<Programs&&>(programs), static_cast<Array<Reversal>&&>(reversals)};
    } else if constexpr (BudgetPolicy<Checkpointing>) {
        return {static_cast<Programs&&>(schedule), {}, policy.budget()};
    } else {
        return {policy.lower(schedule), {}};
    }
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
