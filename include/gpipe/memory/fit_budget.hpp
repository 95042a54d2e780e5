#pragma once

#include <gpipe/checkpoint/policies.hpp>
#include <gpipe/memory/device_choice.hpp>
#include <gpipe/memory/reversal_choices.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpipe {

/// What fit_budget() finds.
struct BudgetFit {
    bool fits = false;
    Array<Reversal> reversals;   ///< by cell
    Programs programs;           ///< the schedule with their recomputes
    std::size_t device = 0;      ///< if it does not fit: the first that lacks the most bytes
    std::size_t least_bytes = 0; ///< likewise: the least budget that would do
    std::size_t plans = 0;       ///< how many were made to find it
};

namespace detail {

constexpr Array<std::size_t> cells_of(Programs const& programs, std::size_t device) {
    std::size_t count = 0;
    for (std::size_t c = 0; c < programs.cells(); ++c) count += programs.device_of(c) == device;
    Array<std::size_t> cells(count);
    count = 0;
    for (std::size_t c = 0; c < programs.cells(); ++c)
        if (programs.device_of(c) == device) cells[count++] = c;
    return cells;
}

constexpr CellReversals reversals_for(BudgetProblem const& problem, std::size_t cell,
                                      Surroundings const* around, BudgetEffort const& effort) {
    return {problem, cell, around[2].cells[cell].retained_blocks,
            around[3].cells[cell].retained_blocks, effort};
}
constexpr Array<ReversalChoice> row_of(BudgetProblem const& problem, std::size_t cell,
                                       Surroundings const* around, BudgetEffort const& effort) {
    CellReversals const reversals = reversals_for(problem, cell, around, effort);
    Array<ReversalChoice> found(reversals.count());
    std::size_t count = 0;
    for (std::uint32_t number = 0; number < found.size(); ++number) {
        Reversal const reversal = reversals.reversal(number);
        if (reversal.layers() == 0) continue;
        found[count++] =
            measure(problem, around[kind_of(reversal)].cells[cell], cell, number, reversal);
    }
    Array<ReversalChoice> row(count);
    for (std::size_t i = 0; i < count; ++i) row[i] = found[i];
    return row;
}

// What the library's policies that reverse each cell by itself make of several cells of a device.
constexpr void add_policies(BudgetProblem const& problem, Array<std::size_t> const& cells,
                            BudgetEffort const& effort, DeviceChoice& choice) {
    std::size_t most = 0;
    for (std::size_t const c : cells) most = std::max(most, problem.layers(c));
    if (cells.size() == 1 || most > effort.most_numbers) return;
    Array<std::uint32_t> picks(cells.size());
    auto const add = [&](auto number) { // of a cell's reversals
        for (std::size_t i = 0; i < cells.size(); ++i) {
            std::size_t const place = choice.place(i, number(cells[i]));
            if (place == DeviceChoice::none) return;
            picks[i] = static_cast<std::uint32_t>(place);
        }
        choice.add(picks);
    };
    add([](std::size_t) { return std::size_t{0}; });
    for (std::size_t n = 1; n <= most; ++n)
        add([&](std::size_t c) { return problem.layers(c) + std::min(n, problem.layers(c)); });
    for (std::size_t slots = 0; slots < most; ++slots)
        add([&](std::size_t c) {
            return 1 + 2 * problem.layers(c) + std::min(slots, problem.layers(c) - 1);
        });
    Array<CellToReverse> const each = cells_to_reverse(problem.cut_chain(), problem.schedule);
    add([&](std::size_t c) {
        Reversal const segments = checkpoint::SquareRoot::reversal(each[c]);
        std::size_t number = 1; // of segments: of each but the first the input is kept
        for (Keep const keep : segments.forward) number += keep == Keep::input;
        return number;
    });
}

} // namespace detail

