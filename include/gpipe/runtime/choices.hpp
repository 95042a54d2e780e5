#pragma once

#include <gpipe/checkpoint/check_checkpointing.hpp>
#include <gpipe/core/checked.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/dynamic.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/finite.hpp>
#include <gpipe/runtime/work.hpp>
#include <gpipe/schedule/halves.hpp>
#include <gpipe/schedule/schedule.hpp>
#include <gpipe/schedule/verify.hpp>
#include <gpipe/search/cut_for.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace gpipe {

/// A number that is constant or chosen at construction. Throws std::invalid_argument if an option
/// contradicts the constant; 0 means that the option is not given, and then a dynamic number is
/// `fallback`.
GPIPE_INLINE std::size_t chosen_number(char const* option_name, std::size_t constant,
                                       std::size_t option, std::size_t fallback) {
    if (constant == dynamic) return option != 0 ? option : fallback;
    if (option != 0 && option != constant)
        detail::throw_error<std::invalid_argument>(
            "gpipe: Options::%s is %zu, but the type says %zu", option_name, option, constant);
    return constant;
}

/// Throws std::invalid_argument if a policy is `given` as an option, but the type says it.
GPIPE_INLINE void check_not_given(char const* option_name, bool given) {
    if (given)
        detail::throw_error<std::invalid_argument>(
            "gpipe: Options::%s is given, but the type says which it is: one that is chosen at "
            "construction is %s::Dynamic in the type",
            option_name, option_name[0] == 's' ? "schedule" : "checkpoint");
}

/// Throws std::invalid_argument where a schedule has no cell on a device, or a balance no whole
/// number of devices.
GPIPE_INLINE void check_cells_per_device(std::size_t cells_per_device, std::size_t entries) {
    if (cells_per_device == 0)
        throw std::invalid_argument("gpipe: the schedule has no cells on a device: its number of "
                                    "cells per device is zero");
    if (entries % cells_per_device != 0)
        detail::throw_error<std::invalid_argument>(
            "gpipe: the schedule has %zu cells on each device, and the %zu entries of the balance "
            "are no multiple of it",
            cells_per_device, entries);
}

/// Throws std::invalid_argument if so many micro-batches of so many cells are more than that.
GPIPE_INLINE void check_micro_batches(std::size_t micro_batches, std::size_t cells) {
    if (checked_product(micro_batches, cells) > most_forwards)
        detail::throw_error<std::invalid_argument>("gpipe: %zu micro-batches of %zu cells are more "
                                                   "than the %zu forwards that programs can "
                                                   "hold",
                                                   micro_batches, cells, most_forwards);
}

/// The largest mini-batch, at least 1.
GPIPE_INLINE std::size_t checked_samples(std::size_t samples) {
    if (samples == 0)
        detail::throw_error<std::invalid_argument>(
            "gpipe: Options::samples, the largest mini-batch that memory is planned for, is zero");
    return samples;
}

/// Throws std::invalid_argument if a step has more samples than were chosen.
GPIPE_INLINE void check_room(std::size_t samples, std::size_t planned) {
    if (samples > planned)
        detail::throw_error<std::invalid_argument>(
            "gpipe: a mini-batch of %zu samples, but memory was planned for %zu: Options::samples",
            samples, planned);
}

/// Throws std::invalid_argument if the optimizer is another one, which would take the state for its
/// own.
GPIPE_INLINE void check_optimizer(std::string_view chosen, std::string_view planned) {
    if (chosen != planned)
        detail::throw_error<std::invalid_argument>(
            "gpipe: the optimizer is %s now, but state was planned for %s",
            std::string(chosen).c_str(), std::string(planned).c_str());
}

/// Throws std::invalid_argument for factors that are none.
GPIPE_INLINE void check_scale(LossScale const& scale, bool immediate) {
    if (detail::is_finite(scale.initial) && scale.initial == 0) return;
    if (immediate)
        throw std::invalid_argument(
            "gpipe: Options::loss_scale skips steps whose gradients are not finite, but with "
            "update::Immediate devices update their parameters before all gradients are known");
    if (!(scale.least > 0 && scale.least <= scale.initial && scale.initial <= scale.most &&
          detail::is_finite(scale.least) && detail::is_finite(scale.initial) &&
          detail::is_finite(scale.most) && detail::is_finite(scale.backoff) && scale.backoff > 0 &&
          scale.backoff <= 1 && scale.growth >= 1 && detail::is_finite(scale.growth)))
        detail::throw_error<std::invalid_argument>(
            "gpipe: Options::loss_scale begins at %g, with bounds of %g and %g, grows by %g and "
            "falls by %g: a scale, and both of its bounds, are positive and finite, it begins "
            "within these, grows by a finite factor of 1 or more, and falls by one between 0 and 1",
            scale.initial, scale.least, scale.most, scale.growth, scale.backoff);
}

/// What is to be looked at before a commit. `norm`: the largest of the gradients, or 0;
/// `immediate`: see update::Immediate; `apart`: whether GPUs of several ranks or replicas train.
/// Throws std::invalid_argument where that could not be done.
GPIPE_INLINE StepChecks chosen_checks(double norm, bool finite_gradients, NotFinite not_finite,
                                      LossScale const& scale, bool immediate, bool apart) {
    if (!(norm >= 0) || detail::is_nan(norm))
        detail::throw_error<std::invalid_argument>(
            "gpipe: Options::clip_norm, the largest norm of the gradients, is %g", norm);
    if (immediate && norm > 0)
        detail::throw_error<std::invalid_argument>(
            "gpipe: Options::clip_norm is %g, but with update::Immediate devices update their "
            "parameters before the norm of all gradients is known",
            norm);
    if (immediate && finite_gradients && not_finite == NotFinite::go_on)
        throw std::invalid_argument(
            "gpipe: Options::finite_gradients with NotFinite::go_on drops steps whose gradients "
            "are not finite, but with update::Immediate devices update their parameters before "
            "all gradients are known");
    if (immediate && finite_gradients && apart)
        throw std::invalid_argument(
            "gpipe: Options::finite_gradients is not for update::Immediate on GPUs of several "
            "ranks or replicas: some would have updated before others know");
    check_scale(scale, immediate);
    return {norm, finite_gradients, not_finite, scale};
}

