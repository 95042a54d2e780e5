#include "support/options.hpp"

#include "support/output.hpp"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdio>
#include <system_error>

namespace support {

struct Options::Parser {
    std::string program;
    CLI::App app;
    std::string explanations; // of names
    bool wants_help = false;

    Parser(std::string name, std::string purpose)
        : program(std::move(name)), app(std::move(purpose), program) {}
};

namespace {

std::string joined(std::vector<std::string> const& words, char const* between) {
    std::string result;
    for (std::string const& word : words) result += (result.empty() ? "" : between) + word;
    return result;
}
std::string shown(double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%g", value);
    return buffer;
}

// The whole text as a number within [low, high]. CLI11 would take 010 for 8, and nan for within.
template <class T>
auto assign_number(std::string const& name, T& target, T low, T high, char const* what,
                   std::string const& range) {
    return [=, &target](std::string const& text) {
        T value{};
        auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        bool const good = error == std::errc{} && end == text.data() + text.size() &&
                          value >= low && value <= high;
        if (!good)
            throw UsageError("--" + name + " takes " + what + " from " + range + ", not '" + text +
                             "'");
        target = value;
    };
}

} // namespace

Options::Options(std::string program, std::string purpose)
    : parser_(std::make_unique<Parser>(std::move(program), std::move(purpose))) {
    CLI::App& app = parser_->app;
    app.set_help_flag();
    app.add_flag("-h,--help", parser_->wants_help, "print this and exit")->disable_flag_override();
    app.get_formatter()->column_width(44);
}
Options::Options(Options&&) noexcept = default;
Options::~Options() = default;

void Options::flag(std::string const& name, std::string help, bool& target) {
    parser_->app.add_flag("--" + name, target, std::move(help))->disable_flag_override();
}
void Options::text(std::string const& name, std::string value, std::string help,
                   std::string& target) {
    bool const is_path = value == "FOLDER" || value == "FILE" || value == "DIRECTORY";
    option(name, std::move(value), std::move(help), target,
           [&target, name, is_path](std::string const& text) {
               if (is_path && text.empty())
                   throw UsageError("--" + name + " takes a name, not an empty one");
               target = text;
           });
}
void Options::number(std::string const& name, std::string help, std::uint64_t& target,
                     std::uint64_t low, std::uint64_t high) {
    option(name, "n", std::move(help), std::to_string(target),
           assign_number(name, target, low, high, "a whole number",
                         std::to_string(low) + " to " + std::to_string(high)));
}
void Options::number(std::string const& name, std::string help, double& target, double low,
                     double high) {
    option(name, "x", std::move(help), shown(target),
           assign_number(name, target, low, high, "a number", shown(low) + " to " + shown(high)));
}
void Options::choice(std::string const& name, std::string help, std::string& target,
                     std::vector<std::string> words) {
    option(name, joined(words, "|"), std::move(help), target,
           [=, &target](std::string const& value) {
               if (std::find(words.begin(), words.end(), value) == words.end())
                   throw UsageError("--" + name + " takes one of " + joined(words, ", ") +
                                    ", not '" + value + "'");
               target = value;
           });
}
void Options::option(std::string const& name, std::string value, std::string help,
                     std::string shown, std::function<void(std::string const&)> assign) {
    parser_->app.add_option_function<std::string>("--" + name, assign, std::move(help))
        ->type_name(std::move(value))
        ->default_str(std::move(shown))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}
void Options::explain(std::string const& words) {
    parser_->app.footer(parser_->explanations += words);
}

void Options::read(int count, char const* const* arguments) {
    try {
        parser_->app.parse(count, arguments);
    } catch (CLI::ParseError const& error) {
        throw UsageError(error.what());
    }
}

std::optional<int> Options::parse(int count, char const* const* arguments) {
    check_output(parser_->program);
    try {
        read(count, arguments);
    } catch (UsageError const& error) {
        return refuse(std::string(error.what()) + "; try --help");
    }
    if (!parser_->wants_help) return std::nullopt;
    std::fputs(help().c_str(), stdout);
    return 0;
}

int Options::refuse(std::string why) const {
    for (char& c : why)
        if (static_cast<unsigned char>(c) < 0x20) c = '?';
    std::fprintf(stderr, "%s: %s\n", parser_->program.c_str(), why.c_str());
    return 2;
}

std::string Options::help() const { return parser_->app.help(); }
bool Options::given(std::string const& name) const { return parser_->app.count("--" + name) > 0; }

} // namespace support
