#pragma once

#include <gpipe/checkpoint/piece.hpp>
#include <gpipe/checkpoint/reversal_costs.hpp>
#include <gpipe/core/array.hpp>

#include <cstddef>

namespace gpipe::detail {

/// The reversal of every piece that takes the least bytes beyond the piece's input, of all in which
/// what is kept of a layer stays until its backward. No unit but bytes: a peak is a maximum of
/// sums, so the best of a piece is made of the best of its parts.
///
///     least(s, t) = min( all[s] + max(temporary[s], least(s + 1, t)),
///                        min over s < k < t of max(input[k] + least(k, t), least(s, k)) )
///
/// where the first line keeps s whole, with the larger of its two temporaries, and the second runs
/// to k and stores its input: in less room than least(s, k), which keeps the same layers whole. Of
/// equal ones the faster. O(layers^3) time, O(layers^2) memory.
class LeastReversals {
  public:
    /// Of the pieces of layers [begin, end).
    constexpr LeastReversals(ReversalCosts const& costs, std::size_t begin, std::size_t end)
        : costs_(&costs), bytes_(pieces(costs.layers())), times_(pieces(costs.layers())),
          splits_(pieces(costs.layers())) {
        for (std::size_t last = begin + 1; last <= end; ++last)
            for (std::size_t first = last; first-- > begin;) solve(first, last);
    }

    constexpr std::size_t bytes(std::size_t first, std::size_t last) const {
        return bytes_[piece(first, last)];
    }
    constexpr double time(std::size_t first, std::size_t last) const {
        return times_[piece(first, last)];
    }

    /// For append_piece, which needs no room here.
    constexpr std::size_t split(std::size_t first, std::size_t last, std::size_t) const {
        return splits_[piece(first, last)];
    }
    constexpr std::size_t beside_all(std::size_t, std::size_t room) const { return room; }
    constexpr std::size_t beside_input(std::size_t, std::size_t room) const { return room; }

  private:
    constexpr void solve(std::size_t s, std::size_t t) {
        std::size_t const* const input = costs_->input.data();
        std::size_t const* const bytes = bytes_.data();
        double const* const times = times_.data();
        // Kept whole.
        std::size_t least = costs_->forward_temporary[s];
        if (costs_->backward_temporary[s] > least) least = costs_->backward_temporary[s];
        if (s + 1 < t && bytes[piece(s + 1, t)] > least) least = bytes[piece(s + 1, t)];
        least += costs_->all[s];
        double time = costs_->forward[s] + (s + 1 < t ? times[piece(s + 1, t)] : 0.0);
        std::size_t split = s;
        // Up to k.
        double advance = 0.0;
        for (std::size_t k = s + 1; k < t; ++k) {
            advance += costs_->forward[k - 1];
            std::size_t need = input[k] + bytes[piece(k, t)];
            if (bytes[piece(s, k)] > need) need = bytes[piece(s, k)];
            if (need > least) continue;
            double const sum = advance + times[piece(k, t)] + times[piece(s, k)];
            if (need == least && sum >= time) continue;
            least = need;
            time = sum;
            split = k;
        }
        bytes_[piece(s, t)] = least;
        times_[piece(s, t)] = time;
        splits_[piece(s, t)] = split;
    }

    ReversalCosts const* costs_;
    Array<std::size_t> bytes_;
    Array<double> times_;
    Array<std::size_t> splits_; // the first layer of which something is kept beyond the input of s
};

} // namespace gpipe::detail
