#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace gpipe::detail {

// Where `to` has less: of as many numbers as fill blocks of eight. As fast as a program asks for,
// unlike what is below: most of the time that many streams take goes by here.
template <class Count>
[[gnu::noinline]] void join_blocks(Count const* __restrict from, Count* __restrict to,
                                   std::size_t size) {
    constexpr std::size_t block = 8; // a constant, else g++ -O2 takes number by number
    for (; size > 0; size -= block, from += block, to += block)
        for (std::size_t n = 0; n < block; ++n) to[n] = to[n] < from[n] ? from[n] : to[n];
}

} // namespace gpipe::detail

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// A row of numbers, of either kind.
struct ClockRow {
    std::uint16_t* shorts = nullptr; // or else
    std::uint32_t* longs = nullptr;

    constexpr std::uint32_t operator[](std::size_t n) const {
        return shorts ? shorts[n] : longs[n];
    }
    // If it is less.
    constexpr void raise(std::size_t n, std::uint32_t number) {
        if ((*this)[n] >= number) return;
        if (shorts)
            shorts[n] = static_cast<std::uint16_t>(number);
        else
            longs[n] = number;
    }
};

// Rows of numbers, in as little room as the largest takes: of the clocks of a long table with many
// streams there are more than of all else that plans.
class ClockRows {
    static constexpr std::size_t block = 64; // rows that are allocated at once
    template <class T>
    constexpr void grow(Array<Array<T>>& rows, std::size_t before, std::size_t now) {
        enlarge(rows, before, now);
        for (std::size_t b = before; b < now; ++b) rows[b] = Array<T>(block * length_);
    }

  public:
    constexpr ClockRows(std::size_t length, std::size_t largest)
        : length_(length), short_(largest <= 0xFFFF && !std::is_constant_evaluated()) {
        if (short_) length_ = (length + 7) / 8 * 8; // see join_blocks()
    }

    constexpr std::size_t size() const { return size_; }
    constexpr void grow(std::size_t size) {
        std::size_t const before = size_ / block, now = (size + block - 1) / block;
        short_ ? grow(shorts_, before, now) : grow(longs_, before, now);
        size_ = now * block;
    }
    constexpr ClockRow operator[](std::size_t row) {
        std::size_t const at = row % block * length_;
        return short_ ? ClockRow{shorts_[row / block].data() + at, nullptr}
                      : ClockRow{nullptr, longs_[row / block].data() + at};
    }
    constexpr void clear(ClockRow to) const {
        if (short_) std::memset(to.shorts, 0, length_ * sizeof *to.shorts);
        for (std::size_t n = 0; n < length_ && !short_; ++n) to.longs[n] = 0;
    }
    constexpr void copy(ClockRow from, ClockRow to) const {
        if (short_) std::memcpy(to.shorts, from.shorts, length_ * sizeof *to.shorts);
        for (std::size_t n = 0; n < length_ && !short_; ++n) to.longs[n] = from.longs[n];
    }
    // Where `to` has less.
    constexpr void join(ClockRow from, ClockRow to) const {
        if (short_) return join_blocks(from.shorts, to.shorts, length_);
        for (std::size_t n = 0; n < length_; ++n)
            if (to.longs[n] < from.longs[n]) to.longs[n] = from.longs[n];
    }

  private:
    std::size_t length_;
    bool short_;
    std::size_t size_ = 0;
    Array<Array<std::uint16_t>> shorts_;
    Array<Array<std::uint32_t>> longs_;
};

// Vector clocks of actions that begin one after the other: up to which position on each stream each
// of them is sure of all. Kept as long as somebody may ask: what the last actions of all streams
// are sure of, all that come are, and with it of all that it was. So a step of a hundred streams
// that wait for each other all the time takes room for thousands of clocks, not for all its million
// actions.
class Clocks {
  public:
    // Of actions that go through so many rounds. `length`: by stream; `position`: in the first.
    constexpr Clocks(Array<std::uint32_t> const& length, std::size_t rounds,
                     Array<std::uint32_t> const& position)
        : streams_(length.size()), left_(streams_), place_(streams_), last_(streams_, none),
          known_(streams_), rows_(streams_, most_of(position) + (rounds - 1) * most_of(length)),
          row_of_(rounds * position.size(), none) {
        for (std::size_t s = 0; s < streams_; ++s) left_[s] = rounds * length[s];
    }

