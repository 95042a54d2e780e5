#pragma once

#include <gpipe/state/file.hpp>
#include <gpipe/state/save.hpp>
#include <gpipe/state/tensor_names.hpp>
#include <gpipe/state/training_state.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpipe {

/// Which of a saved state is loaded. Each entry is the begin of names, as "layer.0017.", or, with
/// '*' for any text and '?' for any character, a whole name, as "*.weight".
struct LoadOptions {
    std::vector<std::string> only{};   ///< if any, no other tensors
    std::vector<std::string> except{}; ///< not these
    /// Whether a layer whose type has another name is an error, and another optimizer.
    bool types = true;
};

/// What a saved state says beside its tensors.
struct SavedState {
    std::uint64_t seed = 0;  ///< of the training that was saved
    std::uint64_t steps = 0; ///< that it had trained
    StateMetadata metadata;  ///< of whoever saved it
};

namespace detail {

/// A state's file with its header read and checked.
struct StateFile {
    explicit StateFile(std::string const& path) : file(path, O_RDONLY) {
        try {
            std::uint64_t const size = file.size();
            std::array<std::byte, 8> begin{};
            std::size_t const some = std::min<std::uint64_t>(size, begin.size());
            file.read_at(0, std::span(begin).first(some));
            if (begin[0] == std::byte{'{'} && begin[some - 1] != std::byte{0})
                throw StateError("this is text, perhaps an index of several files, which this "
                                 "version does not read");
            std::string text(safetensors::header_bytes(std::span(begin).first(some), size), '\0');
            file.read_at(begin.size(), std::as_writable_bytes(std::span(text)));
            header = safetensors::parse(text, size - begin.size() - text.size());
        } catch (StateError const& error) {
            std::string const words = error.what();
            throw StateError(words.rfind("gpipe: ", 0) == 0 ? words
                                                            : "gpipe: " + path + ": " + words);
        }
    }
    [[noreturn]] void refuse(std::string const& words) const {
        throw StateError("gpipe: " + file.path() + words);
    }
    std::string const& own(std::string const& key) const {
        auto const found = header.metadata.find(key);
        if (found == header.metadata.end())
            refuse(": it has no " + key +
                   ", so gpipe::save() has not written it; its tensors can "
                   "be loaded by name: LoadOptions::only");
        return found->second;
    }
    std::uint64_t number(std::string const& key) const {
        std::string const& text = own(key);
        std::uint64_t value = 0;
        auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc{} || end != text.data() + text.size() || text.empty())
            refuse(": its " + key + " is " + in_quotes(text) + ", no number");
        return value;
    }
    SavedState saved() const {
        if (own("gpipe.format") != "1")
            refuse(": its format is " + in_quotes(own("gpipe.format")) +
                   ", and this version reads 1");
        SavedState state{number("gpipe.seed"), number("gpipe.step"), {}};
        for (auto const& [key, value] : header.metadata)
            if (key.rfind("gpipe.", 0) != 0) state.metadata[key] = value;
        return state;
    }

    File file;
    safetensors::Header header;
};

// What is to be read, and where to; or one error with everything that does not fit.
struct ReadPlan {
    std::vector<std::pair<safetensors::Entry const*, std::byte*>> tensors;
    std::uint64_t bytes = 0;
};
inline ReadPlan read_plan(StateFile const& saved, TrainingState const& state,
                          LoadOptions const& options) {
    NameFilter filter(options.only, options.except);
    ReadPlan plan;
    std::string problems;
    std::map<std::string_view, safetensors::Entry const*> there;
    for (safetensors::Entry const& entry : saved.header.tensors)
        if (filter.takes(entry.name)) there[entry.name] = &entry;
    for (safetensors::Entry const& here : state.tensors) {
        if (!filter.takes(here.name)) continue;
        auto const found = there.find(here.name);
        if (found == there.end()) {
            problems += "\n  missing: " + here.name + ' ' + described(here.dtype, here.shape);
            continue;
        }
        safetensors::Entry const& entry = *found->second;
        if (entry.dtype != here.dtype || entry.shape != here.shape) {
            problems += "\n  " + here.name + " is " + described(entry.dtype, entry.shape) +
                        ", not " + described(here.dtype, here.shape);
        } else {
            plan.tensors.push_back({&entry, here.memory});
            plan.bytes += entry.bytes();
        }
        there.erase(found);
    }
    for (auto const& [name, entry] : there)
        problems +=
            "\n  unexpected: " + in_quotes(name) + ' ' + described(entry->dtype, entry->shape);
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
        if (saved.own("gpipe.optimizer") != state.optimizer)
            problems += "\n  its optimizer was " + in_quotes(saved.own("gpipe.optimizer")) +
                        ", not " + in_quotes(state.optimizer);
    }
    if (!problems.empty()) saved.refuse(" does not fit this training:" + problems);
    return plan;
}

template <class Device>
SavedState load(Machine<Device>& machine, TrainingState const& state, std::string const& path,
                LoadOptions const& options) {
    StateFile const saved(path);
    bool const all = options.only.empty() && options.except.empty();
    SavedState const result = all || saved.header.metadata.count("gpipe.format")
                                  ? saved.saved()
                                  : SavedState{0, 0, saved.header.metadata};
    ReadPlan const plan = read_plan(saved, state, options);
    std::vector<std::byte> values(plan.bytes);
    std::byte* at = values.data();
    for (auto const& [entry, to] : plan.tensors) {
        saved.file.read_at(saved.header.data_at + entry->begin, {at, entry->bytes()});
        at += entry->bytes();
    }
    at = values.data();
    for (auto const& [entry, to] : plan.tensors) {
        machine.copy(to, at, entry->bytes());
        at += entry->bytes();
    }
    machine.engine().tied().spread();
    if (all) machine.engine().go_on(result.seed, result.steps);
    return result;
}

} // namespace detail

/// Goes on from a saved state: parameters and optimizer state become what was saved, bit for bit,
/// and so do step number and seed, so that the steps that follow are those that would have followed
/// there, for every K, cut, checkpointing policy, number of threads and kind of device, and every
/// schedule that runs backward in the same order (promise P1; M must be the same). With `only` or
/// `except` the tensors that these leave out, step number and seed stay as they are. Throws
/// StateError where the file cannot be read, is not sound, or does not fit: then one error lists
/// all that is missing, unexpected, or of another shape or type, and nothing has changed. What a
/// file says is checked, but not whether its numbers were changed since: keep states as safe as
/// programs. A layer's members and the optimizer's are not part of a state.
template <class Net, class... Policies>
SavedState load(Training<Net, Policies...>& train, std::string const& path,
                LoadOptions const& options = {}) {
    return detail::load(detail::MachineAccess::of(train), detail::state_of(train), path, options);
}

/// What a file says beside its tensors, for who needs that to make a training. Throws as load().
inline SavedState saved_state(std::string const& path) { return detail::StateFile(path).saved(); }

} // namespace gpipe
