#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/version.hpp>

#include <cstddef>

namespace gpipe {

namespace detail {

GPIPE_INLINE constexpr double cell_cost(double const* costs, std::size_t first, std::size_t last) {
    double cost = 0.0;
    for (std::size_t l = first; l < last; ++l) cost += costs[l];
    return cost;
}

} // namespace detail

/// The cost of the most expensive cell of a cut, in the unit of the costs: what a step costs per
/// micro-batch once the pipeline is full. Cell k holds the layers first[k] <= l < first[k + 1].
GPIPE_INLINE constexpr double bottleneck(double const* costs, std::size_t const* first,
                                         std::size_t cells) {
    double largest = 0.0;
    for (std::size_t k = 0; k < cells; ++k) {
        double const cost = detail::cell_cost(costs, first[k], first[k + 1]);
        if (cost > largest) largest = cost;
    }
    return largest;
}

/// The variance of the costs of the cells (GPipe, section 2.2), over all cells of the cut, in the
/// unit of the costs squared. Infinite where a square is beyond the range of double.
GPIPE_INLINE constexpr double variance(double const* costs, std::size_t const* first,
                                       std::size_t cells) {
    double const number = static_cast<double>(cells);
    double const mean = detail::cell_cost(costs, first[0], first[cells]) / number;
    double sum = 0.0;
    for (std::size_t k = 0; k < cells; ++k) {
        double const excess = detail::cell_cost(costs, first[k], first[k + 1]) - mean;
        sum += excess * excess;
    }
    return sum / number;
}

} // namespace gpipe
