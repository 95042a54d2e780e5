#pragma once

#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe::schedule {

/// The handcrafted zero-bubble schedules (Qi et al., 2023): a backward in two halves, of which only
/// the first, the input gradient (written I), is waited for by another device. Device k runs
/// h (K - k) - h + 1 forwards, then h k times I and F, then in turn I, W (weight gradient) and F,
/// as long as there is something of each kind.
///
/// Bubble at unit costs and M >= h (K - 1) + 1: (K - 1) / (3 M + K - 1), a third of 1F1B's; every
/// device holds at most h (K - 1) + 1 micro-batches.
template <std::size_t h> struct ZeroBubbleAhead {
    using policy_kind = policy::Schedule;
    static constexpr std::string_view name = h == 1   ? "ZeroBubbleH1"
                                             : h == 2 ? "ZeroBubbleH2"
                                                      : "ZeroBubbleAhead";

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

/// ZB-H1: as much memory as 1F1B's first device.
using ZeroBubbleH1 = ZeroBubbleAhead<1>;
/// ZB-H2.
using ZeroBubbleH2 = ZeroBubbleAhead<2>;

} // namespace gpipe::schedule
