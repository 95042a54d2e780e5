#pragma once

#include <gpipe/device/device.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/plan/ranks.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace gpipe {

/// The memory of a machine's devices, one piece each, as a plan divides it; of other ranks' devices
/// none.
template <DeviceRuntime Device> class Arenas {
  public:
    /// `device` must outlive it.
    Arenas(Device& device, MemoryPlan const& plan, Ranks const& ranks)
        : device_(device), ranks_(ranks), arenas_(plan.devices.size()),
          begins_(plan.devices.size(), reinterpret_cast<std::byte*>(slot_alignment)) {
        for (std::size_t d = ranks.begin(); d < ranks.end(); ++d) {
            arenas_[d] = device.allocate(d, plan.devices[d].total());
            begins_[d] = arenas_[d].data();
        }
    }
    /// By device: where they begin; of another rank's one for numbers that nobody uses.
    Array<std::byte*> const& begins() const { return begins_; }
    /// One of them.
    std::span<std::byte> operator[](std::size_t device) const {
        return {arenas_[device].data(), arenas_[device].size()};
    }
    /// Of all.
    std::size_t bytes() const {
        std::size_t bytes = 0;
        for (auto const& arena : arenas_) bytes += arena.size();
        return bytes;
    }
    /// Copies from the host's memory to a device's or back, or between devices, while nothing runs;
    /// done when it returns.
    void copy(std::byte* to, std::byte const* from, std::size_t bytes) const {
        if (bytes > 0) device_.run([&] { device_.copy(owner(to, from), to, from, bytes); });
    }

  private:
    // The device whose memory one of these is; its stream has the same number.
    std::size_t owner(std::byte const* a, std::byte const* b) const {
        // As numbers: pointers into different arrays have no order.
        auto const number = [](std::byte const* at) {
            return reinterpret_cast<std::uintptr_t>(at);
        };
        auto const holds = [&](std::size_t d, std::byte const* at) {
            return number(at) - number(begins_[d]) < arenas_[d].size();
        };
        std::size_t d = ranks_.begin();
        while (d + 1 < ranks_.end() && !holds(d, a) && !holds(d, b)) ++d;
        return d - ranks_.begin();
    }

    Device& device_;
    Ranks ranks_;
    Array<decltype(std::declval<Device&>().allocate(0, 0))> arenas_;
    Array<std::byte*> begins_;
};

} // namespace gpipe