/// What a cut that can weigh cells sees, see cut_for(): at so many micro-batches at most. None
/// where there is nothing to be weighed, or if the programs are wrong, which is said later.
GPIPE_INLINE Programs weighed_programs(schedule::Dynamic const& schedule,
                                       checkpoint::Dynamic const& checkpointing,
                                       std::size_t devices, std::size_t micro_batches) {
    if (checkpointing.reverses()) return {};
    std::size_t const cells = devices * schedule.cells_per_device();
    std::size_t const weighed =
        weighed_micro_batches(micro_batches, cells, schedule.least_micro_batches(devices));
    if (weighed == 0) return {};
    Programs const plain = schedule.programs(devices, weighed);
    if (plain.cells() != cells || plain.devices() != devices || !verify(plain)) return {};
    return checkpointing.lower(plain);
}

namespace detail {

// Throws std::invalid_argument, naming device, position and action, unless the programs are sound.
GPIPE_INLINE void check_verdict(Verdict const& verdict, char const* policy) {
    if (verdict) return;
    if (verdict.problem == Problem::idle_device)
        throw_error<std::invalid_argument>(
            "gpipe: the programs of the %s leave device %zu without a cell", policy,
            verdict.device);
    if (verdict.problem == Problem::no_such_device)
        throw_error<std::invalid_argument>(
            "gpipe: the programs of the %s put cell %u on device %zu, which does not exist", policy,
            verdict.action.cell, verdict.device);
    if (verdict.problem == Problem::shape || verdict.problem == Problem::unended)
        throw_error<std::invalid_argument>("gpipe: the programs of the %s are wrong: %s", policy,
                                           std::string(sentence(verdict.problem)).c_str());
    throw_error<std::invalid_argument>(
        "gpipe: the programs of the %s are wrong: %s (device %zu, position %zu, %s of cell %u, "
        "micro-batch %u)",
        policy, std::string(sentence(verdict.problem)).c_str(), verdict.device, verdict.position,
        std::string(name(verdict.action.kind)).c_str(), verdict.action.cell,
        verdict.action.micro_batch);
}

} // namespace detail

/// Throws std::invalid_argument unless the programs are for so many devices, cells and
/// micro-batches and sound; then with device, position and action.
GPIPE_INLINE void prove(Programs const& programs, char const* policy, std::size_t devices,
                        std::size_t cells, std::size_t micro_batches) {
    if (programs.cells() != cells || programs.micro_batches() != micro_batches)
        detail::throw_error<std::invalid_argument>(
            "gpipe: the programs of the %s are for %zu cells and %zu micro-batches, not for %zu "
            "and %zu",
            policy, programs.cells(), programs.micro_batches(), cells, micro_batches);
    if (programs.devices() != devices)
        detail::throw_error<std::invalid_argument>(
            "gpipe: the programs of the %s are for %zu devices, not for %zu", policy,
            programs.devices(), devices);
    detail::check_verdict(verify(programs), policy);
}

/// What a checkpointing policy has made of a schedule for so many devices. Throws
/// std::invalid_argument unless it is sound.
GPIPE_INLINE void prove(Checkpointed const& checkpointed, CutChain const& chain,
                        std::size_t devices, std::size_t cells, std::size_t micro_batches) {
    if (auto const [verdict, cell] = verify(checkpointed.reversals, chain.first); !verdict)
        detail::throw_error<std::invalid_argument>(
            "gpipe: the checkpointing policy reverses cell %zu wrongly, at step %zu: %s", cell,
            verdict.position, std::string(sentence(verdict.problem)).c_str());
    prove(checkpointed.programs, "checkpointing policy", devices, cells, micro_batches);
}

/// The schedule's programs with the recomputes of the checkpointing policy, both proven. Throws
/// std::invalid_argument if they are wrong, or if the schedule needs more micro-batches.
GPIPE_INLINE Checkpointed proven_programs(schedule::Dynamic schedule,
                                          checkpoint::Dynamic checkpointing, std::size_t devices,
                                          std::size_t micro_batches, CutChain const& chain = {}) {
    std::size_t const cells = checked_product(devices, schedule.cells_per_device());
    check_micro_batches(micro_batches, cells);
    std::size_t const least = schedule.least_micro_batches(devices);
    if (micro_batches < least) {
        std::string const name(schedule.name());
        detail::throw_error<std::invalid_argument>(
            "gpipe: the schedule%s%s needs at least %zu micro-batches for %zu device%s, not %zu",
            name.empty() ? "" : " ", name.c_str(), least, devices, devices == 1 ? "" : "s",
            micro_batches);
    }
    Programs const plain = schedule.programs(devices, micro_batches);
    prove(plain, "schedule", devices, cells, micro_batches);
    // What a checkpointing policy may put in is sound, but not for a schedule to hold.
    for (std::size_t d = 0; d < devices; ++d)
        for (std::size_t i = plain.begin(d); i < plain.end(d); ++i)
            if (plain[i].kind == Kind::recompute)
                detail::check_verdict({Problem::unsupported, d, i - plain.begin(d), plain[i]},
                                      "schedule");
    Checkpointed result = checkpointing.apply(chain, plain);
    prove(result, chain, devices, cells, micro_batches);
    return result;
}

} // namespace gpipe
