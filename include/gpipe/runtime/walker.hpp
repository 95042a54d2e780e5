#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/core/preemptions.hpp>
#include <gpipe/device/device.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/step_copies.hpp>
#include <gpipe/runtime/step_end.hpp>
#include <gpipe/runtime/table.hpp>
#include <gpipe/trace/nvtx.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

namespace gpipe {

/// Walks step tables on a device. It knows addresses, functions and an order, and decides nothing:
/// all schedules, cuts and checkpointing policies are the same code with other tables.
template <DeviceRuntime Device> class Walker {
  public:
    /// All must outlive it.
    Walker(Device& device, Tables const& tables, Mailboxes<Device> const& mail,
           detail::StepEnd<Device>& end)
        : device_(device), tables_(tables), mail_(mail), end_(end) {}

    /// A run as the device has it walked, see DeviceWalk.
    struct Walk {
        Walker* walker;         ///< whose walk it is
        Run* run;               ///< what becomes of it
        StepTable const* table; ///< what is walked

        /// Brings the mini-batch to the devices, where they do not find it.
        void feed() const { walker->feed(*run); }
        /// Has what it leaves for the caller copied, by copy(to, from, bytes).
        template <class Copy> void deliver(Copy copy) const {
            for (MiniBatch::Copy const& output : run->batch->outputs())
                if (output.bytes && output.given && !run->failed())
                    copy(output.given, output.staged, output.bytes);
        }
        /// Nothing has happened yet.
        void begin(bool follows) const { run->begin(follows); }
        /// Walks a lane on; false before its end.
        bool go_on(std::size_t lane, Progress& progress) const noexcept {
            detail::OneCaller::Walk const in_it(run->caller);
            return run->observed() ? walker->walk_observed(*run, *table, lane, progress)
                                   : walker->template walk<false>(*run, *table, lane, progress);
        }
        /// A lane of it; false if something in it has failed by then.
        bool operator()(std::size_t lane) const noexcept {
            Progress whole;
            return go_on(lane, whole), !run->failed();
        }
        /// What that was.
        std::exception_ptr error() const { return run->failure.get()->error; }
    };

  private:
    void feed(Run const& run) {
        std::byte* const pinned = mail_.batch(run.arguments.slot);
        for (std::size_t i = 0; MiniBatch::Copy const& copy : run.batch->feeds()) {
            if (copy.bytes)
                device_.feed(i, copy.staged, copy.given, copy.bytes, pinned + copy.pinned);
            ++i;
        }
    }

    // Apart, so that compilers put the other, which has no time to lose, where it is called.
    [[gnu::noinline, gnu::cold]] bool walk_observed(Run& run, StepTable const& table,
                                                    std::size_t lane, Progress& progress) noexcept {
        return walk<true>(run, table, lane, progress);
    }
    template <bool observed>
    bool walk(Run& run, StepTable const& table, std::size_t lane, Progress& progress) noexcept {
        Step const* const first = table.steps.data() + table.begin[lane];
        Step const* step = first + progress.at;
        Step const* const end = table.steps.data() + table.begin[lane + 1];
        RunArguments const& arguments = run.arguments;
        Tables const& tables = tables_; // in a register
        std::size_t const walker = progress.walker;
        [[maybe_unused]] std::uint64_t const preempted = observed ? detail::preemptions() : 0;
        Step const* near = step; // for the handler, so that `step` may stay in a register
        bool ended = true;
        try {
            if (!std::exchange(progress.begun, true)) end_.begin(run, table, lane);
            for (; step != end; ++step) {
                near = step;
                if constexpr (joins_ranks<Device>)
                    device_.note(arguments.step, step->kind, step->cell, step->micro_batch);
                if ((step->waits | step->waits_before) && !wait(run, table, *step)) {
                    ended = false;
                    break;
                }
                if (!computes(step->kind)) [[unlikely]]
                    put_other<observed>(run, table, *step, walker);
                else if (joins_ranks<Device> || run.ranges[step->micro_batch].count > 0)
                    device_.launch(step->stream,
                                   [this, &run, &table, &tables, step, walker]() noexcept {
                                       execute<observed>(run, table, tables, *step, walker);
                                   });
                if (joins_ranks<Device> && calls_enqueue<Device> && run.is_cut) break;
                if (step->more) do_more(run, table, *step);
            }
            progress.at = static_cast<std::size_t>(step - first);
            if (ended && lane == table.sums_up && arguments.measures &&
                !StepWork<Device>::stops(run.failed()))
                end_.commit(run, table.stream_of_device[tables_.last_device]);
        } catch (...) { // a device refuses: near this action; there is no other lane
            fail(run, *near, tables_.cells[near->cell].first, near->kind);
            if constexpr (joins_ranks<Device>) device_.cut_short();
        }
        if constexpr (observed)
            run.preemptions.fetch_add(detail::preemptions() - preempted, std::memory_order_relaxed);
        return ended;
    }

    // Whether the step may go on: see DeviceQueue.
    bool wait(Run const& run, StepTable const& table, Step const& step) {
        for (Wait const& wait : table.waits_of(step))
            if (!device_.wait(step.stream, wait.stream, run.base + wait.position)) return false;
        if (!run.follows) return true;
        for (Wait const& wait : table.waits_before(step))
            if (!device_.wait(step.stream, wait.stream, run.base - table.longest + wait.position))
                return false;
        return true;
    }
    // What few steps have behind their action, in this order.
    void do_more(Run const& run, StepTable const& table, Step const& step) {
        if (step.delivers && !run.arguments.measures && run.ranges[step.micro_batch].count > 0)
            deliver(run, table, step);
        if (step.publishes) device_.record(step.stream, run.base + step.position);
    }

    detail::StepCopies<Device> copies() { return {device_, tables_, end_}; }
    // What is no call of layers: a copy, or what ends a step.
    template <bool observed>
    [[gnu::noinline]] void put_other(Run& run, StepTable const& table, Step const& step,
                                     std::size_t walker) {
        bool const ends = ends_step(step.kind);
        if (ends ? StepWork<Device>::stops(run.failed()) || !end_.does(run, step.kind)
                 : run.ranges[step.micro_batch].count == 0 && !copies().is_message(step))
            return;
        if constexpr (observed) observe(run, step, walker, true);
        ends ? end_.end(run, step) : copies().put(run, table, step);
        if constexpr (observed) observe(run, step, walker, false);
    }
    // Where the stream does it.
    void observe(Run& run, Step const& step, std::size_t walker, bool begins) {
        device_.launch(step.stream, [this, &run, &step, walker, begins]() noexcept {
            bool const ends = ends_step(step.kind); // of which a hook is not told
            bool const ran = ends ? !run.failed() : run.ranges[step.micro_batch].count > 0;
            bool const tells = !ends && ran && run.failure.place() > step.place;
            if (begins && tells) tell_hook(run, step, walker, true);
            note(run, step, walker, begins, ran);
            if (!begins && tells) tell_hook(run, step, walker, false);
        });
    }
    static void note(Run& run, Step const& step, std::size_t walker, bool begins, bool ran) {
        if (run.times.empty()) return;
        ActionTime& time = run.times[step.action];
        time.action = action_of(step);
        time.lane = walker;
        (begins ? time.start : time.end) = seconds_in(run);
        time.ran = ran && !begins;
    }
    static Action action_of(Step const& step) {
        return {step.kind, step.cell, step.micro_batch, is_transfer(step.kind) ? step.calls : 0};
    }
    static Frame frame_of(Run const& run, StepTable const& table, Step const& step) {
        SampleRange const range = run.ranges[step.micro_batch];
        return {&run.frames[step.device], range.first,    range.count,
                step.micro_batch,         table.of(step), step.phase};
    }

    // Copies the chain's output to the caller's arrays, or where that is staged.
    void deliver(Run const& run, StepTable const& table, Step const& step) {
        std::byte const* from = table.of(step, Region::output);
        GroupAddress const given = run.batch->others()[step.micro_batch];
        GroupSizes const& sizes = tables_.model->infos[tables_.model->infos.size() - 1].output;
        for (std::size_t t = 0; t < sizes.count; ++t) {
            if (std::byte* const to = given.table[t]) // not absent
                device_.copy(step.stream, to, from,
                             sizes.bytes[t] * run.ranges[step.micro_batch].count);
            from += slot_bytes(sizes.bytes[t] * tables_.capacity);
        }
    }

    // Runs one action. After a failure the actions behind it in the linear order are skipped; those
    // before it, which cannot depend on it, still run, so that the first failure is found whatever
    // the timing.
    template <bool observed>
    void execute(Run& run, StepTable const& table, Tables const& tables, Step const& step,
                 std::size_t walker) noexcept {
        Calls::Range calls = tables.calls[step.calls];
        bool const empty = joins_ranks<Device> && run.ranges[step.micro_batch].count == 0;
        if (empty || run.failure.precedes(step.place)) return exchange_only(run, step, calls);
        [[maybe_unused]] ActionRange const named(step.kind, step.cell, step.micro_batch);
        if constexpr (observed)
            if (!tell_hook(run, step, walker, true)) return exchange_only(run, step, calls);
        Frame const frame = frame_of(run, table, step);
        double const start = observed ? seconds_in(run) : 0;
        if (step.delivers && !run.arguments.measures) --calls.last; // without the loss
        Call const* call = calls.first;
        [[maybe_unused]] bool threw = false;
        try {
            for (; call != calls.last; ++call) call->function(*call, frame);
        } catch (...) {
            threw = true;
            fail(run, step, call->index, call->again ? Kind::recompute : step.kind);
            exchange_only(run, step, {call + !run.owes(step.device), calls.last});
        }
        if constexpr (observed) {
            if (!run.times.empty())
                run.times[step.action] = {action_of(step), walker, start, seconds_in(run), true};
            if (!threw) tell_hook(run, step, walker, false);
        }
    }
    // What other replicas wait for before these calls, which are not made.
    void exchange_only(Run& run, Step const& step, Calls::Range calls) noexcept {
        auto const refused = [&](std::size_t layer) { fail(run, step, layer, step.kind); };
        if constexpr (joins_ranks<Device>)
            if (!run.exchanges.empty() && !run.is_cut)
                copies().exchange_zeros(run, step, calls, refused);
    }
    // Whether the hook, if there is one, has thrown nothing: that is as if a layer had.
    bool tell_hook(Run& run, Step const& step, std::size_t walker, bool begins) noexcept {
        if (!run.hook) return true;
        try {
            (*run.hook)({action_of(step), begins, !run.arguments.training(), step.device,
                         tables_.ranks.replica, walker, run.arguments.step},
                        &device_.stream(step.stream));
            return true;
        } catch (...) {
            fail(run, step, tables_.cells[step.cell].first, step.kind);
            return false;
        }
    }

    [[gnu::cold]] void fail(Run& run, Step const& step, std::size_t layer, Kind kind) noexcept {
        if (run.failed() && device_.spoilt()) return; // a consequence of the first
        run.failure.tell(step.place, {layer, tables_.name_of(layer), step.cell, step.micro_batch,
                                      kind, std::current_exception()});
    }

    static double seconds_in(Run const& run) { return detail::seconds_now() - run.origin; }

    Device& device_;
    Tables const& tables_;
    Mailboxes<Device> const& mail_;
    detail::StepEnd<Device>& end_;
};

} // namespace gpipe
