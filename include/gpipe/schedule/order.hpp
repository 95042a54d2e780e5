#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// One linear order of all actions that respects every program and every need: by start at unit
/// costs, then by device. It does not depend on threads or timing, so "the first failure" and every
/// other choice between devices is taken in this order.
[[gnu::cold]] GPIPE_INLINE constexpr Array<std::size_t> linear_order(Programs const& programs) {
    auto const times = simulate<std::int64_t>(programs, unit_cost);
    // A counting sort by start; indices ascend by device, and the sort is stable.
    Array<std::size_t> place(static_cast<std::size_t>(times.makespan) + 1);
    for (std::int64_t const s : times.start) ++place[static_cast<std::size_t>(s) + 1];
    for (std::size_t t = 1; t < place.size(); ++t) place[t] += place[t - 1];
    Array<std::size_t> order(programs.size());
    for (std::size_t i = 0; i < order.size(); ++i)
        order[place[static_cast<std::size_t>(times.start[i])]++] = i;
    return order;
}

} // namespace gpipe
