#pragma once

#include <gpipe/balance/prefix.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

/// Cuts with no cell above a limit. first[k] is the first layer of cell k and first[cells] ==
/// layers; weights[k] > 0 is what a unit of cell k's cost counts, and 1 <= cells <= layers. A limit
/// is at least the largest cost of one layer by the largest weight, so that any cell can have it.
namespace gpipe::detail {

/// The least limit under which a chain fits into the cells: exactly the smallest bottleneck, unless
/// that is below all limits.
///
/// Bisection over a probe (Nicol 1994; Pinar and Aykanat 2004): fill one cell after the other as
/// far as the limit allows. Cells left empty at the end do no harm: dividing others among them
/// never raises the bottleneck. A probe that succeeds lowers the upper end to the bottleneck
/// attained; one that fails raises the lower end to the least cost at which any of its cells would
/// have grown, for below that the probe would do the same again. Each probe bounds the cuts of
/// those that follow, so later ones hardly search. At most 63 probes of O(cells log layers).
GPIPE_INLINE constexpr Units smallest_bottleneck(Units const* sums, std::size_t layers,
                                                 Units const* weights, std::size_t cells,
                                                 Units largest) {
    Units const total = sums[layers];
    Units const mean = total / cells + (total % cells != 0 ? 1 : 0);
    auto const [light, heavy] = std::minmax_element(weights, weights + cells);
    Units low = std::max(*light * mean, *heavy * largest);
    // Under mean + largest, a cell that is full is above the mean, so the last cell gets less.
    Units high = *heavy * (total - mean > largest ? mean + largest : total);

    Array<std::size_t> storage(3 * cells);
    std::size_t* shortest = storage.data(); // ends under `low` at the most: lower bounds of a probe
    std::size_t* longest = shortest + cells; // ends under `high` at the least: upper bounds
    std::size_t* probe = longest + cells;
    for (std::size_t k = 0; k < cells; ++k) {
        shortest[k] = k;
        longest[k] = layers;
    }

    while (low < high) {
        Units const limit = low + (high - low) / 2;
        Units attained = 0;
        Units growth = high;
        std::size_t start = 0;
        for (std::size_t k = 1; k < cells; ++k) {
            Units const before = sums[start];
            Units const weight = weights[k - 1];
            Units const reach = before + limit / weight;
            std::size_t end = shortest[k];
            std::size_t bound = longest[k];
            while (end < bound) {
                std::size_t const middle = bound - (bound - end) / 2;
                if (sums[middle] <= reach) {
                    end = middle;
                } else {
                    bound = middle - 1;
                }
            }
            attained = std::max(attained, weight * (sums[end] - before));
            if (end < layers) growth = std::min(growth, weight * (sums[end + 1] - before));
            probe[k] = end;
            start = end;
        }
        Units const rest = weights[cells - 1] * (total - sums[start]);
        if (rest <= limit) {
            high = std::max(rest, attained);
            std::swap(longest, probe);
        } else {
            low = std::min(rest, growth);
            std::swap(shortest, probe);
        }
    }
    return low;
}

/// The cut in which every cell begins as early as it can under a limit: filled from the back, so
/// the smallest in every component, and with that the lexicographically smallest.
GPIPE_INLINE constexpr void earliest_cuts(Units const* sums, std::size_t layers,
                                          Units const* weights, std::size_t cells, Units limit,
                                          std::size_t* first) {
    first[cells] = layers;
    for (std::size_t k = cells - 1; k > 0; --k) {
        Units const end = sums[first[k + 1]];
        Units const most = limit / weights[k];
        std::size_t low = k;
        std::size_t high = first[k + 1] - 1;
        while (low < high) {
            std::size_t const middle = low + (high - low) / 2;
            if (end - sums[middle] <= most) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        first[k] = low;
    }
    first[0] = 0;
}

/// The cut in which every cell begins as late as it can under a limit: filled from the front.
GPIPE_INLINE constexpr void latest_cuts(Units const* sums, std::size_t layers, Units const* weights,
                                        std::size_t cells, Units limit, std::size_t* first) {
    first[0] = 0;
    for (std::size_t k = 1; k < cells; ++k) {
        Units const reach = sums[first[k - 1]] + limit / weights[k - 1];
        std::size_t low = first[k - 1] + 1;
        std::size_t high = layers - (cells - k);
        while (low < high) {
            std::size_t const middle = high - (high - low) / 2;
            if (sums[middle] <= reach) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        first[k] = low;
    }
    first[cells] = layers;
}

} // namespace gpipe::detail
