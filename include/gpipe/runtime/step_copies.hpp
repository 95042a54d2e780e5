#pragma once

#include <gpipe/device/device.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/step_end.hpp>
#include <gpipe/runtime/table.hpp>
#include <gpipe/runtime/tables.hpp>

#include <cstddef>

namespace gpipe::detail {

// What puts tensors from one place to another between the calls of layers: over an edge, or to
// slower memory and back. References outlive it.
template <DeviceRuntime Device> class StepCopies {
  public:
    StepCopies(Device& device, Tables const& tables, StepEnd<Device>& end)
        : device_(device), tables_(tables), end_(end) {}

    // One that has no samples is sent all the same, without bytes: what is behind it on its own
    // rank may rely on what comes back from others.
    bool is_message([[maybe_unused]] Step const& step) const {
        if constexpr (joins_ranks<Device>)
            return is_transfer(step.kind) && tables_.edges[step.calls].channel != no_channel;
        return false;
    }
    void put(Run& run, StepTable const& table, Step const& step) {
        is_transfer(step.kind) ? cross(run, table, step) : offload(run, table, step);
    }
    // Has other replicas get zeros where they wait for what these calls, which are not made, would
    // tell. fail(layer): the device refuses.
    template <class Fail>
    void exchange_zeros(Run& run, Step const& step, Calls::Range calls, Fail fail) noexcept {
        Frame frame{&run.frames[step.device]};
        frame.micro_batch = step.micro_batch;
        bool const backward = step.kind != Kind::forward;
        try {
            for (; calls.first != calls.last; ++calls.first) {
                if (!calls.first->exchanges) continue;
                ExchangeMemory const& memory = calls.first->buffers->exchange;
                device_.fill(step.stream, memory.own(frame, backward),
                             backward ? memory.gradient_bytes : memory.bytes);
                memory.all_gather(frame, backward);
            }
        } catch (...) {
            run.is_cut = true;
            device_.cut_short();
            fail(calls.first->index);
        }
    }

  private:
    void copy(Step const& step, std::byte const* from, std::byte* to, std::size_t bytes) {
        if (bytes > 0) device_.copy(step.stream, to, from, bytes);
    }
    void offload(Run const& run, StepTable const& table, Step const& step) {
        CellRow const& cell = tables_.cells[step.cell];
        std::size_t const input = cell.input(run.ranges[step.micro_batch].count);
        std::byte* const block = table.of(step, Region::retained);
        std::byte* const from = table.of(step, Region::input);
        std::byte* const to = table.of(step, Region::output);
        bool const out = step.kind == Kind::offload;
        copy(step, out ? block : from, out ? to : block, cell.retained);
        copy(step, out ? from : from + cell.retained, out ? to + cell.retained : to, input);
    }
    void cross([[maybe_unused]] Run& run, StepTable const& table, Step const& step) {
        std::size_t const samples = run.ranges[step.micro_batch].count;
        bool const gradient =
            step.kind == Kind::send_gradient || step.kind == Kind::receive_gradient;
        EdgeRow const& edge = tables_.edges[step.calls];
        std::size_t const bytes =
            samples > 0 ? (gradient ? edge.gradients : edge.tensors)(samples) : 0;
        std::byte* const from = table.of(step, Region::input);
        std::byte* const to = table.of(step, Region::output);
        if constexpr (joins_ranks<Device>)
            if (edge.channel != no_channel) {
                std::size_t const channel = edge.channel + gradient;
                bool const sends =
                    step.kind == Kind::send_output || step.kind == Kind::send_gradient;
                // No word goes with it: who gets zeros, as indices, say, does no harm.
                if (calls_enqueue<Device> && sends && run.failed())
                    device_.fill(step.stream, from, bytes);
                return sends ? end_.send(run, step.stream, channel, from, bytes)
                             : end_.receive(run, step.stream, channel, to, bytes);
            }
        copy(step, from, to, bytes);
    }

    Device& device_;
    Tables const& tables_;
    StepEnd<Device>& end_;
};

} // namespace gpipe::detail
