#pragma once

#include <gpipe/device/host.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/runtime/lane_choice.hpp>
#include <gpipe/runtime/lane_plans.hpp>
#include <gpipe/runtime/one_caller.hpp>
#include <gpipe/runtime/pending_step.hpp>
#include <gpipe/runtime/runs.hpp>
#include <gpipe/runtime/tied_parameters.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

namespace gpipe {

/// Turns mini-batches into runs of a device: steps, of which several may be under way, each in a
/// slot, and evaluations. What runs or waits throws std::logic_error while another call does.
template <DeviceRuntime Device> class Engine {
  public:
    using Pointers = MiniBatch::Pointers; ///< arrays of the caller, one per tensor

    /// What is handed over must outlive it; `host`: memory that copies go through; `handles`: by
    /// device. From then on a run allocates nothing.
    Engine(Device& device, MachinePlan<Device> const& planned, Arenas<Device> const& arenas,
           std::byte* host, Array<HandleSet> const& handles);
    Engine(Engine const&) = delete;
    Engine& operator=(Engine const&) = delete;
    [[gnu::cold]] ~Engine();

    /// One training step: forward, backward, update by `optimizer`. Tells `outcome` the loss's
    /// numbers over the mini-batch, of which [0] is the sum and [1] the weight; without a positive
    /// weight nothing is updated and the step does not count. Throws what a layer threw. It may
    /// return before the step is done, see DeviceExecutor; then others wait for it, and one that
    /// failed unheard is heard of at the next.
    /// Without an outcome they are a part of the next step's mini-batch: forward and backward
    /// alone. Without an optimizer it is an inference, of which as many may be under way: writes
    /// the outputs, which the others are then.
    void start(Pointers inputs, Pointers others, std::size_t samples, void const* optimizer,
               StepOutcome* outcome);
    /// The same for arrays that the caller's stream has written, and may write again after this.
    template <class CallersStream>
    void start(Pointers inputs, Pointers others, std::size_t samples, void const* optimizer,
               StepOutcome* outcome, CallersStream caller) {
        detail::OneCaller::Call const call(caller_);
        auto feeding = device_.feeding(caller);
        start_fed(feeding, inputs, others, samples, optimizer, outcome);
    }
    /// An inference of any number of samples, and waits for it: part by part, each of which begins
    /// while those before it are under way.
    void infer(Pointers inputs, Pointers outputs, std::size_t samples);

    /// Waits for the step that tells this, and for those before it.
    void finish(StepOutcome const& outcome);
    /// Waits for all steps. Throws what was wrong with one that nobody listens to. Spreads what was
    /// lent.
    void finish() {
        detail::OneCaller::Call const call(caller_);
        finish_all();
    }

    /// Forward and backward as in the next step, which leaves the mean gradients and nothing else.
    /// The loss's numbers; throws as start().
    std::span<double const> gradients(Pointers inputs, Pointers targets, std::size_t samples,
                                      void const* optimizer);
    /// Forward only, over any number of samples. Either the loss is measured, and its numbers over
    /// each part of a mini-batch's samples are added to `totals`, or, without, outputs are written
    /// to `others`.
    void forward(Pointers inputs, Pointers others, std::size_t samples, double* totals);
    /// A part of so many samples by itself, at most a mini-batch, which the arrays begin with.
    void evaluate_part(Pointers inputs, Pointers targets, SampleRange part, std::size_t samples,
                       double* totals);
    /// Forgets what steps were kept as: layers, or the loss, are others now.
    void forget_steps() {
        finish();
        device_.forget();
    }
    /// Goes on as if so many steps had been trained with this seed, and left that scale, once no
    /// step is under way.
    void go_on(std::uint64_t seed, std::uint64_t steps, LossScaleState scale) {
        detail::OneCaller::Call const call(caller_);
        seed_ = seed;
        steps_ = steps;
        runs_.set_scale(scale);
        give_states();
    }
    /// Samples of the next step's mini-batch that have been seen already; these are forgotten.
    ///@{
    std::size_t accumulated() const { return accumulated_; }
    void forget_accumulated() { accumulated_ = 0; }
    ///@}

    /// Whom it asks to wait for a step: who has several engines, which agree on what a step has
    /// come to, has each of them finish that.
    void follow(void* leader, void (*together)(void* leader, Engine& self, std::size_t slot)) {
        leader_ = leader;
        finish_together_ = together;
    }
    /// Waits for the step of a slot, if there is one; and, for who is asked, where there is one.
    ///@{
    void finish_slot(std::size_t slot);
    void finish_alone(std::size_t slot) {
        finish_run(runs_[slot]);
        count(slot, outcomes_[slot]);
    }
    ///@}
    /// Throws what start() would of earlier steps: before the others of a leader are told to.
    void make_ready();

    /// What the walker looks at.
    Tables const& tables() const { return runs_.tables(); }
    /// What steps have left, and who observes them.
    ///@{
    Runs<Device> const& runs() const { return runs_; }
    Runs<Device>& runs() { return runs_; }
    ///@}
    /// Parameters of several layers.
    TiedParameters<Device>& tied() { return tied_; }
    /// Who is in a call of it, for one that consists of several.
    detail::OneCaller& caller() const { return caller_; }
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
        return plans_[0].forward.stream_of_device[device];
    }
    /// See Inspectable.
    std::optional<Failure> const& failure() const { return runs_.failure(); }

