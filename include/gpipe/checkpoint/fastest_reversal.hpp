#pragma once

#include <gpipe/checkpoint/piece.hpp>
#include <gpipe/checkpoint/reversal_costs.hpp>
#include <gpipe/checkpoint/slots.hpp>
#include <gpipe/core/array.hpp>

#include <cstddef>
#include <limits>

namespace gpipe::detail {

/// The time of what cannot be; sums of three do not overflow.
inline constexpr double never = std::numeric_limits<double>::max() / 8;

/// The fastest reversal of every piece in every number of slots up to a budget, of all in which
/// what is kept of a layer stays until its backward: the dynamic programme of Beaumont et al.,
/// "Optimal checkpointing for heterogeneous chains" (TOMS 2024), known as rotor. C(s, t, m) is the
/// time of the forwards that reverse layers [s, t) in m slots beyond the input of s:
///
///     C(s, t, m) = min( forward[s] + C(s + 1, t, m - all[s]),
///                       min over s < k < t of
///                           forward[s ... k - 1] + C(k, t, m - input[k]) + C(s, k, m) )
///
/// where the first line keeps s whole, which takes all[s] + max(forward_temporary[s],
/// backward_temporary[s]) <= m, and the second runs to k and stores its input: in less room than
/// the same layers take when C(s, k, m) keeps them whole. O(layers^3 * slots) time, O(layers^2 *
/// slots) memory.
class FastestReversals {
  public:
    /// Of the pieces of layers [begin, end).
    constexpr FastestReversals(ReversalCosts const& costs, std::size_t begin, std::size_t end,
                               Slots const& slots)
        : layers_(costs.layers()), slots_(slots.count), forward_(costs.forward.data()),
          input_(layers_), all_(layers_), whole_(layers_), times_(pieces(layers_) * (slots_ + 1)) {
        for (std::size_t l = 0; l < layers_; ++l) {
            std::size_t const a = costs.forward_temporary[l];
            std::size_t const b = costs.backward_temporary[l];
            input_[l] = slots.of(costs.input[l]);
            all_[l] = slots.of(costs.all[l]);
            whole_[l] = slots.of(costs.all[l] + (a > b ? a : b));
        }
        for (std::size_t last = begin + 1; last <= end; ++last)
            for (std::size_t first = last; first-- > begin;) solve(first, last);
    }

    constexpr std::size_t slots() const { return slots_; }
    /// By number of slots; never or more where it cannot be done.
    constexpr double const* times(std::size_t first, std::size_t last) const {
        return times_.data() + piece(first, last) * (slots_ + 1);
    }

    /// For detail::append_piece: the first layer of which the fastest reversal in so many slots
    /// keeps something beyond the input of s, which is s if that is kept whole.
    constexpr std::size_t split(std::size_t s, std::size_t t, std::size_t m) const {
        double best = never;
        std::size_t at = s;
        if (whole_[s] <= m) best = forward_[s] + (s + 1 < t ? times(s + 1, t)[m - all_[s]] : 0.0);
        double advance = 0.0;
        for (std::size_t k = s + 1; k < t; ++k) {
            advance += forward_[k - 1];
            if (input_[k] > m) continue;
            double const time = advance + times(k, t)[m - input_[k]] + times(s, k)[m];
            if (time >= best) continue;
            best = time;
            at = k;
        }
        return at;
    }

    constexpr std::size_t beside_all(std::size_t s, std::size_t room) const {
        return room - all_[s];
    }
    constexpr std::size_t beside_input(std::size_t k, std::size_t room) const {
        return room - input_[k];
    }

  private:
    constexpr void solve(std::size_t s, std::size_t t) {
        double* const best = times_.data() + piece(s, t) * (slots_ + 1);
        for (std::size_t m = 0; m <= slots_; ++m) best[m] = never;
        double const alone = forward_[s];
        if (s + 1 == t) {
            for (std::size_t m = whole_[s]; m <= slots_; ++m) best[m] = alone;
            return;
        }
        if (whole_[s] <= slots_) {
            double const* const rest = times(s + 1, t);
            std::size_t const size = all_[s];
            for (std::size_t m = whole_[s]; m <= slots_; ++m) {
                double const time = alone + rest[m - size];
                if (time < best[m]) best[m] = time;
            }
        }
        double advance = 0.0;
        for (std::size_t k = s + 1; k < t; ++k) {
            advance += forward_[k - 1];
            std::size_t const size = input_[k];
            double const* const behind = times(k, t);
            double const* const before = times(s, k);
            for (std::size_t m = size; m <= slots_; ++m) {
                double const time = advance + behind[m - size] + before[m];
                if (time < best[m]) best[m] = time;
            }
        }
    }

    std::size_t layers_;
    std::size_t slots_;
    double const* forward_;
    Array<std::size_t> input_; // in slots, as are the next two
    Array<std::size_t> all_;
    Array<std::size_t> whole_; // all, with the temporaries of forward and backward
    Array<double> times_;
};

} // namespace gpipe::detail
