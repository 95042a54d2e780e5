#pragma once

#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpipe::schedule {

/// How much a building block keeps of what 1F1B's first device keeps.
enum class Keep { half, third };

/// Building blocks in V order (Qi et al., 2024, "Pipeline Parallelism with Controllable Memory").
template <Keep keep> struct BuildingBlocksV {
    using policy_kind = policy::Schedule;
    static constexpr std::string_view name = keep == Keep::half ? "VHalf" : "VMin";
    static constexpr std::size_t cells_per_device = 2;

    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        constexpr std::size_t period = 6;
        Programs result(devices, 2 * devices, micro_batches, period * devices * micro_batches);
        result.place_in_v();
        for (std::size_t k = 0; k < devices; ++k) {
            // By tick modulo 6: the first tick, and what of which cell.
            std::size_t first[period] = {};
            Action what[period] = {};
            bool taken[period] = {};
            auto const put = [&](std::size_t tick, Action action) {
                while (taken[tick % period]) ++tick;
                first[tick % period] = tick;
                what[tick % period] = action;
                taken[tick % period] = true;
                return tick;
            };
            std::size_t const down = k;
            std::size_t const up = 2 * devices - 1 - k;
            bool const half = keep == Keep::half;
            std::size_t const gap = half ? (devices % 2 ? 0 : 3) : (devices % 3 ? 0 : 2);
            put(half ? 2 * k : k, forward(down, 0));
            put(half ? 3 * devices - k - 2 : 2 * devices - k - 1, forward(up, 0));
            std::size_t const one =
                put(half ? 3 * devices + gap + 2 * k - 1 : 2 * devices + gap + k,
                    input_gradient(up, 0));
            std::size_t const zero =
                put(half ? 6 * devices + gap - k - 2 : 4 * devices + gap - k - 1,
                    input_gradient(down, 0));
            put(one, weight_gradient(up, 0));
            put(zero, weight_gradient(down, 0));

            std::size_t const all = period * micro_batches;
            Action* next = result.append(all);
            for (std::size_t tick = 0, done = 0; done < all; ++tick) {
                std::size_t const r = tick % period;
                std::size_t const since = tick - first[r];
                if (tick < first[r] || since >= all) continue;
                *next = what[r];
                (next++)->micro_batch = static_cast<std::uint32_t>(since / period);
                ++done;
            }
            result.next_device();
        }
        return result;
    }
};

/// Half the memory of 1F1B.
using VHalf = BuildingBlocksV<Keep::half>;
/// A third.
using VMin = BuildingBlocksV<Keep::third>;

} // namespace gpipe::schedule
