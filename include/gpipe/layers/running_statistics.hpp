#pragma once

#include <gpipe/layers/moments.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gpipe::detail {

// The statistics of a BatchNorm, [rows][channels]: three are its moments, four a move, see
// MomentsToMove.
struct StatisticsRows {
    double* rows;
    std::size_t channels;

    GPIPE_HOST_DEVICE double& operator()(std::size_t row, std::size_t channel) const {
        return rows[row * channels + channel];
    }
    GPIPE_HOST_DEVICE Moments moments(std::size_t c) const {
        return {(*this)(0, c), (*this)(1, c), (*this)(2, c)};
    }
    GPIPE_HOST_DEVICE void set(std::size_t c, Moments const& moments) const {
        (*this)(0, c) = moments.count;
        (*this)(1, c) = moments.mean;
        (*this)(2, c) = moments.m2;
    }
};

// How running statistics move; momentum < 0: to the plain average of all.
struct RunningRule {
    double momentum = 0.1;
    bool biased = false;

    GPIPE_HOST_DEVICE double variance(Moments const& of) const {
        return of.m2 / (biased || of.count < 2 ? of.count : of.count - 1);
    }
};

// What a layer does for each of its channels, behind the moments.
///@{
struct MergeMoments {
    StatisticsRows sum, part;
    GPIPE_HOST_DEVICE void operator()(std::size_t c) const {
        sum.set(c, merged(sum.moments(c), part.moments(c)));
    }
};
// Of moments a move of the running statistics, r -> (1 - share) r + towards: how many, share, and
// towards which mean and variance. One behind the other they are one again; zeros move nothing.
struct MomentsToMove {
    StatisticsRows part;
    RunningRule rule;
    GPIPE_HOST_DEVICE void operator()(std::size_t c) const {
        Moments const moments = part.moments(c);
        double const share = rule.momentum < 0 ? 1 : rule.momentum;
        part(0, c) = 1;
        part(1, c) = share;
        part(2, c) = share * moments.mean;
        part(3, c) = share * rule.variance(moments);
    }
};
struct MergeMoves {
    StatisticsRows sum, part;
    RunningRule rule;
    GPIPE_HOST_DEVICE void operator()(std::size_t c) const {
        double const share = part(1, c), keeps = rule.momentum < 0 ? 1 : 1 - share;
        sum(0, c) += part(0, c);
        sum(1, c) += share - sum(1, c) * share;
        sum(2, c) = keeps * sum(2, c) + part(2, c);
        sum(3, c) = keeps * sum(3, c) + part(3, c);
    }
};
// By the moments of a mini-batch, or by such moves.
struct UpdateRunning {
    StatisticsRows sum;
    double* mean;
    double* variance;
    std::int64_t* moves;
    RunningRule rule;
    bool by_moves;
    GPIPE_HOST_DEVICE std::int64_t count() const {
        return by_moves ? static_cast<std::int64_t>(sum(0, 0)) : sum(0, 0) > 0;
    }
    GPIPE_HOST_DEVICE void operator()(std::size_t c) const {
        if (count() == 0) return;
        double const before = static_cast<double>(*moves);
        double const all = before + static_cast<double>(count());
        double const keeps = rule.momentum < 0 ? before / all
                             : by_moves        ? 1 - sum(1, c)
                                               : 1 - rule.momentum;
        double const takes = rule.momentum < 0 ? 1 / all : by_moves ? 1 : rule.momentum;
        Moments const moments = sum.moments(c);
        mean[c] = keeps * mean[c] + takes * (by_moves ? sum(2, c) : moments.mean);
        variance[c] = keeps * variance[c] + takes * (by_moves ? sum(3, c) : rule.variance(moments));
    }
};
struct CountMoves {
    UpdateRunning update;
    GPIPE_HOST_DEVICE void operator()(std::size_t) const { *update.moves += update.count(); }
};
// To moments of nothing, or moves by none.
struct ClearStatistics {
    StatisticsRows part;
    std::size_t rows;
    GPIPE_HOST_DEVICE void operator()(std::size_t c) const {
        for (std::size_t row = 0; row < rows; ++row) part(row, c) = 0;
    }
};
///@}

// Where the moments of a normalisation are found.
struct OfMoments {
    StatisticsRows statistics;
    double epsilon;
    GPIPE_HOST_DEVICE Normal operator()(std::size_t c) const {
        return normal_of(statistics.moments(c), epsilon);
    }
};
struct OfRunning {
    double const* mean;
    double const* variance;
    double epsilon;
    GPIPE_HOST_DEVICE Normal operator()(std::size_t c) const {
        return normal_of(mean[c], variance[c], epsilon);
    }
};
// In a backward, of the samples at hand.
struct OfSamples {
    double epsilon;
};
// Among how many elements of a channel a gradient is shared out.
GPIPE_HOST_DEVICE inline double count_of(Channels const& shape, OfSamples const&) {
    return static_cast<double>(shape.elements());
}
GPIPE_HOST_DEVICE inline double count_of(Channels const&, OfRunning const&) { return HUGE_VAL; }

} // namespace gpipe::detail
