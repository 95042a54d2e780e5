#pragma once

#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe::schedule {

/// The handcrafted zero-bubble schedules (Qi et al., 2023): a backward in two halves, of which only
/// the first, the input gradient (here I), is waited for by another device. Device k runs
/// h (K - k) - h + 1 forwards, then h k times I and F, then in turn I, W (the weight gradient) and
/// F, as long as there is one left. For h = 1, K = 3 and M = 4, time to the right:
///
///     device 0   F0 F1 F2 .  .  I0 W0 F3 I1 W1 I2 W2 I3 W3
///     device 1   .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
///     device 2   .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
///
/// Every device holds at most h (K - 1) + 1 micro-batches. For as many micro-batches or more the
/// bubble is (K - 1) / (3 M + K - 1), a third of 1F1B's; at other costs W <= F, I the time lost is
/// (K - 1) (F + I - W) for h = 1. For h = 2 no device is idle between its first action and its
/// last: that is faster only where mini-batches follow each other without a barrier.
template <std::size_t h> struct ZeroBubbleAhead {
    using policy_kind = policy::Schedule;
    /// What it is found by.
    static constexpr std::string_view name = h == 1   ? "ZeroBubbleH1"
                                             : h == 2 ? "ZeroBubbleH2"
                                                      : "ZeroBubbleAhead";

    /// One for each of K devices.
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        Programs result(devices, devices, micro_batches, 3 * devices * micro_batches);
        for (std::size_t k = 0; k < devices; ++k) {
            std::size_t const most = h * (devices - 1 - k) + 1;
            std::size_t f = 0; // how many of each kind there are so far
            std::size_t i = 0;
            Action* next = result.append(3 * micro_batches);
            while (f < most && f < micro_batches) *next++ = forward(k, f++);
            while (i < h * k && i < micro_batches) {
                *next++ = input_gradient(k, i++);
                if (f < micro_batches) *next++ = forward(k, f++);
            }
            for (std::size_t w = 0; w < micro_batches; ++w) {
                if (i < micro_batches) *next++ = input_gradient(k, i++);
                *next++ = weight_gradient(k, w);
                if (f < micro_batches) *next++ = forward(k, f++);
            }
            result.next_device();
        }
        return result;
    }
};

/// ZB-H1: at most K micro-batches on a device, as 1F1B's first one has.
using ZeroBubbleH1 = ZeroBubbleAhead<1>;
/// ZB-H2: 2 K - 1, and slower than ZB-H1 for 2 < M < 2 K - 2.
using ZeroBubbleH2 = ZeroBubbleAhead<2>;

} // namespace gpipe::schedule
