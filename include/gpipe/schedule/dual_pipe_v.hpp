#pragma once

#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>
#include <stdexcept>
#include <string_view>

namespace gpipe::schedule {

/// DualPipeV (DeepSeek-AI, 2025; DualPipe "cut in half"): two cells per device in V order, device k
/// owns cells k and 2 K - 1 - k; most backwards are whole and each goes with a forward of the
/// device's other cell, which some systems run at once. Here they run one after the other. Needs
/// M >= 2 K. For K = 2 and M = 4, time to the right, I and W for the two halves of a backward,
/// small letters for a device's second cell:
///
///     device 0   F0 F1 F2 f0 i0 w0 f1 F3 b1 .. f2 B0 .. b2 .. f3 .  B1 .. b3 .. I2 W2 I3 W3
///     device 1   .  F0 f0 F1 f1 F2 b0 .. f2 B0 .. F3 b1 .. f3 B1 .. b2 .. B2 .. i3 I3 w3 W3
///
/// Bubble (K - 1) / (6 M + K - 1) as ZeroBubbleV's, and one more: a device holds at most 2 K + 1
/// micro-batches of a cell.
struct DualPipeV {
    using policy_kind = policy::Schedule;
    static constexpr std::string_view name = "DualPipeV"; ///< what it is found by
    static constexpr std::size_t cells_per_device = 2; ///< one on the way down, one on the way up
    /// Two for each device.
    static constexpr std::size_t least_micro_batches(std::size_t devices) { return 2 * devices; }

    /// One for each of K devices. Throws std::invalid_argument for less than 2 K micro-batches.
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        if (micro_batches < least_micro_batches(devices))
            throw std::invalid_argument(
                "gpipe: DualPipeV is for 2 K micro-batches at least on K devices");
        Programs result(devices, 2 * devices, micro_batches, 6 * devices * micro_batches);
        result.place_in_v();
        for (std::size_t k = 0; k < devices; ++k) {
            std::size_t const after = devices - 1 - k; // devices behind this one
            // Every kind takes the next micro-batch of its cell, 0 down or 1 up; weight gradients
            // that are put off run in the order of their input gradients.
            std::size_t const cells[] = {k, 2 * devices - 1 - k};
            std::size_t forwards[2] = {}, backwards[2] = {};
            Array<Action> put_off(result.cells());
            std::size_t first = 0, last = 0;
            auto const run_forward = [&](std::size_t c) {
                result.add(forward(cells[c], forwards[c]++));
            };
            auto const run_backward = [&](std::size_t c, bool whole = true) {
                std::size_t const m = backwards[c]++;
                result.add(whole ? backward(cells[c], m) : input_gradient(cells[c], m));
                if (!whole) put_off[last++] = weight_gradient(cells[c], m);
            };
            auto const run_weights = [&] { result.add(put_off[first++]); };
            for (std::size_t r = 0; r < 2 * after; ++r) run_forward(0);
            for (std::size_t r = 0; r < k + 1; ++r) {
                run_forward(0);
                run_forward(1);
            }
            for (std::size_t r = 0; r < after; ++r) {
                run_backward(1, false);
                run_weights();
                run_forward(1);
            }
            for (std::size_t r = 0; r < micro_batches + k + 1 - 2 * devices; ++r) {
                run_forward(0);
                run_backward(1);
                run_forward(1);
                run_backward(0);
            }
            for (std::size_t r = 0; r < after; ++r) {
                run_backward(1);
                run_forward(1);
                run_backward(0);
            }
            // From the middle of these on, weight gradients wait.
            for (std::size_t r = 0; r < k + 1; ++r) {
                run_backward(1, 2 * r <= k);
                run_backward(0, 2 * r < k);
            }
            for (std::size_t r = 0; r < after; ++r) {
                run_weights();
                run_backward(0, false);
            }
            for (std::size_t r = 0; r < k + 1; ++r) run_weights();
            result.next_device();
        }
        return result;
    }
};

} // namespace gpipe::schedule
