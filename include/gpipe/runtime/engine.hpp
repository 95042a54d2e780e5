#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/device/host.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/runtime/lane_choice.hpp>
#include <gpipe/runtime/lane_plans.hpp>
#include <gpipe/runtime/pending_step.hpp>
#include <gpipe/runtime/runs.hpp>
#include <gpipe/runtime/tied_parameters.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <utility>

namespace gpipe {

/// Turns mini-batches into runs of a device: steps, of which several may be under way, each in a
/// slot, and evaluations.
template <DeviceRuntime Device> class Engine {
  public:
    using Pointers = MiniBatch::Pointers; ///< arrays of the caller, one per tensor

    /// What is handed over must outlive it; `host`: memory that copies go through; `handles`: by
    /// device; `immediate`: see update::Immediate. From then on a run allocates nothing.
    Engine(Device& device, MachinePlan<Device> const& planned, Arenas<Device> const& arenas,
           std::byte* host, Array<HandleSet> const& handles, bool immediate, std::uint64_t seed);
    Engine(Engine const&) = delete;
    Engine& operator=(Engine const&) = delete;
    ~Engine();

    /// One training step: forward, backward, update by `optimizer`. Tells `outcome` the loss's
    /// numbers over the mini-batch, of which [0] is the sum and [1] the weight; without a positive
    /// weight nothing is updated and the step does not count. Throws what a layer threw. It may
    /// return before the step is done, see DeviceExecutor; then others wait for it, and one that
    /// failed unheard is heard of at the next.
    void start(Pointers inputs, Pointers targets, std::size_t samples, void const* optimizer,
               StepOutcome& outcome);
    /// The same for arrays that the caller's stream has written, and may write again after this.
    template <class CallersStream>
    void start(Pointers inputs, Pointers targets, std::size_t samples, void const* optimizer,
               StepOutcome& outcome, CallersStream caller) {
        auto feeding = device_.feeding(caller);
        start_fed(feeding, inputs, targets, samples, optimizer, outcome);
    }
    /// Waits for the step that tells this, and for those before it.
    void finish(StepOutcome const& outcome);
    /// Waits for all steps. Throws what was wrong with one that nobody listens to. Spreads what was
    /// lent.
    void finish();

    /// Forward and backward as in the next step, which leaves the mean gradients and nothing else.
    /// The loss's numbers; throws as start().
    std::span<double const> gradients(Pointers inputs, Pointers targets, std::size_t samples,
                                      void const* optimizer);
    /// Forward only, over any number of samples. Either the loss is measured and add(sums) called
    /// for each part of a mini-batch's samples, or the outputs are written to `others`.
    template <class Add>
    void forward(Pointers inputs, Pointers others, std::size_t samples, bool measures, Add add) {
        finish();
        if (!measures)
            for (TensorPointer const& output : others) device_.await_writers(output.data);
        std::size_t const most = planned_.samples * planned_.ranks.replicas;
        for (std::size_t first = 0; first < samples; first += most) {
            std::size_t const count = std::min(most, samples - first);
            SampleRange const part = planned_.own_part(count);
            batches_[0].take(inputs, others, first + part.first, part.count, measures, 0);
            run(lane_plan().forward, {seed_, steps_, nullptr, measures, count, part});
            if (measures) add(runs_.totals(0));
        }
    }
    /// Forgets what steps were kept as: layers, or the loss, are others now.
    void forget_steps() {
        finish();
        device_.forget();
    }
    /// Goes on as if so many steps had been trained with this seed, once no step is under way.
    void go_on(std::uint64_t seed, std::uint64_t steps) {
        seed_ = seed;
        steps_ = steps;
        give_states();
    }
    /// Waits for all steps, then throws if an update was interrupted.
    void check_whole() {
        finish();
        runs_.refuse_if_torn();
    }

    /// What the walker looks at.
    Tables const& tables() const { return runs_.tables(); }
    /// Parameters of several layers.
    TiedParameters<Device>& tied() { return tied_; }
    /// See Options::seed.
    std::uint64_t seed() const { return seed_; }
    /// Steps trained.
    std::uint64_t steps() const { return steps_; }
    /// For all ranks, see LanePlan::hash.
    std::uint64_t plan_hash() const { return plans_[plans_.size() - 1].hash; }
    /// That can be walked at a time, see DeviceExecutor.
    std::size_t lanes() const { return device_.walkers(); }
    /// That a device computes on.
    std::size_t stream_of(std::size_t device) const {
        return plans_[0].training.stream_of_device[device];
    }
    /// Of the last run that has come to its end, if it failed.
    std::optional<Failure> const& failure() const { return runs_.failure(); }

    /// From the next run on, notes when every action runs: what last_run() has is then of the last
    /// that has come to its end.
    void time_actions() {
        runs_.time_actions(
            std::max(planned_.plan.lowered.programs.size(), planned_.evaluation.programs.size()));
    }
    /// That run.
    Run const& last_run() const { return runs_.last(); }

  private:
    static constexpr std::size_t slots = Device::depth;
    LanePlan const& lane_plan() const {
        return lane_choice_.alone() ? plans_[0] : plans_[plans_.size() - 1];
    }

    template <class Feeding>
    void start_fed(Feeding& feeding, Pointers inputs, Pointers targets, std::size_t samples,
                   void const* optimizer, StepOutcome& outcome);
    // Has the device run what of the table has samples. Whether all of that is done.
    bool submit(StepTable const& table, RunArguments const& arguments) {
        Run& run = runs_.begin(table, batches_[arguments.slot], arguments);
        Ticket const ticket{arguments.slot,
                            table.lanes(),
                            &table,
                            arguments.samples,
                            arguments.trains() && run.times.empty(),
                            arguments.trains() && runs_.immediate(),
                            table.stream_of_device[run.batch->reader()]};
        try {
            return run.done = device_.submit(ticket, runs_.walk(run, table));
        } catch (...) {
            if constexpr (joins_ranks<Device>) device_.cut_short();
            device_.abort();
            if (device_.launched()) runs_.interrupt(run);
            throw;
        }
    }
    // From beginning to end.
    void run(StepTable const& table, RunArguments const& arguments) {
        submit(table, arguments);
        finish_run(runs_[arguments.slot]);
    }
    void finish_run(Run& run) {
        try {
            if (!run.done) device_.finish(run.arguments.slot);
        } catch (...) {
            if constexpr (joins_ranks<Device>) device_.cut_short();
            runs_.interrupt(run);
            throw;
        }
        runs_.end(run);
    }
    // The number of the step that is started next.
    std::uint64_t next_step() const {
        std::uint64_t number = steps_;
        for (bool const under_way : under_way_) number += under_way;
        return number;
    }
    // Of a step that is done.
    void count(std::size_t slot, StepOutcome* outcome) {
        StepState const& state = runs_.state(slot);
        if (state.committed) steps_ = state.step;
        if (outcome) outcome->tell(runs_.totals(slot));
    }
    // Waits for the step of a slot, if there is one.
    void finish_slot(std::size_t slot) {
        if (!std::exchange(under_way_[slot], false)) return;
        StepOutcome* const outcome = outcomes_[slot];
        try {
            finish_run(runs_[slot]);
            count(slot, outcome);
        } catch (...) {
            if (!outcome) throw;
            outcome->tell(std::current_exception());
        }
    }
    // The same for who does not want to know.
    void tell(std::size_t slot) noexcept {
        try {
            finish_slot(slot);
        } catch (...) {
        }
    }
    [[gnu::cold]] void give_states() {
        finish();
        runs_.give_states(seed_, steps_);
        doubtful_ = false;
    }

    Device& device_;
    MachinePlan<Device> const& planned_;
    Array<MiniBatch> batches_; ///< by slot
    Runs<Device> runs_;
    TiedParameters<Device> tied_;
    Array<LanePlan> plans_; ///< one lane; as many as the device has, if that is more
    LaneChoice lane_choice_;
    std::uint64_t seed_;
    std::uint64_t steps_ = 0;
    bool under_way_[slots] = {};        ///< by slot
    StepOutcome* outcomes_[slots] = {}; ///< who is told
    std::size_t next_slot_ = 0;
    bool doubtful_ = false; ///< whether the devices may count other steps
};

// What a Training calls is defined here, not inline, so that it is not instantiated again where it
// has been compiled.

template <DeviceRuntime Device>
Engine<Device>::Engine(Device& device, MachinePlan<Device> const& planned,
                       Arenas<Device> const& arenas, std::byte* host,
                       Array<HandleSet> const& handles, bool immediate, std::uint64_t seed)
    : device_(device), planned_(planned),
      batches_(slots, MiniBatch(planned.model, planned.plan, arenas.begins(), planned.ranks)),
      runs_(device, tables_of(device, planned, arenas.begins(), handles), planned.checks, immediate,
            batches_[0].staged_bytes()),
      tied_(arenas, planned.model, tables()),
      plans_(make_lane_plans(planned, ending_of(planned, tables(), immediate), device.lanes(),
                             arenas.begins(), host)),
      lane_choice_(device.lanes() > 1 && device.chooses_lanes() && !immediate,
                   planned.programs.size()),
      seed_(seed) {
    device_.prepare(planned.plan.lowered.device, longest_of(plans_), batches_[0].copy_devices());
    give_states();
}

template <DeviceRuntime Device> Engine<Device>::~Engine() {
    for (std::size_t slot = 0; slot < slots; ++slot) tell(slot);
    device_.abort(); // what it uses goes from here on
}

template <DeviceRuntime Device>
void Engine<Device>::start(Pointers inputs, Pointers targets, std::size_t samples,
                           void const* optimizer, StepOutcome& outcome) {
    auto feeding = device_.feeding();
    start_fed(feeding, inputs, targets, samples, optimizer, outcome);
}

template <DeviceRuntime Device>
template <class Feeding>
void Engine<Device>::start_fed(Feeding& feeding, Pointers inputs, Pointers targets,
                               std::size_t samples, void const* optimizer, StepOutcome& outcome) {
    std::size_t const slot = next_slot_;
    tied_.take_back();
    finish_slot(slot);
    SampleRange const part = planned_.own_part(samples);
    batches_[slot].take(inputs, targets, part.first, part.count, true, slot);
    if (doubtful_) give_states();
    doubtful_ = true;
    bool const timed = lane_choice_.trying();
    double const begin = timed ? detail::seconds_now() : 0;
    bool const done =
        submit(lane_plan().training, {seed_, next_step(), optimizer, true, samples, part, slot});
    feeding.end();
    if (done) runs_.end(runs_[slot]);
    doubtful_ = false;
    lane_choice_.note(timed ? detail::seconds_now() - begin : 0);
    if (done) return count(slot, &outcome);
    under_way_[slot] = true;
    outcome.wait_at(outcomes_[slot]);
    next_slot_ = (slot + 1) % slots;
}

template <DeviceRuntime Device> void Engine<Device>::finish(StepOutcome const& outcome) {
    for (std::size_t n = 0; n < slots; ++n) // the oldest first
        if (outcome.waits()) tell((next_slot_ + n) % slots);
}

template <DeviceRuntime Device> void Engine<Device>::finish() {
    tied_.take_back();
    for (std::size_t n = 0; n < slots; ++n) finish_slot((next_slot_ + n) % slots);
}

template <DeviceRuntime Device>
std::span<double const> Engine<Device>::gradients(Pointers inputs, Pointers targets,
                                                  std::size_t samples, void const* optimizer) {
    finish();
    SampleRange const part = planned_.own_part(samples);
    batches_[0].take(inputs, targets, part.first, part.count, true, 0);
    if (doubtful_) give_states();
    doubtful_ = true; // the device counts this for a step
    run(lane_plan().training, {seed_, steps_, optimizer, true, samples, part, 0, false});
    give_states();
    return runs_.totals(0);
}

GPIPE_INSTANTIATE(class Engine<device::Host>);

} // namespace gpipe
