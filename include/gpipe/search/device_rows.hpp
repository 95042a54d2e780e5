#pragma once

#include <gpipe/checkpoint/reversing_policies.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/search/device_choice.hpp>
#include <gpipe/search/reversal_choices.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpipe {

namespace detail {

GPIPE_INLINE constexpr CellReversals reversals_for(BudgetProblem const& problem, std::size_t cell,
                                                   Demands const* demands,
                                                   BudgetEffort const& effort) {
    return {problem, cell, demands[2].cells[cell].retained_blocks,
            demands[3].cells[cell].retained_blocks, effort};
}
GPIPE_INLINE constexpr Array<ReversalChoice> row_of(BudgetProblem const& problem, std::size_t cell,
                                                    Demands const* demands,
                                                    BudgetEffort const& effort) {
    CellReversals const reversals = reversals_for(problem, cell, demands, effort);
    Array<ReversalChoice> found(reversals.count());
    std::size_t count = 0;
    for (std::uint32_t number = 0; number < found.size(); ++number) {
        Reversal reversal = reversals.reversal(number);
        if (reversal.layers() == 0) continue;
        auto const& demand = demands[kind_of(reversal)].cells[cell];
        found[count++] = measure(problem, demand, cell, number, static_cast<Reversal&&>(reversal));
    }
    return first_of(found, count);
}

// What a device takes where its cells are reversed so, quickly planned: all that a plan gives it,
// if boundaries are as large as in plans of one kind.
template <class ReversalOf>
constexpr std::size_t device_bytes(BudgetProblem const& problem, std::size_t device,
                                   Array<std::size_t> const& cells, Demands const* demands,
                                   ReversalOf const& reversal_of) {
    std::size_t const all = problem.schedule.cells();
    Array<Reversal> reversals(all);
    CellMaker make{problem.chain, problem.first, reversals, Array<CellUse>(all), Array<bool>(all)};
    std::size_t bytes = demands[0].fixed[device];
    for (std::size_t i = 0; i < cells.size(); ++i) {
        Reversal const& reversal = reversals[cells[i]] = reversal_of(i);
        CellDemand const& demand = demands[kind_of(reversal)].cells[cells[i]];
        make.uses[cells[i]] = demand.use;
        bytes += demand.boundary;
    }
    Programs const programs = lower_reversed(problem.cut_chain(), problem.schedule, reversals);
    Ways const ways(programs);
    OwnNumbers const own(programs);
    DeviceParts const placed =
        DevicePlacer(programs, ways, device, own, make).place(Tightness::quick);
    return bytes + std::max(placed.height, placed.evaluation_height);
}

// Calls add(number) for what each of the library's policies that reverse each cell by itself makes
// of all cells: number(c) is that of cell c's reversal. `most`: layers of a cell.
template <class Add>
constexpr void each_policy(BudgetProblem const& problem, std::size_t most, Add add) {
    constexpr std::size_t begin = CellReversals::begin;
    add([](std::size_t) { return std::size_t{0}; });
    add([](std::size_t) { return std::size_t{1}; });
    for (std::size_t n = 1; n <= most; ++n)
        add([&](std::size_t c) {
            return begin + problem.layers(c) + std::min(n, problem.layers(c)) - 1;
        });
    for (std::size_t slots = 0; slots < most; ++slots)
        add([&](std::size_t c) {
            return begin + 2 * problem.layers(c) + std::min(slots, problem.layers(c) - 1);
        });
    Array<CellToReverse> const each = cells_to_reverse(problem.cut_chain(), problem.in_halves);
    add([&](std::size_t c) {
        Reversal const segments = checkpoint::SquareRoot::reversal(each[c]);
        std::size_t number = 0; // of segments but the first, of which the input is kept
        for (Keep const keep : segments.forward) number += keep == Keep::input;
        return begin + number;
    });
}
// The most layers of these cells, 0 if not all numbers of segments are looked at there.
GPIPE_INLINE constexpr std::size_t most_layers(BudgetProblem const& problem,
                                               Array<std::size_t> const& cells,
                                               BudgetEffort const& effort) {
    std::size_t most = 0;
    for (std::size_t const c : cells) most = std::max(most, problem.layers(c));
    return most > effort.most_numbers ? 0 : most;
}

GPIPE_INLINE constexpr void add_policies(BudgetProblem const& problem,
                                         Array<std::size_t> const& cells,
                                         BudgetEffort const& effort, DeviceChoice& choice) {
    std::size_t const most = most_layers(problem, cells, effort);
    if (cells.size() == 1 || most == 0) return;
    Array<std::uint32_t> picks(cells.size());
    each_policy(problem, most, [&](auto number) {
        for (std::size_t i = 0; i < cells.size(); ++i) {
            std::size_t const place = choice.place(i, number(cells[i]));
            if (place == DeviceChoice::none) return;
            picks[i] = static_cast<std::uint32_t>(place);
        }
        choice.add(picks);
    });
}

} // namespace detail

} // namespace gpipe
