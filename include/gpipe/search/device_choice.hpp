#pragma once

#include <gpipe/search/reversal_choices.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace gpipe::detail {

/// What may be chosen for the cells of one device together. Every choice is there for one cell. Of
/// several cells those that are best for some heights of what their temporaries share, if their
/// blocks add up, and what each policy of the library would make of all of them. None of it depends
/// on a budget: so a larger one never makes a choice slower.
class DeviceChoice {
  public:
    static constexpr std::size_t none = static_cast<std::size_t>(-1);

    /// A choice for every cell, `picks` into its row.
    struct Combination {
        std::size_t bytes = 0;
        double time = 0;
        Array<std::uint32_t> picks;
    };

    constexpr DeviceChoice() = default;
    /// rows[c]: the choices of the device's cell c.
    constexpr DeviceChoice(Array<Array<ReversalChoice>> rows, BudgetEffort const& effort)
        : rows_(static_cast<Array<Array<ReversalChoice>>&&>(rows)), effort_(effort) {
        if (rows_.size() == 1) {
            for (std::uint32_t i = 0; i < rows_[0].size(); ++i) {
                Array<std::uint32_t> picks(1, i);
                add(picks);
            }
        } else {
            search();
        }
    }

    /// Adds one that is given by hand.
    constexpr void add(Array<std::uint32_t> const& picks) {
        Combination each{0, 0, picks};
        for (std::size_t c = 0; c < picks.size(); ++c) each.time += rows_[c][picks[c]].time;
        if (count_ == all_.size()) enlarge(all_, count_, 2 * count_ + 16);
        all_[count_++] = static_cast<Combination&&>(each);
    }

    /// Finds out what each takes: bytes(picks), of all that the device has.
    template <class Bytes> constexpr void weigh(Bytes bytes) {
        for (std::size_t i = 0; i < count_; ++i)
            all_[i].bytes =
                bytes([&, i](std::size_t c) -> Reversal const& { return reversal(i, c); });
    }

    /// The fastest within so many bytes, of equal ones the one with the fewest; none if there is
    /// none.
    constexpr std::size_t fastest(std::size_t bytes) const {
        std::size_t best = none;
        for (std::size_t i = 0; i < count_; ++i) {
            if (all_[i].bytes > bytes) continue;
            if (best == none || all_[i].time < all_[best].time ||
                (all_[i].time == all_[best].time && all_[i].bytes < all_[best].bytes))
                best = i;
        }
        return best;
    }
    constexpr std::size_t least_bytes() const {
        std::size_t least = std::numeric_limits<std::size_t>::max();
        for (std::size_t i = 0; i < count_; ++i) least = std::min(least, all_[i].bytes);
        return least;
    }
    constexpr std::size_t size() const { return count_; }
    constexpr Combination const& operator[](std::size_t i) const { return all_[i]; }
    /// What combination i has for the device's cell c.
    constexpr Reversal const& reversal(std::size_t i, std::size_t c) const {
        return rows_[c][all_[i].picks[c]].reversal;
    }
    /// The place of a reversal in the row of cell c, or none.
    constexpr std::size_t place(std::size_t c, std::size_t number) const {
        for (std::size_t i = 0; i < rows_[c].size(); ++i)
            if (rows_[c][i].number == number) return i;
        return none;
    }

  private:
    // Choices for the first cells, ascending in bytes and descending in time.
    struct State {
        std::size_t bytes = 0;
        double time = 0;
        std::size_t from = 0; // the state before
        std::uint32_t pick = 0;
    };

    constexpr void search() {
        std::size_t total = 0;
        for (auto const& row : rows_) total += row.size();
        Array<std::size_t> heights(total);
        std::size_t least = 0; // that leaves every cell a choice
        std::size_t at = 0;
        for (auto const& row : rows_) {
            std::size_t lowest = std::numeric_limits<std::size_t>::max();
            for (ReversalChoice const& choice : row) {
                heights[at++] = choice.temporary;
                lowest = std::min(lowest, choice.temporary);
            }
            least = std::max(least, lowest);
        }
        std::sort(heights.begin(), heights.end());
        std::size_t const* const begin = std::lower_bound(heights.begin(), heights.end(), least);
        auto const count = static_cast<std::size_t>(heights.end() - begin);
        std::size_t before = none;
        for (std::size_t h = 0; h < effort_.heights; ++h) {
            std::size_t const height = begin[(count - 1) * h / (effort_.heights - 1)];
            if (height != before) under(before = height);
        }
    }
    constexpr void under(std::size_t height) {
        std::size_t const cells = rows_.size();
        Array<Array<State>> states(cells + 1);
        states[0] = Array<State>(1);
        for (std::size_t c = 0; c < cells; ++c) states[c + 1] = extended(states[c], c, height);
        for (std::size_t s = 0; s < states[cells].size(); ++s) {
            Array<std::uint32_t> picks(cells);
            std::size_t at = s;
            for (std::size_t c = cells; c-- > 0; at = states[c + 1][at].from)
                picks[c] = states[c + 1][at].pick;
            add(picks);
        }
    }
    // With one of the next cell's choices each; the best of them, if they are too many some.
    constexpr Array<State> extended(Array<State> const& states, std::size_t cell,
                                    std::size_t height) const {
        Array<ReversalChoice> const& row = rows_[cell];
        Array<State> all(states.size() * row.size());
        std::size_t count = 0;
        for (std::uint32_t i = 0; i < row.size(); ++i) {
            if (row[i].temporary > height) continue;
            for (std::size_t s = 0; s < states.size(); ++s)
                all[count++] = {states[s].bytes + row[i].blocks, states[s].time + row[i].time, s,
                                i};
        }
        std::sort(all.begin(), all.begin() + count, [](State const& a, State const& b) {
            return a.bytes != b.bytes ? a.bytes < b.bytes : a.time < b.time;
        });
        std::size_t best = 0; // of those that are faster than all with fewer bytes
        for (std::size_t i = 0; i < count; ++i)
            if (best == 0 || all[i].time < all[best - 1].time) all[best++] = all[i];
        std::size_t const kept = std::min(best, effort_.most_states);
        Array<State> result(kept);
        for (std::size_t i = 0; i < kept; ++i)
            result[i] = all[kept == 1 ? 0 : i * (best - 1) / (kept - 1)];
        return result;
    }

    Array<Array<ReversalChoice>> rows_;
    BudgetEffort effort_{};
    Array<Combination> all_;
    std::size_t count_ = 0;
};

} // namespace gpipe::detail
