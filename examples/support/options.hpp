#pragma once

#include "support/output.hpp"

#include <gpipe/core/registry.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <variant>
#include <vector>

namespace support {

/// What the user asked for cannot be done: one line on stderr, exit status 2.
struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// The command line of a program: `--name value` or `--name=value`, numbers checked against their
/// range,
/// `--help` for free. Each option writes to a variable of the caller, whose value is the default.
class Options {
  public:
    Options(std::string program, std::string purpose)
        : program_(std::move(program)), purpose_(std::move(purpose)) {}

    /// An option without a value.
    void flag(std::string name, std::string help, bool& target) {
        options_.push_back({std::move(name), "", std::move(help), Flag{&target}});
    }
    /// Any text; `value` is its name in the help.
    void text(std::string name, std::string value, std::string help, std::string& target) {
        options_.push_back({std::move(name), std::move(value), std::move(help), Text{&target, {}}});
    }
    /// A whole number within [low, high].
    void number(std::string name, std::string help, std::uint64_t& target, std::uint64_t low,
                std::uint64_t high) {
        options_.push_back({std::move(name), "n", std::move(help), Whole{&target, low, high}});
    }
    /// A number within [low, high].
    void number(std::string name, std::string help, double& target, double low, double high) {
        options_.push_back({std::move(name), "x", std::move(help), Real{&target, low, high}});
    }
    /// One of some words.
    void choice(std::string name, std::string help, std::string& target,
                std::vector<std::string> words) {
        options_.push_back({std::move(name), joined(words, "|"), std::move(help),
                            Choice{&target, std::move(words)}});
    }
    /// A name that the registry knows, or the word `other`; the help explains them at its end.
    template <class Registered>
    void name(std::string name, std::string help, gpipe::Registry<Registered> names,
              std::string& target, std::string other = {}) {
        explanations_ += "\n--" + name + ' ' + names.list() + '\n' + names.help();
        auto const check = [=](std::string const& value) {
            try {
                if (value != other || other.empty()) static_cast<void>(names.find(value));
            } catch (std::invalid_argument const& error) {
                std::string const said = error.what();
                throw UsageError("--" + name + said.substr(said.find(':')));
            }
        };
        options_.push_back({name, "NAME", std::move(help), Text{&target, check}});
    }

    /// Reads the command line. Throws UsageError.
    void read(int count, char const* const* arguments) {
        for (int i = 1; i < count; ++i) {
            std::string_view argument = arguments[i];
            if (argument == "--help" || argument == "-h") {
                wants_help_ = true;
                continue;
            }
            std::string_view const name = argument.substr(0, argument.find('='));
            Option* const option = find(name);
            if (!option) throw UsageError("unknown option '" + std::string(argument) + "'");
            std::optional<std::string_view> value;
            if (name.size() < argument.size()) value = argument.substr(name.size() + 1);
            if (auto const* flag = std::get_if<Flag>(&option->kind)) {
                if (value) throw UsageError(std::string(name) + " takes no value");
                *flag->target = true;
                continue;
            }
            if (!value && ++i < count) value = arguments[i];
            if (!value) throw UsageError(std::string(name) + " needs a value");
            std::visit([&](auto const& kind) { assign(kind, std::string(name), *value); },
                       option->kind);
        }
    }

    /// read(), with everything that a program says about it: help on stdout, a mistake in one line
    /// on stderr, and a stdout that cannot be written. The exit status if the program is to end
    /// now.
    std::optional<int> parse(int count, char const* const* arguments) {
        check_output(program_);
        try {
            read(count, arguments);
        } catch (UsageError const& error) {
            return refuse(std::string(error.what()) + "; try --help");
        }
        if (!wants_help_) return std::nullopt;
        std::fputs(help().c_str(), stdout);
        return 0;
    }

