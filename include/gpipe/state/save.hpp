#pragma once

#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/gathering.hpp>
#include <gpipe/state/begun_save.hpp>
#include <gpipe/state/done_together.hpp>
#include <gpipe/state/file.hpp>
#include <gpipe/state/pending_save.hpp>
#include <gpipe/state/shards.hpp>
#include <gpipe/state/state_inline.hpp>
#include <gpipe/state/training_state.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpipe {

namespace detail {

GPIPE_STATE_INLINE void check_metadata(StateMetadata const& metadata) {
    for (auto const& [key, value] : metadata)
        if (key.rfind("gpipe.", 0) == 0)
            throw std::invalid_argument("gpipe: the metadata " + in_quotes(key) +
                                        " would be the library's own: keys that begin with "
                                        "\"gpipe.\" are");
}
GPIPE_STATE_INLINE std::string file_begin(TrainingState const& state,
                                          std::vector<safetensors::Entry> const& tensors,
                                          StateMetadata metadata) {
    metadata["gpipe.format"] = "1";
    metadata["gpipe.seed"] = std::to_string(state.seed);
    metadata["gpipe.step"] = std::to_string(state.steps);
    metadata["gpipe.optimizer"] = state.optimizer;
    if (state.scales) {
        char factor[32] = {};
        std::to_chars(factor, factor + sizeof factor - 1, state.scale.factor);
        metadata["gpipe.loss_scale"] = factor;
        metadata["gpipe.good_steps"] = std::to_string(state.scale.good_steps);
    }
    for (LearnedTensor const& one : state.learned)
        if (one.begun != 0)
            metadata["gpipe.begun"] +=
                state.tensors[one.tensor].name + ' ' + std::to_string(one.begun) + '\n';
    std::string& layers = metadata["gpipe.layers"];
    for (std::string const& layer : state.layers) layers += layer + '\n';
    try {
        return safetensors::file_begin(tensors, metadata);
    } catch (StateError const& error) {
        throw StateError(std::string("gpipe: cannot save this state: ") + error.what());
    }
}
// What is here and nobody else saves, in the order in which a file has it. Of a tensor of which
// there is a part this is one of its own, NAME@FIRST, in one dimension.
GPIPE_STATE_INLINE std::vector<safetensors::Entry> saved_here(TrainingState const& state) {
    std::vector<safetensors::Entry> tensors;
    for (OwnPart const& own : state.own) {
        if (!own.saves) continue;
        safetensors::Entry entry = state.tensors[own.tensor];
        if (own.count != safetensors::elements_of(entry)) {
            entry.name += '@' + std::to_string(own.first);
            entry.shape = {own.count};
        }
        entry.memory = own.memory;
        tensors.push_back(std::move(entry));
    }
    safetensors::arrange(tensors);
    return tensors;
}

template <class Device>
void write_state(Machine<Device>& machine, TrainingState const& state, std::string const& path,
                 StateMetadata metadata) {
    std::vector<safetensors::Entry> const tensors = saved_here(state);
    std::string const begin = file_begin(state, tensors, std::move(metadata));
    std::uint64_t most = 0;
    for (safetensors::Entry const& tensor : tensors) most = std::max(most, tensor.bytes());
    std::vector<std::byte> values(most);
    AtomicFile file(path);
    file.write(bytes_of(begin));
    for (safetensors::Entry const& tensor : tensors) {
        machine.copy(values.data(), tensor.memory, tensor.bytes());
        file.write({values.data(), tensor.bytes()});
    }
    file.commit();
}
GPIPE_STATE_INLINE StateMetadata joined(StateMetadata all, StateMetadata const& more) {
    all.insert(more.begin(), more.end());
    return all;
}

// What start_save() has begun comes to its end.
template <class Device>
void end_begun(Machine<Device>& machine, Gathering<Device>& all, std::string const& path) {
    if constexpr (joins_ranks<Device>)
        compare(all, std::hash<std::string>{}(path),
                "gpipe: rank %zu saves to another path than rank 0");
    Shared<BegunSave> const begun = BegunSave::at(machine.saving());
    PendingSave& before = begun->pending();
    if constexpr (joins_ranks<Device>) {
        bool const first = machine.ranks().number() == 0; // which waits for the others
        bool const heard = before.heard();
        DoneTogether waits;
        if (!first) waits.attempt([&] { before.wait_again(); });
        bool const other = waits.any(all.gather(!first && before.failed()));
        if (other) before.give_up(); // what the first says then is not what was wrong
        if (first) waits.attempt([&] { before.wait_again(); });
        if (first && other) waits.forget();
        Array<std::uint64_t> const told = all.gather(heard && before.failed());
        bool const failed = waits.any(all.gather(waits.failed_here()));
        machine.saving() = {};
        if (failed) remove_parts(all, begun->shards());
        // What all have heard of, by wait(), is not said again. (Of replicas the first is asked.)
        std::size_t const asked = joins_processes<Device> ? told.size() : 1;
        if (failed && std::count(told.begin(), told.begin() + asked, 0) > 0)
            waits.fail(all, path, "save what start_save() began");
    } else {
        before.wait();
        machine.saving() = {};
    }
}
// f(gathering, state) of all ranks at once, to the same path, behind what start_save() has begun.
template <class Device, class Net, class... Policies, class F>
void save_together(Machine<Device>& machine, RankCall::Kind kind, char const* where,
                   Training<Net, Policies...> const& train, std::string const& path,
                   StateMetadata const& metadata, F f) {
    or_refuse(machine, [&] { check_metadata(metadata); });
    machine.begin_together(kind);
    gathered(machine.device(), where, [&](auto& all) {
        end_begun(machine, all, path);
        f(all, state_of(machine, train));
    });
}

template <class Device>
void save(Machine<Device>& machine, Gathering<Device>& all, TrainingState const& state,
          std::string const& path, StateMetadata const& metadata) {
    if constexpr (joins_ranks<Device>) {
        Shards const shards(machine, all, state, followed(path), false);
        auto const together = [&](bool does, auto write, char const* what) {
            DoneTogether saves;
            if (!saves.failed(all, does, write)) return;
            remove_parts(all, &shards);
            saves.fail(all, path, what);
        };
        auto const write = [&](std::string const& file, StateMetadata const& more) {
            write_state(machine, state, file, joined(metadata, more));
        };
        together(
            shards.beside(), [&] { write(shards.own(), shards.mark()); }, "save its part");
        together(
            shards.is_first(),
            [&] {
                PendingSave::Course course; // else the last state would go for half of a new one
                course.patience = std::chrono::seconds(5);
                shards.await(course);
                write(shards.path(), shards.index());
            },
            "save the state");
        if (shards.is_first()) shards.remove_older();
    } else {
        write_state(machine, state, path, metadata);
        Shards::remove_all(path);
    }
}

// To be begun.
template <class Device>
Shared<BegunSave> prepare_save(Machine<Device>& machine, Gathering<Device>& all,
                               TrainingState const& state, std::string const& path,
                               StateMetadata const& metadata) {
    PendingSave pending;
    std::optional<Shards> parts;
    auto const& snapshot = machine.snapshot();
    std::vector<safetensors::Entry> const tensors = saved_here(state);
    std::uint64_t const end = tensors.empty() ? 0 : tensors.back().end;
    if constexpr (joins_ranks<Device>)
        require(all, end <= snapshot->value.size(),
                "gpipe: start_save() copies what it saves into host memory that is there only if "
                "Options::snapshot is true, on all ranks: it is not on rank %zu");
    else if (end > snapshot->value.size())
        throw std::invalid_argument("gpipe: start_save() copies what it saves into host memory "
                                    "that is there only if Options::snapshot is true");
    for (safetensors::Entry const& tensor : tensors)
        machine.copy(snapshot->value.data() + tensor.begin, tensor.memory, tensor.bytes());
    if constexpr (joins_ranks<Device>) {
        Shards shards(machine, all, state, followed(from_anywhere(path)), true);
        parts = shards;
        bool const is_index = shards.is_first() && !shards.beside();
        std::string begin =
            file_begin(state, tensors, joined(metadata, is_index ? shards.index() : shards.mark()));
        std::string index = file_begin(state, {}, joined(metadata, shards.index()));
        pending = PendingSave::prepare(
            [snapshot, end, own = shards.own(), note = shards.note(), shards = std::move(shards),
             begin = std::move(begin),
             index = std::move(index)](PendingSave::Course const& course) {
                std::span<std::byte const> const bytes(snapshot->value.data(), end);
                if (shards.beside()) write_part(own, note, begin, bytes);
                if (!shards.is_first()) return;
                shards.await(course);
                if (shards.beside())
                    write_file(shards.path(), index, {});
                else
                    write_file(shards.path(), begin, bytes);
                shards.remove_older();
            },
            [&transport = machine.device().transport()] { return transport.error(); });
    } else {
        pending = PendingSave::prepare([snapshot, path = from_anywhere(path), end,
                                        begin = file_begin(state, tensors, metadata)](auto const&) {
            write_file(path, begin, {snapshot->value.data(), end});
            Shards::remove_all(path);
        });
    }
    return Shared(new BegunSave(std::move(pending), std::move(parts)));
}

} // namespace detail

