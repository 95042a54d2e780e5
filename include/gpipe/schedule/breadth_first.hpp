#pragma once

#include <gpipe/core/dynamic.hpp>
#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe::schedule {

/// Breadth-first pipeline (Lamy-Poirier, 2022): v cells per device in loops, device k owns cells
/// k, k + K, k + 2 K, ...; all micro-batches through its first cell, then all through its second,
/// and so on, and back from the last, in ascending order of micro-batches. For v = 2, K = 2 and
/// M = 3, time to the right, small letters for a device's second cell:
///
///     device 0   F0 F1 F2 f0 f1 f2 .  .  .  b0 .. b1 .. b2 .. B0 .. B1 .. B2 ..
///     device 1   .  F0 F1 F2 f0 f1 f2 b0 .. b1 .. b2 .. B0 .. B1 .. B2 ..
///
/// Bubble (K - 1) / (M v + K - 1) for M >= K; a device holds all M micro-batches of its v cells.
/// Each cell's parameters are needed in one run of forwards and one of backwards, and no other
/// schedule in loops loses less to latency.
///
/// v may be `dynamic`, and is then `cells_per_device` of the object.
template <std::size_t v> struct BreadthFirst {
    static_assert(v > 0, "gpipe: a device has at least one cell");
    using policy_kind = policy::Schedule;
    static constexpr std::string_view name = "BreadthFirst"; ///< what it is found by
    static constexpr std::size_t cells_per_device = v;       ///< v

    /// One for each of K devices.
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        return detail::fill_drain(v, Order::ascending, devices, micro_batches);
    }
};
/// The same with a number of cells chosen at construction.
template <> struct BreadthFirst<dynamic> {
    using policy_kind = policy::Schedule;
    static constexpr std::string_view name = "BreadthFirst"; ///< what it is found by
    std::size_t cells_per_device = 2;                        ///< v
    /// One for each of K devices.
    constexpr Programs programs(std::size_t devices, std::size_t micro_batches) const {
        return detail::fill_drain(cells_per_device, Order::ascending, devices, micro_batches);
    }
};

} // namespace gpipe::schedule
