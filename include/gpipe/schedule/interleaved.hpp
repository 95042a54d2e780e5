#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/dynamic.hpp>
#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpipe::schedule {

namespace detail {

GPIPE_INLINE constexpr Programs interleaved(std::size_t v, std::size_t group, std::size_t devices,
                                            std::size_t micro_batches) {
    Programs result(devices, v * devices, micro_batches, 2 * v * devices * micro_batches);
    result.place_in_loops();

    // The forwards of device 0, those of device k are k cells further; of full groups, what is
    // beyond M is left out below.
    std::size_t const size = std::max(group, devices);
    std::size_t const groups = (micro_batches + size - 1) / size;
    std::size_t const count = v * groups * size;
    Array<Action> forwards(count);
    Action* next = forwards.data();
    for (std::size_t begin = 0; begin < groups * size; begin += size)
        for (std::size_t c = 0; c < v * devices; c += devices)
            for (std::size_t m = begin; m < begin + size; ++m) *next++ = forward(c, m);

    Action const* const order = forwards.data();
    for (std::size_t k = 0; k < devices; ++k) {
        std::size_t const most = 2 * (devices - 1 - k) + (v - 1) * size;
        std::size_t const warm_up = most < count ? most : count;
        auto const first = static_cast<std::uint32_t>(k);
        auto const last = static_cast<std::uint32_t>(k + (v - 1) * devices);
        next = result.append(2 * v * micro_batches);
        for (std::size_t i = 0; i < count + warm_up; ++i) {
            if (i < count && order[i].micro_batch < micro_batches)
                *next++ = {Kind::forward, first + order[i].cell, order[i].micro_batch};
            if (i < warm_up) continue;
            Action const& f = order[i - warm_up];
            if (f.micro_batch < micro_batches)
                *next++ = {Kind::backward, last - f.cell, f.micro_batch};
        }
        result.next_device();
    }
    return result;
}

} // namespace detail

/// Interleaved 1F1B (Narayanan et al., 2021; Megatron-LM): v cells per device in loops, device k
/// owns cells k, k + K, k + 2 K, ... Micro-batches go in groups of N = max(`group`, K), all of a
/// group through a device's first cell, then all through its second, and so on; backwards the same
/// from its last cell. Device k begins with n = 2 (K - 1 - k) + (v - 1) N forwards, then takes
/// turns. For v = 2, K = 2 and M = 4, time to the right, small letters for a device's second cell:
///
///     device 0   F0 F1 f0 f1 F2 .  b0 .. F3 b1 .. f2 B0 .. f3 B1 .. .  b2 .. .  b3 .. B2 .. B3 ..
///     device 1   .  F0 F1 f0 b0 .. f1 b1 .. F2 B0 .. F3 B1 .. f2 b2 .. f3 b3 .. B2 .. B3 ..
///
/// Where N does not divide M, these are the programs of the next larger M that it divides, without
/// the micro-batches that are not there: to count what a device begins with in a last group of
/// fewer would deadlock for some K and M.
///
/// Bubble (K - 1) / (M v + K - 1) if N divides M, a v-th of 1F1B's for v times as many transfers;
/// a last group that is not full costs time. Device k holds at most n + 1 micro-batches of a cell,
/// never more than M v; a cell keeps a v-th of the activations.
///
/// v may be `dynamic`, and is then `cells_per_device` of the object.
template <std::size_t v, std::size_t group = 0> struct Interleaved1F1B {
    static_assert(v > 0, "gpipe: a device has at least one cell");
    using policy_kind = policy::Schedule;
    static constexpr std::string_view name = "Interleaved1F1B"; ///< what it is found by
    static constexpr std::size_t cells_per_device = v;          ///< v

    /// One for each of K devices.
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        return detail::interleaved(v, group, devices, micro_batches);
    }
};
/// The same with a number of cells chosen at construction.
template <std::size_t group> struct Interleaved1F1B<dynamic, group> {
    using policy_kind = policy::Schedule;
    static constexpr std::string_view name = "Interleaved1F1B"; ///< what it is found by
    std::size_t cells_per_device = 2;                           ///< v
    /// One for each of K devices.
    constexpr Programs programs(std::size_t devices, std::size_t micro_batches) const {
        return detail::interleaved(cells_per_device, group, devices, micro_batches);
    }
};

} // namespace gpipe::schedule
