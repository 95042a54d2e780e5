#pragma once

#include <gpipe/state/file.hpp>
#include <gpipe/state/pending_save.hpp>
#include <gpipe/state/training_state.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpipe {

/// What is saved beside a training: the position in the data, the progress of a learning rate,
/// whatever its user needs to go on. Keys that begin with "gpipe." are the library's.
using StateMetadata = std::map<std::string, std::string>;

namespace detail {

// The one who saves: rank 0 of 1 for now. A path names one file, which holds all and is replaced by
// one rename(). Several ranks will each write a shard beside it, PATH.STEP-RANK-of-RANKS, the same
// way, and then rank 0 an index in place of that file, JSON that says which tensor is in which
// shard: again one rename() by which the new state is there. What begins with a brace is an index.
inline std::string file_begin(TrainingState const& state, StateMetadata metadata) {
    for (auto const& [key, value] : metadata)
        if (key.rfind("gpipe.", 0) == 0)
            throw std::invalid_argument("gpipe: the metadata " + in_quotes(key) +
                                        " would be the library's own: keys that begin with "
                                        "\"gpipe.\" are");
    metadata["gpipe.format"] = "1";
    metadata["gpipe.seed"] = std::to_string(state.seed);
    metadata["gpipe.step"] = std::to_string(state.steps);
    metadata["gpipe.optimizer"] = state.optimizer;
    std::string& layers = metadata["gpipe.layers"];
    for (std::string const& layer : state.layers) layers += layer + '\n';
    return safetensors::file_begin(state.tensors, metadata);
}

inline std::span<std::byte const> bytes_of(std::string const& text) {
    return std::as_bytes(std::span(text));
}

template <class Device>
void save(Machine<Device>& machine, TrainingState const& state, std::string const& path,
          StateMetadata metadata) {
    std::string const begin = file_begin(state, std::move(metadata));
    std::uint64_t most = 0;
    for (safetensors::Entry const& tensor : state.tensors) most = std::max(most, tensor.bytes());
    std::vector<std::byte> values(most);
    AtomicFile file(path);
    file.write(bytes_of(begin));
    for (safetensors::Entry const& tensor : state.tensors) {
        machine.copy(values.data(), tensor.memory, tensor.bytes());
        file.write({values.data(), tensor.bytes()});
    }
    file.commit();
}

template <class Device>
PendingSave start_save(Machine<Device>& machine, TrainingState const& state,
                       std::string const& path, StateMetadata metadata) {
    auto const& snapshot = machine.snapshot();
    if (machine.plan().snapshot == 0 && !state.tensors.empty())
        throw std::invalid_argument("gpipe: start_save() copies what it saves into host memory "
                                    "that is there only if Options::snapshot is true");
    std::string begin = file_begin(state, std::move(metadata));
    for (safetensors::Entry const& tensor : state.tensors)
        machine.copy(snapshot->data() + tensor.begin, tensor.memory, tensor.bytes());
    return PendingSave::start(machine.saving(), [snapshot, path, begin = std::move(begin)] {
        AtomicFile file(path);
        file.write(bytes_of(begin));
        file.write({snapshot->data(), snapshot->size()});
        file.commit();
    });
}

} // namespace detail

/// Saves parameters, optimizer state, step number and seed in the file `path`, in the format
/// safetensors; see load(). The file is replaced as a whole: whatever fails, and whenever the
/// process dies, what is there is the old state or the new. Between steps; waits for those under
/// way, and for what start_save() began. Throws what was wrong with that, if nobody has heard of it
/// (then nothing is saved: call it again), std::invalid_argument for metadata with the library's
/// keys, and StateError with the path and the system's words if a call fails.
template <class Net, class... Policies>
void save(Training<Net, Policies...>& train, std::string const& path, StateMetadata metadata = {}) {
    auto& machine = detail::MachineAccess::of(train);
    PendingSave::finish(machine.saving());
    detail::save(machine, detail::state_of(train), path, std::move(metadata));
}

/// The same, but returns as soon as the state is copied to host memory that Options::snapshot has
/// planned: it is written while training goes on. What goes wrong later is thrown by the wait() of
/// what this returns or, if nobody calls that, by the next save; at the latest it is said on
/// standard error when the training goes.
template <class Net, class... Policies>
PendingSave start_save(Training<Net, Policies...>& train, std::string const& path,
                       StateMetadata metadata = {}) {
    auto& machine = detail::MachineAccess::of(train);
    PendingSave::finish(machine.saving());
    return detail::start_save(machine, detail::state_of(train), path, std::move(metadata));
}

} // namespace gpipe
