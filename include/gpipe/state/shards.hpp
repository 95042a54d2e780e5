#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/gathering.hpp>
#include <gpipe/state/file.hpp>
#include <gpipe/state/pending_save.hpp>
#include <gpipe/state/state_error.hpp>
#include <gpipe/state/state_inline.hpp>
#include <gpipe/state/training_state.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <dirent.h>
#include <unistd.h>

namespace gpipe {

/// What is saved beside a training: the position in the data, the progress of a learning rate,
/// whatever its user needs to go on. Keys that begin with "gpipe." are the library's.
using StateMetadata = std::map<std::string, std::string>;

namespace detail {

// For which, or the note in its place, the first rank waits.
GPIPE_STATE_INLINE void write_part(std::string const& path, std::string const& note,
                                   std::string const& begin, std::span<std::byte const> bytes) {
    try {
        write_file(path, begin, bytes);
    } catch (std::exception const& error) {
        // Of long ones the end, for that is what the system said, and a link has no more room.
        constexpr std::size_t most = 1000;
        std::string_view const words = error.what();
        char const* const last = words.data() + words.size() - std::min(words.size(), most);
        static_cast<void>(::symlink(last, note.c_str()) == 0); // else he loses patience
        throw;
    }
}

// The files of a state that several ranks save. Names are used once, so that a state whose file is
// there has all of its own: nobody writes them again, and they go only once another is there.
class Shards {
  public:
    // All ranks at once. `first_too`: the first of several has a file beside, as the others have.
    template <class Device>
    Shards(Machine<Device> const& machine, Gathering<Device>& all, TrainingState const& state,
           std::string path, bool first_too)
        : path_(std::move(path)), steps_(state.steps), ranks_(machine.ranks().all()),
          self_(machine.ranks().number()) {
        std::random_device random;
        save_ = all.gather(std::uint64_t{random()} << 32 | random())[0];
        Array<std::uint64_t> const savers = all.gather(std::any_of(
            state.own.begin(), state.own.end(), [](OwnPart const& own) { return own.saves; }));
        std::string const name = std::filesystem::path(path_).filename().string();
        for (std::size_t r = 1; r < ranks_; ++r)
            if (savers[r]) names_.insert(name + suffix(r));
        if (first_too && !names_.empty() && savers[0]) names_.insert(name + suffix(0));
        beside_ = names_.count(name + suffix(self_)) > 0;
        if (!names_.empty() && name.find('\n') != std::string::npos) // where names stand in lines
            throw StateError("gpipe: " + path_ +
                             ": the name of a state that has files beside it is to be one line");
    }

    // Of the state, which the first rank writes last.
    std::string const& path() const { return path_; }
    bool is_first() const { return self_ == 0; }
    // Whether this rank has a file of its own, which that is.
    bool beside() const { return beside_; }
    std::string own() const { return path_ + suffix(self_); }
    // In place of that, for the first: why it will not come. A link to the words: it is there as a
    // whole or not at all, and wants no room for data on a disk that may be full.
    std::string note() const { return is_first() ? "" : own() + noted; }
    // What says that a file is of this state; and of the state's own that others are.
    StateMetadata mark() const {
        if (names_.empty()) return {};
        return {{"gpipe.save", std::to_string(save_)}};
    }
    StateMetadata index() const {
        StateMetadata all = mark();
        for (std::string const& name : names_) all["gpipe.shards"] += name + '\n';
        return all;
    }
    // What others have written is to be there, on the disk, before the state is. Throws StateError
    // where a rank has left a note instead, nothing more has been seen of a file for longer than
    // the patience, or a rank is lost.
    void await(PendingSave::Course const& course) const {
        using Clock = std::chrono::steady_clock;
        auto pause = std::chrono::milliseconds(1);
        auto since = Clock::now();
        Seen before;
        for (auto given = course.patience.load();; std::this_thread::sleep_for(pause)) {
            // In this order: all that the lost rank has written is seen.
            std::exception_ptr const loss = course.loss.error();
            Seen const seen = look();
            if (!seen.note.empty()) {
                ::unlink((folder_of(path_) / (seen.missing + noted)).c_str()); // nobody else looks
                throw StateError("gpipe: " + path_ + ": it is not saved, for " + seen.missing +
                                 " could not be written: " + first_line(seen.note));
            }
            if (seen.missing.empty()) break;
            std::chrono::seconds const now = course.patience;
            if (seen.bytes != before.bytes || now != given) since = Clock::now();
            given = now;
            before = seen;
            if (loss || Clock::now() - since >= (seen.is_written ? 12 * given : given))
                throw StateError(
                    "gpipe: " + path_ + ": it is not saved, for " + seen.missing +
                    ", which another rank is to write, has not come" +
                    (loss ? ": " + first_line(what_of(loss)) : ": do all ranks see this folder?"));
            pause = std::min(2 * pause, std::chrono::milliseconds(50));
        }
        File(folder_of(path_), O_RDONLY | O_DIRECTORY).sync();
    }
    // What else has such a name: a rest of a save that did not come to its end, or of one before.
    void remove_older() const noexcept { remove_others(path_, names_); }
    // Of a state in whose file all is.
    static void remove_all(std::string const& path) noexcept { remove_others(path, {}); }

