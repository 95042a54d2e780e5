// What it costs to compile a whole Training, by the number of distinct layer types and by compiler:
// seconds and peak memory, beside the same layers' bodies as plain functions, and a stack of 1,000
// equal blocks beside one of 4; and by schedule, each proven for K = 8 and M = 64, beside GPipe.
// With --include instead: the README's program, header-only and with the compiled part, each also
// with its header precompiled, and 256 distinct layer types, beside the same with the headers of
// another commit.
#include "support/compilers.hpp"
#include "support/generate.hpp"
#include "support/list.hpp"
#include "support/record.hpp"
#include "support/summary.hpp"

#include "support/output.hpp" // examples/

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace benchmark;

struct Settings {
    std::vector<std::size_t> layers;
    std::vector<std::string> compilers;
    std::size_t cells = 4;
    std::size_t micro_batches = 32;
    std::size_t rounds = 1;
    std::size_t repeat_rounds = 5;
    std::filesystem::path root = std::filesystem::path(__FILE__).parent_path().parent_path();
    std::string include; ///< of another commit
    std::string options;
    std::string bodies = "calls";
    bool plans = false;
    std::string keep;
    bool json = false;
};

// One source and what its compilations took, by round.
struct Subject {
    std::string name;
    std::filesystem::path file;
    std::size_t layers = 0;
    std::vector<double> processor{};
    std::vector<double> wall{};
    double megabytes = 0;
    std::string include{}; ///< empty: ours
    std::string options{};
    std::filesystem::path object{}; ///< empty: of no use
};

// The first program in README.md.
std::string readme_program(std::filesystem::path const& root) {
    std::ifstream readme(root / "README.md");
    std::string program;
    bool inside = false;
    for (std::string line; std::getline(readme, line);) {
        if (inside && line == "```") return program;
        if (inside) program += line + '\n';
        if (line == "```cpp") inside = true;
    }
    throw std::runtime_error("there is no program in " + (root / "README.md").string());
}

class Bench {
  public:
    Bench(Settings const& settings, Compiler const& compiler, std::filesystem::path directory)
        : settings_(settings), compiler_(compiler), directory_(std::move(directory)) {}

    // False if the compiler fails.
    bool run(Summary& summary) {
        Subject const empty = write("empty file", "empty", 0, "int main() {}\n");
        Subject const header =
            write("headers alone", "headers", 0, "#include <gpipe/gpipe.hpp>\nint main() {}\n");
        std::vector<Subject> subjects{empty, header};
        for (std::size_t layers : settings_.layers) {
            std::string const count = std::to_string(layers);
            subjects.push_back(write("plain, L = " + count, "plain" + count, layers,
                                     plain_functions(layers, shape())));
            subjects.push_back(
                write("L = " + count, "layers" + count, layers, distinct_layers(layers, shape())));
        }
        std::vector<Subject> repeats{
            write("Repeat<4>", "repeat4", 4 * repeat_group, repeated_layers(4, shape())),
            write("Repeat<1000>", "repeat1000", 1000 * repeat_group,
                  repeated_layers(1000, shape()))};
        if (!settings_.json)
            std::printf("%s\n  %-26s %8s %8s %8s\n", compiler_.name.c_str(), "", "user+sys", "wall",
                        "MiB");
        bool const good = compile_all(subjects, settings_.rounds) &&
                          compile_all(repeats, settings_.repeat_rounds);
        if (!good) return false;
        report(subjects[0], "empty file", subjects[0]);
        report(subjects[1], "empty file", subjects[0]);
        for (std::size_t i = 2; i < subjects.size(); i += 2) {
            report(subjects[i], "headers alone", subjects[1]);
            report(subjects[i + 1], "plain functions", subjects[i]);
            sum_up(summary, "layer types / plain functions", subjects[i + 1], subjects[i]);
        }
        report(repeats[0], "empty file", subjects[0]);
        report(repeats[1], "Repeat<4>", repeats[0]);
        sum_up(summary, "Repeat<1000> / Repeat<4>", repeats[1], repeats[0]);
        if (settings_.layers.size() > 1) report_growth(subjects);
        return run_schedules(summary);
    }

