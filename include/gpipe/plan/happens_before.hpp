#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/clocks.hpp>
#include <gpipe/plan/walk_order.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// What each action can be sure of when it starts (vector clocks; Fidge, Mattern 1988): how many
/// actions of every stream have run, whatever the timing, where nobody waits but for what he reads.
/// Takes room for as many numbers as actions times streams.
class HappensBefore {
    static constexpr std::uint32_t nobody = 0xFFFFFFFF;

  public:
    /// Of a table with such operands.
    constexpr HappensBefore(Walk const& walk, Operands const& operands)
        : streams_(walk.streams), all_(walk.order.size() * streams_), stream_(walk.stream),
          position_(walk.position) {
        // Addresses: in constant evaluation a call costs as much as the rest of a line.
        Array<std::uint32_t> lasts(streams_, nobody);
        std::uint32_t* const last = lasts.data();
        std::uint32_t* const clocks = all_.data();
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
                if (clock[stream[writer]] >= position[writer]) continue;
                std::uint32_t const* const other = clocks + writer * streams_;
                for (std::size_t s = 0; s < streams_; ++s)
                    if (clock[s] < other[s]) clock[s] = other[s];
                clock[stream[writer]] = position[writer];
            }
        }
    }

    /// Whether action `a` has run before action `b` starts, in every execution.
    constexpr bool operator()(std::size_t a, std::size_t b) const {
        return count(stream_[a], b) >= position_[a];
    }

    /// How many actions of a stream have run before this one starts, in every execution.
    constexpr std::uint32_t count(std::size_t stream, std::size_t action) const {
        return all_[action * streams_ + stream];
    }

  private:
    std::size_t streams_ = 0;
    Array<std::uint32_t> all_; // by action and stream
    Array<std::uint32_t> stream_;
    Array<std::uint32_t> position_; // from 1
};

namespace detail {

// The same along a walk, of the action that has begun last alone: in room for what is still to be
// asked for.
class SureAlong {
  public:
    constexpr SureAlong(Walk const& walk, Operands const& operands)
        : walk_(walk), operands_(operands), clocks_(lengths(walk), 1, walk.position) {}

    constexpr void begin(std::uint32_t i) {
        clocks_.begin(i, walk_.stream[i], walk_.position[i]);
        for (Operand const& operand : operands_[i]) {
            if (operand.use != Use::read) continue;
            std::uint32_t const writer = operands_.values[operand.value].writer;
            if (!(*this)(writer))
                clocks_.join(writer, walk_.stream[writer], walk_.position[writer]);
        }
    }
    // Whether this one has run before that starts, in every execution.
    constexpr bool operator()(std::size_t action) const {
        return clocks_.now(walk_.stream[action]) >= walk_.position[action];
    }

  private:
    static constexpr Array<std::uint32_t> lengths(Walk const& walk) {
        Array<std::uint32_t> result(walk.streams);
        for (std::uint32_t const s : walk.stream) ++result[s];
        return result;
    }

    Walk const& walk_;
    Operands const& operands_;
    Clocks clocks_;
};

// Who has used something last, as far as none is sure of another.
struct LastUsers {
    static constexpr std::uint32_t nobody = 0xFFFFFFFF;
    static constexpr std::size_t most = 4;
    std::uint32_t users[most] = {nobody, nobody, nobody, nobody};

    // Stands for all users that it is sure of: sure(action). Returns its place.
    template <class Sure> constexpr std::size_t add(std::uint32_t user, Sure const& sure) {
        std::size_t own = most;
        for (std::size_t u = most; u-- > 0;) {
            if (users[u] != nobody && users[u] != user && !sure(users[u])) continue;
            users[u] = nobody;
            own = u;
        }
        if (own == most) throw std::length_error("gpipe: a value that too many streams use");
        users[own] = user;
        return own;
    }
};

} // namespace detail

} // namespace gpipe
GPIPE_RUNS_ONCE_END
