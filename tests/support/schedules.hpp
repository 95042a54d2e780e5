#pragma once

// Schedules as a user would write them.

#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace toy {

/// One forward, one backward (PipeDream's steady state with a flush): device k begins with
/// K - 1 - k forwards, then takes turns.
struct OneForwardOneBackward {
    using policy_kind = gpipe::policy::Schedule;
    static constexpr gpipe::Programs programs(std::size_t devices, std::size_t micro_batches) {
        gpipe::Programs result(devices, devices, micro_batches, 2 * devices * micro_batches);
        for (std::size_t k = 0; k < devices; ++k) {
            std::size_t const warm_up = std::min(devices - 1 - k, micro_batches);
            for (std::size_t m = 0; m < warm_up; ++m) result.add(gpipe::forward(k, m));
            for (std::size_t m = warm_up; m < micro_batches; ++m) {
                result.add(gpipe::forward(k, m));
                result.add(gpipe::backward(k, m - warm_up));
            }
            for (std::size_t m = micro_batches - warm_up; m < micro_batches; ++m)
                result.add(gpipe::backward(k, m));
            result.next_device();
        }
        return result;
    }
};

/// Every device runs all forwards of the cells that it has, one by one, then all backwards back.
constexpr gpipe::Programs forth_and_back(gpipe::Programs placed) {
    for (std::size_t d = 0; d < placed.devices(); ++d) {
        for (std::size_t c = 0; c < placed.cells(); ++c)
            for (std::size_t m = 0; m < placed.micro_batches() && placed.device_of(c) == d; ++m)
                placed.add(gpipe::forward(c, m));
        for (std::size_t c = placed.cells(); c-- > 0;)
            for (std::size_t m = 0; m < placed.micro_batches() && placed.device_of(c) == d; ++m)
                placed.add(gpipe::backward(c, m));
        placed.next_device();
    }
    return placed;
}

/// That with the cells dealt to half as many devices in turn: device d owns cells d, d + D, ...
struct Dealt {
    using policy_kind = gpipe::policy::Schedule;
    static constexpr gpipe::Programs programs(std::size_t cells, std::size_t micro_batches) {
        std::size_t const devices = (cells + 1) / 2;
        gpipe::Programs result(devices, cells, micro_batches, 2 * cells * micro_batches);
        for (std::size_t c = 0; c < cells; ++c) result.place(c, c % devices);
        return forth_and_back(result);
    }
};

/// One micro-batch after the other, the whole way there and back.
struct OneByOne {
    using policy_kind = gpipe::policy::Schedule;
    static constexpr gpipe::Programs programs(std::size_t devices, std::size_t micro_batches) {
        gpipe::Programs result(devices, devices, micro_batches, 2 * devices * micro_batches);
        for (std::size_t k = 0; k < devices; ++k) {
            for (std::size_t m = 0; m < micro_batches; ++m) {
                result.add(gpipe::forward(k, m));
                result.add(gpipe::backward(k, m));
            }
            result.next_device();
        }
        return result;
    }
};

/// Any order that is possible at all, of forwards and of devices, with backwards ascending on each
/// device: a walk by chance, written down by device.
inline thread_local std::uint64_t chance = 0;
struct ByChance {
    using policy_kind = gpipe::policy::Schedule;
    static gpipe::Programs programs(std::size_t devices, std::size_t micro_batches) {
        std::mt19937_64 random(chance);
        std::size_t const total = 2 * devices * micro_batches;
        std::vector<std::vector<bool>> ran(devices, std::vector<bool>(micro_batches));
        std::vector<std::size_t> backwards(devices);
        std::vector<std::vector<gpipe::Action>> written(devices);
        for (std::size_t n = 0; n < total; ++n) {
            std::vector<gpipe::Action> possible;
            for (std::size_t k = 0; k < devices; ++k) {
                for (std::size_t m = 0; m < micro_batches; ++m)
                    if (!ran[k][m] && (k == 0 || ran[k - 1][m]))
                        possible.push_back(gpipe::forward(k, m));
                std::size_t const m = backwards[k];
                if (m < micro_batches && ran[k][m] && (k + 1 == devices || backwards[k + 1] > m))
                    possible.push_back(gpipe::backward(k, m));
            }
            gpipe::Action const action = possible[random() % possible.size()];
            written[action.cell].push_back(action);
            if (action.kind == gpipe::Kind::forward)
                ran[action.cell][action.micro_batch] = true;
            else
                ++backwards[action.cell];
        }
        gpipe::Programs result(devices, devices, micro_batches, total);
        for (auto const& program : written) {
            for (gpipe::Action const& action : program) result.add(action);
            result.next_device();
        }
        return result;
    }
};

/// Calls f(schedule, K) for every schedule of the library, those in loops with 1 to 3 cells per
/// device, and every K from 1 to `most_devices` for which there are no more than `most_cells` cells
/// and enough micro-batches.
template <class F>
void each_of_catalogue(std::size_t most_devices, std::size_t most_cells, std::size_t micro_batches,
                       F f) {
    std::size_t const others = gpipe::schedule::catalogue(0).size(); // then those in loops
    for (std::size_t v = 0; v <= 3; ++v) {
        auto const catalogue = gpipe::schedule::catalogue(v);
        for (std::size_t s = v == 0 ? 0 : others; s < catalogue.size(); ++s)
            for (std::size_t k = 1; k <= most_devices; ++k)
                if (k * catalogue[s].cells_per_device() <= most_cells &&
                    micro_batches >= catalogue[s].least_micro_batches(k))
                    f(catalogue[s], k);
    }
}

} // namespace toy
