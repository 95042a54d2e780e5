#pragma once

#include <gpipe/device/device.hpp>
#include <gpipe/runtime/walker.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

namespace gpipe {

/// The runs that may be under way, each in a slot: what they begin with, what they leave, and what
/// has become of the parameters.
template <DeviceRuntime Device> class Runs {
  public:
    /// `device` must outlive it; `make()`: the tables, made where they stay; `batch_bytes`: of a
    /// mini-batch, where it has to be brought to the device; `immediate`: see update::Immediate.
    template <class Make>
    Runs(Device& device, Make make, StepChecks checks, bool immediate, std::size_t batch_bytes)
        : device_(device), tables_(make()),
          host_sums_(device.allocate_host(
              tables_.loss_sums
                  ? 0
                  : loss_bytes(tables_.micro_batches, tables_.ranks.replicas, tables_.loss_row))),
          mail_(device, tables_,
                {tables_.sums + 1,
                 checks.squares() ? tables_.ranks.replicas * tables_.squares() : 0,
                 tables_.loss_sums || immediate ? tables_.model->optimizer_bytes : 0,
                 tables_.model->constants.bytes(), batch_bytes}),
          others_(tables_.ranks.replicas > 1 ? tables_.sums : 0),
          end_(device, tables_, mail_, checks, immediate) {
        if (!tables_.loss_sums) tables_.loss_sums = reinterpret_cast<double*>(host_sums_.data());
        for (Run& run : runs_) {
            run.ranges = Array<SampleRange>(tables_.micro_batches);
            run.frames = Array<StepFrame>(tables_.devices.size());
            if constexpr (joins_ranks<Device>)
                if (tables_.replicas.any()) run.exchanges = Array<Exchange>(run.frames.size());
        }
        if (checks.scale.scales()) scale_.factor = checks.scale.initial;
    }
    Runs(Runs const&) = delete;
    Runs& operator=(Runs const&) = delete;

    /// Of a slot.
    ///@{
    Run& operator[](std::size_t slot) { return runs_[slot]; }
    Run const& operator[](std::size_t slot) const { return runs_[slot]; }
    ///@}
    /// Whether nothing is under way.
    bool all_ended() const {
        return std::all_of(runs_, runs_ + Device::depth, [](Run const& run) { return run.ended; });
    }
    /// What the walker looks at.
    Tables const& tables() const { return tables_; }
    /// Whether updates are immediate.
    bool immediate() const { return end_.immediate; }

    /// One more begins. Throws if an update was interrupted before.
    Run& begin(StepTable const& table, MiniBatch const& batch, RunArguments const& arguments) {
        refuse_if_torn();
        if constexpr (joins_ranks<Device> && !calls_enqueue<Device>)
            if (all_ended()) // else some are not done with what they would have to end before
                device_.agree_on(tables_, arguments, batch);
        last_failure_.reset();
        Run& run = runs_[arguments.slot];
        run.mini_batch = mini_batch_ += arguments.training() && arguments.before == 0;
        if (arguments.part != run.arguments.part || arguments.before != run.arguments.before) {
            Split const split(arguments.part.count, run.ranges.size());
            for (std::size_t m = 0; m < run.ranges.size(); ++m) {
                run.ranges[m] = split[m];
                run.ranges[m].first += arguments.before + arguments.part.first;
            }
        }
        run.begun = state_before(arguments.seed, arguments.step);
        mail_.state(arguments.slot) = run.begun;
        for (std::size_t d = tables_.ranks.begin(); d < tables_.ranks.end(); ++d) {
            Mailbox<StepState> const state = mail_.state(arguments.slot, d);
            run.frames[d] = {
                tables_.capacity,
                arguments.seed,
                arguments.step,
                &device_.stream(table.stream_of_device[d]),
                state.there == state.here ? &run.begun : state.there,
                tables_.handles + d,
                {tables_.model->constants.table, mail_.constants(arguments.slot, d).there},
                {tables_.model->sides, batch.sides(d)},
                batch.optionals(),
                exchange_of(run, d, table.stream_of_device[d]),
                false,
                tables_.debug.size() > 0,
                {batch.inputs(), batch.others(), tables_.loss_sums, tables_.loss_row}};
        }
        run.batch = &batch;
        run.arguments = arguments;
        run.arguments.optimizer = mail_.keep_optimizer(arguments.slot, arguments.optimizer);
        mail_.keep_constants(arguments.slot);
        run.before = nullptr;
        for (Run const& other : runs_)
            if (end_.immediate && !calls_enqueue<Device> && !other.ended) run.before = &other;
        run.begin(false);
        run.base = base_;
        base_ += table.longest;
        mail_.totals(arguments.slot)[tables_.sums] = 0;
        mail_.sign(arguments.slot) = no_failure;
        run.begin_times();
        return run;
    }
    /// As the device has it walked.
    typename Walker<Device>::Walk walk(Run& run, StepTable const& table) {
        return {&walker_, &run, &table};
    }
    /// The device gave up in the midst of it.
    [[gnu::cold]] void interrupt(Run& run) {
        run.ended = true;
        partly_updated_ = partly_updated_ || run.arguments.trains();
        if (!run.arguments.last) spoil(run, {.error = std::current_exception()});
    }
    /// Once all of it is done. Throws what a layer threw, or what was not finite: of several the
    /// first in the programs' linear order, whatever the timing; then nothing was updated.
    void end(Run& run) {
        run.ended = true;
        last_slot_ = run.arguments.slot;
        if constexpr (joins_ranks<Device>) agree_on(run);
        if (run.arguments.training() && run.mini_batch == spoilt_.mini_batch &&
            run.arguments.before > spoilt_.before) {
            last_failure_ = spoilt_.failure;
            std::rethrow_exception(last_failure_->error);
        }
        StepState const& state = mail_.state(run.arguments.slot);
        bool const interrupted = run.failed(); // else what follows has kept it from updating
        if (!interrupted && run.arguments.trains()) {
            skipped_ = state.skipped ? state : StepState{};
            scale_ = {state.loss_scale, state.good_steps};
        }
        if (!interrupted && !state.skipped && state.fault != StepFault::nothing) {
            Failure failure = detail::not_finite(tables_, state);
            run.failure.tell(FirstFailure::behind_actions(0), failure);
            if (calls_enqueue<Device> && end_.immediate && state.fault == StepFault::gradient &&
                run.arguments.updates && end_.immediately().has_updated(run))
                tear(run, failure);
        }
        // Its commit may not have seen that yet, where the first device has no update to wait for.
        for (Run& other : runs_) {
            if (other.ended || other.before != &run) continue;
            other.in_vain = run.failed() || run.dropped;
            if (other.in_vain)
                other.failure.tell(FirstFailure::behind_actions(0), detail::begun_too_early());
            other.before = nullptr;
        }
        if (run.failed()) fail(run, interrupted);
    }

    /// See LossScale; may be set where no step is under way, and then give_states() be called.
    ///@{
    bool scales() const { return end_.checks.scale.scales(); }
    LossScaleState scale() const { return scale_; }
    void set_scale(LossScaleState scale) {
        if (scales()) scale_ = scale;
    }
    ///@}
    /// Of a row of Tables::updates, see UpdateRow::begun; may be set where no step is under way.
    ///@{
    std::uint64_t begun(std::size_t row) const { return tables_.updates[row].begun; }
    void set_begun(std::size_t row, std::uint64_t steps) {
        tables_.updates[row].begun = steps;
        if (tables_.replicas.any()) tables_.replicas.rows[row].begun = steps;
    }
    ///@}
    /// Why the last step was skipped, if it was.
    std::optional<Failure> skipped() const {
        if (!skipped_.skipped) return {};
        return detail::not_finite(tables_, skipped_);
    }

    /// Throws if an update was interrupted.
    void refuse_if_torn() const {
        if (partly_updated_) std::rethrow_exception(detail::of_no_use(device_));
    }
    /// What a run has left: whether it updated the parameters, which step it was then.
    StepState const& state(std::size_t slot) const { return mail_.state(slot); }
    /// The loss's numbers over its mini-batch, then the norm of the mean gradients if that was
    /// asked for, else 0.
    std::span<double const> totals(std::size_t slot) const {
        return {mail_.totals(slot), tables_.sums + 1};
    }
    /// What devices with memory of their own have to know before the first step, and after one that
    /// may have been committed although it failed.
    [[gnu::cold]] void give_states(std::uint64_t seed, std::uint64_t steps) {
        mail_.state(0) = state_before(seed, steps);
        device_.run([&] {
            Ranks const& ranks = tables_.ranks;
            for (std::size_t d = ranks.begin(); d < ranks.end(); ++d)
                if (tables_.devices[d].state) mail_.state(0, d).put(device_, d - ranks.begin());
            if (end_.checks.squares() && ranks.own(tables_.last_device))
                mail_.order().put(device_, tables_.last_device - ranks.begin());
        });
    }
    /// Of the last run that has come to its end, if it failed.
    std::optional<Failure> const& failure() const { return last_failure_; }
    /// Has it that this was it: of several runs that were under way the first that failed.
    void blame(std::optional<Failure> first) { last_failure_ = std::move(first); }
    /// From the next run on, calls this around each action, if it is any. Nothing is under way.
    void on_action(detail::ActionHook hook) {
        hook_ = std::move(hook);
        for (Run& run : runs_) run.hook = hook_ ? &hook_ : nullptr;
    }
    /// The last run that has come to its end, whether it failed or not.
    Run const& last() const { return runs_[last_slot_]; }

  private:
    // A part of a mini-batch that is accumulated, which those behind it cannot end.
    struct Spoilt {
        std::uint64_t mini_batch = 0; // none is 0 that trains
        std::size_t before = 0;       // its samples before that part
        Failure failure;
    };
    void spoil(Run const& run, Failure failure) {
        spoilt_ = {run.mini_batch, run.arguments.before, std::move(failure)};
    }
    // Throws what a run has failed with. `interrupted`: not only for what its commit has found.
    [[noreturn, gnu::cold]] void fail(Run& run, bool interrupted) {
        StepState const& state = mail_.state(run.arguments.slot);
        last_failure_ = run.failure.get();
        // What is put on queues behind a failure updates nothing: the commit has not been made, but
        // on GPUs of several ranks under immediate updates, whose commit knows of no failure.
        constexpr bool gpus_of_ranks = calls_enqueue<Device> && joins_ranks<Device>;
        if (interrupted && run.updated.load(std::memory_order_relaxed) && device_.launched() &&
            (!gpus_of_ranks || state.committed))
            partly_updated_ = true;
        if (interrupted && state.committed && end_.immediate && gpus_of_ranks &&
            (partly_updated_ || !all_ended()))
            tear(run, *last_failure_);
        if (partly_updated_ && last_failure_->of == FailureOf::before)
            last_failure_->error = detail::of_no_use(device_);
        if (!run.arguments.last) spoil(run, *last_failure_);
        std::rethrow_exception(last_failure_->error);
    }
    // What is on streams behind it has gone on with what it has left.
    [[gnu::cold]] void tear(Run const& run, Failure failure) {
        partly_updated_ = true;
        failure.error = detail::of_no_use(device_);
        for (Run& other : runs_)
            if (!other.ended && other.base > run.base)
                other.failure.tell(FirstFailure::behind_actions(0), failure);
    }
    Exchange* exchange_of(Run& run, std::size_t device, std::size_t stream) {
        if (run.exchanges.empty()) return nullptr;
        run.exchanges[device] = {&detail::StepEnd<Device>::exchange, &end_, &run, device, stream};
        return &run.exchanges[device];
    }
    StepState state_before(std::uint64_t seed, std::uint64_t steps) const {
        StepState state{seed, steps, 0, end_.checks.clip};
        state.loss_scale = scale_.factor;
        state.good_steps = scale_.good_steps;
        return state;
    }
    // Throws where a rank is gone, which may have updated its parameters or not.
    void agree_on(Run& run) {
        try {
            std::size_t const slot = run.arguments.slot;
            device_.agree(tables_, run, {mail_.totals(slot), tables_.sums + 1}, others_);
            if (all_ended()) device_.rest();
        } catch (...) {
            interrupt(run);
            if (run.failure.get()) std::rethrow_exception(run.failure.get()->error);
            throw;
        }
    }
    using HostMemory = decltype(std::declval<Device&>().allocate_host(0));

    Device& device_;
    Tables tables_;
    HostMemory host_sums_; ///< loss_sums, where the device reads the host's memory
    Mailboxes<Device> mail_;
    Array<double> others_; ///< room for what another replica's loss comes to
    detail::StepEnd<Device> end_;
    Walker<Device> walker_{device_, tables_, mail_, end_};
    detail::ActionHook hook_;
    Run runs_[Device::depth];
    std::size_t last_slot_ = 0; ///< of the run that came to its end last
    std::optional<Failure> last_failure_;
    std::uint64_t mini_batch_ = 0; ///< counts those that train
    Spoilt spoilt_;                ///< the last
    LossScaleState scale_;
    StepState skipped_{};         ///< of the last step, if it was skipped
    bool partly_updated_ = false; ///< whether some parameters were updated, and others not
    std::uint64_t base_ = 0;      ///< what positions count from in the next run
};

} // namespace gpipe
