#pragma once

#include <gpipe/checkpoint/fastest_reversal.hpp>
#include <gpipe/checkpoint/piece.hpp>
#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/checkpoint/reversal_costs.hpp>
#include <gpipe/checkpoint/slots.hpp>
#include <gpipe/core/array.hpp>

#include <cstddef>

namespace gpipe::detail {

/// The fastest reversal of a cell in a budget that what the micro-batches in flight retain shares
/// with the working bytes of the one that is being reversed. With w slots of working bytes, D(t, r)
/// is the least time that layers [0, t) run again when they and, if t < layers, the input of t
/// retain r slots, all micro-batches together:
///
///     D(t, r) = min( D(t - 1, r - all[t - 1])  if backward_temporary[t - 1] <= w,
///                    min over k < t of D(k, r - input[t]) + C(k, t, w) )
///
/// where the first line keeps layer t - 1 whole, which provides the input of t, and C is rotor's
/// time of the piece. A step is O(layers^2 * slots). Not every w is tried: more of both, slots to
/// work in and to retain, is never slower, so D(layers, slots - low) under w = high + 1 is a bound
/// for all w from low to high.
class FastestCell {
  public:
    constexpr FastestCell(ReversalCosts const& costs, FastestReversals const& fastest,
                          Slots const& slots, std::size_t in_flight)
        : layers_(costs.layers()), slots_(slots.count), fastest_(&fastest), all_(layers_),
          input_(layers_ + 1), backward_(layers_), rows_((layers_ + 1) * (slots_ + 1)) {
        for (std::size_t l = 0; l < layers_; ++l) {
            all_[l] = slots.of(costs.all[l], in_flight);
            input_[l] = slots.of(costs.input[l], in_flight); // that of 0 is not looked at
            backward_[l] = slots.of(costs.backward_temporary[l]);
        }
        Array<double> finals((slots_ + 1) * (slots_ + 1));
        search(slots_, slots_, finals); // first: a bound for all others
        if (slots_ > 0) search(0, slots_ - 1, finals);
    }

    /// never or more if it cannot be done.
    constexpr double time() const { return time_; }

    constexpr Reversal reversal() {
        solve(working_);
        PieceWriter writer(layers_);
        std::size_t room = slots_ - working_;
        for (std::size_t t = layers_; t > 0;) {
            double best = never;
            std::size_t first = t;
            std::size_t const before = room >= all_[t - 1] ? room - all_[t - 1] : 0;
            if (backward_[t - 1] <= working_ && all_[t - 1] <= room) best = row(t - 1)[before];
            for (std::size_t k = 0; k < t && input_[t] <= room; ++k) {
                double const time = row(k)[room - input_[t]] + fastest_->times(k, t)[working_];
                if (time >= best) continue;
                best = time;
                first = k;
            }
            if (first == t) {
                writer.whole(--t);
                room = before;
            } else {
                writer.piece(*fastest_, first, t, working_);
                room -= input_[t];
                t = first;
            }
        }
        return writer.finish();
    }

  private:
    constexpr double* row(std::size_t t) { return rows_.data() + t * (slots_ + 1); }

    // Tries all w from low to high. finals: D(layers, .) by w, where w has been tried.
    constexpr void search(std::size_t low, std::size_t high, Array<double>& finals) {
        std::size_t const width = slots_ + 1;
        if (high < slots_ && finals[(high + 1) * width + (slots_ - low)] >= time_) return;
        std::size_t const w = low + (high - low) / 2;
        solve(w);
        double* const final = finals.data() + w * width;
        for (std::size_t r = 0; r <= slots_; ++r) final[r] = row(layers_)[r];
        if (final[slots_ - w] < time_) {
            time_ = final[slots_ - w];
            working_ = w;
        }
        if (w > low) search(low, w - 1, finals);
        if (w < high) search(w + 1, high, finals);
    }

    constexpr void solve(std::size_t w) {
        double* const begin = row(0);
        for (std::size_t r = 0; r <= slots_; ++r) begin[r] = 0.0;
        for (std::size_t t = 1; t <= layers_; ++t) {
            double* const best = row(t);
            for (std::size_t r = 0; r <= slots_; ++r) best[r] = never;
            if (backward_[t - 1] <= w) {
                double const* const before = row(t - 1);
                std::size_t const size = all_[t - 1];
                for (std::size_t r = size; r <= slots_; ++r) best[r] = before[r - size];
            }
            std::size_t const size = input_[t];
            for (std::size_t k = 0; k < t; ++k) {
                double const again = fastest_->times(k, t)[w];
                if (again >= never) continue;
                double const* const before = row(k);
                for (std::size_t r = size; r <= slots_; ++r) {
                    double const time = before[r - size] + again;
                    if (time < best[r]) best[r] = time;
                }
            }
        }
    }

    std::size_t layers_;
    std::size_t slots_;
    FastestReversals const* fastest_;
    Array<std::size_t> all_; // in slots, of all micro-batches in flight, as is input_
    Array<std::size_t> input_;
    Array<std::size_t> backward_; // temporaries of one
    Array<double> rows_;          // D under one w
    double time_ = never;
    std::size_t working_ = 0;
};

} // namespace gpipe::detail
