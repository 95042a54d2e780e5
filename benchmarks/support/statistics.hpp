#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <type_traits>
#include <vector>

namespace benchmark {

/// The q-quantile of a sample, 0 <= q <= 1, linear between neighbours; NaN of an empty one.
inline double quantile(std::vector<double> values, double q) {
    if (values.empty()) return std::nan("");
    std::sort(values.begin(), values.end());
    double const at = q * static_cast<double>(values.size() - 1);
    auto const below = static_cast<std::size_t>(at);
    std::size_t const above = std::min(below + 1, values.size() - 1);
    return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

inline double median(std::vector<double> const& values) { return quantile(values, 0.5); }

template <class Values> auto sum(Values const& values) {
    return std::accumulate(values.begin(), values.end(), std::decay_t<decltype(values[0])>{});
}

/// NaN of an empty sample.
inline double mean(std::vector<double> const& values) {
    return sum(values) / static_cast<double>(values.size());
}

/// Round by round, what A took divided by what B took: the two ran side by side, so what disturbs
/// the machine for longer than a round disturbs both.
inline std::vector<double> ratios(std::vector<double> const& a, std::vector<double> const& b) {
    std::vector<double> result(std::min(a.size(), b.size()));
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = a[i] / b[i];
    return result;
}

/// The exponent p of the power law y = c x^p that fits best in the least squares of logarithms: 1
/// is linear.
inline double growth(std::vector<double> const& x, std::vector<double> const& y) {
    double const n = static_cast<double>(x.size());
    double sx = 0;
    double sy = 0;
    double sxx = 0;
    double sxy = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        double const u = std::log(x[i]);
        double const v = std::log(y[i]);
        sx += u, sy += v, sxx += u * u, sxy += u * v;
    }
    return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

} // namespace benchmark
