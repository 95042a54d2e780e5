#pragma once

#include "support/input.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace gpt {

/// Why a file cannot be trained on; what() is one line.
struct BadText : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// The characters (bytes) of a file as tokens: the distinct ones, in order, are 0, 1, ... The last
/// tenth is held out. Throws BadText unless there is at least one context to train on and one held
/// out.
class Text {
  public:
    Text(std::string const& path, std::size_t context)
        : Text(support::read_file<BadText>(path, std::size_t{1} << 30), path, context) {}
    Text(std::string_view characters, std::string const& name, std::size_t context) {
        std::size_t const least = 2 * (context + 1);
        if (characters.empty()) throw BadText("'" + name + "' is empty");
        if (characters.size() < least)
            throw BadText("'" + name + "' has " + std::to_string(characters.size()) +
                          " characters; a context of " + std::to_string(context) +
                          " to train on and one to hold out take " + std::to_string(least));
        ids_.fill(-1);
        for (char const c : characters) ids_[static_cast<unsigned char>(c)] = 0;
        for (std::size_t byte = 0; byte < ids_.size(); ++byte)
            if (ids_[byte] == 0) {
                ids_[byte] = static_cast<std::int32_t>(distinct_.size());
                distinct_ += static_cast<char>(byte);
            }
        tokens_.reserve(characters.size());
        for (char const c : characters) tokens_.push_back(id(c));
        std::size_t const held_out = std::max(tokens_.size() / 10, context + 1);
        training_ = tokens_.size() - held_out;
    }

    /// The number of distinct characters.
    std::size_t classes() const { return distinct_.size(); }
    std::size_t size() const { return tokens_.size(); }
    std::span<std::int32_t const> training() const { return {tokens_.data(), training_}; }
    std::span<std::int32_t const> held_out() const {
        return {tokens_.data() + training_, tokens_.size() - training_};
    }
    /// The token of a character, -1 if the text does not have it; and the character of a token.
    std::int32_t id(char c) const { return ids_[static_cast<unsigned char>(c)]; }
    char character(std::int32_t token) const { return distinct_[static_cast<std::size_t>(token)]; }

  private:
    std::array<std::int32_t, 256> ids_{};
    std::string distinct_;
    std::vector<std::int32_t> tokens_;
    std::size_t training_ = 0;
};

/// Samples of `context` tokens, and as their targets the tokens one further on.
struct Samples {
    std::vector<std::int32_t> inputs;
    std::vector<std::int32_t> targets;
    std::size_t context;

    Samples(std::size_t samples, std::size_t length)
        : inputs(samples * length), targets(samples * length), context(length) {}

    std::size_t size() const { return inputs.size() / context; }
    void set(std::size_t sample, std::span<std::int32_t const> tokens, std::size_t first) {
        for (std::size_t t = 0; t < context; ++t) {
            inputs[sample * context + t] = tokens[first + t];
            targets[sample * context + t] = tokens[first + t + 1];
        }
    }
};

/// All contexts of a text, of whatever tokens they begin with: a source for gpipe::Loader.
struct Windows {
    std::span<std::int32_t const> tokens;
    std::size_t context;

    std::uint64_t size() const { return tokens.size() - context; }
    void inputs(std::uint64_t first, std::span<std::int32_t> to) const { copy(first, to); }
    void targets(std::uint64_t first, std::span<std::int32_t> to) const { copy(first + 1, to); }

  private:
    void copy(std::uint64_t first, std::span<std::int32_t> to) const {
        std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(first), to.size(), to.begin());
    }
};

/// At most `most` samples that lie evenly over a text, without overlap.
inline Samples spread(std::span<std::int32_t const> tokens, std::size_t context, std::size_t most) {
    std::size_t const fit = (tokens.size() - 1) / context;
    Samples samples(std::min(fit, most), context);
    for (std::size_t i = 0; i < samples.size(); ++i)
        samples.set(i, tokens, i * fit / samples.size() * context);
    return samples;
}

} // namespace gpt