    /// Says in one line on stderr why the program ends; returns the exit status 2.
    int refuse(std::string why) const {
        for (char& c : why)
            if (static_cast<unsigned char>(c) < 0x20) c = '?';
        std::fprintf(stderr, "%s: %s\n", program_.c_str(), why.c_str());
        return 2;
    }

    std::string help() const {
        std::string result = "usage: " + program_ + " [options]\n" + purpose_ + "\n\noptions:\n";
        for (Option const& option : options_) {
            std::string left = "  --" + option.name;
            if (!option.value.empty()) left += ' ' + option.value;
            left.resize(left.size() < column ? column : left.size() + 1, ' ');
            std::string const value =
                std::visit([](auto const& kind) { return shown(kind); }, option.kind);
            result += left + option.help;
            if (!value.empty()) result += " (default " + value + ')';
            result += '\n';
        }
        std::string left = "  --help";
        left.resize(column, ' ');
        return result + left + "print this and exit\n" + explanations_;
    }

  private:
    static constexpr std::size_t column = 44;

    struct Flag {
        bool* target;
    };
    struct Text {
        std::string* target;
        std::function<void(std::string const&)> check{};
    };
    struct Whole {
        std::uint64_t* target;
        std::uint64_t low, high;
    };
    struct Real {
        double* target;
        double low, high;
    };
    struct Choice {
        std::string* target;
        std::vector<std::string> words;
    };
    struct Option {
        std::string name, value, help;
        std::variant<Flag, Text, Whole, Real, Choice> kind;
    };

    Option* find(std::string_view name) {
        if (name.substr(0, 2) != "--") return nullptr;
        for (Option& option : options_)
            if (option.name == name.substr(2)) return &option;
        return nullptr;
    }

    static std::string joined(std::vector<std::string> const& words, char const* between) {
        std::string result;
        for (std::string const& word : words) result += (result.empty() ? "" : between) + word;
        return result;
    }
    static std::string shown(double value) {
        char buffer[32];
        std::snprintf(buffer, sizeof buffer, "%g", value);
        return buffer;
    }
    static std::string shown(Flag const&) { return {}; }
    static std::string shown(Text const& text) { return *text.target; }
    static std::string shown(Whole const& whole) { return std::to_string(*whole.target); }
    static std::string shown(Real const& real) { return shown(*real.target); }
    static std::string shown(Choice const& choice) { return *choice.target; }

    // The whole text as a number within [low, high].
    template <class T>
    static void assign_number(T* target, T low, T high, std::string const& name,
                              std::string_view text, char const* what, std::string const& range) {
        T value{};
        auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        // Written so that "nan" is out of range.
        bool const good = error == std::errc{} && end == text.data() + text.size() &&
                          value >= low && value <= high;
        if (!good)
            throw UsageError(name + " takes " + what + " from " + range + ", not '" +
                             std::string(text) + "'");
        *target = value;
    }
    static void assign(Flag const&, std::string const&, std::string_view) {}
    static void assign(Text const& text, std::string const&, std::string_view value) {
        if (text.check) text.check(std::string(value));
        *text.target = value;
    }
    static void assign(Whole const& whole, std::string const& name, std::string_view value) {
        assign_number(whole.target, whole.low, whole.high, name, value, "a whole number",
                      std::to_string(whole.low) + " to " + std::to_string(whole.high));
    }
    static void assign(Real const& real, std::string const& name, std::string_view value) {
        assign_number(real.target, real.low, real.high, name, value, "a number",
                      shown(real.low) + " to " + shown(real.high));
    }
    static void assign(Choice const& choice, std::string const& name, std::string_view value) {
        for (std::string const& word : choice.words)
            if (word == value) {
                *choice.target = value;
                return;
            }
        throw UsageError(name + " takes one of " + joined(choice.words, ", ") + ", not '" +
                         std::string(value) + "'");
    }

    std::string program_;
    std::string purpose_;
    std::vector<Option> options_;
    std::string explanations_; // of names
    bool wants_help_ = false;
};

} // namespace support
