#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/walk_order.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// What each action can be sure of when it starts (vector clocks; Fidge, Mattern 1988): how many
/// actions of every stream have run, whatever the timing, where nobody waits but for what he reads.
class HappensBefore {
    static constexpr std::uint32_t nobody = 0xFFFFFFFF;
    // In front of its use, for clang's constant evaluation.
    template <class Count>
    constexpr void fill(Array<Count>& all, Array<std::uint32_t> const& order,
                        Operands const& operands) {
        all = Array<Count>(order.size() * streams_);
        // Addresses: in constant evaluation a call costs as much as the rest of a line.
        Array<std::uint32_t> lasts(streams_, nobody);
        std::uint32_t* const last = lasts.data();
        Count* const clocks = all.data();
        std::uint32_t const* const stream = stream_.data();
        std::uint32_t const* const position = position_.data();
        Value const* const values = operands.values.data();
        for (std::uint32_t const i : order) {
            Count* const clock = clocks + i * streams_;
            std::uint32_t const before = last[stream[i]];
            last[stream[i]] = i;
            if (before != nobody) {
                Count const* const other = clocks + before * streams_;
                for (std::size_t s = 0; s < streams_; ++s) clock[s] = other[s];
                clock[stream[i]] = static_cast<Count>(position[before]);
            }
            for (Operand const& operand : operands[i]) {
                if (operand.use != Use::read) continue;
                std::uint32_t const writer = values[operand.value].writer;
                if (clock[stream[writer]] >= position[writer]) continue;
                Count const* const other = clocks + writer * streams_;
                for (std::size_t s = 0; s < streams_; ++s)
                    if (clock[s] < other[s]) clock[s] = other[s];
                clock[stream[writer]] = static_cast<Count>(position[writer]);
            }
        }
    }

  public:
    /// Of a table with such operands.
    constexpr HappensBefore(Walk const& walk, Operands const& operands)
        : streams_(walk.streams), stream_(walk.stream), position_(walk.position) {
        std::uint32_t longest = 0;
        for (std::uint32_t const place : position_) longest = longest < place ? place : longest;
        // A long table of many streams takes more room than all else that plans.
        if (longest <= 0xFFFF && !std::is_constant_evaluated())
            fill(short_, walk.order, operands);
        else
            fill(long_, walk.order, operands);
    }

    /// Whether action `a` has run before action `b` starts, in every execution.
    constexpr bool operator()(std::size_t a, std::size_t b) const {
        return count(stream_[a], b) >= position_[a];
    }

    /// How many actions of a stream have run before this one starts, in every execution.
    constexpr std::uint32_t count(std::size_t stream, std::size_t action) const {
        std::size_t const at = action * streams_ + stream;
        return short_.empty() ? long_[at] : short_[at];
    }

  private:
    std::size_t streams_ = 0;
    Array<std::uint16_t> short_; // by action and stream; or else
    Array<std::uint32_t> long_;
    Array<std::uint32_t> stream_;
    Array<std::uint32_t> position_; // from 1
};

namespace detail {

// Who has used something last, as far as none is sure of another.
struct LastUsers {
    static constexpr std::uint32_t nobody = 0xFFFFFFFF;
    static constexpr std::size_t most = 4;
    std::uint32_t users[most] = {nobody, nobody, nobody, nobody};

    // Stands for all users that it is sure of. Returns its place.
    constexpr std::size_t add(std::uint32_t user, HappensBefore const& before) {
        std::size_t own = most;
        for (std::size_t u = most; u-- > 0;) {
            if (users[u] != nobody && users[u] != user && !before(users[u], user)) continue;
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
