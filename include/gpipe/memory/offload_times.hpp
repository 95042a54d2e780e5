#pragma once

#include <gpipe/memory/plan.hpp>
#include <gpipe/plan/simulate_lowered.hpp>

#include <cstddef>
#include <limits>

namespace gpipe {

/// What actions take where cells offload: copies to and from the host's memory their bytes over a
/// bandwidth (in bytes per unit of time, each way and device), transfers between devices nothing,
/// all else cost(action). The plan and the cost function must live as long.
template <class Cost> struct OffloadCosts {
    MemoryPlan const& plan;                                     ///< whose offloads they are
    Cost const& cost;                                           ///< of what computes, by action
    double bandwidth = std::numeric_limits<double>::infinity(); ///< infinite: copies take no time

    /// Of this action.
    constexpr double operator()(Action const& action) const {
        if (is_transfer(action.kind)) return 0;
        if (!is_copy(action.kind)) return cost(action);
        return static_cast<double>(plan.offloaded_bytes(action.cell)) / bandwidth;
    }
};
/// Deduces Cost.
template <class Cost> OffloadCosts(MemoryPlan const&, Cost const&, double) -> OffloadCosts<Cost>;

/// What offloading takes of a step, and what it costs.
struct OffloadTimes {
    std::size_t moved = 0; ///< micro-batches of cells that leave
    std::size_t bytes = 0; ///< of all of them: as many go to the host's memory, and come back
    double makespan = 0;   ///< of a step, in the unit of the costs
    double without = 0;    ///< the makespan if nothing was moved

    /// Whether all copies end under the layers' work: no step takes longer because of them.
    constexpr bool free() const { return makespan <= without; }
};

/// Simulates a step of the plan with its copies at so many bytes per unit of time, each way and
/// device, and without any. Copies are free only if those of a micro-batch fit under what runs
/// between its forward and its reversal, and those of all under the step.
template <class Cost>
constexpr OffloadTimes offload_times(MemoryPlan const& plan, Cost const& cost, double bandwidth) {
    OffloadTimes result;
    Programs const& programs = plan.lowered.programs;
    for (Action const& a : programs) {
        if (a.kind != Kind::offload) continue;
        ++result.moved;
        result.bytes += plan.offloaded_bytes(a.cell);
    }
    result.makespan = simulate<double>(plan.lowered, OffloadCosts{plan, cost, bandwidth}).makespan;
    result.without = simulate<double>(plan.lowered.computing(), cost).makespan;
    return result;
}

/// The least bandwidth (bytes per unit of time, each way and device) at which offloading is free,
/// to three digits; 0 if there are no bytes to move, infinity if it never is: because few blocks
/// are there to be waited for.
template <class Cost>
constexpr double least_free_bandwidth(MemoryPlan const& plan, Cost const& cost) {
    auto const free = [&](double bandwidth) { return offload_times(plan, cost, bandwidth).free(); };
    double high = std::numeric_limits<double>::infinity();
    if (!free(high)) return high;
    if (offload_times(plan, cost, high).bytes == 0) return 0;
    for (high = 1; !free(high);) high *= 2;
    if (high > std::numeric_limits<double>::max()) return high;
    double low = high / 2;
    for (; free(low); low /= 2) high = low;
    while (high > 1.001 * low) {
        double const middle = (low + high) / 2;
        (free(middle) ? high : low) = middle;
    }
    return high;
}

} // namespace gpipe
