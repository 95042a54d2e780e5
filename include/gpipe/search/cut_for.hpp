#pragma once

#include <gpipe/balance/balance.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/costs.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <algorithm>
#include <cstddef>

namespace gpipe {

/// Whether a cut can count how often cells run their layers.
template <class Cut>
concept WeighsCells = requires(double const* costs, std::size_t* first,
                               Array<std::size_t> const& weights) {
    Cut::objective_type::cut(costs, 1, 1, first, weights);
};

/// How many micro-batches cut_for() should see, of a schedule that needs `least`: fewer than there
/// are where that would be more than constant evaluation gets through. The same at run time, so
/// that both cut alike. 0: none, there are too many cells or too few micro-batches.
GPIPE_INLINE constexpr std::size_t weighed_micro_batches(std::size_t micro_batches,
                                                         std::size_t cells, std::size_t least) {
    std::size_t const most = cells > 0 ? 1024 / cells : 0;
    bool const enough = most >= cells && most >= least && micro_batches >= least;
    return enough ? std::min(most, micro_batches) : 0;
}

/// Cuts layers of these costs, whatever their cells do.
template <class Cut>
constexpr Array<std::size_t> cut_by_costs(Array<double> const& costs, std::size_t cells) {
    Array<std::size_t> first(cells + 1);
    Cut::cut(costs.data(), costs.size(), cells, first.data());
    return first;
}

namespace detail {

// By cell the unit costs of its actions: of all, or from the first on that is no forward. Before
// that pipelines fill up, and nobody waits for a cell that does less.
GPIPE_INLINE constexpr Array<std::size_t> work_by_cell(Programs const& programs, bool full) {
    Array<std::size_t> work(programs.cells());
    Array<bool> begun(programs.cells(), !full);
    for (Action const& a : programs) {
        if (a.kind != Kind::forward) begun[a.cell] = true;
        if (begun[a.cell]) work[a.cell] += static_cast<std::size_t>(unit_cost(a));
    }
    return work;
}

// Where each layer's forward takes its cost, as a share of `unit`, and its backward twice that.
GPIPE_INLINE constexpr double step_of(Programs const& programs, Array<double> const& costs,
                                      double unit, Array<std::size_t> const& first) {
    ChainCosts<double> chain{Array<CellCosts<double>>(programs.cells())};
    for (std::size_t c = 0; c < programs.cells(); ++c) {
        double cost = 0;
        for (std::size_t l = first[c]; l < first[c + 1]; ++l) cost += costs[l] / unit;
        chain.cells[c] = {cost, cost, cost, cost};
    }
    return simulate<double>(programs, chain).makespan;
}

} // namespace detail

/// Cuts layers of these costs for programs with their recomputes. Where some cells run more again
/// than others, three cuts are looked at, if Cut can weigh cells: by costs alone, by all that cells
/// do in a step, and by what they do once backwards have begun. The one whose simulated step is the
/// shortest is taken, by costs alone unless another is shorter. (Under 1F1B and ExceptLast the last
/// cell recomputes nothing, so it gets more layers. Under GPipe and ExceptLast that would make the
/// other cells wait: it runs forwards late.) Of several cells of a device each is weighed by
/// itself. The programs must have passed verify().
template <class Cut>
constexpr Array<std::size_t> cut_for(Array<double> const& costs, Programs const& programs) {
    std::size_t const cells = programs.cells();
    Array<std::size_t> best = cut_by_costs<Cut>(costs, cells);
    if constexpr (WeighsCells<Cut>) {
        Array<std::size_t> recomputes(cells);
        for (Action const& a : programs) recomputes[a.cell] += a.kind == Kind::recompute;
        bool alike = true;
        for (std::size_t const count : recomputes) alike = alike && count == recomputes[0];
        double const largest = *std::max_element(costs.begin(), costs.end());
        if (alike || largest == 0) return best;
        // Who has asked says what is wrong with a cut.
        auto const is_wrong = [&](Array<std::size_t> const& cut) {
            return first_wrong_cut(cut.data(), cells, costs.size()) <= cells;
        };
        if (is_wrong(best)) return best;
        double shortest = detail::step_of(programs, costs, largest, best);
        for (bool const full : {false, true}) {
            Array<std::size_t> other(cells + 1);
            Cut::objective_type::cut(costs.data(), costs.size(), cells, other.data(),
                                     detail::work_by_cell(programs, full));
            if (is_wrong(other)) return other;
            double const step = detail::step_of(programs, costs, largest, other);
            if (step > shortest * (1 - 1e-9)) continue; // by more than rounding
            shortest = step;
            best = static_cast<Array<std::size_t>&&>(other);
        }
    }
    return best;
}

} // namespace gpipe
