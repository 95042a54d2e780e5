#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/lowered.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>

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

/// The same with copies, which take one unit of time. Throws std::logic_error if the programs
/// wait for each other.
[[gnu::cold]] GPIPE_INLINE constexpr Array<std::size_t> linear_order(Lowered const& lowered) {
    Programs const& programs = lowered.programs;
    Array<std::int64_t> start(programs.size());
    Array<std::int64_t> end(programs.size()); // 0: has not run
    Array<std::size_t> next(programs.devices());
    Array<std::int64_t> clock(programs.devices());
    for (std::size_t s = 0; s < programs.devices(); ++s) next[s] = programs.begin(s);
    std::int64_t makespan = 0;
    for (std::size_t left = programs.size(); left > 0;) {
        std::size_t const before = left;
        for (std::size_t s = 0; s < programs.devices(); ++s)
            for (; next[s] < programs.end(s); ++next[s], --left) {
                std::size_t const i = next[s];
                bool ready = true;
                for (std::size_t const needed : lowered.needs[i].action) {
                    if (needed == no_action) continue;
                    ready = ready && end[needed] > 0;
                    if (clock[s] < end[needed]) clock[s] = end[needed];
                }
                if (!ready) break;
                start[i] = clock[s];
                end[i] = clock[s] += unit_cost(programs[i]);
                if (makespan < end[i]) makespan = end[i];
            }
        if (left == before) throw std::logic_error("gpipe: the programs wait for each other");
    }
    return detail::order_by(start, makespan);
}

/// What each action can be sure of when it starts (vector clocks; Fidge, Mattern 1988): how many
/// actions of every device have run, whatever the timing.
class HappensBefore {
  public:
    /// Of lowered programs.
    constexpr explicit HappensBefore(Programs const& programs)
        : HappensBefore(lower(programs), linear_order(programs)) {}
    /// `order`: linear_order(lowered), or any other that respects it.
    constexpr HappensBefore(Lowered const& lowered, Array<std::size_t> const& order)
        : streams_(lowered.streams()), clocks_(order.size() * lowered.streams()),
          stream_(order.size()), position_(order.size()) {
        Programs const& programs = lowered.programs;
        for (std::size_t s = 0; s < streams_; ++s)
            for (std::size_t i = programs.begin(s); i < programs.end(s); ++i) {
                stream_[i] = s;
                position_[i] = i - programs.begin(s);
            }
        for (std::size_t const i : order) {
            std::uint32_t* const clock = clocks_.data() + i * streams_;
            if (position_[i] > 0) join(clock, i - 1);
            for (std::size_t const needed : lowered.needs[i].action)
                if (needed != no_action) join(clock, needed);
        }
    }

    /// Whether action `a` has run before action `b` starts, in every execution.
    constexpr bool operator()(std::size_t a, std::size_t b) const {
        return clocks_[b * streams_ + stream_[a]] > position_[a];
    }

  private:
    constexpr void join(std::uint32_t* clock, std::size_t earlier) {
        std::uint32_t const* const other = clocks_.data() + earlier * streams_;
        for (std::size_t s = 0; s < streams_; ++s)
            if (clock[s] < other[s]) clock[s] = other[s];
        std::uint32_t& own = clock[stream_[earlier]];
        if (own < position_[earlier] + 1) own = static_cast<std::uint32_t>(position_[earlier] + 1);
    }

    std::size_t streams_;
    Array<std::uint32_t> clocks_;
    Array<std::size_t> stream_;
    Array<std::size_t> position_;
};

/// Drops every need that the others of an action, and those before it in its program, imply.
[[gnu::cold]] GPIPE_INLINE constexpr void drop_implied(Lowered& lowered,
                                                       HappensBefore const& happens_before) {
    Programs const& programs = lowered.programs;
    for (std::size_t s = 0; s < lowered.streams(); ++s)
        for (std::size_t i = programs.begin(s); i < programs.end(s); ++i) {
            auto const implied = [&](std::size_t need, std::size_t by) {
                return by != no_action && (need == by || happens_before(need, by));
            };
            Needs const all = lowered.needs[i];
            Needs left;
            for (std::size_t const need : all.action) {
                if (need == no_action) continue;
                bool drop = implied(need, i > programs.begin(s) ? i - 1 : no_action);
                for (std::size_t const other : all.action)
                    drop = drop || (other != need && implied(need, other));
                if (!drop) left.add(need);
            }
            lowered.needs[i] = left;
        }
}

} // namespace gpipe