/// The search for reversals with which every device has at most so many bytes in all, as
/// plan_memory() has it, and on each the layers that run again take the least time, of what is
/// looked at: see detail::CellReversals and BudgetEffort. If no boundary has transfers, nothing
/// that EverySegment, SquareRoot and Revolve make of a device's cells is faster there and fits, nor
/// is everything kept or every cell run again as a whole; and more bytes never make a device
/// slower.
///
/// What a choice takes is exact: found from its layout. Only the outboxes of transfers depend on
/// what other cells choose. So the whole plan is made, and a device that has got more than it was
/// reckoned with chooses again with so much less.
class BudgetSearch {
  public:
    [[gnu::cold]] constexpr BudgetSearch(BudgetProblem problem, BudgetEffort const& effort = {})
        : problem_(static_cast<BudgetProblem&&>(problem)), effort_(effort),
          cells_(problem_.schedule.devices()), choices_(problem_.schedule.devices()) {
        for (std::size_t kind = 0; kind < detail::reversal_kinds; ++kind)
            around_[kind] = detail::surroundings(problem_, kind);
        for (std::size_t d = 0; d < cells_.size(); ++d) {
            cells_[d] = detail::cells_of(problem_.schedule, d);
            Array<Array<detail::ReversalChoice>> rows(cells_[d].size());
            for (std::size_t i = 0; i < rows.size(); ++i)
                rows[i] = detail::row_of(problem_, cells_[d][i], around_, effort);
            choices_[d] = {static_cast<Array<Array<detail::ReversalChoice>>&&>(rows),
                           around_[0].fixed[d], effort};
            detail::add_policies(problem_, cells_[d], effort, choices_[d]);
        }
    }

    [[gnu::cold]] constexpr BudgetFit fit(std::size_t bytes) const {
        BudgetFit result;
        result.plans = detail::reversal_kinds;
        try_fit(bytes, result);
        if (result.fits) return result;
        // What is named, does.
        for (BudgetFit other = result; !other.fits;) {
            result.least_bytes = other.least_bytes;
            result.device = other.device;
            try_fit(result.least_bytes, other);
        }
        return result;
    }

  private:
    constexpr void try_fit(std::size_t bytes, BudgetFit& fit) const {
        std::size_t const devices = cells_.size();
        Array<std::size_t> beyond(devices); // that a device has got more than it was reckoned with
        fit.reversals = Array<Reversal>(problem_.schedule.cells());
        fit.least_bytes = 0;
        while (!fit.fits) {
            Array<std::size_t> reckoned(devices);
            for (std::size_t d = 0; d < devices; ++d) {
                std::size_t const best = bytes < beyond[d] ? detail::DeviceChoice::none
                                                           : choices_[d].fastest(bytes - beyond[d]);
                if (best == detail::DeviceChoice::none) {
                    std::size_t const least = choices_[d].least_bytes() + beyond[d];
                    if (least > fit.least_bytes) fit.device = d;
                    fit.least_bytes = std::max(fit.least_bytes, least);
                    continue;
                }
                reckoned[d] = choices_[d][best].bytes;
                for (std::size_t i = 0; i < cells_[d].size(); ++i)
                    fit.reversals[cells_[d][i]] =
                        detail::reversals_for(problem_, cells_[d][i], around_, effort_)
                            .reversal(choices_[d].number(best, i));
            }
            if (fit.least_bytes > 0) return;
            fit.programs = lower_reversed(problem_.schedule, fit.reversals);
            MemoryPlan const plan = problem_.plan(fit.programs, fit.reversals);
            ++fit.plans;
            fit.fits = true;
            for (std::size_t d = 0; d < devices; ++d) {
                std::size_t const total = plan.devices[d].total();
                if (total <= bytes) continue;
                fit.fits = false;
                beyond[d] = total - reckoned[d];
            }
        }
    }

    BudgetProblem problem_;
    BudgetEffort effort_;
    detail::Surroundings around_[detail::reversal_kinds];
    Array<Array<std::size_t>> cells_; // by device
    Array<detail::DeviceChoice> choices_;
};

/// Fits reversals into so many bytes of each device.
[[gnu::cold]] constexpr BudgetFit fit_budget(BudgetProblem problem, std::size_t bytes,
                                             BudgetEffort const& effort = {}) {
    return BudgetSearch(static_cast<BudgetProblem&&>(problem), effort).fit(bytes);
}

} // namespace gpipe
