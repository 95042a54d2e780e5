#pragma once

#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe::schedule {

namespace detail {

// One device's program of DualPipeV: every kind takes the next micro-batch of its cell, weight
// gradients that were put off run in the order of their input gradients.
class DualPipeDevice {
  public:
    constexpr DualPipeDevice(Programs& programs, std::size_t down, std::size_t up)
        : programs_(programs), cell_{down, up}, put_off_(programs.cells()) {}

    constexpr void forward(std::size_t phase) {
        programs_.add(gpipe::forward(cell_[phase], forwards_[phase]++));
    }
    constexpr void backward(std::size_t phase, bool whole = true) {
        std::size_t const cell = cell_[phase];
        std::size_t const m = backwards_[phase]++;
        programs_.add(whole ? gpipe::backward(cell, m) : input_gradient(cell, m));
        if (!whole) put_off_[last_++] = weight_gradient(cell, m);
    }
    constexpr void weights() { programs_.add(put_off_[first_++]); }

  private:
    Programs& programs_;
    std::size_t cell_[2];
    std::size_t forwards_[2] = {};
    std::size_t backwards_[2] = {};
    Array<Action> put_off_; // a queue
    std::size_t first_ = 0;
    std::size_t last_ = 0;
};

} // namespace detail

/// DualPipeV, "cut in half" (DeepSeek-AI, 2025): two cells per device in V order, device k owns
/// cells k and 2 K - 1 - k; most backwards are whole and each of them follows a forward of the
/// device's other cell, which a device that can runs at once with it. Here they run one after the
/// other. Needs M >= 2 K.
///
/// The bubble is then K - 1 actions of unit cost per device, as ZeroBubbleV's; a device holds at
/// most 2 K + 1 cells' micro-batches, half of the activations each.
struct DualPipeV {
    using policy_kind = policy::Schedule;
    static constexpr std::string_view name = "DualPipeV";
    static constexpr std::size_t cells_per_device = 2;
    static constexpr std::size_t least_micro_batches(std::size_t devices) { return 2 * devices; }

    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        Programs result(devices, 2 * devices, micro_batches, 6 * devices * micro_batches);
        result.place_in_v();
        for (std::size_t k = 0; k < devices; ++k) {
            std::size_t const after = devices - 1 - k; // devices behind this one
            detail::DualPipeDevice device(result, k, 2 * devices - 1 - k);
            for (std::size_t r = 0; r < 2 * after; ++r) device.forward(0);
            for (std::size_t r = 0; r < k + 1; ++r) {
                device.forward(0);
                device.forward(1);
            }
            for (std::size_t r = 0; r < after; ++r) {
                device.backward(1, false);
                device.weights();
                device.forward(1);
            }
            for (std::size_t r = 0; r < micro_batches + k + 1 - 2 * devices; ++r) {
                device.forward(0);
                device.backward(1);
                device.forward(1);
                device.backward(0);
            }
            for (std::size_t r = 0; r < after; ++r) {
                device.backward(1);
                device.forward(1);
                device.backward(0);
            }
            // From the middle of these on, weight gradients wait.
            for (std::size_t r = 0; r < k + 1; ++r) {
                device.backward(1, 2 * r <= k);
                device.backward(0, 2 * r < k);
            }
            for (std::size_t r = 0; r < after; ++r) {
                device.weights();
                device.backward(0, false);
            }
            for (std::size_t r = 0; r < k + 1; ++r) device.weights();
            result.next_device();
        }
        return result;
    }
};

} // namespace gpipe::schedule