    /// From the next run on, notes when every action runs, of the largest table, and behind them
    /// what ends a step; what last_run() has is then of the last that has come to its end.
    void time_actions() {
        std::size_t const layers = planned_.plan.lowered.programs.size(), // of an inference 0
            ends = planned_.infers() ? 0 : plans_[0].training.actions - layers;
        for (std::size_t slot = 0; slot < slots; ++slot)
            runs_[slot].time(std::max(layers, planned_.evaluation.programs.size()), ends);
    }
    /// That run. Throws std::logic_error while any is under way: it may be in that one's place.
    Run const& last_run() const {
        detail::OneCaller::Call const call(caller_); // else it may be half of one
        if (!runs_.all_ended())
            throw std::logic_error("gpipe: when actions ran is asked while steps, or inferences, "
                                   "are under way: wait for them first");
        return runs_.last();
    }

  private:
    static constexpr std::size_t slots = Device::depth;
    LanePlan const& lane_plan() const {
        return lane_choice_.alone() ? plans_[0] : plans_[plans_.size() - 1];
    }

    void finish_all();
    // Samples from `first` on; forward only without an optimizer, whose outputs are `others` then.
    template <class Feeding>
    void start_fed(Feeding& feeding, Pointers inputs, Pointers others, std::size_t samples,
                   void const* optimizer, StepOutcome* outcome, std::size_t first = 0,
                   std::size_t more = 0);
    void await_writers(Pointers outputs) {
        for (TensorPointer const& output : outputs)
            if (!output.absent) device_.await_writers(output.data);
    }
    // Has the batches made; returns the bytes of one outside the devices.
    std::size_t prepared(Array<std::byte*> const& arenas) {
        using enum MiniBatch::Keeps; // sides are read when the inputs are the caller's again
        auto const keeps = !planned_.overlaps ? nothing : joins_ranks<Device> ? all : sides;
        for (MiniBatch& batch : batches_)
            batch.prepare(planned_.model, planned_.plan, arenas, planned_.ranks, keeps);
        return batches_[0].staged_bytes();
    }
    // Has the device run what of the table has samples. Whether all of that is done.
    bool submit(StepTable const& table, RunArguments const& arguments) {
        Run& run = runs_.begin(table, batches_[arguments.slot], arguments);
        if (arguments.training()) accumulated_ = 0; // whatever becomes of it
        Ticket const ticket{
            arguments.slot,
            table.lanes(),
            &table,
            {arguments.samples, arguments.before, arguments.last, run.batch->optionals().absent},
            keeps(arguments) && !run.observed(),
            table.repeats && arguments.training() == arguments.trains(),
            run.batch->keeps_all() ? Ticket::nobody : table.stream_of_device[run.batch->reader()]};
        try {
            return run.done = device_.submit(ticket, runs_.walk(run, table));
        } catch (...) {
            if constexpr (joins_ranks<Device>) device_.cut_short();
            device_.abort();
            run.ended = true;
            if (device_.launched()) runs_.interrupt(run);
            throw;
        }
    }
    // Whether the same numbers mean the very same work. (What is behind other samples of an
    // inference draws other random numbers, and seldom comes twice.)
    bool keeps(RunArguments const& arguments) const {
        return arguments.training()
                   ? arguments.updates
                   : batches_[arguments.slot].stages_outputs() && arguments.before == 0;
    }
    // A part whose first sample is the arrays' number `at`.
    void forward_part(Pointers inputs, Pointers others, std::size_t at, SampleRange part,
                      std::size_t samples, double* totals);
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
        for (std::size_t slot = 0; slot < slots; ++slot)
            number += !runs_[slot].ended && runs_[slot].arguments.last;
        return number;
    }
    // Of a step that is done.
    void count(std::size_t slot, StepOutcome* outcome) {
        StepState const& state = runs_.state(slot);
        if (state.committed) steps_ = state.step;
        if (outcome) outcome->tell(runs_.totals(slot));
    }
    // finish_slot(). What failed, or null; not of a part of a mini-batch, whose end throws it.
    std::exception_ptr tell(std::size_t slot) noexcept {
        try {
            finish_slot(slot);
        } catch (...) {
            if (runs_[slot].arguments.last) return std::current_exception();
        }
        return nullptr;
    }
    // Of a step whose handle is gone, and that a later one was waited for.
    void throw_unreported() {
        if (unreported_) std::rethrow_exception(std::exchange(unreported_, nullptr));
    }
    [[gnu::cold]] void give_states() {
        finish_all();
        runs_.give_states(seed_, steps_);
        counts_may_differ_ = false;
    }

    Device& device_;
    mutable detail::OneCaller caller_;
    MachinePlan<Device> const& planned_;
    MiniBatch batches_[slots]; ///< made by prepared(), before runs_
    Runs<Device> runs_;
    TiedParameters<Device> tied_;
    Array<LanePlan> plans_; ///< one lane; as many as the device has, if that is more
    LaneChoice lane_choice_;
    std::uint64_t seed_;
    std::uint64_t steps_ = 0;
    StepOutcome* outcomes_[slots] = {}; ///< by slot: who is told
    void* leader_ = nullptr;            ///< see follow()
    void (*finish_together_)(void*, Engine&, std::size_t) = nullptr;
    std::size_t next_slot_ = 0;
    bool counts_may_differ_ = false; ///< whether the devices may count other steps
    std::size_t accumulated_ = 0;
    std::exception_ptr unreported_; ///< of the first such step
};

} // namespace gpipe