/// Saves parameters, optimizer state, step number and seed in the file `path`, in the format
/// safetensors; see load(). The file is replaced as a whole: whatever fails, and whenever the
/// process dies, what is there is the old state or the new. Of a symbolic link that is what it
/// stands for; permissions stay as they were. Between steps; waits for those under way, and for
/// what start_save() began. Throws what was wrong with that (nothing is saved then: call it again),
/// unless wait() has thrown it, on all ranks; std::invalid_argument for metadata with the library's
/// keys, and StateError with the path and the system's words if a call fails.
///
/// With several ranks, or sharded replicas, all call it, with the same path in a folder that all
/// see: each writes what it alone has into a file beside it, PATH.STEP-SAVE-RANK-of-RANKS, and then
/// the first, in the file PATH, its own and the names of theirs, each a line of UTF-8: other names
/// are refused. By that one rename() the new state is there; then the files of older ones go. The
/// metadata are those of the first. So PATH alone is not the state, and a copy of it is worth
/// nothing: save() once more, or copy all. If that fails on one rank, all throw, with its words,
/// and the parts of that try go.
template <class Net, class... Policies>
void save(Training<Net, Policies...>& train, std::string const& path,
          StateMetadata const& metadata = {}) {
    detail::MachineAccess::together(train, [&](auto& machine, bool) {
        detail::save_together(machine, detail::RankCall::saves, "save()", train, path, metadata,
                              [&](auto& all, TrainingState const& state) {
                                  detail::save(machine, all, state, path, metadata);
                              });
    });
}

