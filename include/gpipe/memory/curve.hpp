#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <algorithm>
#include <cstddef>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Bytes of a device's arena over time: a step function, in the unit of time of whoever made it.
/// See memory_usage().
struct MemoryCurve {
    /// So many bytes from that time on, until the next point's.
    struct Point {
        double time = 0;       ///< when it begins
        std::size_t bytes = 0; ///< in use from then on
        friend constexpr bool operator==(Point const&, Point const&) = default;
    };
    Array<Point> points;     ///< in order, the first at time 0
    std::size_t fixed = 0;   ///< bytes that are always in use
    std::size_t planned = 0; ///< bytes of the whole arena

    /// The most bytes in use at a time.
    constexpr std::size_t peak() const {
        std::size_t most = 0;
        for (Point const& point : points) most = most < point.bytes ? point.bytes : most;
        return most;
    }
    /// From that time on; 0 before the first point.
    constexpr std::size_t at(double time) const {
        Point const* const behind =
            std::upper_bound(points.begin(), points.end(), time,
                             [](double t, Point const& point) { return t < point.time; });
        return behind != points.begin() ? behind[-1].bytes : 0;
    }
};

} // namespace gpipe
GPIPE_RUNS_ONCE_END
