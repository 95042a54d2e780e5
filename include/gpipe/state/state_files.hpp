#pragma once

#include <gpipe/core/finite.hpp>
#include <gpipe/state/file.hpp>
#include <gpipe/state/safetensors.hpp>
#include <gpipe/state/shards.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace gpipe {

/// What a saved state says beside its tensors.
struct SavedState {
    std::uint64_t seed = 0;       ///< of the training that was saved
    std::uint64_t steps = 0;      ///< that it had trained
    double loss_scale = 0;        ///< see LossScale; 0: it had none
    std::uint32_t good_steps = 0; ///< likewise
    StateMetadata metadata;       ///< of whoever saved it
};

namespace detail {

// A number of steps to which others can be added.
inline constexpr std::uint64_t most_steps = ~std::uint64_t{0} / 2;

// f(line) of each; the last may go without its '\n'.
template <class F> void each_line(std::string_view text, F f) {
    while (!text.empty()) {
        std::string_view const line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(line.size() + 1, text.size()));
        f(line);
    }
}

/// A state's file with its header read and checked.
struct StateFile {
    explicit StateFile(std::string const& path) : file(path, O_RDONLY) {
        try {
            std::uint64_t const size = file.size();
            std::array<std::byte, 8> begin{};
            std::size_t const some = std::min<std::uint64_t>(size, begin.size());
            file.read_at(0, std::span(begin).first(some));
            if (begin[0] == std::byte{'{'} && begin[some - 1] != std::byte{0})
                throw StateError("this is text, perhaps an index of several files by somebody "
                                 "else, which is not read");
            if (begin[0] == std::byte{'P'} && begin[1] == std::byte{'K'} &&
                begin[some - 1] != std::byte{0}) // no length of a header
                throw StateError("this is a zip archive, as torch.save() writes them: "
                                 "safetensors.torch.save_file() writes what is read");
            header_text.resize(safetensors::header_bytes(std::span(begin).first(some), size));
            file.read_at(begin.size(), std::as_writable_bytes(std::span(header_text)));
            header = safetensors::parse(header_text, size - begin.size() - header_text.size());
        } catch (StateError const& error) {
            std::string const words = error.what();
            throw StateError(words.rfind("gpipe: ", 0) == 0 ? words
                                                            : "gpipe: " + path + ": " + words);
        }
    }
    [[noreturn]] void refuse(std::string const& words) const {
        throw StateError("gpipe: " + file.path() + words);
    }
    // Of the metadata, if it is there.
    std::string const* find(std::string const& key) const {
        auto const found = header.metadata.find(key);
        return found == header.metadata.end() ? nullptr : &found->second;
    }
    std::string const& own(std::string const& key) const {
        if (std::string const* const found = find(key)) return *found;
        refuse(": it has no " + key +
               ", so gpipe::save() has not written it; its tensors can "
               "be loaded by name: LoadOptions::only");
    }
    // Whether somebody else has written it.
    bool is_foreign() const { return !find("gpipe.format"); }
    template <class T> T number(std::string const& key) const { return number<T>(key, own(key)); }
    template <class T> T number(std::string const& key, std::string_view text) const {
        T value = 0;
        auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc{} || end != text.data() + text.size() || text.empty())
            refuse(": its " + key + " is " + in_quotes(text) + ", no number");
        return value;
    }
    // By tensor, where it is not 0: see UpdateRow::begun.
    std::map<std::string, std::uint64_t> begun() const {
        std::map<std::string, std::uint64_t> result;
        std::string const* const found = find("gpipe.begun");
        each_line(found ? *found : std::string_view{}, [&](std::string_view line) {
            std::size_t const space = std::min(line.rfind(' '), line.size());
            result[std::string(line.substr(0, space))] =
                number<std::uint64_t>("gpipe.begun", line.substr(std::min(space + 1, line.size())));
        });
        return result;
    }
    SavedState saved() const {
        if (own("gpipe.format") != "1")
            refuse(": its format is " + in_quotes(own("gpipe.format")) +
                   ", and this version reads 1");
        SavedState state;
        state.seed = number<std::uint64_t>("gpipe.seed");
        state.steps = number<std::uint64_t>("gpipe.step");
        if (state.steps > most_steps)
            refuse(": its gpipe.step is " + in_quotes(own("gpipe.step")) + ", no number of steps");
        if (find("gpipe.loss_scale")) {
            state.loss_scale = number<double>("gpipe.loss_scale");
            state.good_steps = number<std::uint32_t>("gpipe.good_steps");
            if (!(state.loss_scale > 0) || !is_finite(state.loss_scale))
                refuse(": its gpipe.loss_scale is " + in_quotes(own("gpipe.loss_scale")) +
                       ", no scale");
        }
        for (auto const& [key, value] : header.metadata)
            if (key.rfind("gpipe.", 0) != 0) state.metadata[key] = value;
        return state;
    }

    File file;
    std::string header_text;
    safetensors::Header header;
};

/// Elements of a tensor that are in one file.
struct SavedPiece {
    StateFile const* file = nullptr;
    safetensors::Entry const* entry = nullptr;
    std::uint64_t first = 0; ///< of the tensor's
    bool whole = true;       ///< else a part, see saved_here()
};

/// A state's file and those beside it that it names, if several ranks have saved it.
class StateFiles {
  public:
    explicit StateFiles(std::string const& given) {
        std::string const path = followed(given); // others stand beside that
        files_.emplace_back(path);
        StateFile const& first = files_.front();
        std::string const* const shards = first.find("gpipe.shards");
        each_line(shards ? *shards : std::string_view{}, [&](std::string_view name) {
            if (name.empty() || name.find('/') != std::string_view::npos)
                first.refuse(": it names " + in_quotes(name) + ", no file beside it");
            files_.emplace_back(path.substr(0, path.rfind('/') + 1).append(name));
            if (files_.back().own("gpipe.save") != first.own("gpipe.save"))
                files_.back().refuse(": it belongs to another state than " + path);
        });
        for (StateFile const& file : files_)
            for (safetensors::Entry const& entry : file.header.tensors) add(shards, file, entry);
        for (auto& [name, pieces] : pieces_) // what is whole first
            std::sort(pieces.begin(), pieces.end(), [](SavedPiece const& a, SavedPiece const& b) {
                return std::pair(a.first, !a.whole) < std::pair(b.first, !b.whole);
            });
    }

    /// What says whose they are.
    StateFile const& first() const { return files_.front(); }
    /// By the tensor's name, in order.
    std::map<std::string, std::vector<SavedPiece>, std::less<>> const& pieces() const {
        return pieces_;
    }

  private:
    void add(bool several, StateFile const& file, safetensors::Entry const& entry) {
        SavedPiece piece{&file, &entry, 0, true};
        std::string_view name = entry.name;
        if (std::size_t const at = name.rfind('@'); several && at != std::string_view::npos) {
            char const* const end = name.data() + name.size();
            auto const [last, error] = std::from_chars(name.data() + at + 1, end, piece.first);
            if (error == std::errc{} && last == end && entry.shape.size() == 1) {
                piece.whole = false;
                name = name.substr(0, at);
            }
        }
        pieces_[std::string(name)].push_back(piece);
    }

    std::deque<StateFile> files_; // which others point to
    std::map<std::string, std::vector<SavedPiece>, std::less<>> pieces_;
};

} // namespace detail
} // namespace gpipe
