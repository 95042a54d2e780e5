#pragma once

#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpipe::schedule {

/// ZB-V (Qi et al., 2024).
struct ZeroBubbleV {
    using policy_kind = policy::Schedule;
    static constexpr std::string_view name = "ZeroBubbleV";
    static constexpr std::size_t cells_per_device = 2;

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
