#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/lower.hpp>
#include <gpipe/plan/simulate_lowered.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// The linear order of linear_order(Programs) with copies, which take one unit of time. Throws
/// std::logic_error if the programs wait for each other.
[[gnu::cold]] GPIPE_INLINE constexpr Array<std::size_t> linear_order(Lowered const& lowered) {
    auto const times = simulate<std::int64_t>(lowered, unit_cost);
    return detail::order_by(times.start, times.makespan);
}

/// What each action can be sure of when it starts (vector clocks; Fidge, Mattern 1988): how many
/// actions of every device have run, whatever the timing.
class HappensBefore {
  public:
    /// Of lowered programs.
    constexpr explicit HappensBefore(Programs const& programs) : HappensBefore(lower(programs)) {}
    /// The same with copies.
    constexpr explicit HappensBefore(Lowered const& lowered)
        : HappensBefore(lowered, linear_order(lowered)) {}
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
            for (std::size_t const needed : lowered.needs[i]) join(clock, needed);
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

} // namespace gpipe
