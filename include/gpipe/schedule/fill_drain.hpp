#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe::schedule {

/// The order in which a device runs the micro-batches backward.
enum class Order { ascending, descending };

namespace detail {

// Of v cells per device in loops: all micro-batches through a device's first cell, then all through
// its second, and so on, and back from the last.
GPIPE_INLINE constexpr Programs fill_drain(std::size_t v, Order order, std::size_t devices,
                                           std::size_t micro_batches) {
    std::size_t const cells = v * devices;
    Programs result(devices, cells, micro_batches, 2 * cells * micro_batches);
    result.place_in_loops();
    for (std::size_t k = 0; k < devices; ++k) {
        Action* next = result.append(2 * v * micro_batches);
        for (std::size_t c = k; c < cells; c += devices)
            for (std::size_t m = 0; m < micro_batches; ++m) *next++ = forward(c, m);
        for (std::size_t c = cells; c > k; c -= devices)
            for (std::size_t i = 0; i < micro_batches; ++i)
                *next++ = backward(c - devices + k,
                                   order == Order::descending ? micro_batches - 1 - i : i);
        result.next_device();
    }
    return result;
}

} // namespace detail

/// The schedule of the GPipe paper (Huang et al., 2019, figure 2c): all forwards, then all
/// backwards. For K = 3 and M = 4, time to the right, F and B of micro-batches 0 to 3, backward
/// twice as long:
///
///     device 0   F0 F1 F2 F3 .  .  .  .  .  .  B3 .. B2 .. B1 .. B0 ..
///     device 1   .  F0 F1 F2 F3 .  .  .  B3 .. B2 .. B1 .. B0 ..
///     device 2   .  .  F0 F1 F2 F3 B3 .. B2 .. B1 .. B0 ..
///
/// Bubble (K - 1) / (M + K - 1) in either order of the backwards.
template <Order order> struct FillDrain {
    using policy_kind = policy::Schedule;
    /// What it is found by.
    static constexpr std::string_view name =
        order == Order::descending ? "GPipe" : "GPipeAscending";

    /// One for each of K devices.
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        return detail::fill_drain(1, order, devices, micro_batches);
    }
};

/// As in the paper: backward in descending order of micro-batches.
using GPipe = FillDrain<Order::descending>;
/// Backward in ascending order: gradients are then added in the order of a plain loop over
/// micro-batches.
using GPipeAscending = FillDrain<Order::ascending>;

} // namespace gpipe::schedule
