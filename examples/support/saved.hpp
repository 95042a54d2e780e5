#pragma once

#include "../gpt/text.hpp"

#include <gpipe/state/state.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <unistd.h>

namespace support {

/// What a training on a text goes on with beside its own state: the length of the learning rate's
/// curve, and which characters its tokens are.
struct Progressed {
    std::uint64_t rate_steps; ///< 0: not chosen
    gpt::Text const& text;
    std::string folder{};

    std::string path() const { return folder + "/state.safetensors"; }
    gpipe::StateMetadata metadata() const {
        return {{"rate-steps", std::to_string(curve())}, {"characters", characters()}};
    }
    /// Makes the folder and, where a state is there and that is wanted, goes on from it. Throws
    /// where it cannot, or is another training's; and where nothing could be saved, before anything
    /// is trained.
    template <class Train>
    void begin(Train& train, std::string const& in, bool resume, bool speaks) {
        folder = in;
        try_folder();
        if (resume && std::filesystem::exists(path())) {
            read(gpipe::saved_state(path()).metadata);
            gpipe::load(train, path());
            if (speaks)
                std::fprintf(stderr, "goes on behind the %zu steps in %s\n",
                             static_cast<std::size_t>(train.steps()), path().c_str());
        } else if (resume && speaks) {
            std::fprintf(stderr, "there is no %s yet: begins anew\n", path().c_str());
        } else if (speaks && std::filesystem::exists(path())) {
            std::fprintf(stderr, "%s will be written over: --resume goes on from it\n",
                         path().c_str());
        }
    }
    std::uint64_t curve() const { return rate_steps ? rate_steps : 6000; }

  private:
    void try_folder() const {
        std::error_code error;
        std::filesystem::create_directories(folder, error);
        std::string const probe = path() + ".probe-" + std::to_string(::getpid());
        std::FILE* const file = error ? nullptr : std::fopen(probe.c_str(), "w");
        if (!file) {
            std::string const why = error ? error.message() : std::strerror(errno);
            throw std::runtime_error("--save: nothing can be written in '" + folder + "': " + why);
        }
        std::fclose(file);
        std::remove(probe.c_str());
    }
    void read(gpipe::StateMetadata const& saved) {
        auto const value = [&](char const* key) {
            auto const found = saved.find(key);
            return found == saved.end() ? std::string() : found->second;
        };
        if (value("characters") != characters())
            throw std::runtime_error(path() + " was trained on a text with other characters");
        std::uint64_t steps = 0;
        std::istringstream length(value("rate-steps"));
        if (value("rate-steps")[0] == '-' || !(length >> steps) || steps == 0)
            throw std::runtime_error(path() + " does not say when its learning rate's curve ends");
        if (rate_steps != 0 && rate_steps != steps)
            throw std::runtime_error(path() + " was saved with --rate-steps " +
                                     std::to_string(steps) + ", not " + std::to_string(rate_steps));
        rate_steps = steps;
    }
    // In hexadecimal: they may be any bytes.
    std::string characters() const {
        std::string digits;
        for (std::size_t i = 0; i < text.classes(); ++i) {
            auto const byte =
                static_cast<unsigned char>(text.character(static_cast<std::int32_t>(i)));
            digits += "0123456789abcdef"[byte / 16];
            digits += "0123456789abcdef"[byte % 16];
        }
        return digits;
    }
};

} // namespace support
