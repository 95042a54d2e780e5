#pragma once

#include <gpipe/state/state_files.hpp>
#include <gpipe/state/state_inline.hpp>
#include <gpipe/state/tensor_names.hpp>
#include <gpipe/state/training_state.hpp>
#include <gpipe/state/widen.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
    /// How many steps optimizer state has seen, of a file that does not say: of somebody else, who
    /// gave its tensors our names. Without it such state is an error.
    std::optional<std::uint64_t> state_steps{};
    /// What a tensor of the file is called here, of whatever name it has there; an empty name: it
    /// stays out. For chains that have changed (moved_layers()) and files of others. `only` and
    /// `except` are about the names here; types are not compared. May throw.
    std::function<std::string(std::string const&)> rename{};
};

namespace detail {

// What is to be read, and where to; or one error with everything that does not fit.
struct ReadPlan {
    struct Range {
        StateFile const* file = nullptr;
        std::uint64_t at = 0; // in the file
        std::uint64_t bytes = 0;
        std::byte* memory = nullptr;
        Dtype from{}, to{}; // the same, or see widens()

        // In memory.
        std::uint64_t wide() const {
            return from == to ? bytes : bytes / info(from).bytes * info(to).bytes;
        }
        // So many there.
        void read(std::byte* values) const {
            if (from == to) return file->file.read_at(at, {values, bytes});
            std::vector<std::byte> narrow(bytes);
            file->file.read_at(at, narrow);
            widen(from, narrow.data(), bytes / info(from).bytes, to, values);
        }
    };
    std::vector<Range> ranges;
    std::uint64_t bytes = 0; // in memory
    // By TrainingState::learned, whose optimizer state is read: the steps that it has seen.
    std::vector<std::optional<std::uint64_t>> ages{};