    // The same sources with our headers and with others. False if the compiler fails.
    bool run_against(Summary& summary) {
        auto const same = [](Subject subject, char const* name, std::string const& include,
                             char const* option) {
            subject.name = name;
            subject.include = include;
            subject.options = option;
            return subject;
        };
        Subject const program = write("header-only", "readme", 0, readme_program(settings_.root));
        std::vector<Subject> programs{
            same(program, "the README's program, before", settings_.include, ""), program,
            same(program, "the README's program, with the compiled part", "", "-DGPIPE_COMPILED")};
        programs[1].name = "the README's program, header-only";
        std::vector<Subject> parts;
        if (compiler_.suffix ==
            ".cpp") { // nvcc precompiles nothing, and has the host compiler make the part
            for (char const* option : {"", "-DGPIPE_COMPILED"}) {
                bool const compiled = *option != '\0';
                Subject const header = write_header(compiled ? "compiled" : "plain", option);
                std::string const options = option + (" -include " + header.file.string());
                programs.push_back(same(program,
                                        compiled
                                            ? "the README's program, with both"
                                            : "the README's program, with a precompiled header",
                                        "", options.c_str()));
                parts.push_back(header);
            }
            parts.push_back(
                write("the compiled part, once", "part", 0,
                      "#include \"" + (settings_.root / "cmake/compiled.cpp").string() + "\"\n"));
        }
        std::vector<Subject> layers;
        for (std::size_t count : settings_.layers) {
            std::string const text = std::to_string(count);
            Subject const ours = write(text + " layer types", "layers" + text, count,
                                       distinct_layers(count, shape()));
            layers.push_back(
                same(ours, (text + " layer types, before").c_str(), settings_.include, ""));
            layers.push_back(ours);
        }
        if (!settings_.json)
            std::printf("%s\n  %-46s %8s %8s %8s\n", compiler_.name.c_str(), "", "user+sys", "wall",
                        "MiB");
        if (!compile_all(parts, settings_.rounds) || // which programs may want
            !compile_all(programs, settings_.repeat_rounds) ||
            !compile_all(layers, settings_.rounds))
            return false;
        auto const tell = [&](Subject const& subject, Subject const& before) {
            report(subject, "before", before);
            if (&subject != &before) sum_up(summary, subject.name + " / before", subject, before);
        };
        for (Subject const& subject : programs) tell(subject, programs[0]);
        for (Subject const& part : parts) report(part, "before", programs[0]);
        for (std::size_t i = 0; i < layers.size(); ++i) tell(layers[i], layers[i - i % 2]);
        return true;
    }

  private:
    void sum_up(Summary& summary, std::string const& what, Subject const& subject,
                Subject const& other) const {
        summary.add(compiler_.name + ", " + what,
                    median(subject.processor) / median(other.processor));
    }
    ProgramShape shape() const {
        return {settings_.cells,
                settings_.micro_batches,
                settings_.bodies == "loops",
                settings_.plans,
                {}};
    }

    // One chain, cut for 8 devices, by schedule.
    bool run_schedules(Summary& summary) {
        ProgramShape by_schedule = shape();
        by_schedule.cells = schedule_cells;
        by_schedule.micro_batches = schedule_micro_batches;
        std::vector<Subject> subjects;
        for (char const* name :
             {"GPipe", "GPipeAscending", "OneForwardOneBackward", "EagerOneForwardOneBackward",
              "Interleaved1F1B<2>", "BreadthFirst<2>", "ZeroBubbleH1", "ZeroBubbleH2",
              "ZeroBubbleV", "VHalf", "VMin", "DualPipeV"}) {
            by_schedule.schedule = std::string("gpipe::schedule::") + name;
            subjects.push_back(write(name, "schedule" + std::to_string(subjects.size()),
                                     16 * repeat_group, repeated_layers(16, by_schedule)));
        }
        if (!compile_all(subjects, settings_.repeat_rounds)) return false;
        for (Subject const& subject : subjects) {
            report(subject, "GPipe", subjects[0], by_schedule);
            if (&subject != &subjects[0])
                sum_up(summary, "another schedule / GPipe", subject, subjects[0]);
        }
        return true;
    }
    static constexpr std::size_t schedule_cells = 8;
    static constexpr std::size_t schedule_micro_batches = 64;

