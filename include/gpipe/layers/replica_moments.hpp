#pragma once

#include <gpipe/layers/running_statistics.hpp>

#include <cstddef>

namespace gpipe::detail {

// What the replicas of a SyncBatchNorm have told: rows of each, one behind the other.
struct OfReplicas {
    double const* first;
    std::size_t stride;
    std::size_t replicas;
    std::size_t channels;

    GPIPE_HOST_DEVICE StatisticsRows rows(std::size_t replica) const {
        return {const_cast<double*>(first) + replica * stride, channels};
    }
};

// The moments of a channel in all of them, merged in their order; and what normalises by these.
struct MomentsOfReplicas {
    OfReplicas of;
    double epsilon;

    GPIPE_HOST_DEVICE Moments all(std::size_t c) const {
        Moments sum;
        for (std::size_t r = 0; r < of.replicas; ++r) sum = merged(sum, of.rows(r).moments(c));
        return sum;
    }
    GPIPE_HOST_DEVICE Normal operator()(std::size_t c) const { return normal_of(all(c), epsilon); }
};

// The gradients of shift and scale, added up in their order.
struct SumsOfReplicas {
    OfReplicas of;

    GPIPE_HOST_DEVICE TwoSums operator()(std::size_t c) const {
        TwoSums sum{of.rows(0)(0, c), of.rows(0)(1, c)};
        for (std::size_t r = 1; r < of.replicas; ++r)
            sum = sum + TwoSums{of.rows(r)(0, c), of.rows(r)(1, c)};
        return sum;
    }
};

// What a layer does for each of its channels.
///@{
struct CopyMoments {
    StatisticsRows to, from;
    GPIPE_HOST_DEVICE void operator()(std::size_t c) const { to.set(c, from.moments(c)); }
};
// Of all replicas; where nothing is to be left, a move of nothing.
struct MomentsOfAll {
    StatisticsRows to;
    MomentsOfReplicas of;
    bool leaves;
    GPIPE_HOST_DEVICE void operator()(std::size_t c) const {
        if (leaves) return to.set(c, of.all(c));
        for (std::size_t row = 0; row < 4; ++row) to(row, c) = 0;
    }
};
template <class T> struct AddGradients {
    StatisticsRows sums;
    T* dscale;
    T* dshift;
    GPIPE_HOST_DEVICE void operator()(std::size_t c) const {
        dshift[c] += static_cast<T>(sums(0, c));
        dscale[c] += static_cast<T>(sums(1, c));
    }
};
///@}

} // namespace gpipe::detail
