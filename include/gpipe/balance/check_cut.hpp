#pragma once

#include <gpipe/balance/balance.hpp>
#include <gpipe/core/dynamic.hpp>

#include <cstddef>

namespace gpipe {

/// K cells of a chain of so many layers. These are structs so that the compiler's first line names
/// the numbers.
template <std::size_t K, std::size_t Layers> struct CheckCells {
    static consteval bool ok() {
        static_assert(K > 0, "gpipe: the number of cells is zero; a pipeline has at least one");
        static_assert(K == dynamic || K <= Layers,
                      "gpipe: there are more cells (K) than layers (Layers); every cell holds at "
                      "least one layer");
        return K > 0 && (K == dynamic || K <= Layers);
    }
};

/// The first zero entry of a balance; Index == Cells if there is none.
template <std::size_t Index, std::size_t Cells> struct CheckBalanceEntry {
    static consteval bool ok() {
        static_assert(Index == Cells, "gpipe: entry Index of the balance is zero; every cell holds "
                                      "at least one layer");
        return Index == Cells;
    }
};

/// The sum of a balance, against the number of layers.
template <std::size_t Sum, std::size_t Layers> struct CheckBalanceSum {
    static consteval bool ok() {
        static_assert(Sum == Layers,
                      "gpipe: the balance sums to Sum, but the pipeline has Layers layers; "
                      "Cells<K> finds a balance by itself");
        return Sum == Layers;
    }
};

/// The entries of a balance, against the cells that the schedule has on each device.
template <std::size_t Entries, std::size_t CellsPerDevice> struct CheckBalanceDevices {
    static consteval bool ok() {
        static_assert(Entries % CellsPerDevice == 0,
                      "gpipe: the schedule has CellsPerDevice cells on each device, and the "
                      "Entries entries of the balance are no multiple of it");
        return Entries % CellsPerDevice == 0;
    }
};

/// Whether a policy can cut this many layers. What is known only at construction is checked there,
/// by check_cells and check_balance.
template <class Policy, std::size_t Layers, std::size_t CellsPerDevice = 1> struct CheckCut {
    static consteval bool ok() { return true; }
};

/// What a cut is best at: a user's own, too.
template <class Objective> struct CheckObjective {
    static consteval bool ok() {
        constexpr bool cuts = requires(double const* costs, std::size_t n, std::size_t* first) {
            Objective::cut(costs, n, n, first);
        };
        static_assert(cuts, "gpipe: what a cut is best at (Objective) has: static constexpr void "
                            "cut(double const* costs, std::size_t layers, std::size_t cells, "
                            "std::size_t* first), which fills first[0 ... cells]");
        return cuts;
    }
};

/// Where a cut has cut Layers layers: cell Cell begins with First, and the one before it
/// with Before; Cell > Cells if nothing is wrong.
template <class Cut, std::size_t Cell, std::size_t First, std::size_t Before, std::size_t Cells,
          std::size_t Layers>
struct CheckFoundCut {
    static consteval bool ok() {
        static_assert(Cell > Cells,
                      "gpipe: the cut (Cut) is wrong at first[Cell], which it fills with First "
                      "behind Before: first[0] is 0, first[Cells] is Layers, and each is more than "
                      "the one before");
        return Cell > Cells;
    }
};

/// Of a number of cells.
template <std::size_t K, class Objective, std::size_t Layers, std::size_t CellsPerDevice>
struct CheckCut<Cells<K, Objective>, Layers, CellsPerDevice> {
    static consteval bool ok() {
        if constexpr (!CheckObjective<Objective>::ok())
            return false;
        else
            return CheckCells < K == dynamic ? dynamic : checked_product(K, CellsPerDevice),
                   Layers > ::ok();
    }
};

/// A balance with a zero entry has said enough: its sum is not looked at.
template <std::size_t... Sizes, std::size_t Layers, std::size_t CellsPerDevice>
struct CheckCut<Balance<Sizes...>, Layers, CellsPerDevice> {
    static consteval bool ok() {
        constexpr std::size_t entries = sizeof...(Sizes);
        constexpr std::size_t empty = first_empty_cell(Balance<Sizes...>::sizes.data(), entries);
        if constexpr (entries % CellsPerDevice != 0)
            return CheckBalanceDevices<entries, CellsPerDevice>::ok();
        else if constexpr (empty != entries)
            return CheckBalanceEntry<empty, entries>::ok();
        else
            return CheckBalanceSum<balance_sum(Balance<Sizes...>::sizes.data(), entries),
                                   Layers>::ok();
    }
};

} // namespace gpipe
