#pragma once

#include <gpipe/device/device.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/step.hpp>
#include <gpipe/runtime/tables.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe::detail {

// The gradients of a tied parameter tensor, each of whose ends has one. End: a StepEnd.
template <class End, class Device> class TieReduction {
  public:
    TieReduction(End& end, Device& device, Tables const& tables, Run& run, Step const& step)
        : end_(end), device_(device), tables_(tables), run_(run), step_(step),
          tie_(tables.ties[step.calls]), first_(tables.tied[tie_.first]),
          sum_(tables.updates[first_].gradient) {}

    // Adds them to that of the first end, in order, and copies the sum to all that have a
    // parameter. Of an end on another rank its gradient comes, and the sum goes, as a message.
    void reduce() {
        each_other([&](std::size_t end, std::byte* other) {
            if constexpr (joins_ranks<Device>)
                if (!sum_) { // is elsewhere
                    if (other) end_.send(run_, step_.stream, channel(end), other, tie_.bytes);
                    return;
                }
            add(brought(end, other));
        });
        each_other([&](std::size_t end, std::byte* other) {
            if (tables_.holders[end] != tables_.tied[end]) return; // see copy_to_held_ends()
            if constexpr (joins_ranks<Device>) {
                std::size_t const back = channel(end) + 1;
                if (sum_ && !other) end_.send(run_, step_.stream, back, sum_, tie_.bytes);
                if (other && !sum_) end_.receive(run_, step_.stream, back, other, tie_.bytes);
                if (!sum_ || !other) return;
            }
            device_.copy(step_.stream, other, sum_, tie_.bytes);
        });
    }

  private:
    // f(end, its gradient; null: elsewhere): of all but the first.
    template <class F> void each_other(F f) const {
        for (std::size_t end = tie_.first + 1; end < tie_.last; ++end)
            f(end, tables_.updates[tables_.tied[end]].gradient);
    }
    std::size_t channel(std::size_t end) const { return tables_.channel_of_end(end); }
    // Where the device can read it.
    std::byte* brought(std::size_t end, std::byte* other) {
        std::byte* const here = tables_.devices[step_.device].tied; // null where all can read all
        if (!here || tables_.has_row(step_.device, tables_.tied[end])) return other;
        if constexpr (joins_ranks<Device>)
            if (!other) {
                end_.receive(run_, step_.stream, channel(end), here, tie_.bytes);
                return here;
            }
        device_.copy(step_.stream, here, other, tie_.bytes);
        return here;
    }
    void add(std::byte const* other) {
        end_.launch_rows(
            run_, step_.stream, FailureOf::gradient, tables_.updates, first_, first_ + 1,
            [call = AddCall{other, end_.stream(step_.stream)}](UpdateRow const& row, std::size_t) {
                row.add(call, row);
                return std::size_t{1};
            });
    }

    End& end_;
    Device& device_;
    Tables const& tables_;
    Run& run_;
    Step const& step_;
    Tables::Tie const& tie_;
    std::uint32_t first_;
    std::byte* sum_;
};

// Behind the updates of a device: the gradients of ends that have no parameter of their own become
// what the optimizer has left of those of the ends that have it.
template <class Device>
void copy_to_held_ends(Device& device, Tables const& tables, std::size_t d, std::size_t stream) {
    for (Tables::Tie const& tie : tables.ties)
        for (std::size_t end = tie.first; end < tie.last && tables.learns(tie); ++end) {
            std::uint32_t const row = tables.tied[end], holder = tables.holders[end];
            if (row != holder && tables.has_row(d, row))
                device.copy(stream, tables.updates[row].gradient, tables.updates[holder].gradient,
                            tie.bytes);
        }
}

} // namespace gpipe::detail
