#pragma once

// Pictures of digits for the examples: of files as those of MNIST (LeCun et al., 1998), or drawn.

#include "support/drawn_digits.hpp"
#include "support/input.hpp"
#include "support/options.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace support {

/// The digits of two IDX files, not compressed. Throws UsageError if they are none.
inline Digits read_digits(std::string const& images, std::string const& labels) {
    auto const read = [](std::string const& path, std::vector<std::size_t> const& shape,
                         char const* what) {
        std::string content = read_file<UsageError>(path, std::size_t{1} << 30);
        auto const refuse = [&](std::string const& why) {
            return UsageError("'" + path + "' is no IDX file of " + what + ": " + why);
        };
        if (content.substr(0, 2) == "\x1f\x8b") throw refuse("it is compressed, gunzip it first");
        auto const word = [&](std::size_t at) {
            std::uint32_t value = 0;
            for (std::size_t i = 0; i < 4; ++i)
                value = value << 8 | static_cast<unsigned char>(content[4 * at + i]);
            return std::size_t{value};
        };
        std::size_t const head = 4 * (2 + shape.size());
        if (content.size() < head || word(0) != 0x801 + shape.size())
            throw refuse("it does not begin as one");
        std::size_t each = 1;
        for (std::size_t i = 0; i < shape.size(); ++i, each *= shape[i - 1])
            if (word(2 + i) != shape[i])
                throw refuse("extent " + std::to_string(i + 1) + " is " +
                             std::to_string(word(2 + i)) + ", not " + std::to_string(shape[i]));
        if (content.size() != head + word(1) * each)
            throw refuse("of " + std::to_string(word(1)) + " it would have " +
                         std::to_string(head + word(1) * each) + " bytes, not " +
                         std::to_string(content.size()));
        return content.substr(head);
    };
    std::string const pictures = read(images, {Digits::side, Digits::side}, "images of 28 x 28");
    std::string const names = read(labels, {}, "labels");
    std::size_t const count = pictures.size() / Digits::pixels;
    if (count != names.size())
        throw UsageError("there are " + std::to_string(count) + " images in '" + images +
                         "', but " + std::to_string(names.size()) + " labels in '" + labels + "'");
    if (count < 5)
        throw UsageError("there are " + std::to_string(count) + " images in '" + images +
                         "': of five one is held out");
    Digits result;
    for (std::size_t i = 0; i < count; ++i) {
        auto const label = static_cast<unsigned char>(names[i]);
        if (label > 9)
            throw UsageError("label " + std::to_string(i) + " in '" + labels + "' is " +
                             std::to_string(label) + ", no digit");
        result.labels.push_back(label);
    }
    for (char const c : pictures)
        result.images.push_back(static_cast<float>(static_cast<unsigned char>(c)) / 255);
    return result;
}

/// Mean and deviation of pixels, which are made 0 and 1: of MNIST's 0.13 and 0.31.
struct DigitScale {
    float mean = 0;
    float deviation = 1;
};

/// What a program trains on, and what it is measured by: every fifth one.
struct DigitTask {
    Digits training, held_out;
    DigitScale scale{};
    std::string images, labels; ///< files; empty: 5,000 are drawn

    void declare(Options& options) {
        options.text("images", "FILE", "digits of 28 x 28 pixels (IDX); else 5,000 are drawn",
                     images);
        options.text("labels", "FILE", "what they show (IDX)", labels);
    }
    /// Throws UsageError.
    void load() {
        if (images.empty() != labels.empty())
            throw UsageError("--images FILE and --labels FILE go together");
        Digits all = images.empty() ? drawn_digits(5000, 1) : read_digits(images, labels);
        for (float& pixel : all.images) pixel = (pixel - scale.mean) / scale.deviation;
        for (std::size_t i = 0; i < all.size(); ++i)
            (i % 5 == 4 ? held_out : training).add(all.image(i), all.labels[i]);
    }
};

/// Digits as a source for gpipe::Loader.
struct DigitSource {
    Digits const& all;

    std::size_t size() const { return all.size(); }
    void inputs(std::uint64_t i, std::span<float, Digits::pixels> to) const {
        std::copy_n(all.image(i), to.size(), to.begin());
    }
    void targets(std::uint64_t i, std::span<std::int32_t, 1> to) const { to[0] = all.labels[i]; }
};

} // namespace support
