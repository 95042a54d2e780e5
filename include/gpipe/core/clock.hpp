#pragma once

#include <gpipe/core/compiled.hpp>

#include <ctime>

namespace gpipe::detail {

/// Seconds by a clock that only goes on, from some moment on: std::chrono::steady_clock, which a
/// program would parse for a tenth of a second.
GPIPE_INLINE double seconds_now() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

} // namespace gpipe::detail