    Subject write(std::string name, std::string const& file, std::size_t layers,
                  std::string const& text) const {
        std::filesystem::path const path = directory_ / (file + compiler_.suffix);
        support::write_file(path.string(), text);
        return {std::move(name), path, layers};
    }

    // The umbrella header, to be precompiled.
    Subject write_header(std::string const& file, char const* option) const {
        std::filesystem::path const path = directory_ / (file + ".hpp");
        support::write_file(path.string(), "#include <gpipe/gpipe.hpp>\n");
        return {file == "plain" ? "the header, precompiled" : "the same for the compiled part",
                path,
                0,
                {},
                {},
                0,
                {},
                std::string(option) + " -x c++-header",
                path.string() + ".gch"};
    }

    bool compile_all(std::vector<Subject>& subjects, std::size_t rounds) const {
        for (std::size_t round = 0; round < rounds; ++round)
            for (Subject& subject : subjects) {
                auto const used =
                    compile(compiler_,
                            subject.include.empty() ? (settings_.root / "include").string()
                                                    : subject.include,
                            settings_.options + ' ' + subject.options, subject.file,
                            subject.object.empty() ? directory_ / "object.o" : subject.object);
                if (used.status != 0) {
                    std::fprintf(stderr, "compile_time: %s fails on %s\n", compiler_.name.c_str(),
                                 subject.name.c_str());
                    return false;
                }
                subject.processor.push_back(used.processor_seconds);
                subject.wall.push_back(used.wall_seconds);
                subject.megabytes = std::max(subject.megabytes, used.megabytes);
            }
        return true;
    }

    void report(Subject const& subject, char const* baseline, Subject const& other) const {
        report(subject, baseline, other, shape());
    }
    void report(Subject const& subject, char const* baseline, Subject const& other,
                ProgramShape const& of) const {
        if (settings_.json) {
            Record record("compile_time");
            record.add("compiler", compiler_.name).add("source", subject.name);
            record.add("K", of.cells).add("M", of.micro_batches);
            record.add("L", subject.layers).add("bodies", settings_.bodies);
            record.add("plans", settings_.plans);
            record.add("wall_seconds", median(subject.wall)).add("peak_mib", subject.megabytes);
            record.compare("seconds (user + system)", subject.processor, baseline, other.processor);
            record.print();
        } else {
            std::printf("  %-*s %8.2f %8.2f %8.0f %8.2f of %s\n",
                        settings_.include.empty() ? 26 : 46, subject.name.c_str(),
                        median(subject.processor), median(subject.wall), subject.megabytes,
                        median(subject.processor) / median(other.processor), baseline);
            std::fflush(stdout);
        }
    }

    // How time grows with L beyond what the headers take, between neighbouring L.
    void report_growth(std::vector<Subject> const& subjects) const {
        double const headers = median(subjects[1].processor);
        for (std::size_t i = 5; i < subjects.size(); i += 2) {
            Subject const& less = subjects[i - 2];
            Subject const& more = subjects[i];
            double const exponent =
                growth({double(less.layers), double(more.layers)},
                       {median(less.processor) - headers, median(more.processor) - headers});
            double const per_layer = (median(more.processor) - median(less.processor)) * 1e3 /
                                     (double(more.layers) - double(less.layers));
            if (settings_.json) {
                Record record("compile_time");
                record.add("compiler", compiler_.name).add("source", "growth");
                record.add("K", settings_.cells).add("M", settings_.micro_batches);
                record.add("L", more.layers).add("L_before", less.layers);
                record.add("bodies", settings_.bodies).add("plans", settings_.plans);
                record.add("milliseconds_per_layer", per_layer);
                record.compare("power of L", exponent, "linear", 1.0);
                record.print();
            } else {
                std::printf("  L = %zu to %zu: %.1f ms per layer, time ~ L^%.2f\n", less.layers,
                            more.layers, per_layer, exponent);
            }
        }
    }

