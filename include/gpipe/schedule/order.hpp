#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

namespace detail {

// A counting sort by start; indices ascend by device, and the sort is stable.
GPIPE_INLINE constexpr Array<std::size_t> order_by(Array<std::int64_t> const& start,
                                                   std::int64_t makespan) {
    Array<std::size_t> place(static_cast<std::size_t>(makespan) + 1);
    for (std::int64_t const s : start) ++place[static_cast<std::size_t>(s) + 1];
    for (std::size_t t = 1; t < place.size(); ++t) place[t] += place[t - 1];
    Array<std::size_t> order(start.size());
    for (std::size_t i = 0; i < start.size(); ++i)
        order[place[static_cast<std::size_t>(start[i])]++] = i;
    return order;
}

} // namespace detail

/// One linear order of all actions that respects every program and every need: by start at unit
/// costs, then by device. It does not depend on threads or timing, so "the first failure" and every
/// other choice between devices is taken in this order.
[[gnu::cold]] GPIPE_INLINE constexpr Array<std::size_t> linear_order(Programs const& programs) {
    auto const times = simulate<std::int64_t>(programs, unit_cost);
    return detail::order_by(times.start, times.makespan);
}

} // namespace gpipe
