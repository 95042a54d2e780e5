#pragma once

#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpipe::schedule {

/// ZB-V (Qi et al., 2024): two cells per device in V order, device k owns cells k and 2 K - 1 - k,
/// so that the first and the last cell are on one device; input and weight gradients apart. For
/// K = 2 and M = 4, time to the right, I and W for the two gradients, small letters for a device's
/// second cell:
///
///     device 0   F0 F1 F2 f0 i0 w0 f1 i1 w1 F3 I0 W0 f2 i2 w2 I1 W1 f3 i3 w3 I2 W2 I3 W3
///     device 1   .  F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 F3 I1 W1 f3 i2 w2 I2 i3 I3 W2 w3 W3
///
/// For M >= 2 K - 1 the bubble is (K - 1) / (6 M + K - 1), a sixth of 1F1B's, and no device is idle
/// between its first action and its last. A device holds at most 2 K micro-batches of a cell, as
/// many activations as 1F1B's first device. Forward and both gradients should cost about the same.
struct ZeroBubbleV {
    using policy_kind = policy::Schedule;
    static constexpr std::string_view name = "ZeroBubbleV"; ///< what it is found by
    static constexpr std::size_t cells_per_device = 2; ///< one on the way down, one on the way up

    /// One for each of K devices.
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        Programs result(devices, 2 * devices, micro_batches, 6 * devices * micro_batches);
        result.place_in_v();
        // The order is one of at least 2 K - 1 micro-batches; those that are not there are left
        // out.
        std::size_t const n = micro_batches < 2 * devices - 1 ? 2 * devices - 1 : micro_batches;
        for (std::size_t k = 0; k < devices; ++k) {
            Action* next = result.append(6 * micro_batches);
            auto const put = [&](Kind kind, std::size_t cell, std::size_t& m) {
                if (m < micro_batches)
                    *next++ = {kind, static_cast<std::uint32_t>(cell),
                               static_cast<std::uint32_t>(m)};
                ++m;
            };
            std::size_t const down = k;
            std::size_t const up = 2 * devices - 1 - k;
            std::size_t f0 = 0, f1 = 0, i0 = 0, i1 = 0, w0 = 0, w1 = 0; // how many so far
            while (f0 < 2 * (devices - k) - 1) put(Kind::forward, down, f0);
            for (std::size_t r = 0; r < k; ++r) {
                put(Kind::forward, up, f1);
                put(Kind::forward, down, f0);
            }
            for (std::size_t r = k; r < devices; ++r) {
                put(Kind::forward, up, f1);
                put(Kind::input_gradient, up, i1);
                put(Kind::weight_gradient, up, w1);
            }
            while (f1 < n) {
                if (f0 < n) put(Kind::forward, down, f0);
                put(Kind::input_gradient, down, i0);
                put(Kind::weight_gradient, down, w0);
                put(Kind::forward, up, f1);
                put(Kind::input_gradient, up, i1);
                put(Kind::weight_gradient, up, w1);
            }
            for (std::size_t r = 0; r < k; ++r) {
                put(Kind::input_gradient, down, i0);
                put(Kind::input_gradient, up, i1);
            }
            for (std::size_t r = k; r < devices; ++r) {
                put(Kind::input_gradient, down, i0);
                put(Kind::weight_gradient, down, w0);
            }
            while (w1 < n) put(Kind::weight_gradient, up, w1);
            while (w0 < n) put(Kind::weight_gradient, down, w0);
            result.next_device();
        }
        return result;
    }
};

} // namespace gpipe::schedule
