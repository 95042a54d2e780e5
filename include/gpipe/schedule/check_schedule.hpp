#pragma once

#include <gpipe/schedule/constant.hpp>
#include <gpipe/schedule/schedule.hpp>
#include <gpipe/schedule/verify.hpp>

#include <cstddef>
#include <type_traits>

namespace gpipe {

/// That a policy offers what a schedule must.
template <class Schedule> struct CheckScheduleFunction {
    static consteval bool ok() {
        constexpr bool given =
            std::is_same_v<Schedule, schedule::Dynamic> || ScheduleFunction<Schedule>;
        constexpr bool object = !given && ScheduleObject<Schedule> && !std::is_empty_v<Schedule>;
        static_assert(
            !object, "gpipe: a schedule whose numbers are dynamic is an object: among the policies "
                     "stands gpipe::schedule::Dynamic, and the object in Options::schedule");
        static_assert(given || object, "gpipe: a schedule needs: static constexpr gpipe::Programs "
                                       "programs(std::size_t devices, std::size_t micro_batches)");
        return given;
    }
};

namespace detail {

template <class Schedule> constexpr bool gives_programs(std::size_t devices, std::size_t m) {
    Programs const programs = Schedule::programs(devices, m);
    return programs.devices() > 0 || devices > 0;
}

} // namespace detail

/// That the programs of a schedule for K devices and M micro-batches are a constant.
template <class Schedule, std::size_t K, std::size_t M> struct CheckConstantSchedule {
    static consteval bool ok() {
        constexpr bool constant = requires {
            typename std::bool_constant<detail::gives_programs<Schedule>(K, M)>;
        };
        static_assert(constant, "gpipe: programs(K, M) of the schedule is no constant: it must be "
                                "constexpr, may throw nothing for these, and no cell that is "
                                "given to a device is beyond the last");
        return constant;
    }
};

namespace detail {

template <class Pass, class Schedule>
constexpr bool gives_lowered(std::size_t devices, std::size_t m) {
    Programs const programs = Pass::lower(Schedule::programs(devices, m));
    return programs.devices() > 0 || devices > 0;
}

} // namespace detail

/// That these programs are one with the recomputes of a checkpointing policy, too.
template <class Policy, class Schedule, std::size_t K, std::size_t M> struct CheckConstantPass {
    static consteval bool ok() {
        constexpr bool constant = requires {
            typename std::bool_constant<detail::gives_lowered<Policy, Schedule>(K, M)>;
        };
        static_assert(constant,
                      "gpipe: lower(programs) of the checkpointing policy is no constant: it must "
                      "be constexpr, may throw nothing for those of the schedule, and stays within "
                      "-fconstexpr-ops-limit, -fconstexpr-steps and the like");
        return constant;
    }
};

/// That there are enough micro-batches for a schedule.
template <class Schedule, std::size_t devices, std::size_t micro_batches, std::size_t least>
struct CheckMicroBatchesOf {
    static consteval bool ok() {
        static_assert(micro_batches >= least,
                      "gpipe: the schedule needs more micro-batches than there are: at least as "
                      "many as `least` says, for so many devices");
        return micro_batches >= least;
    }
};

/// That the programs of a policy (a schedule, or a checkpointing pass over its programs) train
/// every micro-batch once and come to their end. The template arguments name the first place at
/// which they do not: the action, and where in the program of which device. One sentence for each
/// Problem that verify() finds.
template <class Policy, Problem problem, std::size_t device, std::size_t position, Kind kind,
          std::size_t cell, std::size_t micro_batch>
struct CheckPrograms {
    static consteval bool ok() {
        static_assert(
            problem != Problem::shape,
            "gpipe: the programs of Policy are not for the devices, cells and micro-batches "
            "that were asked for");
        static_assert(problem != Problem::unended,
                      "gpipe: next_device() has to stand behind the program of every device in the "
                      "programs of Policy, and nothing behind the last");
        static_assert(
            problem != Problem::no_such_device,
            "gpipe: the programs of Policy put this cell on a device that does not exist");
        static_assert(problem != Problem::idle_device,
                      "gpipe: the programs of Policy leave this device without a cell");
        static_assert(
            problem != Problem::no_such_cell,
            "gpipe: the programs of Policy name a cell or micro-batch that does not exist, "
            "at this device and position");
        static_assert(
            problem != Problem::wrong_device,
            "gpipe: the programs of Policy hold, at this device and position, an action of a "
            "cell that is on another device");
        static_assert(problem != Problem::unsupported,
                      "gpipe: the programs of Policy hold, at this device and position, a kind of "
                      "action that has no place there");
        static_assert(
            problem != Problem::twice,
            "gpipe: the programs of Policy hold the same action twice, the second time at "
            "this device and position");
        static_assert(
            problem != Problem::missing,
            "gpipe: an action is missing from the programs of Policy: this kind, cell and "
            "micro-batch, on this device");
        static_assert(problem != Problem::too_early,
                      "gpipe: the programs of Policy hold, at this device and position, an action "
                      "before another of this device that it needs");
        static_assert(
            problem != Problem::too_late,
            "gpipe: the programs of Policy hold, at this device and position, a recompute "
            "behind its backward");
        static_assert(
            problem != Problem::deadlock,
            "gpipe: the programs of Policy deadlock: at this device and position the action "
            "waits for ever");
        return problem == Problem::sound;
    }
};

namespace detail {

template <class Policy, class Verdict> consteval bool programs_ok(Verdict) {
    constexpr auto verdict = Verdict::value;
    return CheckPrograms<Policy, verdict.problem, verdict.device, verdict.position,
                         verdict.action.kind, verdict.action.cell,
                         verdict.action.micro_batch>::ok();
}

// The proof of constant programs in parts, each a constant of its own.
template <class Source> struct EachVerdict {
    static constexpr Verdict verdict() {
        if (!Source::value.fits || Source::value.micro_batches != Source::micro_batches)
            return {Problem::shape};
        ProgramsView const view = Source::value.view();
        if (Verdict const shape = verify_shape(view); !shape) return shape;
        return Source::value.ended ? verify_each(view) : Verdict{Problem::unended};
    }
    static constexpr Verdict value = verdict();
};
template <class Source> struct EndVerdict {
    static constexpr Verdict value = verify_ends(Source::value.view());
};

template <class Policy, class Source> consteval bool check_programs() {
    if constexpr (!programs_ok<Policy>(EachVerdict<Source>{}))
        return false;
    else
        return programs_ok<Policy>(EndVerdict<Source>{});
}

// Beyond so many (cell, micro-batch) pairs programs are proven at construction only: there clang
// gives up. Two cells on each of 32 devices and 128 micro-batches are within.
inline constexpr std::size_t most_proven_pairs = 8192;
template <class Schedule, std::size_t K, std::size_t M>
inline constexpr bool proven_as_constant = K* cells_per_device<Schedule>* M <= most_proven_pairs;

// A schedule's programs for K devices and M micro-batches.
template <class Schedule, std::size_t K, std::size_t M> consteval bool check_schedule() {
    constexpr std::size_t least = least_micro_batches<Schedule>(K);
    if constexpr (M < least)
        return CheckMicroBatchesOf<Schedule, K, M, least>::ok();
    else if constexpr (!proven_as_constant<Schedule, K, M>)
        return true;
    else if constexpr (!CheckConstantSchedule<Schedule, K, M>::ok())
        return false;
    else
        return check_programs<Schedule, SchedulePrograms<Schedule, K, M>>();
}

// The same programs, which have passed, with the recomputes of a pass.
template <class Schedule, class Pass, std::size_t K, std::size_t M> consteval bool check_lowered() {
    using Source = LoweredPrograms<Schedule, Pass, K, M>;
    if constexpr (!proven_as_constant<Schedule, K, M>)
        return true;
    else
        return check_programs<Pass, Source>();
}

} // namespace detail
} // namespace gpipe
