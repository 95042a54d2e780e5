#pragma once

#include <gpipe/checkpoint/least_reversal.hpp>
#include <gpipe/checkpoint/piece.hpp>
#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/checkpoint/reversal_costs.hpp>
#include <gpipe/core/array.hpp>

#include <cstddef>
#include <limits>

namespace gpipe::detail {

/// The reversal of a cell that takes the least bytes: for every number of working bytes at which
/// another piece becomes possible, the shortest path through the layers, a step being a piece or a
/// layer kept whole and its length what is retained. O(layers^4) time.
class LeastCell {
  public:
    constexpr LeastCell(ReversalCosts const& costs, LeastReversals const& least,
                        std::size_t in_flight)
        : costs_(&costs), least_(&least), retained_(costs.layers() + 1),
          begins_(costs.layers() + 1) {
        std::size_t const layers = costs.layers();
        for (std::size_t last = 1; last <= layers; ++last) {
            consider(costs.backward_temporary[last - 1], in_flight);
            for (std::size_t first = 0; first < last; ++first)
                consider(least.bytes(first, last), in_flight);
        }
    }

    constexpr std::size_t bytes() const { return bytes_; }

    constexpr Reversal reversal() {
        solve(working_);
        PieceWriter writer(costs_->layers());
        for (std::size_t last = costs_->layers(); last > 0;) {
            std::size_t const first = begins_[last];
            if (first == last) {
                writer.whole(--last);
            } else {
                writer.piece(*least_, first, last, 0);
                last = first;
            }
        }
        return writer.finish();
    }

  private:
    static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

    constexpr void consider(std::size_t working, std::size_t in_flight) {
        if (working >= bytes_) return;
        solve(working);
        std::size_t const retained = retained_[costs_->layers()];
        if (retained > (bytes_ - working) / in_flight) return;
        std::size_t const total = in_flight * retained + working;
        if (total >= bytes_) return;
        bytes_ = total;
        working_ = working;
    }
    // retained_[t]: the least that layers [0, t) and the input of t take, if that is needed;
    // begins_[t]: where the last piece begins, t if layer t - 1 is kept whole.
    constexpr void solve(std::size_t working) {
        std::size_t const layers = costs_->layers();
        retained_[0] = 0;
        for (std::size_t t = 1; t <= layers; ++t) {
            std::size_t best = none;
            if (costs_->backward_temporary[t - 1] <= working && retained_[t - 1] != none) {
                best = retained_[t - 1] + costs_->all[t - 1];
                begins_[t] = t;
            }
            std::size_t const input = t < layers ? costs_->input[t] : 0;
            for (std::size_t k = 0; k < t; ++k) {
                if (retained_[k] == none || least_->bytes(k, t) > working) continue;
                if (retained_[k] + input >= best) continue;
                best = retained_[k] + input;
                begins_[t] = k;
            }
            retained_[t] = best;
        }
    }

    ReversalCosts const* costs_;
    LeastReversals const* least_;
    Array<std::size_t> retained_;
    Array<std::size_t> begins_;
    std::size_t bytes_ = none;
    std::size_t working_ = 0;
};

} // namespace gpipe::detail
