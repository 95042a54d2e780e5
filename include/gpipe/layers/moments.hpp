#pragma once

#include <gpipe/core/host_device.hpp>
#include <gpipe/core/version.hpp>

#include <cmath>
#include <cstddef>

namespace gpipe::detail {

// To elements of 16 bits by float: they need not know doubles.
template <class T> GPIPE_HOST_DEVICE T element_of(double value) {
    if constexpr (sizeof(T) < sizeof(float))
        return static_cast<T>(static_cast<float>(value));
    else
        return static_cast<T>(value);
}

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

// First pass, and second: what rounding has left in the mean goes. Of an element, by its value or
// by its place.
template <class T> struct SumElements {
    T const* x;
    GPIPE_HOST_DEVICE TwoSums of(T value, T) const { return {static_cast<double>(value), 0}; }
    GPIPE_HOST_DEVICE TwoSums operator()(std::size_t at, std::size_t) const {
        return of(x[at], T{});
    }
};
template <class T> struct SumDistances {
    T const* x;
    double mean;
    GPIPE_HOST_DEVICE TwoSums of(T value, T) const {
        double const distance = static_cast<double>(value) - mean;
        return {distance * distance, distance};
    }
    GPIPE_HOST_DEVICE TwoSums operator()(std::size_t at, std::size_t) const {
        return of(x[at], T{});
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
    GPIPE_HOST_DEVICE TwoSums of(T value, T slope) const {
        double const gradient = static_cast<double>(slope);
        return {gradient, gradient * normal(static_cast<double>(value))};
    }
    GPIPE_HOST_DEVICE TwoSums operator()(std::size_t at, std::size_t) const {
        return of(x[at], dy[at]);
    }
};

// Then, of one element, the gradient of the input.
template <class T> struct InputGradient {
    T const* x;
    T const* dy;
    T* dx;
    Normal normal;
    TwoSums means; // these sums over the count
    double factor; // scale over deviation

    GPIPE_HOST_DEVICE T of(T input, T gradient) const {
        double const own = normal(static_cast<double>(input)) * means.b;
        return element_of<T>(factor * ((static_cast<double>(gradient) - means.a) - own));
    }
    GPIPE_HOST_DEVICE void operator()(std::size_t at, std::size_t) const {
        dx[at] = of(x[at], dy[at]);
    }
};
template <class T, class P>
GPIPE_HOST_DEVICE InputGradient<T> input_gradient(T const* x, T const* dy, T* dx, P scale,
                                                  Normal const& normal, TwoSums const& sums,
                                                  double count) {
    return {x,
            dy,
            dx,
            normal,
            {sums.a / count, sums.b / count},
            static_cast<double>(scale) * normal.inverse};
}

} // namespace gpipe::detail
