#pragma once

#include <gpipe/balance/bottleneck.hpp>
#include <gpipe/balance/least_squares.hpp>
#include <gpipe/balance/prefix.hpp>
#include <gpipe/balance/validate.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <bit>
#include <cstddef>
#include <stdexcept>

namespace gpipe {

/// Up to this many layers * cells, cut_by_bottleneck breaks ties by variance: as much as fits into
/// a quarter of the default limits of constant evaluation. The same at run time, so that a
/// network is cut alike whether its number of cells is a constant or dynamic.
inline constexpr std::size_t variance_tie_limit = 4096;

/// Cuts a chain of layers into non-empty cells so that the most expensive cell is as cheap as
/// possible: with many micro-batches, that cell is what a step takes. Exact.
///
/// costs[l] is the cost of layer l, in any unit; the cut goes to first[0 ... cells]: cell k holds
/// the layers first[k] <= l < first[k + 1], with first[0] == 0 and first[cells] == layers. Costs
/// are summed as integers of 63 bits, see detail::prefix_sums.
///
/// weights[k], if there are any, is how often cell k does what its layers cost: by their product
/// it is compared. Then no bottleneck counts for less than the most expensive layer would in the
/// cell of the largest weight.
///
/// Of several such cuts: where layers * cells <= variance_tie_limit, one of least variance, and of
/// these the lexicographically smallest vector `first`; beyond, the lexicographically smallest
/// `first` of all, in which every cell begins as early as the bottleneck allows (so what room there
/// is, is in front).
///
/// At most 63 probes of O(cells log layers), in practice about a dozen. In constant evaluation
/// 4,096 layers in 256 cells take a quarter of the default limit of clang, the smallest.
///
/// Throws std::invalid_argument (in constant evaluation: is not a constant) for zero cells, more
/// cells than layers, a cost that is negative or not finite, and a weight that is zero.
GPIPE_INLINE constexpr void cut_by_bottleneck(double const* costs, std::size_t layers,
                                              std::size_t cells, std::size_t* first,
                                              Array<std::size_t> const& weights = {}) {
    check_cells(layers, cells);
    check_costs(costs, layers);
    Array<detail::Units> by_cell(cells, 1);
    detail::Units heaviest = 1;
    for (std::size_t k = 0; k < cells && !weights.empty(); ++k) {
        by_cell[k] = weights[k];
        if (by_cell[k] == 0) throw std::invalid_argument("gpipe: the weight of a cell is zero");
        if (by_cell[k] > heaviest) heaviest = by_cell[k];
    }
    Array<detail::Units> storage(layers + 1);
    detail::Units* const sums = storage.data();
    detail::Units const largest =
        detail::prefix_sums(costs, layers, sums, static_cast<int>(std::bit_width(heaviest - 1)));
    detail::Units const* const weight = by_cell.data();
    detail::Units const limit = detail::smallest_bottleneck(sums, layers, weight, cells, largest);
    if (layers <= variance_tie_limit / cells) {
        detail::least_squares(sums, layers, weight, cells, limit, first);
    } else {
        detail::earliest_cuts(sums, layers, weight, cells, limit, first);
    }
}

/// Cuts a chain of layers into non-empty cells so that the variance of their costs is least: the
/// objective of the paper (GPipe, section 2.2). Their mean is given, so this is the least sum of
/// squares. Same arguments, sums and errors as cut_by_bottleneck; of several such cuts, the one
/// with the lexicographically smallest `first`.
///
/// Exact at any size: O(cells * layers * log layers) time, cells * layers indices of memory. The
/// same code runs in constant evaluation: up to layers * cells == 8,192 within the default limits
/// of g++, clang and nvcc; beyond, the compiler says that a limit is exceeded (-fconstexpr-steps,
/// -fconstexpr-ops-limit), it never gets another cut.
GPIPE_INLINE constexpr void cut_by_variance(double const* costs, std::size_t layers,
                                            std::size_t cells, std::size_t* first) {
    check_cells(layers, cells);
    check_costs(costs, layers);
    Array<detail::Units> storage(layers + 1);
    detail::Units* const sums = storage.data();
    detail::prefix_sums(costs, layers, sums);
    Array<detail::Units> const weights(cells, 1);
    detail::least_squares(sums, layers, weights.data(), cells, sums[layers], first);
}

} // namespace gpipe
