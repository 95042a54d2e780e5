#pragma once

#include <gpipe/balance/prefix.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <utility>

/// Cuts with no cell above a limit. first[k] is the first layer of cell k and first[cells] ==
/// layers; a limit is at least the largest cost of one layer, and 1 <= cells <= layers.
namespace gpipe::detail {

/// The least limit under which a chain fits into the cells: the smallest bottleneck, exactly.
///
/// Bisection over a probe (Nicol 1994; Pinar and Aykanat 2004): fill one cell after the other as
/// far as the limit allows. Cells left empty at the end do no harm: dividing others among them
/// never raises the bottleneck. A probe that succeeds lowers the upper end to the bottleneck
/// attained; one that fails raises the lower end to the least cost at which any of its cells would
/// have grown, for below that the probe would do the same again. Each probe bounds the cuts of
/// those that follow, so later ones hardly search. At most 63 probes of O(cells log layers).
GPIPE_INLINE constexpr Units smallest_bottleneck(Units const* sums, std::size_t layers,
                                                 std::size_t cells, Units largest) {
    Units const total = sums[layers];
    Units const mean = total / cells + (total % cells != 0 ? 1 : 0);
    Units low = mean > largest ? mean : largest;
    // Under mean + largest, a cell that is full is above the mean, so the last cell gets less.
    Units high = total - mean > largest ? mean + largest : total;

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
            Units const reach = before + limit;
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
            if (sums[end] - before > attained) attained = sums[end] - before;
            if (end < layers && sums[end + 1] - before < growth) growth = sums[end + 1] - before;
            probe[k] = end;
            start = end;
        }
        Units const rest = total - sums[start];
        if (rest <= limit) {
            high = rest > attained ? rest : attained;
            std::swap(longest, probe);
        } else {
            low = rest < growth ? rest : growth;
            std::swap(shortest, probe);
        }
    }
    return low;
}

/// The cut in which every cell begins as early as it can under a limit: filled from the back, so
/// the smallest in every component, and with that the lexicographically smallest.
GPIPE_INLINE constexpr void earliest_cuts(Units const* sums, std::size_t layers, std::size_t cells,
                                          Units limit, std::size_t* first) {
    first[cells] = layers;
    for (std::size_t k = cells - 1; k > 0; --k) {
        Units const end = sums[first[k + 1]];
        std::size_t low = k;
        std::size_t high = first[k + 1] - 1;
        while (low < high) {
            std::size_t const middle = low + (high - low) / 2;
            if (end - sums[middle] <= limit) {
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
GPIPE_INLINE constexpr void latest_cuts(Units const* sums, std::size_t layers, std::size_t cells,
                                        Units limit, std::size_t* first) {
    first[0] = 0;
    for (std::size_t k = 1; k < cells; ++k) {
        Units const reach = sums[first[k - 1]] + limit;
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
