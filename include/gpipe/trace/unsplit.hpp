#pragma once

#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/trace/timeline.hpp>

#include <cstddef>

namespace gpipe::trace {

namespace detail {

// What the micro-batches of a mini-batch cost together.
template <class Cost> struct WholeBatch {
    Cost const& cost;
    double micro_batches;
    Array<SkipCosts<double>> skips{};

    constexpr double operator()(Action const& action) const {
        return micro_batches * static_cast<double>(cost(action));
    }
    constexpr double bytes(Action const& action) const requires requires { cost.bytes(action); }
    { return micro_batches * static_cast<double>(cost.bytes(action)); }
};

} // namespace detail

/// What pipelines are compared with: the same cells, one per device, but the mini-batch not split
/// (naive model parallelism, figure 2b of the GPipe paper). One device runs at a time, and every
/// action takes as long, and sends as much, as those of all `micro_batches` together: `cost` is
/// that of one, as for simulate(), and so are `latency` and `bandwidth`.
template <class Cost>
constexpr Timeline unsplit(std::size_t devices, std::size_t micro_batches, Cost const& cost,
                           double latency = 0, double bandwidth = unlimited<double>) {
    Programs const programs = schedule::GPipe::programs(devices, 1);
    detail::WholeBatch<Cost> whole{cost, static_cast<double>(micro_batches)};
    if constexpr (requires { cost.skips; }) {
        whole.skips = Array<SkipCosts<double>>(cost.skips.size());
        for (std::size_t s = 0; s < whole.skips.size(); ++s)
            whole.skips[s] = {cost.skips[s].from, cost.skips[s].to,
                              whole.micro_batches * static_cast<double>(cost.skips[s].output_bytes),
                              whole.micro_batches *
                                  static_cast<double>(cost.skips[s].gradient_bytes)};
    }
    return timeline(programs, simulate<double>(programs, whole, latency, bandwidth));
}

} // namespace gpipe::trace
