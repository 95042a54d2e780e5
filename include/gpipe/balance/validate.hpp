#pragma once

#include <gpipe/core/checked.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/finite.hpp>
#include <gpipe/core/version.hpp>

#include <cstddef>
#include <stdexcept>

namespace gpipe {

/// What is wrong with a cost: nullptr if nothing is, else how it is described in an error.
GPIPE_INLINE constexpr char const* cost_fault(double cost) {
    if (detail::is_nan(cost)) return "not a number";
    if (!detail::is_finite(cost)) return "infinite";
    return cost < 0 ? "negative" : nullptr;
}

/// The first layer whose cost is negative, infinite or not a number; `layers` if there is none.
GPIPE_INLINE constexpr std::size_t first_invalid_cost(double const* costs, std::size_t layers) {
    for (std::size_t l = 0; l < layers; ++l)
        if (cost_fault(costs[l]) != nullptr) return l;
    return layers;
}

/// The first entry of a balance that is zero; `cells` if there is none.
GPIPE_INLINE constexpr std::size_t first_empty_cell(std::size_t const* sizes, std::size_t cells) {
    for (std::size_t k = 0; k < cells; ++k) {
        if (sizes[k] == 0) return k;
    }
    return cells;
}

/// The number of layers that a balance asks for. Stops at the largest std::size_t instead of
/// wrapping, so that a negative entry converted to std::size_t cannot pass for a fitting sum.
GPIPE_INLINE constexpr std::size_t balance_sum(std::size_t const* sizes, std::size_t cells) {
    std::size_t sum = 0;
    for (std::size_t k = 0; k < cells; ++k) sum = checked_sum(sum, sizes[k]);
    return sum;
}

/// Throws std::invalid_argument unless `layers` can be cut into `cells` non-empty cells.
GPIPE_INLINE constexpr void check_cells(std::size_t layers, std::size_t cells) {
    if (cells == 0)
        throw std::invalid_argument(
            "gpipe: the number of cells is zero; a pipeline has at least one");
    if (cells > layers)
        detail::throw_error<std::invalid_argument>(
            "gpipe: %zu cells are more than the %zu layers of the pipeline; every cell holds at "
            "least one layer",
            cells, layers);
}

/// Throws std::invalid_argument unless every cost is finite and not negative.
GPIPE_INLINE constexpr void check_costs(double const* costs, std::size_t layers) {
    std::size_t const l = first_invalid_cost(costs, layers);
    if (l != layers)
        detail::throw_error<std::invalid_argument>(
            "gpipe: the cost of layer %zu is %s; costs are finite and not negative", l,
            cost_fault(costs[l]));
}

/// Throws std::invalid_argument unless `sizes` are the sizes of non-empty cells that hold `layers`
/// layers.
GPIPE_INLINE constexpr void check_balance(std::size_t const* sizes, std::size_t cells,
                                          std::size_t layers) {
    if (cells == 0)
        throw std::invalid_argument(
            "gpipe: the balance is empty; a pipeline has at least one cell");
    std::size_t const k = first_empty_cell(sizes, cells);
    if (k != cells)
        detail::throw_error<std::invalid_argument>(
            "gpipe: entry %zu of the balance is zero; every cell holds at least one layer", k);
    std::size_t const sum = balance_sum(sizes, cells);
    if (sum != layers)
        detail::throw_error<std::invalid_argument>(
            "gpipe: the balance sums to %zu but the pipeline has %zu layers; Cells<K> finds a "
            "balance by itself",
            sum, layers);
}

} // namespace gpipe
