#pragma once

#include <gpipe/core/host_device.hpp>
#include <gpipe/layer/context.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gpipe::detail {

// Samples of channels of positions, as a layer finds them.
struct Channels {
    std::size_t samples = 0;
    std::size_t channels = 0;
    std::size_t positions = 0;

    GPIPE_HOST_DEVICE std::size_t elements() const { return samples * positions; } // of a channel
    GPIPE_HOST_DEVICE std::size_t at(std::size_t channel, std::size_t element) const {
        return (element / positions * channels + channel) * positions + element % positions;
    }
};

// Count, mean and sum of squared distances from it. No fp32 and no sum of squares: at an offset of
// 1e6 these have no digit left.
struct Moments {
    double count = 0;
    double mean = 0;
    double m2 = 0;
};
// Chan, Golub and LeVeque, 1979; nothing changes what is merged with it.
GPIPE_HOST_DEVICE inline Moments merged(Moments const& a, Moments const& b) {
    double const count = a.count + b.count;
    if (count == 0) return a;
    double const distance = b.mean - a.mean, share = b.count / count;
    return {count, a.mean + distance * share, a.m2 + b.m2 + distance * distance * a.count * share};
}

// Two sums over the elements of a channel, in one order: `sum_lanes` of them, each of every
// sum_lanes-th element, and then those by halves. So hosts and GPUs find the same.
inline constexpr std::size_t sum_lanes = 128;
struct TwoSums {
    double a = 0;
    double b = 0;
};
GPIPE_HOST_DEVICE inline TwoSums operator+(TwoSums const& x, TwoSums const& y) {
    return {x.a + y.a, x.b + y.b};
}

// First pass, and second: what rounding has left in the mean goes.
template <class T> struct SumElements {
    T const* x;
    GPIPE_HOST_DEVICE TwoSums operator()(std::size_t at, std::size_t) const {
        return {static_cast<double>(x[at]), 0};
    }
};
template <class T> struct SumDistances {
    T const* x;
    double mean;
    GPIPE_HOST_DEVICE TwoSums operator()(std::size_t at, std::size_t) const {
        double const distance = static_cast<double>(x[at]) - mean;
        return {distance * distance, distance};
    }
};
GPIPE_HOST_DEVICE inline Moments moments_of(double count, double mean, TwoSums const& distances) {
    return {count, mean + distances.b / count, distances.a - distances.b * distances.b / count};
}

// What x becomes: (x - mean) / deviation.
struct Normal {
    double mean = 0;
    double inverse = 0; // of the deviation

    GPIPE_HOST_DEVICE double operator()(double x) const { return (x - mean) * inverse; }
};
GPIPE_HOST_DEVICE inline Normal normal_of(double mean, double variance, double epsilon) {
    return {mean, 1 / std::sqrt(variance + epsilon)};
}
GPIPE_HOST_DEVICE inline Normal normal_of(Moments const& moments, double epsilon) {
    return normal_of(moments.mean, moments.m2 / moments.count, epsilon);
}

// Of a backward: the gradients of shift and scale.
template <class T> struct SumGradients {
    T const* x;
    T const* dy;
    Normal normal;
    GPIPE_HOST_DEVICE TwoSums operator()(std::size_t at, std::size_t) const {
        double const gradient = static_cast<double>(dy[at]);
        return {gradient, gradient * normal(static_cast<double>(x[at]))};
    }
};

// Then, of one element, the gradient of the input.
template <class T> struct InputGradient {
    T const* x;
    T const* dy;
    T* dx;
    Normal normal;
    TwoSums sums;
    double factor; // scale over deviation
    double count;
    GPIPE_HOST_DEVICE void operator()(std::size_t at, std::size_t) const {
        double const own = normal(static_cast<double>(x[at])) * sums.b;
        dx[at] = static_cast<T>(factor * (static_cast<double>(dy[at]) - (sums.a + own) / count));
    }
};

// The statistics of a BatchNorm: [4][channels].
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
///@}

// The work of such layers as loops.
struct NormLoops {
    template <class F> void each(std::size_t count, F f) const {
        for (std::size_t i = 0; i < count; ++i) f(i);
    }
    template <class T>
    void moments(Channels const& shape, T const* x, StatisticsRows const& to) const {
        for (std::size_t c = 0; c < shape.channels; ++c) to.set(c, moments_of_channel(shape, x, c));
    }
    // `normal_of_channel(c)`: a Normal.
    template <class T, class F>
    void normalize(Channels const& shape, T const* x, T* y, T const* scale, T const* shift,
                   F normal_of_channel) const {
        for (std::size_t c = 0; c < shape.channels; ++c) {
            Normal const normal = normal_of_channel(c);
            double const factor = static_cast<double>(scale[c]);
            double const offset = static_cast<double>(shift[c]);
            each_element(shape, c, [&](std::size_t at, std::size_t) {
                y[at] = static_cast<T>(normal(static_cast<double>(x[at])) * factor + offset);
            });
        }
    }
    // dx: null where nobody wants it.
    template <class T>
    void backward(Channels const& shape, T const* x, T const* dy, T* dx, T const* scale, T* dscale,
                  T* dshift, double epsilon) const {
        auto const count = static_cast<double>(shape.elements());
        for (std::size_t c = 0; c < shape.channels; ++c) {
            Normal const normal = normal_of(moments_of_channel(shape, x, c), epsilon);
            TwoSums const sums = sum(shape, c, SumGradients<T>{x, dy, normal});
            dshift[c] += static_cast<T>(sums.a);
            dscale[c] += static_cast<T>(sums.b);
            double const factor = static_cast<double>(scale[c]) * normal.inverse;
            if (dx)
                each_element(shape, c, InputGradient<T>{x, dy, dx, normal, sums, factor, count});
        }
    }

  private:
    template <class F> static void each_element(Channels const& shape, std::size_t c, F f) {
        std::size_t element = 0;
        for (std::size_t s = 0; s < shape.samples; ++s) {
            std::size_t const begin = (s * shape.channels + c) * shape.positions;
            for (std::size_t p = 0; p < shape.positions; ++p) f(begin + p, element++);
        }
    }
    template <class F> static TwoSums sum(Channels const& shape, std::size_t c, F f) {
        TwoSums lanes[sum_lanes];
        each_element(shape, c, [&](std::size_t at, std::size_t element) {
            TwoSums& lane = lanes[element % sum_lanes];
            lane = lane + f(at, element);
        });
        for (std::size_t half = sum_lanes / 2; half > 0; half /= 2)
            for (std::size_t l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
        return lanes[0];
    }
    template <class T>
    static Moments moments_of_channel(Channels const& shape, T const* x, std::size_t c) {
        auto const count = static_cast<double>(shape.elements());
        double const mean = sum(shape, c, SumElements<T>{x}).a / count;
        return moments_of(count, mean, sum(shape, c, SumDistances<T>{x, mean}));
    }
};
// On a stream. For a GPU see cuda/norm_work.cuh.
template <class Stream> struct NormWork : NormLoops {
    static_assert(!replays<Stream>, "gpipe: on this device BatchNorm has kernels: #include "
                                    "<gpipe/cuda/norm_work.cuh>");
    explicit NormWork(Stream const&) {}
};
template <class Stream> NormWork<Stream> norm_work(Stream const& stream) {
    return NormWork<Stream>{stream};
}

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

} // namespace gpipe::detail
