#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/device/device.hpp>
#include <gpipe/runtime/preemptions.hpp>
#include <gpipe/runtime/step_protocol.hpp>
#include <gpipe/runtime/table.hpp>
#include <gpipe/trace/nvtx.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

namespace gpipe {

/// Walks step tables on a device. It knows addresses, functions and an order, and decides nothing:
/// all schedules, cuts and checkpointing policies are the same code with other tables.
template <DeviceRuntime Device> class Engine : detail::StepProtocol<Device> {
    using Protocol = detail::StepProtocol<Device>;

  public:
    /// Steps that may have been started and not finished.
    static constexpr std::size_t slots = Device::steps_at_once;

    /// `device` must outlive it.
    explicit Engine(Device& device) : Protocol(device) {}

    /// To be called once: from then on a run allocates nothing. `immediate`: see update::Immediate.
    /// `batch_bytes`: of a mini-batch, where it has to be brought to the device; by the streams
    /// from `first_feed` on, then, one for each of its tensors.
    void prepare(Tables tables, StepChecks checks, bool immediate, std::size_t batch_bytes,
                 std::size_t first_feed) {
        tables_ = std::move(tables);
        this->checks_ = checks;
        this->immediate_ = immediate;
        first_feed_ = first_feed;
        for (Run& run : runs_) {
            run.ranges = Array<SampleRange>(tables_.micro_batches);
            run.frames = Array<StepFrame>(tables_.gradients.size());
        }
        auto const allocate = [&](std::size_t bytes) { return device_.allocate_host(bytes); };
        std::size_t const sums = tables_.sums;
        exchange_ = {{sums + 1, checks.squares() ? tables_.updates.size() : 0,
                      Device::reads_host && !immediate ? 0 : tables_.optimizer_bytes, batch_bytes},
                     slots,
                     allocate};
        if constexpr (Device::reads_host) {
            host_sums_ = allocate(tables_.micro_batches * sums * sizeof(double));
            tables_.loss_sums = reinterpret_cast<double*>(host_sums_.data());
        }
    }
    /// As prepare() was given them.
    Tables const& tables() const { return tables_; }

    /// Runs every action of the table whose micro-batch has samples; in training then updates the
    /// parameters. False if a layer threw, or something was not finite: failure() then tells which,
    /// the first in the programs' linear order whatever the timing, and nothing was updated.
    bool run(StepTable const& table, MiniBatch const& batch, RunArguments const& arguments) {
        Run& run = begin_run(table, batch, arguments, false);
        if (run.times.empty())
            device_.run(table.lanes(),
                        [&](std::size_t lane) { return walk<false>(run, table, lane); });
        else
            device_.run(table.lanes(),
                        [&](std::size_t lane) { return walk<true>(run, table, lane); });
        return end_run(run);
    }

    /// Enqueues a training step; finish(arguments.slot) waits for it. False as run(). The
    /// device may keep it, and leave it at that the next time.
    bool start(StepTable const& table, MiniBatch const& batch,
               RunArguments const& arguments) requires(Device::calls_enqueue) {
        Run& run = begin_run(table, batch, arguments, false);
        bool const timed = !run.times.empty();
        try {
            std::size_t feed = first_feed_;
            for (MiniBatch::Copy const& copy : batch.copies())
                device_.feed(feed++, copy.to, copy.from, copy.bytes,
                             exchange_.batch(arguments.slot) + copy.pinned);
            device_.start(
                {!timed ? &table : nullptr, arguments.samples, arguments.slot},
                [&](std::size_t lane) {
                    run.failure.reset();
                    return timed ? walk<true>(run, table, lane) : walk<false>(run, table, lane);
                },
                [&] { return run.failure.get()->error; });
        } catch (...) {
            static_cast<void>(device_.drain());
            torn_ = torn_ || device_.launched();
            throw;
        }
        if (!end_run(run, false)) return false;
        torn_ = false;
        return true;
    }
    /// The same on a device that runs its work at once, where updates are immediate: returns when
    /// the lane of `reader`, the device that reads the inputs, is done. `follows`: whether the run
    /// before this one was started over the same table, and may be under way.
    void start(StepTable const& table, MiniBatch const& batch, RunArguments const& arguments,
               std::size_t reader, bool follows) requires(Device::overlaps) {
        Run& run = begin_run(table, batch, arguments, follows);
        auto const begin = [&](auto walk) {
            device_.start(arguments.slot, table.lanes(), table.stream_of_device[reader], walk);
        };
        if (run.times.empty())
            begin([this, &run, &table](std::size_t lane) { walk<false>(run, table, lane); });
        else
            begin([this, &run, &table](std::size_t lane) { walk<true>(run, table, lane); });
    }
    /// Waits for the step of a slot. Throws what the device says of it. False as run().
    bool finish(std::size_t slot) requires(Device::calls_enqueue || Device::overlaps) {
        try {
            device_.finish(slot);
        } catch (...) {
            torn_ = true;
            throw;
        }
        return end_run(runs_[slot]);
    }

    /// The number that the step of a slot has trained with.
    std::uint64_t step_number(std::size_t slot) const { return runs_[slot].arguments.step; }
    /// Whether the step of a slot updated the parameters.
    bool committed(std::size_t slot) const { return exchange_.state(slot).committed != 0; }
    /// The loss's numbers over its mini-batch, then the norm of the mean gradients if that was
    /// asked for, else 0.
    std::span<double const> totals(std::size_t slot) const {
        return {exchange_.totals(slot), tables_.sums + 1};
    }
    /// Of the last run that has come to its end.
    std::optional<Failure> const& failure() const { return last_failure_; }

    /// From the next run on, notes when every action runs; `actions` of the largest table. times()
    /// are then those of the last run that has come to its end, by action.
    void time_actions(std::size_t actions) {
        for (Run& run : runs_) run.times = Array<ActionTime>(actions);
    }
    /// By action, see time_actions().
    Array<ActionTime> const& times() const { return runs_[last_slot_].times; }
    /// How often a lane lost its core in that run; a device that enqueues does not know.
    std::uint64_t preemptions() const {
        return runs_[last_slot_].preemptions.load(std::memory_order_relaxed);
    }

    /// Throws if an update was interrupted.
    void check_whole() const {
        if (torn_) std::rethrow_exception(of_no_use());
    }

  private:
    [[gnu::cold]] static std::exception_ptr of_no_use() {
        return std::make_exception_ptr(std::runtime_error(
            "gpipe: an exception, a gradient that is not finite, or an error of the device has "
            "interrupted an update: some parameters are new, some old, and this object is of no "
            "use"));
    }

    Run& begin_run(StepTable const& table, MiniBatch const& batch, RunArguments const& arguments,
                   bool follows) {
        check_whole();
        last_failure_.reset();
        if constexpr (requires { device_.begin(); }) device_.begin();
        Run& run = runs_[arguments.slot];
        if (arguments.samples != run.arguments.samples) {
            Split const split(arguments.samples, run.ranges.size());
            for (std::size_t m = 0; m < run.ranges.size(); ++m) run.ranges[m] = split[m];
        }
        for (std::size_t d = 0; d < run.frames.size(); ++d)
            run.frames[d] = {tables_.capacity,
                             arguments.seed,
                             arguments.step,
                             &device_.stream(table.stream_of_device[d]),
                             this->state_of(arguments.slot, d),
                             tables_.handles + d};
        run.batch = &batch;
        run.arguments = arguments;
        run.failure.reset();
        run.base = base_;
        run.follows = follows;
        run.updated.store(false, std::memory_order_relaxed);
        base_ += table.longest;
        exchange_.state(arguments.slot) = {arguments.seed, arguments.step, 0, this->checks_.clip,
                                           0};
        exchange_.totals(arguments.slot)[tables_.sums] = 0;
        if (!Device::reads_host || this->immediate_)
            exchange_.set_optimizer(arguments.slot, arguments.optimizer);
        for (ActionTime& time : run.times) time = {};
        run.preemptions.store(0, std::memory_order_relaxed);
        if (!run.times.empty()) run.origin = detail::seconds_now();
        return run;
    }
    // `done`: whether all its work is, not only its calls.
    bool end_run(Run& run, bool done = true) {
        last_slot_ = run.arguments.slot;
        StepState const& state = exchange_.state(run.arguments.slot);
        if (done && !run.failed() && state.fault != StepFault::nothing) {
            Failure failure = this->not_finite(state);
            run.failure.tell(FirstFailure::behind_actions(0), failure);
            if (Device::calls_enqueue && this->immediate_ && state.fault == StepFault::gradient &&
                run.arguments.updates && this->has_updated(run)) {
                torn_ = true;
                failure.error = of_no_use();
                for (Run& other : runs_) // that may be under way
                    other.failure.tell(FirstFailure::behind_actions(0), failure);
            }
        }
        if (!run.failed()) return true;
        last_failure_ = run.failure.get();
        if (!Device::calls_enqueue && run.updated.load(std::memory_order_relaxed)) torn_ = true;
        return false;
    }

    template <bool timed> bool walk(Run& run, StepTable const& table, std::size_t lane) noexcept {
        Step const* step = table.steps.data() + table.begin[lane];
        Step const* const end = table.steps.data() + table.begin[lane + 1];
        RunArguments const& arguments = run.arguments;
        [[maybe_unused]] std::uint64_t const preempted =
            timed && !Device::enqueues ? detail::preemptions() : 0;
        Step const* near = step; // for the handler, so that `step` may stay in a register
        try {
            this->begin(run, table, lane);
            for (; step != end; ++step) {
                near = step;
                if (step->waits | step->waits_before) wait(run, table, *step);
                if (ends_step(step->kind)) [[unlikely]] {
                    this->end(run, *step);
                } else if (run.ranges[step->micro_batch].count > 0) {
                    // On a device that does not enqueue all memory is the host's, and copies are
                    // calls.
                    if (Device::enqueues && is_copy(step->kind))
                        copy(run, table, *step);
                    else
                        device_.launch(step->stream, [this, &run, &table, step, lane]() noexcept {
                            execute<timed>(run, table, *step, lane);
                        });
                }
                if (step->more) do_more(run, table, *step);
            }
            std::size_t const last = table.stream_of_device[tables_.last_device];
            bool const sums_up = table.evaluation && arguments.measures && table.serves(lane, last);
            if (sums_up && !(Device::calls_enqueue && run.failed())) this->commit(run, last);
        } catch (...) { // a device that enqueues refuses: near this action; there is no other lane
            fail(run, *near, tables_.cells[near->cell].first, near->kind);
        }
        if constexpr (timed && !Device::enqueues)
            run.preemptions.fetch_add(detail::preemptions() - preempted, std::memory_order_relaxed);
        return !run.failed();
    }

    void wait(Run const& run, StepTable const& table, Step const& step) {
        for (Wait const& wait : table.waits_of(step))
            device_.wait(step.stream, wait.stream, run.base + wait.position);
        if (!run.follows) return;
        for (Wait const& wait : table.waits_before(step))
            device_.wait(step.stream, wait.stream, run.base - table.longest + wait.position);
    }
    // What few steps have behind their action, in this order.
    void do_more(Run const& run, StepTable const& table, Step const& step) {
        if (step.delivers && !run.arguments.measures && run.ranges[step.micro_batch].count > 0)
            deliver(run, table, step);
        if (step.publishes) device_.record(step.stream, run.base + step.position);
    }

    void copy(Run const& run, StepTable const& table, Step const& step) {
        std::size_t const samples = run.ranges[step.micro_batch].count;
        auto const from_to = [&](std::byte const* from, std::byte* to, std::size_t bytes) {
            if (bytes > 0) device_.copy(step.stream, to, from, bytes);
        };
        if (!is_transfer(step.kind)) {
            CellRow const& cell = tables_.cells[step.cell];
            std::size_t const input = cell.input(samples);
            std::byte* const block = table.of(step, Region::retained);
            std::byte* const from = table.of(step, Region::input);
            std::byte* const to = table.of(step, Region::output);
            bool const out = step.kind == Kind::offload;
            from_to(out ? block : from, out ? to : block, cell.retained);
            from_to(out ? from : from + cell.retained, out ? to + cell.retained : to, input);
            return;
        }
        bool const gradient =
            step.kind == Kind::send_gradient || step.kind == Kind::receive_gradient;
        EdgeRow const& edge = tables_.edges[step.calls];
        from_to(table.of(step, Region::input), table.of(step, Region::output),
                (gradient ? edge.gradients : edge.tensors)(samples));
    }

    Frame frame_of(Run const& run, StepTable const& table, Step const& step) const {
        SampleRange const range = run.ranges[step.micro_batch];
        Frame frame{&run.frames[step.device], range.first, range.count, table.of(step), step.phase};
        frame.inputs = step.is_first ? run.batch->inputs(step.micro_batch)
                                     : GroupAddress{frame[Region::input]};
        if (step.is_last) {
            frame.targets = run.batch->others(step.micro_batch);
            frame.sums = tables_.loss_sums + step.micro_batch * tables_.sums;
        }
        return frame;
    }

    // Copies the chain's output to the caller's arrays.
    void deliver(Run const& run, StepTable const& table, Step const& step) {
        std::byte const* from = table.of(step, Region::output);
        for (std::size_t t = 0; t < tables_.output_sizes.count; ++t) {
            device_.copy(step.stream, run.batch->others(step.micro_batch).table[t], from,
                         tables_.output_sizes.bytes[t] * run.ranges[step.micro_batch].count);
            from += slot_bytes(tables_.output_sizes.bytes[t] * tables_.capacity);
        }
    }

    // Runs one action. After a failure the actions behind it in the linear order are skipped; those
    // before it, which cannot depend on it, still run, so that the first failure is found whatever
    // the timing.
    template <bool timed>
    void execute(Run& run, StepTable const& table, Step const& step, std::size_t lane) noexcept {
        if (run.failure.precedes(step.rank)) return;
        [[maybe_unused]] ActionRange const named(step.kind, step.cell, step.micro_batch);
        Frame const frame = frame_of(run, table, step);
        double const start = timed ? seconds_in(run) : 0;
        Calls::Range calls = tables_.calls[step.calls];
        if (step.delivers && !run.arguments.measures) --calls.last; // without the loss
        Call const* call = calls.first;
        try {
            for (; call != calls.last; ++call) call->function(*call, frame);
        } catch (...) {
            fail(run, step, call->index, call->again ? Kind::recompute : step.kind);
        }
        if constexpr (timed)
            run.times[step.action] = {
                {step.kind, step.cell, step.micro_batch}, lane, start, seconds_in(run), true};
    }

    void fail(Run& run, Step const& step, std::size_t layer, Kind kind) noexcept {
        if constexpr (requires { device_.spoilt(); })
            if (run.failed() && device_.spoilt()) return; // a consequence of the first
        run.failure.tell(step.rank, {layer, tables_.layer_names[layer], step.cell, step.micro_batch,
                                     kind, std::current_exception()});
    }

    static double seconds_in(Run const& run) { return detail::seconds_now() - run.origin; }

    using Protocol::device_, Protocol::exchange_, Protocol::tables_, Protocol::torn_;

    Run runs_[slots];
    std::size_t last_slot_ = 0; ///< of the run that came to its end last
    std::optional<Failure> last_failure_;
    std::size_t first_feed_ = 0;
    typename Protocol::HostMemory
        host_sums_;          ///< loss_sums, where the device reads the host's memory
    std::uint64_t base_ = 0; ///< what positions count from in the next run
};

} // namespace gpipe
