#pragma once

#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>

namespace gpipe::schedule {

/// The order in which a device runs the micro-batches backward.
enum class Order { ascending, descending };

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
        Programs result(devices, devices, micro_batches, 2 * devices * micro_batches);
        for (std::size_t k = 0; k < devices; ++k) {
            for (std::size_t m = 0; m < micro_batches; ++m) result.add(forward(k, m));
            for (std::size_t i = 0; i < micro_batches; ++i)
                result.add(backward(k, order == Order::descending ? micro_batches - 1 - i : i));
            result.next_device();
        }
        return result;
    }
};

/// As in the paper: backward in descending order of micro-batches.
using GPipe = FillDrain<Order::descending>;
/// Backward in ascending order: gradients are then added in the order of a plain loop over
/// micro-batches.
using GPipeAscending = FillDrain<Order::ascending>;

} // namespace gpipe::schedule
