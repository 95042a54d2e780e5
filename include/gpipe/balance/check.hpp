#pragma once

#include <gpipe/balance/balance.hpp>

#include <cstddef>

namespace gpipe {

/// K cells of a chain of so many layers. These are structs so that the compiler's first line names
/// the numbers.
template <std::size_t K, std::size_t Layers> struct CheckCells {
    static_assert(K > 0, "gpipe: the number of cells is zero; a pipeline has at least one");
    static_assert(K == dynamic || K <= Layers,
                  "gpipe: there are more cells (the first number) than layers (the second); every "
                  "cell holds at least one layer");
};

/// The first zero entry of a balance; Index == Cells if there is none.
template <std::size_t Index, std::size_t Cells> struct CheckBalanceEntry {
    static_assert(Index == Cells,
                  "gpipe: an entry of the balance is zero (the first number is its index); every "
                  "cell holds at least one layer");
};

/// The sum of a balance, against the number of layers.
template <std::size_t Sum, std::size_t Layers> struct CheckBalanceSum {
    static_assert(Sum == Layers,
                  "gpipe: the balance sums to the first number, but the pipeline has as many "
                  "layers as the second; Cells<K> finds a balance by itself");
};

/// The entries of a balance, against the cells that the schedule has on each device.
template <std::size_t Entries, std::size_t CellsPerDevice> struct CheckBalanceDevices {
    static constexpr bool ok = Entries % CellsPerDevice == 0;
    static_assert(ok, "gpipe: the schedule has as many cells on each device as the second number, "
                      "and the entries of the balance (the first) are no multiple of it");
};

/// Whether a policy can cut this many layers: instantiating it is the check. What is known only at
/// construction is checked there, by check_cells and check_balance.
template <class Policy, std::size_t Layers, std::size_t CellsPerDevice = 1> struct CheckCut {
    static constexpr bool ok = true;
};

template <std::size_t K, class Objective, std::size_t Layers, std::size_t CellsPerDevice>
struct CheckCut<Cells<K, Objective>, Layers, CellsPerDevice>
    : CheckCells<K == dynamic ? dynamic : checked_product(K, CellsPerDevice), Layers> {
    static constexpr bool ok = K > 0 &&
                               (K == dynamic || checked_product(K, CellsPerDevice) <= Layers);
};

// A balance with a zero entry has said enough: its sum is not looked at.
template <std::size_t... Sizes, std::size_t Layers, std::size_t CellsPerDevice>
struct CheckCut<Balance<Sizes...>, Layers, CellsPerDevice>
    : CheckBalanceDevices<sizeof...(Sizes), CellsPerDevice>,
      CheckBalanceEntry<first_empty_cell(Balance<Sizes...>::sizes.data(), sizeof...(Sizes)),
                        sizeof...(Sizes)>,
      CheckBalanceSum<first_empty_cell(Balance<Sizes...>::sizes.data(), sizeof...(Sizes)) ==
                              sizeof...(Sizes)
                          ? balance_sum(Balance<Sizes...>::sizes.data(), sizeof...(Sizes))
                          : Layers,
                      Layers> {
    static constexpr bool ok =
        first_empty_cell(Balance<Sizes...>::sizes.data(), sizeof...(Sizes)) == sizeof...(Sizes) &&
        balance_sum(Balance<Sizes...>::sizes.data(), sizeof...(Sizes)) == Layers &&
        sizeof...(Sizes) % CellsPerDevice == 0;
};

} // namespace gpipe