    // Of elements of that type, which lie in pieces, one behind the other.
    void add(OwnPart const& own, Dtype dtype, std::vector<SavedPiece> const& pieces) {
        for (SavedPiece const& piece : pieces) {
            std::size_t const size = info(piece.entry->dtype).bytes;
            std::uint64_t const begin = std::max(own.first, piece.first);
            std::uint64_t const end =
                std::min(own.first + own.count, piece.first + piece.entry->bytes() / size);
            if (begin >= end) continue;
            ranges.push_back(
                {piece.file,
                 piece.file->header.data_at + piece.entry->begin + (begin - piece.first) * size,
                 (end - begin) * size, own.memory + (begin - own.first) * info(dtype).bytes,
                 piece.entry->dtype, dtype});
            bytes += ranges.back().wide();
        }
    }
};

// What of a tensor is other than it should be; nothing if that is empty. `foreign`: it is
// somebody else's, whose numbers may be of a narrower type.
GPIPE_STATE_INLINE std::string misfit(safetensors::Entry const& here,
                                      std::vector<SavedPiece> const& pieces, bool foreign) {
    auto const wanted = ", not " + described(here.dtype, here.shape);
    safetensors::Entry const& entry = *pieces[0].entry;
    if (pieces.size() > 1 && pieces[0].whole) return here.name + " is there twice";
    if (pieces[0].whole)
        return (entry.dtype == here.dtype || (foreign && widens(entry.dtype, here.dtype))) &&
                       entry.shape == here.shape
                   ? ""
                   : here.name + " is " + described(entry.dtype, entry.shape) + wanted;
    std::uint64_t end = 0;
    bool fits = true;
    for (SavedPiece const& piece : pieces) {
        fits = fits && piece.entry->dtype == here.dtype && piece.first == end;
        end += piece.entry->shape[0];
    }
    return fits && end == safetensors::elements_of(here)
               ? ""
               : "the parts of " + here.name + " are" + wanted;
}

// Which layers and which optimizer are others than those that were saved.
GPIPE_STATE_INLINE std::string other_types(StateFile const& saved, TrainingState const& state) {
    std::string problems, each;
    std::size_t layers = 0;
    each_line(saved.own("gpipe.layers"), [&](std::string_view layer) {
        std::size_t const i = layers++;
        if (i < state.layers.size() && layer != state.layers[i])
            each += "\n  layer " + std::to_string(i) + " was " + in_quotes(layer) + ", not " +
                    in_quotes(state.layers[i]);
    });
    // (Grouped<O> of any O was called "Grouped" until 2026-11.)
    std::string const optimizer = saved.own("gpipe.optimizer");
    if (!state.infers && optimizer != state.optimizer && optimizer != "Grouped")
        problems +=
            "\n  its optimizer was " + in_quotes(optimizer) + ", not " + in_quotes(state.optimizer);
    if (layers != state.layers.size())
        problems += "\n  it had " + std::to_string(layers) + " layers, not " +
                    std::to_string(state.layers.size());
    return problems + each;
}

// Which patterns mean no tensor, and what one is called.
GPIPE_STATE_INLINE std::string without_meaning(NameFilter const& filter, StateFiles const& files) {
    std::string problems;
    for (std::string const& pattern : filter.unused()) {
        problems += "\n  no tensor is called " + in_quotes(pattern);
        if (filter.begins_one(pattern))
            problems += ": with '*' or '?' that is a whole name, as " + in_quotes(pattern + '*');
        else if (!files.pieces().empty())
            problems += ": the first is " + in_quotes(files.pieces().begin()->first);
    }
    return problems;
}
// Whether this is the optimizer state of a parameter that learns nothing here.
GPIPE_STATE_INLINE bool is_of_frozen(std::string_view name, TrainingState const& state) {
    constexpr std::string_view begin = "optimizer.";
    if (name.substr(0, begin.size()) != begin) return false;
    std::string_view const parameter = name.substr(name.find('.', begin.size()) + 1);
    auto const called = [&](safetensors::Entry const& one) { return one.name == parameter; };
    return std::any_of(state.tensors.begin(), state.tensors.end(), called) &&
           std::none_of(state.learned.begin(), state.learned.end(), [&](LearnedTensor const& one) {
               return called(state.tensors[one.tensor]);
           });
}

// `steps`: of the saved state.
GPIPE_STATE_INLINE ReadPlan read_plan(StateFiles const& files, TrainingState const& state,
                                      LoadOptions const& options, std::uint64_t steps) {
    StateFile const& saved = files.first();
    bool const foreign = saved.is_foreign();
    NameFilter filter(options.only, options.except);
    ReadPlan plan;
    std::string problems;
    auto const here_of = [&](std::string const& name) {
        return options.rename ? options.rename(name) : name;
    };
    std::map<std::string, std::vector<SavedPiece> const*> saved_here; // by their names here
    for (auto const& [name, pieces] : files.pieces())
        if (std::string here = here_of(name);
            !here.empty() && !saved_here.emplace(std::move(here), &pieces).second)
            problems +=
                "\n  LoadOptions::rename calls several of its tensors " + in_quotes(here_of(name));
    std::map<std::string_view, std::vector<SavedPiece> const*> there;
    for (auto const& [name, pieces] : saved_here)
        if (filter.takes(name) && !(state.infers && name.rfind("optimizer.", 0) == 0))
            there[name] = pieces;
    std::vector<std::vector<SavedPiece> const*> found(state.tensors.size()); // by tensor
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        safetensors::Entry const& here = state.tensors[i];
        if (!filter.takes(here.name)) continue;
        auto const at = there.find(here.name);
        if (at == there.end()) {
            problems += "\n  missing: " + here.name + ' ' + described(here.dtype, here.shape);
            for (auto const& [other, name] : state.tied)
                if (name == here.name && saved_here.count(other))
                    problems += ", as which " + other + " has to be there: they are tied";
            continue;
        }
        if (std::string const what = misfit(here, *at->second, foreign); !what.empty())
            problems += "\n  " + what;
        else
            found[i] = at->second;
        there.erase(at);
    }
    for (OwnPart const& own : state.own)
        if (found[own.tensor]) plan.add(own, state.tensors[own.tensor].dtype, *found[own.tensor]);
    std::map<std::string, std::uint64_t> begun;
    for (auto const& [name, step] : saved.begun()) begun[here_of(name)] = step;
    bool told = false;
    for (LearnedTensor const& one : state.learned) {
        auto const first = found.begin() + static_cast<std::ptrdiff_t>(one.tensor) + 1;
        auto const last = first + static_cast<std::ptrdiff_t>(one.states);
        auto const of = begun.find(state.tensors[one.tensor].name);
        plan.ages.emplace_back();
        if (first == last || std::find(first, last, nullptr) != last)
            continue; // it stays as old as it is
        if (foreign && !options.state_steps) {
            problems += "\n  optimizer state of " + state.tensors[one.tensor].name +
                        ": nobody says how many steps it has seen, see LoadOptions::state_steps";
            continue;
        }
        told = true;
        std::uint64_t const age =
            foreign ? *options.state_steps : steps - (of == begun.end() ? 0 : of->second);
        if (age > most_steps)
            saved.refuse(": an optimizer state of " + in_quotes(state.tensors[one.tensor].name) +
                         " that has seen " + std::to_string(age) + " steps is none");
        plan.ages.back() = age;
    }
    for (auto const& [name, pieces] : there)
        problems +=
            "\n  unexpected: " + in_quotes(name) + ' ' +
            described((*pieces)[0].entry->dtype, (*pieces)[0].entry->shape) +
            (state.tied.count(name) ? ", which is tied to " + state.tied.find(name)->second : "") +
            (is_of_frozen(name, state) ? ", of what is frozen here" : "");
    if (!filter.takes_all() && std::count(found.begin(), found.end(), nullptr) ==
                                   static_cast<std::ptrdiff_t>(found.size()))
        problems += "\n  of what it has, LoadOptions leave nothing to be loaded";
    if (options.state_steps && (!foreign || !told))
        problems += foreign ? "\n  LoadOptions::state_steps is given, and no optimizer state loaded"
                            : "\n  LoadOptions::state_steps is given, and the file says how many";
    // What tensors that do not fit follow from stands in front of them: there may be thousands.
    std::string const causes = filter.takes_all() && options.types && !options.rename
                                   ? other_types(saved, state)
                                   : std::string();
    problems = without_meaning(filter, files) + causes + problems;
    if (!problems.empty())
        saved.refuse(" does not fit this " +
                     std::string(state.infers ? "inference:" : "training:") + problems);
    return plan;
}

} // namespace detail
} // namespace gpipe