  private:
    static constexpr char const* noted = ".failed";

    // As the end of a sentence; the lines behind the first say where each rank was in a step.
    static std::string first_line(std::string const& words) {
        std::string const begin = "gpipe: ";
        std::size_t const from = words.rfind(begin, 0) == 0 ? begin.size() : 0;
        return words.substr(from, words.find('\n') - from);
    }
    // What cannot be found, or removed, stays, and so does what there is no memory for. (The
    // iterators of std::filesystem end the program there.)
    static void remove_others(std::string const& file, std::set<std::string> const& names) noexcept
        try {
        std::string const path = followed(file), folder = path.substr(0, path.rfind('/') + 1);
        std::string const begin = path.substr(folder.size()) + '.';
        struct Close {
            void operator()(::DIR* all) const { ::closedir(all); }
        };
        std::unique_ptr<::DIR, Close> const all(::opendir(folder.empty() ? "." : folder.c_str()));
        while (::dirent const* const entry = all ? ::readdir(all.get()) : nullptr) {
            std::string const name = entry->d_name;
            if (name.rfind(begin, 0) == 0 && is_suffix(name.substr(begin.size())) &&
                !names.count(name))
                ::unlink((folder + name).c_str());
        }
    } catch (...) {
    }
    static std::filesystem::path folder_of(std::filesystem::path const& path) {
        return path.parent_path().empty() ? "." : path.parent_path();
    }
    std::string suffix(std::size_t rank) const {
        std::array<char, 96> text;
        std::snprintf(text.data(), text.size(), ".%llu-%016llx-%zu-of-%zu",
                      static_cast<unsigned long long>(steps_),
                      static_cast<unsigned long long>(save_), rank, ranks_);
        return text.data();
    }
    // How much of all files is there, the first that is not yet, if any, and whether one is being
    // written (or was, by who has been killed); or the first of which there is a note.
    struct Seen {
        std::uintmax_t bytes = 0;
        std::string missing{}, note{};
        bool is_written = false;
    };
    Seen look() const {
        Seen seen;
        File(folder_of(path_), O_RDONLY | O_DIRECTORY).close(); // NFS asks its server then
        for (std::string const& name : names_) {
            std::error_code error;
            std::filesystem::path const file = folder_of(path_) / name;
            if (std::uintmax_t const size = std::filesystem::file_size(file, error); !error) {
                seen.bytes += size + 1;
                continue;
            }
            if (std::string words = target_of(file.string() + noted); !words.empty())
                return {seen.bytes, name, std::move(words), false};
            if (seen.missing.empty()) seen.missing = name;
            auto const size = std::filesystem::file_size(file.string() + ".partial", error);
            if (error) continue;
            seen.bytes += size;
            seen.is_written = true;
        }
        return seen;
    }
    // STEP-SAVE-RANK-of-RANKS, and what AtomicFile has before that, or a note.
    static bool is_suffix(std::string text) {
        for (std::string const end : {".partial", noted})
            if (text.size() > end.size() && text.substr(text.size() - end.size()) == end)
                text.resize(text.size() - end.size());
        unsigned long long step = 0, save = 0, rank = 0, ranks = 0;
        int read = 0;
        return std::sscanf(text.c_str(), "%llu-%16llx-%llu-of-%llu%n", &step, &save, &rank, &ranks,
                           &read) == 4 &&
               static_cast<std::size_t>(read) == text.size();
    }

    std::string path_;
    std::uint64_t steps_;
    std::size_t ranks_, self_;
    std::uint64_t save_ = 0;      // the number of this one
    std::set<std::string> names_; // of the files beside
    bool beside_ = false;
};

} // namespace detail
} // namespace gpipe