    Settings const& settings_;
    Compiler const& compiler_;
    std::filesystem::path directory_;
};

} // namespace

int main(int argc, char** argv) {
    Settings settings;
    std::string layers;
    std::string compilers = "g++,clang++,nvcc";
    support::Options options("compile_time",
                             "Seconds and memory that it takes to compile a whole Training, by the "
                             "number of\ndistinct layer types, by schedule and by compiler.");
    options.text("layers", "L,...",
                 "numbers of distinct layer types; 16,64,256,1024, with --include 256", layers);
    options.text("compilers", "NAME,...", "compilers, of g++, clang++, nvcc; those found",
                 compilers);
    options.number("cells", "K", settings.cells, 1, 4);
    options.number("micro-batches", "M", settings.micro_batches, 1, 1024);
    options.number("rounds", "compilations of each source", settings.rounds, 1, 1000);
    options.number("repeat-rounds", "the same of those with Repeat, and by schedule",
                   settings.repeat_rounds, 1, 1000);
    options.choice("bodies",
                   "the work of layers as calls of functions elsewhere, or in part as loops",
                   settings.bodies, {"calls", "loops"});
    options.flag("plan", "have the memory planned at compile time, too", settings.plans);
    options.text("include", "DIRECTORY",
                 "compare with the headers of another commit, where its gpipe/gpipe.hpp is",
                 settings.include);
    options.text("options", "WORDS", "further options of the compilers", settings.options);
    options.text("keep", "DIRECTORY", "write the sources there and keep them", settings.keep);
    options.flag("json", "one JSON object per line", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    try {
        if (layers.empty()) layers = settings.include.empty() ? "16,64,256,1024" : "256";
        settings.layers = numbers("--layers", layers, {}, 1'000'000);
        settings.compilers = words("--compilers", compilers, {"g++", "clang++", "nvcc"});
        for (std::size_t count : settings.layers)
            if (count < settings.cells)
                throw support::UsageError("--layers takes numbers of at least --cells");
        if (!settings.include.empty() &&
            !std::filesystem::exists(settings.include + "/gpipe/gpipe.hpp"))
            throw support::UsageError("there is no gpipe/gpipe.hpp in '" + settings.include + "'");
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    }

    bool const keeps = !settings.keep.empty();
    std::filesystem::path directory = settings.keep;
    if (keeps) {
        std::error_code error;
        std::filesystem::create_directories(directory, error);
        if (error) return options.refuse("cannot make the directory '" + settings.keep + "'");
    } else {
        std::string name = (std::filesystem::temp_directory_path() / "gpipe-XXXXXX").string();
        if (!mkdtemp(name.data())) return options.refuse("cannot make a temporary directory");
        directory = name;
    }
    bool good = true;
    bool any = false;
    Summary summary("compile_time", settings.json);
    for (std::string const& name : settings.compilers) try {
            auto const compiler = find_compiler(name);
            if (!compiler) {
                std::fprintf(stderr, "compile_time: no %s here\n", name.c_str());
                continue;
            }
            any = true;
            Bench bench(settings, *compiler, directory);
            good = (settings.include.empty() ? bench.run(summary) : bench.run_against(summary)) &&
                   good;
        } catch (std::exception const& error) {
            std::fprintf(stderr, "compile_time: %s\n", error.what());
            good = false;
        }
    if (!keeps) std::filesystem::remove_all(directory);
    if (any && good) summary.print();
    return any && good ? 0 : 1;
}
