#pragma once

#include <support/digits.hpp>
#include <support/output.hpp>

#include <doctest/doctest.h>

#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace toy {

/// A pair of IDX files in a folder of their own.
struct DigitFiles {
    std::string folder = "/tmp/gpipe_digits_XXXXXX";
    std::string images, labels;

    DigitFiles() {
        REQUIRE(mkdtemp(folder.data()));
        images = folder + "/images";
        labels = folder + "/labels";
    }
    DigitFiles(DigitFiles const&) = delete;
    DigitFiles& operator=(DigitFiles const&) = delete;
    ~DigitFiles() { std::filesystem::remove_all(folder); }

    static std::string word(std::size_t n) {
        return {static_cast<char>(n >> 24), static_cast<char>(n >> 16), static_cast<char>(n >> 8),
                static_cast<char>(n)};
    }
    static std::string images_of(support::Digits const& digits) {
        std::string bytes = word(0x803) + word(digits.size()) + word(28) + word(28);
        for (float const each : digits.images) bytes += static_cast<char>(int(each * 255 + 0.5f));
        return bytes;
    }
    static std::string labels_of(support::Digits const& digits) {
        std::string bytes = word(0x801) + word(digits.size());
        for (std::int32_t const each : digits.labels) bytes += static_cast<char>(each);
        return bytes;
    }
    void write(std::string const& image_bytes, std::string const& label_bytes) const {
        support::write_file(images, image_bytes);
        support::write_file(labels, label_bytes);
    }
    void write(support::Digits const& digits) const { write(images_of(digits), labels_of(digits)); }
    std::string arguments() const { return " --images " + images + " --labels " + labels; }
};

/// Arguments for digits to learn: none, for drawn ones, and those of MNIST's test set, where
/// GPIPE_DIGITS names the folder of its files.
struct DigitsToLearn {
    std::string arguments;
    std::size_t held_out = 1000;
};
inline std::vector<DigitsToLearn> digits_to_learn() {
    std::vector<DigitsToLearn> result(1);
    if (char const* const folder = std::getenv("GPIPE_DIGITS"))
        result.push_back({std::string(" --images ") + folder + "/t10k-images-idx3-ubyte --labels " +
                              folder + "/t10k-labels-idx1-ubyte",
                          2000});
    return result;
}

} // namespace toy
