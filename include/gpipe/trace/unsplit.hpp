#pragma once

#include <gpipe/schedule/gpipe.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/trace/timeline.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe::trace {

/// What pipelines are compared with: the same cells, one per device, but the mini-batch not split
/// (naive model parallelism, figure 2b of the GPipe paper). One device runs at a time, and every
/// action takes as long as those of all `micro_batches` together: `cost(action)` is that of one.
template <class Cost>
constexpr Timeline unsplit(std::size_t devices, std::size_t micro_batches, Cost const& cost,
                           std::string_view title = {}) {
    Programs const programs = schedule::GPipe::programs(devices, 1);
    auto const whole = [&](Action const& action) {
        return static_cast<double>(micro_batches) * static_cast<double>(cost(action));
    };
    return timeline(programs, simulate<double>(programs, whole), title);
}

} // namespace gpipe::trace
