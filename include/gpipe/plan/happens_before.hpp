#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/lower.hpp>
#include <gpipe/plan/simulate_lowered.hpp>
#include <gpipe/schedule/walk.hpp>

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
/// actions of every stream have run, whatever the timing.
class HappensBefore {
  public:
    constexpr HappensBefore() = default;
    /// Of programs whose cells share their memory.
    constexpr explicit HappensBefore(Programs const& programs)
        : HappensBefore(programs, linear_order(programs)) {}
    /// The same; `order`: linear_order(programs).
    constexpr HappensBefore(Programs const& programs, Array<std::size_t> const& order)
        : streams_(programs.devices()), clocks_(programs.size() * streams_),
          stream_(programs.size()), position_(programs.size()) {
        number(programs);
        Array<std::uint32_t> needed(programs.size(), nobody);
        walk(programs, [&](std::size_t i, std::size_t by) {
            if (by != no_action) needed[i] = static_cast<std::uint32_t>(by);
        });
        for (std::size_t const i : order) {
            std::uint32_t* const clock = clocks_.data() + i * streams_;
            if (position_[i] > 1) join(clock, static_cast<std::uint32_t>(i - 1));
            if (needed[i] != nobody) join(clock, needed[i]);
        }
    }
    /// Where nobody waits but for what he reads.
    constexpr HappensBefore(Walk const& walk, Operands const& operands)
        : streams_(walk.streams), clocks_(walk.order.size() * streams_), stream_(walk.stream),
          position_(walk.position) {
        // Addresses: in constant evaluation a call costs as much as the rest of a line.
        Array<std::uint32_t> lasts(streams_, nobody);
        std::uint32_t* const last = lasts.data();
        std::uint32_t* const clocks = clocks_.data();
        std::uint32_t const* const stream = stream_.data();
        std::uint32_t const* const position = position_.data();
        Value const* const values = operands.values.data();
        for (std::uint32_t const i : walk.order) {
            std::uint32_t* const clock = clocks + i * streams_;
            std::uint32_t const before = last[stream[i]];
            last[stream[i]] = i;
            if (before != nobody) {
                std::uint32_t const* const other = clocks + before * streams_;
                for (std::size_t s = 0; s < streams_; ++s) clock[s] = other[s];
                clock[stream[i]] = position[before];
            }
            for (Operand const& operand : operands[i]) {
                if (operand.use != Use::read) continue;
                std::uint32_t const writer = values[operand.value].writer;
                if (clock[stream[writer]] < position[writer]) join(clock, writer);
            }
        }
    }
    /// Of lowered programs with their needs.
    constexpr explicit HappensBefore(Lowered const& lowered)
        : HappensBefore(lowered, linear_order(lowered)) {}
    /// `order`: linear_order(lowered), or any other that respects it.
    constexpr HappensBefore(Lowered const& lowered, Array<std::size_t> const& order)
        : streams_(lowered.streams()), clocks_(order.size() * streams_), stream_(order.size()),
          position_(order.size()) {
        number(lowered.programs);
        for (std::size_t const i : order) {
            std::uint32_t* const clock = clocks_.data() + i * streams_;
            if (position_[i] > 1) join(clock, static_cast<std::uint32_t>(i - 1));
            for (std::uint32_t const needed : lowered.needs[i]) join(clock, needed);
        }
    }

    /// Whether action `a` has run before action `b` starts, in every execution.
    constexpr bool operator()(std::size_t a, std::size_t b) const {
        return clocks_[b * streams_ + stream_[a]] >= position_[a];
    }

  private:
    static constexpr std::uint32_t nobody = 0xFFFFFFFF;
    constexpr void number(Programs const& programs) {
        for (std::size_t s = 0; s < streams_; ++s)
            for (std::size_t i = programs.begin(s); i < programs.end(s); ++i) {
                stream_[i] = static_cast<std::uint32_t>(s);
                position_[i] = static_cast<std::uint32_t>(i - programs.begin(s) + 1);
            }
    }
    constexpr void join(std::uint32_t* clock, std::uint32_t earlier) {
        if (clock[stream_[earlier]] >= position_[earlier]) return;
        std::uint32_t const* const other = clocks_.data() + earlier * streams_;
        for (std::size_t s = 0; s < streams_; ++s)
            if (clock[s] < other[s]) clock[s] = other[s];
        clock[stream_[earlier]] = position_[earlier];
    }

    std::size_t streams_ = 0;
    Array<std::uint32_t> clocks_; // by action and stream
    Array<std::uint32_t> stream_;
    Array<std::uint32_t> position_; // from 1
};

} // namespace gpipe
