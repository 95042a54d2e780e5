#pragma once

#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/rank_call.hpp>
#include <gpipe/state/state_files.hpp>
#include <gpipe/state/state_inline.hpp>
#include <gpipe/state/tensor_names.hpp>
#include <gpipe/state/training_state.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpipe {

/// Which of a saved state is loaded. Each entry is the begin of names, as "layer.0017.", or, with
/// '*' for any text and '?' for any character, a whole name, as "*.weight".
/// One that fits no tensor's name is an error.
struct LoadOptions {
    std::vector<std::string> only{};   ///< if any, no other tensors
    std::vector<std::string> except{}; ///< not these
    /// Whether a layer whose type has another name is an error, and another optimizer: where
    /// nothing is left out by `only` or `except`.
    bool types = true;
    /// Whether step number, seed and loss scale are loaded, too, where `only` or `except` leave
    /// anything out. An optimizer counts each tensor's own steps (UpdateContext::step), those that
    /// its state has seen, whatever is loaded.
    bool steps = false;
};

namespace detail {

// What is to be read, and where to; or one error with everything that does not fit.
struct ReadPlan {
    struct Range {
        StateFile const* file = nullptr;
        std::uint64_t at = 0; // in the file
        std::uint64_t bytes = 0;
        std::byte* memory = nullptr;
    };
    std::vector<Range> ranges;
    std::uint64_t bytes = 0;
    // By TrainingState::learned, whose optimizer state is read: the steps that it has seen.
    std::vector<std::optional<std::uint64_t>> ages{};

    // Of elements that lie in pieces, one behind the other.
    void add(OwnPart const& own, std::vector<SavedPiece> const& pieces) {
        for (SavedPiece const& piece : pieces) {
            std::size_t const size = info(piece.entry->dtype).bytes;
            std::uint64_t const begin = std::max(own.first, piece.first);
            std::uint64_t const end =
                std::min(own.first + own.count, piece.first + piece.entry->bytes() / size);
            if (begin >= end) continue;
            ranges.push_back(
                {piece.file,
                 piece.file->header.data_at + piece.entry->begin + (begin - piece.first) * size,
                 (end - begin) * size, own.memory + (begin - own.first) * size});
            bytes += ranges.back().bytes;
        }
    }
};

// What of a tensor is other than it should be; nothing if that is empty.
GPIPE_STATE_INLINE std::string misfit(safetensors::Entry const& here,
                                      std::vector<SavedPiece> const& pieces) {
    auto const wanted = ", not " + described(here.dtype, here.shape);
    safetensors::Entry const& entry = *pieces[0].entry;
    if (pieces.size() > 1 && pieces[0].whole) return here.name + " is there twice";
    if (pieces[0].whole)
        return entry.dtype == here.dtype && entry.shape == here.shape
                   ? ""
                   : here.name + " is " + described(entry.dtype, entry.shape) + wanted;
    std::uint64_t end = 0;
    bool fits = true;
    for (SavedPiece const& piece : pieces) {
        fits = fits && piece.entry->dtype == here.dtype && !piece.whole && piece.first == end;
        end += piece.entry->shape[0];
    }
    return fits && end == safetensors::elements_of(here)
               ? ""
               : "the parts of " + here.name + " are" + wanted;
}

// `steps`: of the saved state.
GPIPE_STATE_INLINE ReadPlan read_plan(StateFiles const& files, TrainingState const& state,
                                      LoadOptions const& options, std::uint64_t steps) {
    StateFile const& saved = files.first();
    NameFilter filter(options.only, options.except);
    ReadPlan plan;
    std::string problems;
    std::map<std::string_view, std::vector<SavedPiece> const*> there;
    for (auto const& [name, pieces] : files.pieces())
        if (filter.takes(name) && !(state.infers && name.rfind("optimizer.", 0) == 0))
            there[name] = &pieces;
    std::vector<std::vector<SavedPiece> const*> found(state.tensors.size()); // by tensor
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        safetensors::Entry const& here = state.tensors[i];
        if (!filter.takes(here.name)) continue;
        auto const at = there.find(here.name);
        if (at == there.end()) {
            problems += "\n  missing: " + here.name + ' ' + described(here.dtype, here.shape);
            continue;
        }
        if (std::string const what = misfit(here, *at->second); !what.empty())
            problems += "\n  " + what;
        else
            found[i] = at->second;
        there.erase(at);
    }
    for (OwnPart const& own : state.own)
        if (found[own.tensor]) plan.add(own, *found[own.tensor]);
    auto const begun = saved.begun();
    for (LearnedTensor const& one : state.learned) {
        auto const first = found.begin() + static_cast<std::ptrdiff_t>(one.tensor) + 1;
        auto const last = first + static_cast<std::ptrdiff_t>(one.states);
        auto const of = begun.find(state.tensors[one.tensor].name);
        plan.ages.emplace_back();
        if (first == last || std::find(first, last, nullptr) != last ||
            !saved.header.metadata.count("gpipe.format"))
            continue; // it stays as old as it is
        std::uint64_t const age = steps - (of == begun.end() ? 0 : of->second);
        if (age > most_steps)
            saved.refuse(": an optimizer state of " + in_quotes(state.tensors[one.tensor].name) +
                         " that has seen " + std::to_string(age) + " steps is none");
        plan.ages.back() = age;
    }
    for (auto const& [name, pieces] : there)
        problems += "\n  unexpected: " + in_quotes(name) + ' ' +
                    described((*pieces)[0].entry->dtype, (*pieces)[0].entry->shape);
    for (std::string const& pattern : filter.unused())
        problems += "\n  no tensor is called " + in_quotes(pattern);
    if (filter.takes_all() && options.types) {
        std::string const& layers = saved.own("gpipe.layers");
        std::size_t at = 0, i = 0;
        for (; at < layers.size(); ++i) {
            std::size_t const end = std::min(layers.find('\n', at), layers.size());
            std::string const layer = layers.substr(at, end - at);
            at = end + 1;
            if (i < state.layers.size() && layer != state.layers[i])
                problems += "\n  layer " + std::to_string(i) + " was " + in_quotes(layer) +
                            ", not " + in_quotes(state.layers[i]);
        }
        if (i != state.layers.size())
            problems += "\n  it had " + std::to_string(i) + " layers, not " +
                        std::to_string(state.layers.size());
        // (Grouped<O> of any O was called "Grouped" until 2026-11.)
        std::string const optimizer = saved.own("gpipe.optimizer");
        if (!state.infers && optimizer != state.optimizer && optimizer != "Grouped")
            problems += "\n  its optimizer was " + in_quotes(optimizer) + ", not " +
                        in_quotes(state.optimizer);
    }
    if (!problems.empty())
        saved.refuse(" does not fit this " +
                     std::string(state.infers ? "inference:" : "training:") + problems);
    return plan;
}

