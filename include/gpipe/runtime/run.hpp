#pragma once

#include <gpipe/call/call.hpp>
#include <gpipe/core/clock.hpp>
#include <gpipe/core/split.hpp>
#include <gpipe/runtime/action_hook.hpp>
#include <gpipe/runtime/failure.hpp>
#include <gpipe/runtime/mini_batch.hpp>
#include <gpipe/runtime/one_caller.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpipe {

/// What is to be done in one run.
struct RunArguments {
    std::uint64_t seed = 0;          ///< see Options::seed
    std::uint64_t step = 0;          ///< steps trained before
    void const* optimizer = nullptr; ///< null: forward only
    bool measures = true;            ///< whether the loss is called
    std::size_t samples = 0;         ///< of the mini-batch
    SampleRange part{};              ///< of these: what is seen here
    std::size_t slot = 0;            ///< of the runs that are under way
    bool updates = true;             ///< of a training: whether parameters are updated
    std::size_t before = 0;          ///< samples of the mini-batch, or of the call, in runs before
    bool last = true;                ///< whether it ends with these: else they are accumulated
    std::size_t more = 0;            ///< samples that further runs of the same call see

    /// Whether there is a backward.
    bool training() const { return optimizer != nullptr; }
    /// Whether it is a step, or ends one.
    bool trains() const { return training() && updates && last; }
};

/// When an action ran, in seconds since its run began, and on which lane.
struct ActionTime {
    Action action;        ///< what ran
    std::size_t lane = 0; ///< that walked it
    double start = 0;     ///< seconds
    double end = 0;       ///< seconds
    bool ran = false;     ///< not where its micro-batch had no samples
};

/// A run that may be under way.
struct Run {
    RunArguments arguments;           ///< what was asked for
    std::uint64_t mini_batch = 0;     ///< which of those that train, see Runs: its parts are of one
    MiniBatch const* batch = nullptr; ///< its samples
    Array<SampleRange> ranges;        ///< by micro-batch
    Array<StepFrame> frames;          ///< by device
    StepState begun;                  ///< as layers of hosts find it, whatever is committed then
    Array<Exchange> exchanges;        ///< by device; empty where there is one replica
    bool is_cut = false;              ///< whether a device refused one, and nothing more is sent
    FirstFailure failure;             ///< the first, if any
    std::uint64_t base = 0;           ///< what positions count from
    bool follows = false;             ///< whether the run before may be under way, over this table
    bool done = true;                 ///< whether all of it is, since it was submitted
    std::atomic<bool> updated = false;        ///< whether parameters have been, or will be
    std::atomic<bool> dropped = false;        ///< whether the host has not committed it
    std::atomic<Run const*> before = nullptr; ///< that was under way when this began, and still is
    bool in_vain = false;                     ///< whether that has ended, and updated nothing
    bool ended = true;       ///< whether nothing of it is under way, and all is known
    Array<ActionTime> times; ///< by action; empty where nobody wants to know
    std::size_t ends = 0;    ///< how many of these, the last, are of what ends a step
    double origin = 0;       ///< what they count from; 0: none of this run is known
    std::atomic<std::uint64_t> preemptions = 0; ///< of all lanes, where actions are timed
    detail::ActionHook const* hook = nullptr;   ///< called around each action, if there is one
    detail::OneCaller const* caller = nullptr;  ///< of the object whose run it is

    /// Whether anybody wants to know of its actions. Decided before it begins: one that nobody
    /// observes is walked by other code.
    bool observed() const { return hook || !times.empty(); }

    /// Whether a call on a device that threw has not told other replicas its part.
    bool owes(std::size_t device) const { return !exchanges.empty() && exchanges[device].owed; }
    /// From the next that is begun on, notes when its actions run: so many, and what ends a step.
    void time(std::size_t actions, std::size_t how_many_end) {
        times = Array<ActionTime>(actions + how_many_end);
        ends = how_many_end;
        origin = 0;
    }
    /// It begins, as far as its times go.
    void begin_times() {
        for (ActionTime& time : times) time = {};
        preemptions.store(0, std::memory_order_relaxed);
        if (!times.empty()) origin = detail::seconds_now();
    }
    /// Nothing has happened in it yet.
    void begin(bool may_follow) {
        follows = may_follow;
        failure.reset();
        is_cut = in_vain = false;
        updated.store(false, std::memory_order_relaxed);
        dropped.store(false, std::memory_order_release);
        ended = false;
    }
    /// Whether the one before it is known to update nothing. Who ends that one tells it this one,
    /// and then lets it go, for another run takes its place: what is found here may be of that.
    bool follows_unsound() const {
        Run const* const that = before.load(std::memory_order_acquire);
        return that && (that->failed() || that->dropped.load(std::memory_order_acquire)) &&
               before.load(std::memory_order_relaxed) == that;
    }
    /// Whether any layer or update threw.
    bool failed() const { return failure.exists(); }
    /// Micro-batches that have samples: the first ones.
    std::size_t filled() const {
        std::size_t count = 0;
        while (count < ranges.size() && ranges[count].count > 0) ++count;
        return count;
    }
};

} // namespace gpipe