    // An action begins, the next of its stream: it knows all that the one before was sure of, and
    // that one.
    constexpr void begin(std::size_t action, std::size_t stream, std::uint32_t position) {
        if (free_count_ == 0) make_room();
        std::uint32_t const row = row_ = free_[--free_count_];
        now_ = rows_[row];
        last_[stream] == none ? rows_.clear(now_) : rows_.copy(rows_[row_of_[last_[stream]]], now_);
        now_.raise(stream, place_[stream]);
        place_[stream] = position_in_[row] = position;
        --left_[stream];
        last_[stream] = action_in_[row] = static_cast<std::uint32_t>(action);
        stream_in_[row] = static_cast<std::uint32_t>(stream);
        row_of_[action] = row;
    }
    // It is sure of this one, and of all that this one was sure of; of what all are sure of it is.
    constexpr void join(std::size_t action, std::size_t stream, std::uint32_t position) {
        std::uint32_t const row = row_of_[action];
        if (row != none && row != row_) rows_.join(rows_[row], now_);
        now_.raise(stream, position);
    }
    // Up to where on a stream it is sure now.
    constexpr std::uint32_t now(std::size_t stream) const { return now_[stream]; }
    // Up to where one before was, of which not all are sure.
    constexpr std::uint32_t count(std::size_t action, std::size_t stream) {
        return rows_[row_of_[action]][stream];
    }
    // For how many there is room.
    constexpr std::size_t room() const { return rows_.size(); }

  private:
    static constexpr std::uint32_t none = 0xFFFFFFFF;

    static constexpr std::size_t most_of(Array<std::uint32_t> const& numbers) {
        std::size_t most = 0;
        for (std::uint32_t const number : numbers) most = most < number ? number : most;
        return most;
    }
    // Lets go of all that nobody asks for; if these are few, there is room for twice as many.
    constexpr void make_room() {
        find_known();
        for (std::uint32_t row = 0; row < room(); ++row) {
            std::uint32_t const action = action_in_[row], stream = stream_in_[row];
            bool const goes_on = action == last_[stream] && left_[stream] > 0;
            if (action == none || goes_on || position_in_[row] > known_[stream]) continue;
            row_of_[action] = action_in_[row] = none;
            free_[free_count_++] = row;
        }
        if (free_count_ > room() / 4) return;
        std::size_t const before = room();
        std::size_t const wanted = before ? 2 * before : 8 * streams_;
        rows_.grow(wanted < row_of_.size() ? wanted : row_of_.size());
        enlarge(action_in_, before, room());
        enlarge(stream_in_, before, room());
        enlarge(position_in_, before, room());
        enlarge(free_, free_count_, room());
        for (std::size_t row = before; row < room(); ++row) {
            action_in_[row] = none;
            free_[free_count_++] = static_cast<std::uint32_t>(row);
        }
    }
    // Of each stream up to where all streams are sure that go on.
    constexpr void find_known() {
        for (std::uint32_t& count : known_) count = none;
        for (std::size_t s = 0; s < streams_; ++s) {
            if (left_[s] == 0) continue;
            for (std::size_t t = 0; t < streams_; ++t) {
                std::uint32_t const sure = t == s             ? place_[s]
                                           : last_[s] == none ? 0
                                                              : count(last_[s], t);
                if (known_[t] > sure) known_[t] = sure;
            }
        }
    }

    std::size_t streams_;
    Array<std::size_t> left_;    // by stream: actions that will begin
    Array<std::uint32_t> place_; // by stream: of the last that has
    Array<std::uint32_t> last_;  // by stream: that one
    Array<std::uint32_t> known_; // by stream, see find_known()
    std::uint32_t row_ = none;   // of the action that has begun last
    ClockRow now_;               // that one
    ClockRows rows_;
    Array<std::uint32_t> row_of_;                              // by action
    Array<std::uint32_t> action_in_, stream_in_, position_in_; // by row
    Array<std::uint32_t> free_;                                // rows
    std::size_t free_count_ = 0;
};

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
