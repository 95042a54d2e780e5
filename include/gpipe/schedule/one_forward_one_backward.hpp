#pragma once

#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe::schedule {

/// One forward, one backward (PipeDream's steady state with a flush; Narayanan et al., 2019 and
/// 2021): device k begins with n = min(M, d (K - 1 - k)) forwards, then takes turns. For d = 1,
/// K = 3 and M = 4, time to the right, F and B of micro-batches 0 to 3, backward twice as long:
///
///     device 0   F0 F1 F2 .  .  .  .  B0 .. F3 B1 .. .  B2 .. .  B3 ..
///     device 1   .  F0 F1 .  .  B0 .. F2 B1 .. F3 B2 .. .  B3 ..
///     device 2   .  .  F0 B0 .. F1 B1 .. F2 B2 .. F3 B3 ..
///
/// Bubble (K - 1) / (M + K - 1) as for GPipe; device k holds at most min(M, n + 1) micro-batches,
/// which is min(M, K - k) for d = 1 and min(M, 2 (K - k) - 1) for d = 2. At a latency of c between
/// devices, 2 c no more than a forward and a backward, d = 2 pays 2 c (K - 1) in all, as GPipe
/// does; d = 1 pays 2 c ((K - 1) M / K + K - 2) where K divides M: more with every micro-batch.
template <std::size_t d> struct OneForwardOneBackwardAhead {
    using policy_kind = policy::Schedule;
    /// What it is found by.
    static constexpr std::string_view name = d == 1   ? "OneForwardOneBackward"
                                             : d == 2 ? "EagerOneForwardOneBackward"
                                                      : "OneForwardOneBackwardAhead";

    /// One for each of K devices.
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        Programs result(devices, devices, micro_batches, 2 * devices * micro_batches);
        for (std::size_t k = 0; k < devices; ++k) {
            std::size_t const most = d * (devices - 1 - k);
            std::size_t const warm_up = most < micro_batches ? most : micro_batches;
            for (std::size_t i = 0; i < micro_batches + warm_up; ++i) {
                if (i < micro_batches) result.add(forward(k, i));
                if (i >= warm_up) result.add(backward(k, i - warm_up));
            }
            result.next_device();
        }
        return result;
    }
};

/// The usual one, as in Megatron-LM, DeepSpeed and PyTorch (there Schedule1F1B).
using OneForwardOneBackward = OneForwardOneBackwardAhead<1>;
/// For slow links: twice the warm-up (Alpa's overlap-friendly 1F1B; Zhuang et al., 2022).
using EagerOneForwardOneBackward = OneForwardOneBackwardAhead<2>;

} // namespace gpipe::schedule