/// The same, but returns as soon as the state is copied to host memory that Options::snapshot has
/// planned: it is written while training goes on, where a relative path leads now. What goes wrong
/// later is thrown by the wait() of what this returns or, if nobody calls that, by the next save;
/// at the latest it is said on standard error when the training goes.
///
/// With several ranks each writes its part, and the first, once all are there, what makes them the
/// state. It sees that in the folder, and gives up at once where a rank has left a note there that
/// it could not write its own, or is lost, and where nothing has come of a part for a minute, or no
/// more of one that is being written for twelve (five seconds, and one minute, when the training
/// goes). A rank's wait() says what it knows itself: if that fails on one, and not all have thrown
/// it, all throw at the next save; its parts are there until then.
///
/// Throws std::invalid_argument unless Options::snapshot is true.
template <class Net, class... Policies>
PendingSave start_save(Training<Net, Policies...>& train, std::string const& path,
                       StateMetadata const& metadata = {}) {
    std::optional<PendingSave> pending;
    detail::MachineAccess::together(train, [&](auto& machine, bool first) {
        detail::Shared<detail::BegunSave> begun;
        detail::save_together(machine, detail::RankCall::starts_saving, "start_save()", train, path,
                              metadata, [&](auto& all, TrainingState const& state) {
                                  begun = detail::prepare_save(machine, all, state, path, metadata);
                                  all.gather(0); // all are prepared: from here on nothing throws
                              });
        begun->pending().begin();
        if (first) pending = begun->pending();
        machine.saving() = std::move(begun);
    });
    return *std::move(pending);
}

} // namespace gpipe
