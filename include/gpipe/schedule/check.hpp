#pragma once

#include <gpipe/schedule/schedule.hpp>
#include <gpipe/schedule/verify.hpp>

#include <cstddef>

namespace gpipe {

/// That a policy offers what a schedule must.
template <class Schedule> struct CheckScheduleFunction {
    static constexpr bool ok = ScheduleFunction<Schedule>;
    static_assert(ok, "gpipe: a schedule needs: static constexpr gpipe::Programs "
                      "programs(std::size_t devices, std::size_t micro_batches)");
};

/// That the programs of a policy (a schedule, or a checkpointing pass over its programs) train
/// every micro-batch once and come to their end. The template arguments name the first place at
/// which they do not: the action, and where in the program of which device. One sentence for each
/// Problem that verify() finds.
template <class Policy, Problem problem, std::size_t device, std::size_t position, Kind kind,
          std::size_t cell, std::size_t micro_batch>
struct CheckPrograms {
    static constexpr bool ok = problem == Problem::sound;
    static_assert(problem != Problem::shape,
                  "gpipe: the programs of Policy are not for the cells and micro-batches that were "
                  "asked for, or have no device");
    static_assert(problem != Problem::no_such_cell,
                  "gpipe: the programs of Policy name a cell or micro-batch that does not exist, "
                  "at this device and position");
    static_assert(problem != Problem::wrong_device,
                  "gpipe: the programs of Policy hold, at this device and position, an action of a "
                  "cell that is on another device");
    static_assert(problem != Problem::twice,
                  "gpipe: the programs of Policy hold the same action twice, the second time at "
                  "this device and position");
    static_assert(problem != Problem::missing,
                  "gpipe: an action is missing from the programs of Policy: this kind, cell and "
                  "micro-batch, on this device");
    static_assert(problem != Problem::too_early,
                  "gpipe: the programs of Policy hold, at this device and position, an action "
                  "before the forward that it needs");
    static_assert(problem != Problem::unsupported,
                  "gpipe: the programs of Policy hold, at this device and position, a kind of "
                  "action that has no place there");
    static_assert(problem != Problem::deadlock,
                  "gpipe: the programs of Policy deadlock: at this device and position the action "
                  "waits for ever");
};

namespace detail {

// What verify() says of programs that were asked for so many cells and micro-batches.
constexpr Verdict verify_for(Programs const& programs, std::size_t cells,
                             std::size_t micro_batches) {
    if (programs.cells() != cells || programs.micro_batches() != micro_batches)
        return {Problem::shape};
    return verify(programs);
}

template <class Policy, class Verdict> consteval bool programs_ok(Verdict) {
    constexpr auto verdict = Verdict::value;
    return CheckPrograms<Policy, verdict.problem, verdict.device, verdict.position,
                         verdict.action.kind, verdict.action.cell, verdict.action.micro_batch>::ok;
}

template <class Schedule, std::size_t K, std::size_t M> struct ScheduleVerdict {
    static constexpr Verdict value =
        verify_for(Schedule::programs(K, M), K* cells_per_device<Schedule>, M);
};
template <class Schedule, class Pass, std::size_t K, std::size_t M> struct LoweredVerdict {
    static constexpr Verdict value =
        verify_for(Pass::lower(Schedule::programs(K, M)), K* cells_per_device<Schedule>, M);
};

template <class Schedule, std::size_t K, std::size_t M> consteval bool check_schedule() {
    if constexpr (!ScheduleFunction<Schedule>)
        return CheckScheduleFunction<Schedule>::ok;
    else
        return programs_ok<Schedule>(ScheduleVerdict<Schedule, K, M>{});
}
// Beyond this many forwards the lowered programs are proven at construction only: clang gives up
// after a million steps.
inline constexpr std::size_t most_lowered_pairs = 1024;
template <class Schedule, class Pass, std::size_t K, std::size_t M> consteval bool check_lowered() {
    if constexpr (K * M <= most_lowered_pairs)
        return programs_ok<Pass>(LoweredVerdict<Schedule, Pass, K, M>{});
    else
        return true;
}

} // namespace detail
} // namespace gpipe
