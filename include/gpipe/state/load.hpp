#pragma once

#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/gathering.hpp>
#include <gpipe/runtime/rank_call.hpp>
#include <gpipe/state/done_together.hpp>
#include <gpipe/state/read_plan.hpp>
#include <gpipe/state/state_inline.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpipe {

namespace detail {

GPIPE_STATE_INLINE std::uint64_t number_of(LoadOptions const& options) {
    std::string words = options.types ? "types" : "";
    words += options.steps ? " steps" : "";
    words += options.rename ? " renamed" : "";
    if (options.state_steps) words += ' ' + std::to_string(*options.state_steps);
    for (auto const* names : {&options.only, &options.except}) {
        words += '\n';
        for (std::string const& name : *names) words += '\n' + name;
    }
    return std::hash<std::string>{}(words);
}

GPIPE_STATE_INLINE bool takes_all(LoadOptions const& options) {
    return options.only.empty() && options.except.empty();
}

// That the training has so many steps now. What is read keeps its age, and what stays its own.
template <class Device>
void age(Machine<Device>& machine, TrainingState const& state,
         std::vector<std::optional<std::uint64_t>> const& ages, std::uint64_t steps) {
    bool changes = false;
    for (std::size_t i = 0; i < state.learned.size(); ++i) {
        LearnedTensor const& one = state.learned[i];
        if (one.states == 0) continue;
        std::uint64_t const begun = steps - ages[i].value_or(state.steps - one.begun);
        changes = changes || begun != one.begun;
        for (std::uint32_t const row : one.rows) machine.engine().runs().set_begun(row, begun);
    }
    if (changes) machine.engine().forget_steps(); // those that are kept have rows of their own
}

// What a state is to become.
struct Read {
    SavedState saved;
    ReadPlan plan;
    std::vector<std::byte> values;
};
// On all ranks or none.
template <class Device>
Read read_state(Gathering<Device>& gathering, TrainingState const& state, std::string const& path,
                LoadOptions const& options) {
    compare(gathering, std::hash<std::string>{}(path),
            "gpipe: rank %zu loads from another path than rank 0");
    compare(gathering, number_of(options),
            "gpipe: rank %zu loads with other LoadOptions than rank 0");
    Read result;
    std::uint64_t what = 0;
    DoneTogether reads;
    bool const failed = reads.failed(gathering, true, [&] {
        StateFiles const files(path);
        StateFile const& saved = files.first();
        what = std::hash<std::string>{}(saved.header_text);
        result.saved = takes_all(options) || options.steps || !saved.is_foreign()
                           ? saved.saved()
                           : SavedState{0, 0, 0, 0, saved.header.metadata};
        result.plan = read_plan(files, state, options, result.saved.steps);
        result.values = std::vector<std::byte>(result.plan.bytes);
        std::byte* at = result.values.data();
        for (ReadPlan::Range const& range : result.plan.ranges) {
            range.read(at);
            at += range.wide();
        }
    });
    if (failed) reads.fail(gathering, path, "load its part");
    compare(gathering, what, "gpipe: rank %zu has read another state than rank 0");
    return result;
}
// `of`: a Training or an Inference, whose machine that is.
template <class Device, class Of>
SavedState load(Machine<Device>& machine, Of const& of, std::string const& path,
                LoadOptions const& options) {
    machine.begin_together(RankCall::loads);
    TrainingState state;
    Read read;
    gathered(machine.device(), "load()", [&](auto& gathering) {
        state = state_of(machine, of);
        read = read_state(gathering, state, path, options);
    });
    // From here on nothing is allocated: else some ranks would have loaded it, and others not.
    std::byte const* at = read.values.data();
    for (ReadPlan::Range const& range : read.plan.ranges) {
        machine.copy(range.memory, at, range.wide());
        at += range.wide();
    }
    machine.engine().forget_accumulated();
    SavedState& result = read.saved;
    bool const goes_on = takes_all(options) || options.steps;
    age(machine, state, read.plan.ages, goes_on ? result.steps : machine.engine().steps());
    if (!goes_on) return std::move(result);
    LossScaleState scale = machine.engine().runs().scale();
    if (result.loss_scale > 0) scale = {result.loss_scale, result.good_steps};
    machine.engine().go_on(result.seed, result.steps, scale);
    return std::move(result);
}

} // namespace detail

/// Goes on from a saved state: parameters and optimizer state become what was saved, bit for bit,
/// and so do step number, seed and loss scale, so that the steps that follow are those that would
/// have followed there, for every K, cut, checkpointing policy, number of threads and kind of
/// device, and every schedule that runs backward in the same order (promise P1; M must be the
/// same). With `only` or `except` the tensors that these leave out stay as they are, and so do step
/// number and seed unless `steps` says otherwise. What was accumulated is forgotten. Throws
/// StateError where the file cannot be read, is not sound, or does not fit: then one error lists
/// all that is missing, unexpected, or of another shape or type, and nothing has changed. Files of
/// others, which have tensors of our names, are loaded by `only` or `except`; F16, BF16 and F32 in
/// them become F32 or F64, number by number, where that is what is here. What a
/// file says is checked, but not whether its numbers were changed since: keep states as safe as
/// programs. A layer's members and the optimizer's are not part of a state. With several ranks all
/// call it, with the same path and options; each reads what it has, whoever saved that, on how many
/// ranks and replicas, and if one cannot, nothing has changed on any. An error of a device, once
/// all is read, leaves some tensors loaded and others not: load again. What start_save() began is
/// not waited for: until its wait() returns, the state before may be what is loaded.
template <class Net, class... Policies>
SavedState load(Training<Net, Policies...>& train, std::string const& path,
                LoadOptions const& options = {}) {
    SavedState result;
    detail::MachineAccess::together(train, [&](auto& machine, bool first) {
        SavedState loaded = detail::load(machine, train, path, options);
        if (first) result = std::move(loaded);
    });
    return result;
}

/// The same for an Inference of the same Net: of what a training saved, under any policies, its
/// parameters and buffers, and seed and step, by which layers may draw random numbers. Nothing is
/// asked of the optimizer.
template <class Net, class... Policies>
SavedState load(Inference<Net, Policies...>& inference, std::string const& path,
                LoadOptions const& options = {}) {
    return detail::load(detail::MachineAccess::of(inference), inference, path, options);
}

/// What a file says beside its tensors, for who needs that to make a training. Throws as load().
GPIPE_STATE_INLINE SavedState saved_state(std::string const& path) {
    return detail::StateFile(path).saved();
}

} // namespace gpipe
