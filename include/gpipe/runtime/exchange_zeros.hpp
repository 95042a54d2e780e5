#pragma once

#include <gpipe/runtime/calls.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/step.hpp>

namespace gpipe::detail {

// Has other replicas get zeros where they wait for what these calls, which are not made, would
// tell. fail(layer): the device refuses.
template <class Device, class Fail>
void exchange_zeros(Device& device, Run& run, Step const& step, Calls::Range calls,
                    Fail fail) noexcept {
    Frame frame{&run.frames[step.device]};
    frame.micro_batch = step.micro_batch;
    bool const backward = step.kind != Kind::forward;
    try {
        for (; calls.first != calls.last; ++calls.first) {
            if (!calls.first->exchanges) continue;
            ExchangeMemory const& memory = calls.first->buffers->exchange;
            device.fill(step.stream, memory.own(frame, backward),
                        backward ? memory.gradient_bytes : memory.bytes);
            memory.all_gather(frame, backward);
        }
    } catch (...) {
        run.is_cut = true;
        device.cut_short();
        fail(calls.first->index);
    }
}

} // namespace gpipe::detail
