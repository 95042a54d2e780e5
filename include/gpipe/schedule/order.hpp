#pragma once

#include <gpipe/schedule/simulate.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// One linear order of all actions that respects every program and every need: by start at unit
/// costs, then by device. It does not depend on threads or timing, so "the first failure" and every
/// other choice between devices is taken in this order.
[[gnu::cold]] constexpr Array<std::size_t> linear_order(Programs const& programs) {
    auto const times = simulate<std::int64_t>(programs, unit_cost);
    // A counting sort by start; indices ascend by device, and the sort is stable.
    Array<std::size_t> place(static_cast<std::size_t>(times.makespan) + 1);
    for (std::size_t i = 0; i < programs.size(); ++i)
        ++place[static_cast<std::size_t>(times.start[i]) + 1];
    for (std::size_t t = 1; t < place.size(); ++t) place[t] += place[t - 1];
    Array<std::size_t> order(programs.size());
    for (std::size_t i = 0; i < programs.size(); ++i)
        order[place[static_cast<std::size_t>(times.start[i])]++] = i;
    return order;
}

/// What each action can be sure of when it starts (vector clocks; Fidge, Mattern 1988): how many
/// actions of every device have run, whatever the timing.
class HappensBefore {
  public:
    constexpr explicit HappensBefore(Programs const& programs)
        : devices_(programs.devices()), clocks_(programs.size() * programs.devices()),
          device_(programs.size()), position_(programs.size()) {
        for (std::size_t d = 0; d < devices_; ++d)
            for (std::size_t i = programs.begin(d); i < programs.end(d); ++i) {
                device_[i] = d;
                position_[i] = i - programs.begin(d);
            }
        walk(programs, [&](std::size_t i, std::size_t needed) {
            std::uint32_t* const clock = clocks_.data() + i * devices_;
            if (position_[i] > 0) join(clock, i - 1);
            if (needed != no_action) join(clock, needed);
        });
    }

    /// Whether action `a` has run before action `b` starts, in every execution.
    constexpr bool operator()(std::size_t a, std::size_t b) const {
        return clocks_[b * devices_ + device_[a]] > position_[a];
    }

  private:
    constexpr void join(std::uint32_t* clock, std::size_t earlier) {
        std::uint32_t const* const other = clocks_.data() + earlier * devices_;
        for (std::size_t d = 0; d < devices_; ++d)
            if (clock[d] < other[d]) clock[d] = other[d];
        std::uint32_t& own = clock[device_[earlier]];
        if (own < position_[earlier] + 1) own = static_cast<std::uint32_t>(position_[earlier] + 1);
    }

    std::size_t devices_;
    Array<std::uint32_t> clocks_;
    Array<std::size_t> device_;
    Array<std::size_t> position_;
};

} // namespace gpipe
