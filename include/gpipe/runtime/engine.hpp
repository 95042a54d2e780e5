#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/device/device.hpp>
#include <gpipe/runtime/preemptions.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/step_end.hpp>
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
template <DeviceRuntime Device> class Engine {
  public:
    /// Runs that may have been submitted and not finished.
    static constexpr std::size_t slots = Device::depth;

    /// `device` must outlive it.
    explicit Engine(Device& device) : device_(device) {}
    Engine(Engine const&) = delete;
    Engine& operator=(Engine const&) = delete;

    /// To be called once: from then on a run allocates nothing. `immediate`: see update::Immediate.
    /// `batch_bytes`: of a mini-batch, where it has to be brought to the device.
    void prepare(Tables tables, StepChecks checks, bool immediate, std::size_t batch_bytes) {
        tables_ = std::move(tables);
        end_.checks = checks;
        end_.immediate = immediate;
        for (Run& run : runs_) {
            run.ranges = Array<SampleRange>(tables_.micro_batches);
            run.frames = Array<StepFrame>(tables_.gradients.size());
        }
        bool const apart = tables_.loss_sums != nullptr; // in the device's memory
        mail_ = {device_,
                 tables_,
                 {tables_.sums + 1, checks.squares() ? tables_.updates.size() : 0,
                  apart || immediate ? tables_.optimizer_bytes : 0, batch_bytes}};
        if (!apart) {
            host_sums_ =
                device_.allocate_host(tables_.micro_batches * tables_.sums * sizeof(double));
            tables_.loss_sums = reinterpret_cast<double*>(host_sums_.data());
        }
    }
    /// As prepare() was given them.
    Tables const& tables() const { return tables_; }

    /// Has the device run every action of the table whose micro-batch has samples; in training the
    /// parameters are then updated. True if all of that is done. False: finish(arguments.slot)
    /// waits for it; a step may have been kept, and left at that the next time. Throws what the
    /// device says.
    bool submit(StepTable const& table, MiniBatch const& batch, RunArguments const& arguments) {
        Run& run = begin_run(table, batch, arguments);
        Ticket const ticket{arguments.slot,
                            table.lanes(),
                            &table,
                            arguments.samples,
                            arguments.trains() && run.times.empty(),
                            arguments.trains() && end_.immediate,
                            table.stream_of_device[batch.reader()]};
        try {
            return run.done = device_.submit(ticket, Walk{this, &run, &table});
        } catch (...) {
            device_.abort();
            torn_ = torn_ || (device_.launched() && arguments.trains());
            throw;
        }
    }
    /// Waits for the run of a slot. Throws what the device says of it. False if a layer threw, or
    /// something was not finite: failure() then tells which, the first in the programs' linear
    /// order whatever the timing, and nothing was updated.
    bool finish(std::size_t slot) {
        Run& run = runs_[slot];
        try {
            if (!run.done) device_.finish(slot);
        } catch (...) {
            torn_ = torn_ || run.arguments.trains();
            throw;
        }
        return end_run(run);
    }

    /// What the run of a slot has left: whether it updated the parameters, which step it was then.
    StepState const& state(std::size_t slot) const { return mail_.state(slot); }
    /// The loss's numbers over its mini-batch, then the norm of the mean gradients if that was
    /// asked for, else 0.
    std::span<double const> totals(std::size_t slot) const {
        return {mail_.totals(slot), tables_.sums + 1};
    }
    /// Gives each device the state that its next step begins with, where it has one of its own.
    void give_states(StepState const& state) {
        mail_.state(0) = state;
        device_.run([&] {
            for (std::size_t d = 0; d < tables_.states.size(); ++d)
                mail_.state(0, d).put(device_, d);
            if (end_.checks.squares()) mail_.order().put(device_, tables_.last_device);
        });
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
    /// How often a lane lost its core in that run.
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

    // As a device runs it.
    struct Walk {
        Engine* engine;
        Run* run;
        StepTable const* table;

        void feed() const { engine->feed(*run); }
        void begin(bool follows) const { run->begin(follows); }
        bool operator()(std::size_t lane) const noexcept {
            return run->times.empty() ? engine->walk<false>(*run, *table, lane)
                                      : engine->walk<true>(*run, *table, lane);
        }
        std::exception_ptr error() const { return run->failure.get()->error; }
    };

    Run& begin_run(StepTable const& table, MiniBatch const& batch, RunArguments const& arguments) {
        check_whole();
        last_failure_.reset();
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
                             mail_.state(arguments.slot, d).there,
                             tables_.handles + d};
        run.batch = &batch;
        run.arguments = arguments;
        run.arguments.optimizer = mail_.keep_optimizer(arguments.slot, arguments.optimizer);
        run.begin(false);
        run.base = base_;
        base_ += table.longest;
        mail_.state(arguments.slot) = {arguments.seed, arguments.step, 0, end_.checks.clip, 0};
        mail_.totals(arguments.slot)[tables_.sums] = 0;
        for (ActionTime& time : run.times) time = {};
        run.preemptions.store(0, std::memory_order_relaxed);
        if (!run.times.empty()) run.origin = detail::seconds_now();
        return run;
    }
    bool end_run(Run& run) {
        last_slot_ = run.arguments.slot;
        StepState const& state = mail_.state(run.arguments.slot);
        bool const interrupted = run.failed(); // else what follows has kept it from updating
        if (!interrupted && state.fault != StepFault::nothing) {
            Failure failure = detail::not_finite(tables_, state);
            run.failure.tell(FirstFailure::behind_actions(0), failure);
            if (end_.immediate && state.fault == StepFault::gradient && run.arguments.updates &&
                end_.has_updated(run)) {
                torn_ = true;
                failure.error = of_no_use();
                for (Run& other : runs_) // that may be under way
                    other.failure.tell(FirstFailure::behind_actions(0), failure);
            }
        }
        if (!run.failed()) return true;
        last_failure_ = run.failure.get();
        if (interrupted && run.updated.load(std::memory_order_relaxed) && device_.launched())
            torn_ = true;
        return false;
    }

    // Brings the mini-batch to the devices, where they do not find it.
    void feed(Run const& run) {
        std::size_t i = 0;
        for (MiniBatch::Copy const& copy : run.batch->copies())
            device_.feed(i++, copy.to, copy.from, copy.bytes,
                         mail_.batch(run.arguments.slot) + copy.pinned);
    }

    template <bool timed> bool walk(Run& run, StepTable const& table, std::size_t lane) noexcept {
        Step const* step = table.steps.data() + table.begin[lane];
        Step const* const end = table.steps.data() + table.begin[lane + 1];
        RunArguments const& arguments = run.arguments;
        [[maybe_unused]] std::uint64_t const preempted = timed ? detail::preemptions() : 0;
        Step const* near = step; // for the handler, so that `step` may stay in a register
        try {
            end_.begin(run, table, lane);
            for (; step != end; ++step) {
                near = step;
                if (step->waits | step->waits_before) wait(run, table, *step);
                if (!computes(step->kind)) [[unlikely]]
                    put_other<timed>(run, *step, lane);
                else if (run.ranges[step->micro_batch].count > 0)
                    device_.launch(step->stream, [this, &run, &table, step, lane]() noexcept {
                        execute<timed>(run, table, *step, lane);
                    });
                if (step->more) do_more(run, *step);
            }
            std::size_t const last = table.stream_of_device[tables_.last_device];
            bool const sums_up = table.evaluation && arguments.measures && table.serves(lane, last);
            if (sums_up && !StepWork<Device>::stops(run.failed())) end_.commit(run, last);
        } catch (...) { // a device refuses: near this action; there is no other lane
            fail(run, *near, tables_.cells[near->cell].first, near->kind);
        }
        if constexpr (timed)
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
    void do_more(Run const& run, Step const& step) {
        if (step.delivers && !run.arguments.measures && run.ranges[step.micro_batch].count > 0)
            deliver(run, step);
        if (step.publishes) device_.record(step.stream, run.base + step.position);
    }

    // What is no call of layers: a copy, or what ends a step.
    template <bool timed>
    [[gnu::noinline]] void put_other(Run& run, Step const& step, std::size_t lane) {
        if (!ends_step(step.kind)) {
            if (run.ranges[step.micro_batch].count > 0) copy<timed>(run, step, lane);
        } else if (!StepWork<Device>::stops(run.failed())) {
            end_.end(run, step);
        }
    }
    template <bool timed> void copy(Run& run, Step const& step, std::size_t lane) {
        [[maybe_unused]] auto const note = [&](double ActionTime::*when) {
            device_.launch(step.stream, [&run, &step, lane, when]() noexcept {
                ActionTime& time = run.times[step.action];
                time.action = {step.kind, step.cell, step.micro_batch};
                time.lane = lane;
                time.*when = seconds_in(run);
                time.ran = true;
            });
        };
        if constexpr (timed) note(&ActionTime::start);
        put_copies(run, step);
        if constexpr (timed) note(&ActionTime::end);
    }
    void put_copies(Run const& run, Step const& step) {
        std::size_t const samples = run.ranges[step.micro_batch].count;
        auto const from_to = [&](std::byte const* from, std::byte* to, std::size_t bytes) {
            if (bytes > 0) device_.copy(step.stream, to, from, bytes);
        };
        if (!is_transfer(step.kind)) {
            CellRow const& cell = tables_.cells[step.cell];
            std::size_t const input = cell.input(samples);
            std::byte* const block = step[Region::retained];
            std::byte* const from = step[Region::input];
            std::byte* const to = step[Region::output];
            bool const out = step.kind == Kind::offload;
            from_to(out ? block : from, out ? to : block, cell.retained);
            from_to(out ? from : from + cell.retained, out ? to + cell.retained : to, input);
            return;
        }
        bool const gradient =
            step.kind == Kind::send_gradient || step.kind == Kind::receive_gradient;
        EdgeRow const& edge = tables_.edges[step.calls];
        from_to(step[Region::input], step[Region::output],
                (gradient ? edge.gradients : edge.tensors)(samples));
    }

    Frame frame_of(Run const& run, StepTable const& table, Step const& step) const {
        SampleRange const range = run.ranges[step.micro_batch];
        Frame frame{&run.frames[step.device], range.first, range.count, {}, step.phase};
        for (std::size_t r = 0; r < region_count; ++r) frame.base[r] = step.base[r];
        frame.skips = table.skips.data() + step.first_skip;
        if (step.is_first) {
            GroupAddress const inputs = run.batch->inputs(step.micro_batch);
            frame[Region::input] = inputs.base;
            frame.inputs = inputs.table;
        }
        if (step.is_last) {
            frame.targets = run.batch->others(step.micro_batch);
            frame.sums = tables_.loss_sums + step.micro_batch * tables_.sums;
        }
        return frame;
    }

    // Copies the chain's output to the caller's arrays.
    void deliver(Run const& run, Step const& step) {
        std::byte const* from = step[Region::output];
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
        if (run.failed() && device_.spoilt()) return; // a consequence of the first
        run.failure.tell(step.rank, {layer, tables_.layer_names[layer], step.cell, step.micro_batch,
                                     kind, std::current_exception()});
    }

    static double seconds_in(Run const& run) { return detail::seconds_now() - run.origin; }

    using HostMemory = decltype(std::declval<Device&>().allocate_host(0));

    Device& device_;
    Tables tables_;
    Mailboxes<Device> mail_;
    detail::StepEnd<Device> end_{device_, tables_, mail_};
    Run runs_[slots];
    std::size_t last_slot_ = 0; ///< of the run that came to its end last
    std::optional<Failure> last_failure_;
    bool torn_ = false;      ///< whether some parameters were updated, and others not
    HostMemory host_sums_;   ///< loss_sums, where the device reads the host's memory
    std::uint64_t base_ = 0; ///< what positions count from in the next run
};

} // namespace gpipe
