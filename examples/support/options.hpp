#pragma once

#include <gpipe/core/registry.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace support {

/// What the user asked for cannot be done: one line on stderr, exit status 2.
struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// The parts of "a,b,c".
inline std::vector<std::string> split(std::string_view text) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0;;) {
        std::size_t const end = std::min(text.find(',', begin), text.size());
        parts.emplace_back(text.substr(begin, end - begin));
        if (end == text.size()) return parts;
        begin = end + 1;
    }
}

/// The command line of a program, by CLI11 (in options.cpp, for it takes seconds to compile):
/// `--name value` or `--name=value`, the last of several; numbers are checked against their range;
/// `--help` for free. Each option writes to a variable of the caller, whose value is the default.
class Options {
  public:
    Options(std::string program, std::string purpose);
    Options(Options&&) noexcept;
    ~Options();

    /// An option without a value.
    void flag(std::string const& name, std::string help, bool& target);
    /// Any text; `value` is its name in the help: none that is empty for FILE, FOLDER, DIRECTORY.
    void text(std::string const& name, std::string value, std::string help, std::string& target);
    /// A whole number within [low, high].
    void number(std::string const& name, std::string help, std::uint64_t& target, std::uint64_t low,
                std::uint64_t high);
    /// A number within [low, high].
    void number(std::string const& name, std::string help, double& target, double low, double high);
    /// One of some words.
    void choice(std::string const& name, std::string help, std::string& target,
                std::vector<std::string> words);
    /// A name that the registry knows, or the word `other`; the help explains them at its end.
    template <class Registered>
    void name(std::string const& name, std::string help, gpipe::Registry<Registered> names,
              std::string& target, std::string other = {}) {
        explain("\n--" + name + ' ' + names.list() + '\n' + names.help());
        option(name, "NAME", std::move(help), target, [=, &target](std::string const& value) {
            if (value != other || other.empty()) check(name, names, value);
            target = value;
        });
    }
    /// Such names with commas between them, or the word `all` alone.
    template <class Registered>
    void names(std::string const& name, std::string help,
               gpipe::Registry<Registered> const& registry, std::string& target,
               std::string all = {}) {
        auto const one = registry.of_one_each();
        explain("\n--" + name + ' ' + one.list() + '\n' + one.help());
        option(name, "NAME,...", std::move(help), target, [=, &target](std::string const& value) {
            if (value != all || all.empty())
                for (std::string const& part : split(value)) check(name, one, part);
            target = value;
        });
    }

    /// Reads the command line. Throws UsageError.
    void read(int count, char const* const* arguments);
    /// read(), with everything that a program says about it: help on stdout, a mistake in one line
    /// on stderr, and a stdout that cannot be written. The exit status if the program is to end
    /// now.
    std::optional<int> parse(int count, char const* const* arguments);
    /// Says in one line on stderr why the program ends; returns the exit status 2.
    int refuse(std::string why) const;
    std::string help() const;
    /// Whether the command line that was read has this option.
    bool given(std::string const& name) const;

  private:
    // `assign` throws UsageError for a wrong value.
    void option(std::string const& name, std::string value, std::string help, std::string shown,
                std::function<void(std::string const&)> assign);
    void explain(std::string const& words);
    template <class Registered>
    static void check(std::string const& name, gpipe::Registry<Registered> const& names,
                      std::string const& value) {
        try {
            static_cast<void>(names.find(value));
        } catch (std::invalid_argument const& error) {
            std::string const said = error.what();
            throw UsageError("--" + name + said.substr(said.find(':')));
        }
    }

    struct Parser;
    std::unique_ptr<Parser> parser_;
};

} // namespace support
