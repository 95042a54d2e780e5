#pragma once

// The norm of replicas' gradients, which no cut, and no part that a replica has, may change: of
// each slot a rounded sum of squares, of all slots the exact sum, rounded once.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace toy {

/// A sum in which nothing is rounded: as parts that do not overlap, each the rest that the addition
/// of greater ones left (Shewchuk, Adaptive Precision Floating-Point Arithmetic, 1997).
class ExactParts {
  public:
    void add(double x) {
        std::size_t kept = 0;
        for (double y : parts_) {
            if (x < y) std::swap(x, y);
            double const high = x + y;
            double const rest = y - (high - x);
            if (rest != 0) parts_[kept++] = rest;
            x = high;
        }
        parts_.resize(kept);
        parts_.push_back(x);
    }
    /// Rounded once: a tie goes to where what is left out lies.
    double value() const {
        double sum = 0, rest = 0;
        std::size_t i = parts_.size();
        while (i > 0 && rest == 0) {
            double const high = sum + parts_[--i];
            rest = parts_[i] - (high - sum);
            sum = high;
        }
        if (i > 0 && rest * parts_[i - 1] > 0) {
            double const twice = 2 * rest, other = sum + twice;
            if (twice == other - sum) sum = other;
        }
        return sum;
    }

  private:
    std::vector<double> parts_;
};

/// Of a slot's elements, as 32 threads add them up.
template <class T> double slot_squares(T const* data, std::size_t count) {
    double sums[32] = {};
    for (std::size_t i = 0; i < count; ++i) sums[i % 32] += double(data[i]) * double(data[i]);
    for (std::size_t half = 16; half > 0; half /= 2)
        for (std::size_t t = 0; t < half; ++t) sums[t] += sums[t + half];
    return sums[0];
}
template <class T> void add_squares(ExactParts& sum, T const* data, std::size_t count) {
    constexpr std::size_t slot = 256 / sizeof(T);
    for (std::size_t i = 0; i < count; i += slot)
        sum.add(slot_squares(data + i, std::min(slot, count - i)));
}

} // namespace toy