GPIPE_STATE_INLINE std::uint64_t number_of(LoadOptions const& options) {
    std::string words = options.types ? "types" : "";
    words += options.steps ? " steps" : "";
    for (auto const* names : {&options.only, &options.except}) {
        words += '\n';
        for (std::string const& name : *names) words += '\n' + name;
    }
    return std::hash<std::string>{}(words);
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

template <class Device>
SavedState load(Machine<Device>& machine, TrainingState const& state, std::string const& path,
                LoadOptions const& options) {
    if constexpr (joins_ranks<Device>) {
        machine.begin_together(RankCall::loads);
        compare(machine.device().transport(), std::hash<std::string>{}(path),
                "gpipe: rank %zu loads from another path than rank 0");
        compare(machine.device().transport(), number_of(options),
                "gpipe: rank %zu loads with other LoadOptions than rank 0");
    }
    SavedState result;
    std::uint64_t what = 0;
    ReadPlan plan;
    std::vector<std::byte> values;
    bool const all = options.only.empty() && options.except.empty();
    std::exception_ptr error;
    try {
        StateFiles const files(path);
        StateFile const& saved = files.first();
        what = std::hash<std::string>{}(saved.header_text);
        result = all || options.steps || saved.header.metadata.count("gpipe.format")
                     ? saved.saved()
                     : SavedState{0, 0, 0, 0, saved.header.metadata};
        plan = read_plan(files, state, options, result.steps);
        values = std::vector<std::byte>(plan.bytes);
        std::byte* at = values.data();
        for (ReadPlan::Range const& range : plan.ranges) {
            range.file->file.read_at(range.at, {at, range.bytes});
            at += range.bytes;
        }
    } catch (...) {
        error = std::current_exception();
    }
    // On all ranks or none.
    Array<std::uint64_t> const wrong = machine.gather(error != nullptr);
    if (error) std::rethrow_exception(error);
    for (std::size_t r = 0; r < wrong.size(); ++r)
        if (wrong[r])
            throw StateError("gpipe: " + path + ": rank " + std::to_string(r) +
                             " could not load its part");
    if constexpr (joins_ranks<Device>)
        compare(machine.device().transport(), what,
                "gpipe: rank %zu has read another state than rank 0");
    std::byte const* at = values.data();
    for (ReadPlan::Range const& range : plan.ranges) {
        machine.copy(range.memory, at, range.bytes);
        at += range.bytes;
    }
    machine.engine().forget_accumulated();
    bool const goes_on = all || options.steps;
    age(machine, state, plan.ages, goes_on ? result.steps : machine.engine().steps());
    if (!goes_on) return result;
    LossScaleState scale = machine.engine().runs().scale();
    if (result.loss_scale > 0) scale = {result.loss_scale, result.good_steps};
    machine.engine().go_on(result.seed, result.steps, scale);
    return result;
}

} // namespace detail

/// Goes on from a saved state: parameters and optimizer state become what was saved, bit for bit,
/// and so do step number, seed and loss scale, so that the steps that follow are those that would
/// have followed there, for every K, cut, checkpointing policy, number of threads and kind of
/// device, and every schedule that runs backward in the same order (promise P1; M must be the
/// same). With `only` or `except` the tensors that these leave out stay as they are, and so do step
/// number and seed unless `steps` says otherwise. What was accumulated is forgotten. Throws
/// StateError where the file cannot be read, is not sound, or does not fit: then one error lists
/// all that is missing, unexpected, or of another shape or type, and nothing has changed. What a
/// file says is checked, but not whether its numbers were changed since: keep states as safe as
/// programs. A layer's members and the optimizer's are not part of a state. With several ranks all
/// call it, with the same path and options; each reads what it has, whoever saved that, on how many
/// ranks and replicas, and if one cannot, nothing has changed on any.
template <class Net, class... Policies>
SavedState load(Training<Net, Policies...>& train, std::string const& path,
                LoadOptions const& options = {}) {
    SavedState result;
    detail::MachineAccess::together(train, [&](auto& machine, bool first) {
        SavedState loaded = detail::load(machine, detail::state_of(machine, train), path, options);
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
    auto& machine = detail::MachineAccess::of(inference);
    return detail::load(machine, detail::state_of(machine, inference), path, options);
}

/// What a file says beside its tensors, for who needs that to make a training. Throws as load().
GPIPE_STATE_INLINE SavedState saved_state(std::string const& path) {
    return detail::StateFile(path).saved();
}

} // namespace gpipe
