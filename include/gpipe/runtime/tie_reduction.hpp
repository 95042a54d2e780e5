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
        : end_(end), device_(device), tables_(tables), run_(run), step_(step), tie_(tie_of(step)),
          first_(tables.tied[tie_.first]), sum_(gradient(tie_.first)) {}

    // Kind::bring_gradient or Kind::reduce.
    void run() const { step_.kind == Kind::reduce ? reduce() : bring(step_.calls); }

  private:
    // To where the first end's device can read it, of another rank as a message.
    void bring(std::size_t end) const {
        std::byte *const from = gradient(end), *const to = tables_.brought[end];
        if constexpr (joins_ranks<Device>) {
            if (!sum_) return end_.send(run_, step_.stream, channel(end), from, tie_.bytes);
            if (!from) return end_.receive(run_, step_.stream, channel(end), to, tie_.bytes);
        }
        device_.copy(step_.stream, to, from, tie_.bytes);
    }
    // Adds them to that of the first end, in order, and copies the sum to all that have a
    // parameter; to another rank as a message.
    void reduce() const {
        for (std::size_t end = tie_.first + 1; end < tie_.last && sum_; ++end)
            add(tables_.brought[end] ? tables_.brought[end] : gradient(end));
        for (std::size_t end = tie_.first + 1; end < tie_.last; ++end) {
            if (tables_.holders[end] != tables_.tied[end]) continue; // see copy_to_held_ends()
            std::byte* const to = gradient(end);
            if constexpr (joins_ranks<Device>) {
                std::size_t const back = channel(end) + 1;
                if (sum_ && !to) end_.send(run_, step_.stream, back, sum_, tie_.bytes);
                if (to && !sum_) end_.receive(run_, step_.stream, back, to, tie_.bytes);
                if (!sum_ || !to) continue;
            }
            device_.copy(step_.stream, to, sum_, tie_.bytes);
        }
    }
    Tables::Tie const& tie_of(Step const& step) const {
        if (step.kind == Kind::reduce) return tables_.ties[step.calls];
        std::size_t tie = 0;
        while (tables_.ties[tie].last <= step.calls) ++tie;
        return tables_.ties[tie];
    }
    // Of an end; null: it is elsewhere.
    std::byte* gradient(std::size_t end) const {
        return tables_.updates[tables_.tied[end]].gradient;
    }
    std::size_t channel(std::size_t end) const { return tables_.channel_of_end(end); }
    void add(std::byte const* other) const {
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
    std::byte* sum_; // null: on another rank
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
