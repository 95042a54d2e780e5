#pragma once

#include <gpipe/balance/bottleneck.hpp>
#include <gpipe/balance/prefix.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <bit>
#include <cstddef>
#include <utility>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

/// Of the cuts with no cell above a limit, the one with the least sum of squares of what cells cost
/// by their weights, and of several such the lexicographically smallest. The limit is one under
/// which a cut exists.
///
/// Dynamic programme from the back: least(k, i) = the least sum for cells k, k + 1, ... when cell k
/// begins at layer i, and choice(k, i) = the earliest beginning of cell k + 1 that attains it. The
/// square of an interval's cost obeys the quadrangle inequality, also if it is infinite above the
/// limit, so the choice never decreases with i: a row is solved at every 2^n-th place, then halfway
/// between, each time searching only between the choices of the two solved neighbours. O(cells *
/// layers * log layers) time, cells * (layers - cells + 1) indices of memory.
GPIPE_INLINE constexpr void least_squares(Units const* sums, std::size_t layers,
                                          Units const* weights, std::size_t cells, Units limit,
                                          std::size_t* first) {
    std::size_t const width = layers - cells + 1; // places where a cell can begin
    Array<std::size_t> earliest(cells + 1);
    Array<std::size_t> latest(cells + 1);
    Array<std::size_t> choices(cells * width);
    Array<SquaredUnits> storage(2 * width);
    earliest_cuts(sums, layers, weights, cells, limit, earliest.data());
    latest_cuts(sums, layers, weights, cells, limit, latest.data());
    std::size_t const* const early = earliest.data();
    std::size_t const* const late = latest.data();
    SquaredUnits* least = storage.data();
    SquaredUnits* rest = least + width; // the row of cell k + 1

    for (std::size_t i = early[cells - 1]; i <= late[cells - 1]; ++i) {
        Units const cost = weights[cells - 1] * (sums[layers] - sums[i]);
        rest[i - early[cells - 1]] = static_cast<SquaredUnits>(cost) * cost;
    }
    for (std::size_t k = cells - 1; k-- > 0;) {
        std::size_t* const choice = choices.data() + k * width;
        std::size_t const places = late[k] - early[k] + 1;
        std::size_t const next_early = early[k + 1];
        Units const weight = weights[k];
        for (std::size_t step = std::bit_floor(places); step > 0; step /= 2) {
            for (std::size_t place = step - 1; place < places; place += 2 * step) {
                std::size_t const i = early[k] + place;
                Units const before = sums[i];
                Units const reach = before + limit / weight;
                std::size_t from = place >= step ? choice[place - step] : next_early;
                std::size_t const to = place + step < places ? choice[place + step] : late[k + 1];
                if (from <= i) from = i + 1;
                std::size_t best_at = from;
                SquaredUnits best = ~SquaredUnits{0};
                for (std::size_t j = from; j <= to && sums[j] <= reach; ++j) {
                    Units const cost = weight * (sums[j] - before);
                    SquaredUnits const sum =
                        static_cast<SquaredUnits>(cost) * cost + rest[j - next_early];
                    if (sum < best) {
                        best = sum;
                        best_at = j;
                    }
                }
                least[place] = best;
                choice[place] = best_at;
            }
        }
        std::swap(least, rest);
    }

    first[0] = 0;
    for (std::size_t k = 0; k + 1 < cells; ++k)
        first[k + 1] = choices[k * width + (first[k] - early[k])];
    first[cells] = layers;
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
