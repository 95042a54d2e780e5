#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/device/host.hpp>
#include <gpipe/runtime/engine.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

namespace gpipe {

// What a Training calls of an Engine: not inline, so that it is not instantiated again where it has
// been compiled.

template <DeviceRuntime Device>
Engine<Device>::Engine(Device& device, MachinePlan<Device> const& planned,
                       Arenas<Device> const& arenas, std::byte* host,
                       Array<HandleSet> const& handles)
    : device_(device), planned_(planned),
      runs_(
          device, [&] { return tables_of(device, planned, arenas.begins(), handles); },
          planned.checks, planned.immediate(), prepared(arenas.begins())),
      tied_(arenas, planned.model, tables()),
      plans_(make_lane_plans(planned, ending_of(planned), device.lanes(), arenas.begins(), host)),
      lane_choice_(device.lanes() > 1 && device.chooses_lanes() && !planned.overlaps,
                   planned.programs.size()),
      seed_(planned.seed) {
    // Where both may be under way marks of one run are waited for in the next: whose own would be
    // in their place, and later.
    std::size_t const marks = (planned.overlaps ? 2 : 1) * longest_of(plans_);
    device_.prepare(planned.plan.lowered.device, marks, batches_[0].feed_devices());
    give_states();
    for (std::size_t slot = 0; slot < slots; ++slot) runs_[slot].caller = &caller_;
}

template <DeviceRuntime Device> Engine<Device>::~Engine() {
    for (std::size_t n = 0; n < slots; ++n) tell((next_slot_ + n) % slots);
    device_.abort(); // what it uses goes from here on
}

template <DeviceRuntime Device>
void Engine<Device>::start(Pointers inputs, Pointers others, std::size_t samples,
                           void const* optimizer, StepOutcome* outcome) {
    detail::OneCaller::Call const call(caller_);
    if (!optimizer) await_writers(others);
    auto feeding = device_.feeding();
    start_fed(feeding, inputs, others, samples, optimizer, outcome);
}

template <DeviceRuntime Device>
template <class Feeding>
void Engine<Device>::start_fed(Feeding& feeding, Pointers inputs, Pointers others,
                               std::size_t samples, void const* optimizer, StepOutcome* outcome,
                               std::size_t first, std::size_t more) {
    std::size_t const slot = next_slot_;
    bool const trains = optimizer != nullptr;
    tied_.take_back();
    make_ready();
    if (accumulated_ > 0 && runs_.immediate()) finish_all(); // for nothing could be taken back
    std::size_t const before = accumulated_;
    SampleRange const part = planned_.own_part(samples);
    batches_[slot].take(inputs, others, first + part.first, part.count, trains, slot);
    if (counts_may_differ_) give_states();
    counts_may_differ_ = trains;
    double const begin = lane_choice_.begin();
    bool const done =
        submit(trains ? lane_plan().training : lane_plan().forward,
               {seed_, trains ? next_step() : steps_, optimizer, trains, samples, part, slot, true,
                before + first, !trains || outcome != nullptr, more});
    if (done) {
        feeding.end();
        runs_.end(runs_[slot]);
    }
    counts_may_differ_ = false;
    lane_choice_.end(begin);
    if (!done) {
        if (outcome) outcome->wait_at(outcomes_[slot]);
        next_slot_ = (slot + 1) % slots;
        try {
            feeding.end();
        } catch (...) { // somebody asks for the run all the same, but the arrays are the caller's
            device_.abort();
            throw;
        }
    }
    if (trains && !outcome) accumulated_ = before + samples;
    if (done) count(slot, outcome);
}

template <DeviceRuntime Device>
void Engine<Device>::infer(Pointers inputs, Pointers outputs, std::size_t samples) {
    detail::OneCaller::Call const call(caller_);
    finish_all();
    await_writers(outputs);
    try {
        for (std::size_t first = 0; first < samples; first += planned_.samples) {
            auto feeding = device_.feeding();
            std::size_t const count = std::min(planned_.samples, samples - first);
            start_fed(feeding, inputs, outputs, count, nullptr, nullptr, first,
                      samples - first - count);
        }
        finish_all();
    } catch (...) { // of the first part that failed
        std::optional<Failure> const failed = runs_.failure();
        for (std::size_t n = 0; n < slots; ++n) tell((next_slot_ + n) % slots);
        runs_.blame(failed);
        throw;
    }
}

template <DeviceRuntime Device> void Engine<Device>::finish(StepOutcome const& outcome) {
    detail::OneCaller::Call const call(caller_);
    for (std::size_t n = 0; n < slots; ++n) // the oldest first
        if (outcome.waits())
            if (auto error = tell((next_slot_ + n) % slots); error && !unreported_)
                unreported_ = error;
}

template <DeviceRuntime Device> void Engine<Device>::finish_slot(std::size_t slot) {
    if (runs_[slot].ended) return;
    StepOutcome* const outcome = outcomes_[slot];
    try {
        leader_ ? finish_together_(leader_, *this, slot) : finish_alone(slot);
    } catch (...) {
        // Commits read what others have left there: a fault is not to be that of the next
        // mini-batch.
        counts_may_differ_ = counts_may_differ_ || (runs_.immediate() && calls_enqueue<Device>);
        if (!runs_[slot].arguments.last) accumulated_ = 0;
        if (!outcome) throw;
        outcome->tell(std::current_exception());
    }
}

template <DeviceRuntime Device> void Engine<Device>::make_ready() {
    throw_unreported();
    finish_slot(next_slot_);
    for (std::size_t n = 1; n < slots; ++n) // what begins behind one in vain would be so, too
        if (runs_[(next_slot_ + n) % slots].in_vain) finish_slot((next_slot_ + n) % slots);
    if (counts_may_differ_) finish_all();
}

template <DeviceRuntime Device> void Engine<Device>::finish_all() {
    tied_.take_back();
    std::exception_ptr first;
    std::optional<Failure> failed;
    for (std::size_t n = 0; n < slots; ++n) // all, for arrays of the caller are theirs until then
        try {
            finish_slot((next_slot_ + n) % slots);
        } catch (...) {
            if (first) continue;
            first = std::current_exception();
            failed = runs_.failure();
        }
    throw_unreported();
    if (!first) return;
    runs_.blame(std::move(failed));
    std::rethrow_exception(first);
}

template <DeviceRuntime Device>
std::span<double const> Engine<Device>::gradients(Pointers inputs, Pointers targets,
                                                  std::size_t samples, void const* optimizer) {
    detail::OneCaller::Call const call(caller_);
    finish_all();
    if (accumulated_ > 0)
        detail::throw_error<std::logic_error>(
            "gpipe: gradients of %zu samples are accumulated for the next step: train it, or "
            "forget_accumulated(), first",
            accumulated_);
    SampleRange const part = planned_.own_part(samples);
    batches_[0].take(inputs, targets, part.first, part.count, true, 0);
    if (counts_may_differ_) give_states();
    counts_may_differ_ = true; // the device counts this for a step
    run(lane_plan().training, {seed_, steps_, optimizer, true, samples, part, 0, false});
    give_states();
    return runs_.totals(0);
}

template <DeviceRuntime Device>
void Engine<Device>::forward(Pointers inputs, Pointers others, std::size_t samples,
                             double* totals) {
    detail::OneCaller::Call const call(caller_);
    finish_all();
    if (!totals) await_writers(others);
    std::size_t const most = planned_.samples * planned_.ranks.replicas;
    for (std::size_t first = 0; first < samples; first += most)
        forward_part(inputs, others, first, {first, std::min(most, samples - first)}, samples,
                     totals);
}

template <DeviceRuntime Device>
void Engine<Device>::evaluate_part(Pointers inputs, Pointers targets, SampleRange part,
                                   std::size_t samples, double* totals) {
    detail::OneCaller::Call const call(caller_);
    finish_all();
    forward_part(inputs, targets, 0, part, samples, totals);
}

template <DeviceRuntime Device>
void Engine<Device>::forward_part(Pointers inputs, Pointers others, std::size_t at,
                                  SampleRange part, std::size_t samples, double* totals) {
    SampleRange const own = planned_.own_part(part.count);
    bool const measures = totals != nullptr;
    batches_[0].take(inputs, others, at + own.first, own.count, measures, 0);
    run(lane_plan().forward, {seed_, steps_, nullptr, measures, part.count, own, 0, true,
                              part.first, true, samples - part.first - part.count});
    if (!measures) return;
    for (double const sum : runs_.totals(0)) *totals++ += sum;
}

GPIPE_INSTANTIATE(class Engine<device::Host>);

} // namespace gpipe
