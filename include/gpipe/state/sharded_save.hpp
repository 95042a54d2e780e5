#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/state/state_error.hpp>
#include <gpipe/state/training_state.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <system_error>
#include <utility>

namespace gpipe {

/// What is saved beside a training: the position in the data, the progress of a learning rate,
/// whatever its user needs to go on. Keys that begin with "gpipe." are the library's.
using StateMetadata = std::map<std::string, std::string>;

namespace detail {

// Several ranks save one state. Names of files are used once, so that a state whose file is there
// has all of its own: nobody writes them again, and they go only once another is there.
class ShardedSave {
  public:
    ShardedSave(Ranks const& ranks, TrainingState const& state, std::string path)
        : ranks_(ranks), state_(state), path_(std::move(path)) {}

    // gather(number): see RankTransport; write(file, metadata) writes what this rank saves.
    template <class Gather, class Write> void run(Gather gather, Write write) {
        std::size_t const self = ranks_.number();
        std::random_device random;
        save_ = gather(std::uint64_t{random()} << 32 | random())[0];
        bool const saves = std::any_of(state_.own.begin(), state_.own.end(),
                                       [](OwnPart const& own) { return own.saves; });
        Array<std::uint64_t> const savers = gather(saves);
        std::string const name = std::filesystem::path(path_).filename().string();
        for (std::size_t r = 1; r < savers.size(); ++r)
            if (savers[r]) beside_.insert(name + suffix(r));
        StateMetadata const mark{{"gpipe.save", std::to_string(save_)}};
        bool const beside = self > 0 && saves;
        if (together(gather, beside, [&] { write(path_ + suffix(self), mark); })) {
            if (beside && !error_) std::remove((path_ + suffix(self)).c_str());
            fail("its part");
        }
        StateMetadata all = beside_.empty() ? StateMetadata{} : mark;
        for (std::string const& file : beside_) all["gpipe.shards"] += file + '\n';
        if (together(gather, self == 0, [&] { write(path_, all); }))
            fail("the state"); // perhaps it is there all the same: what is beside stays
        if (self == 0) remove_older(name + '.');
    }

  private:
    std::string suffix(std::size_t rank) const {
        std::array<char, 96> text;
        std::snprintf(text.data(), text.size(), ".%llu-%016llx-%zu-of-%zu",
                      static_cast<unsigned long long>(state_.steps),
                      static_cast<unsigned long long>(save_), rank, ranks_.all());
        return text.data();
    }
    // Does it on ranks that do; whether it went wrong anywhere.
    template <class Gather, class Do> bool together(Gather gather, bool does, Do it) {
        try {
            if (does) it();
        } catch (...) {
            error_ = std::current_exception();
        }
        Array<std::uint64_t> const wrong = gather(error_ != nullptr);
        who_ = 0;
        while (who_ < wrong.size() && !wrong[who_]) ++who_;
        return who_ < wrong.size();
    }
    [[noreturn]] void fail(std::string const& what) const {
        if (error_) std::rethrow_exception(error_);
        throw StateError("gpipe: " + path_ + ": rank " + std::to_string(who_) + " could not save " +
                         what);
    }
    // What else has such a name: a rest of a save that did not come to its end, or of one before.
    void remove_older(std::string const& begin) const {
        namespace fs = std::filesystem;
        fs::path const folder = fs::path(path_).parent_path();
        std::error_code ignored; // what cannot be found, or removed, stays
        fs::directory_iterator at(folder.empty() ? fs::path(".") : folder, ignored);
        for (; at != fs::directory_iterator(); at.increment(ignored)) {
            std::string const name = at->path().filename().string();
            if (name.rfind(begin, 0) == 0 && is_suffix(name.substr(begin.size())) &&
                !beside_.count(name))
                fs::remove(at->path(), ignored);
        }
    }
    // STEP-SAVE-RANK-of-RANKS, and what AtomicFile has before that.
    static bool is_suffix(std::string text) {
        std::string const partial = ".partial";
        if (text.size() > partial.size() && text.substr(text.size() - partial.size()) == partial)
            text.resize(text.size() - partial.size());
        unsigned long long step = 0, save = 0, rank = 0, ranks = 0;
        int read = 0;
        return std::sscanf(text.c_str(), "%llu-%16llx-%llu-of-%llu%n", &step, &save, &rank, &ranks,
                           &read) == 4 &&
               static_cast<std::size_t>(read) == text.size();
    }

    Ranks const& ranks_;
    TrainingState const& state_;
    std::string path_;
    std::uint64_t save_ = 0;       // the number of this one
    std::set<std::string> beside_; // names of the files there
    std::exception_ptr error_;
    std::size_t who_ = 0; // was the first with whom it went wrong
};

} // namespace detail
} // namespace gpipe
