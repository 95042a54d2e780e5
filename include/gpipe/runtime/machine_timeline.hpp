#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/usage.hpp>
#include <gpipe/runtime/machine.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/trace/timeline.hpp>
#include <gpipe/transport/local.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

namespace gpipe::detail {

// When the actions of a run ran, by action, on which of all lanes, and how often one lost its core.
struct RunTimes {
    Array<ActionTime> actions;
    std::uint64_t preemptions = 0;
};

// Of the ranks of a replica, see runtime/rank_timeline.hpp.
template <class Device, class F> void with_times_of_ranks(Machine<Device> const& machine, F f);

// f(times) of the last run.
template <class Device, class F> void with_run_times(Machine<Device> const& machine, F f) {
    if constexpr (joins_ranks<Device>)
        if (machine.ranks().count > 1) return with_times_of_ranks(machine, f);
    Run const& run = machine.engine().last_run();
    f(RunTimes{run.times, run.preemptions.load(std::memory_order_relaxed)});
}

// Over these times; none if that was no training step. `count`: actions of cells.
GPIPE_INLINE Array<MemoryCurve> used_memory(MemoryPlan const& plan, std::size_t count,
                                            Array<ActionTime> const& times) {
    Programs const& all = plan.lowered.programs;
    for (std::size_t i = count; i < all.size() && i < times.size(); ++i)
        if (times[i].ran) count = all.size();
    struct {
        Array<double> start, end;
    } ran{Array<double>(count), Array<double>(count)};
    bool trained = false;
    for (std::size_t i = 0; i < count && i < times.size(); ++i) {
        ActionTime const& time = times[i];
        if (!time.ran) continue;
        if (time.action != all[i]) return {};
        trained = trained || gives_gradient(time.action.kind);
        ran.start[i] = time.start;
        ran.end[i] = time.end;
    }
    if (!trained) return {};
    return memory_usage(plan, ran);
}

// Of a run that was timed.
GPIPE_INLINE Timeline timeline_of(MemoryPlan const& plan, Programs const& programs,
                                  RunTimes const& run, std::string_view title) {
    Array<ActionTime> const& times = run.actions;
    Timeline result(programs.devices(), programs.cells(), programs.micro_batches(), times.size(),
                    title);
    for (ActionTime const& time : times)
        if (time.ran && !is_transfer(time.action.kind))
            result.add({time.action, programs.device_of(time.action.cell), time.lane, time.start,
                        time.end});
    if (result.size() == 0)
        throw std::logic_error("gpipe: there is no timed run to show: call time_actions() before "
                               "the step that timeline() is for");
    result.preemptions(run.preemptions);
    result.memory(used_memory(plan, programs.size(), times));
    return result;
}

} // namespace gpipe::detail
