// Draws and measures every schedule of the library for so many devices and micro-batches, by
// simulation: which would keep devices busy, and how much memory it would take.
//
//   schedules --cells 4 --micro-batches 8
//   schedules --cells 8 --micro-batches 32 --latency 0.25 --svg schedules.svg
//
// Nothing is trained here: programs are values, and so are the times that simulate() gives them.

#include "support/json.hpp"
#include "support/options.hpp"
#include "support/output.hpp"

#include <gpipe/checkpoint/checkpointing_catalogue.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/schedule/verify.hpp>
#include <gpipe/trace/chrome.hpp>
#include <gpipe/trace/compare.hpp>
#include <gpipe/trace/svg.hpp>
#include <gpipe/trace/text.hpp>
#include <gpipe/trace/unsplit.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Settings {
    std::uint64_t cells = 4;
    std::uint64_t micro_batches = 8;
    std::uint64_t per_device = 2;
    double forward = 1;
    double recompute = 1;
    double input_gradient = 1;
    double weight_gradient = 1;
    double latency = 0;
    double bytes = 1;
    double bandwidth = 0;
    std::string checkpointing = "never";
    std::string schedule = "all";
    std::string svg;
    std::string trace;
    std::uint64_t width = 120;
    bool text = false;
    bool json = false;

    void declare(support::Options& options) {
        options.number("cells", "devices, each with a cell or, under some schedules, several",
                       cells, 1, 64);
        options.number("micro-batches", "that the mini-batch is split into", micro_batches, 1,
                       1024);
        options.number("per-device", "cells of a device under the schedules in loops", per_device,
                       1, gpipe::schedule::most_cells_per_device);
        options.number("forward", "time of one micro-batch in one cell", forward, 0, 1e6);
        options.number("recompute", "of a forward again", recompute, 0, 1e6);
        options.number("input-gradient", "of the first half of a backward", input_gradient, 0, 1e6);
        options.number("weight-gradient", "of the second half", weight_gradient, 0, 1e6);
        options.number("latency", "of what an action sends to another device", latency, 0, 1e6);
        options.number("bytes", "that an action sends to another device", bytes, 0, 1e15);
        options.number("bandwidth",
                       "bytes per unit of time, each way between two devices; 0: no limit",
                       bandwidth, 0, 1e15);
        options.name("checkpointing",
                     "recompute activations in backward, by a policy that looks at no layers",
                     gpipe::checkpoint::policies(), checkpointing);
        options.name("schedule", "this one only", gpipe::schedule::schedules(), schedule, "all");
        options.text("svg", "FILE", "write a figure of them all", svg);
        options.text("trace", "FILE", "write them for the viewers of Perfetto and Chrome", trace);
        options.number("width", "of the pictures in text, in characters", width, 40, 10'000);
        options.flag("text",
                     "draw them in text although there are more than 64 micro-batches on "
                     "all devices, or with --json",
                     text);
        options.flag("json", "print one JSON object per schedule, and all else on stderr", json);
    }

    // A whole backward takes as long as both halves.
    gpipe::CellCosts<double> costs() const {
        gpipe::CellCosts<double> costs{forward, recompute, input_gradient, weight_gradient};
        costs.output_bytes = costs.gradient_bytes = bytes;
        return costs;
    }
    double available_bandwidth() const {
        return bandwidth > 0 ? bandwidth : gpipe::unlimited<double>;
    }
    gpipe::checkpoint::Dynamic pass() const {
        auto const pass = gpipe::checkpoint::find_checkpointing(checkpointing);
        if (pass.reverses())
            throw support::UsageError("--checkpointing takes never, except-last or always, not '" +
                                      checkpointing +
                                      "', which looks at layers: there are none here");
        return pass;
    }
};

// One schedule, timed.
struct Result {
    std::string name;
    std::size_t per_device = 1;
    gpipe::Timeline timeline; // in units of one cell's costs
    std::vector<std::size_t> peak;
};

Result simulated(gpipe::schedule::Dynamic const& schedule, Settings const& settings) {
    gpipe::Programs const programs =
        settings.pass().lower(schedule.programs(settings.cells, settings.micro_batches));
    if (auto const verdict = gpipe::verify(programs); !verdict)
        throw std::runtime_error(std::string(schedule.name()) + ": " +
                                 std::string(sentence(verdict.problem)));
    Result result{std::string(schedule.name()), schedule.cells_per_device(), {}, {}};
    std::string title = result.name;
    if (result.per_device > 1)
        title += ", " + std::to_string(result.per_device) + " cells on a device";
    auto const times = gpipe::simulate<double>(programs, settings.costs(), settings.latency,
                                               settings.available_bandwidth());
    result.timeline = gpipe::timeline(programs, times, title);
    for (std::size_t d = 0; d < programs.devices(); ++d)
        result.peak.push_back(gpipe::peak_micro_batches(programs, d));
    return result;
}

// The schedules that were asked for and are defined here; of the others a line on stderr.
std::vector<Result> simulate_all(Settings const& settings) {
    std::vector<Result> results;
    auto all = gpipe::schedule::catalogue(settings.per_device);
    bool const one = settings.schedule != "all";
    if (one) all = {1, gpipe::schedule::find_schedule(settings.schedule, settings.per_device)};
    for (auto const& schedule : all) {
        std::string const name(schedule.name());
        std::size_t const least = schedule.least_micro_batches(settings.cells);
        if (settings.micro_batches >= least)
            results.push_back(simulated(schedule, settings));
        else if (one)
            throw support::UsageError(name + " needs at least " + std::to_string(least) +
                                      " micro-batches for --cells " +
                                      std::to_string(settings.cells));
        else
            std::fprintf(stderr, "%s is left out: it needs at least %zu micro-batches\n",
                         name.c_str(), least);
    }
    return results;
}

void draw(std::FILE* out, std::vector<Result> const& results, Settings const& settings) {
    gpipe::trace::TextOptions options;
    options.width = settings.width;
    // Of the GPipe paper (Huang et al., 2019).
    gpipe::Timeline figures[] = {gpipe::trace::unsplit(settings.cells, settings.micro_batches,
                                                       settings.costs(), settings.latency,
                                                       settings.available_bandwidth()),
                                 simulated(gpipe::schedule::GPipe{}, settings).timeline};
    figures[0].title("Figure 2b, the mini-batch not split");
    figures[1].title("Figure 2c, GPipe");
    std::fprintf(out, "%s\n", gpipe::trace::text(figures, options).c_str());
    for (Result const& result : results)
        if (result.name != gpipe::schedule::GPipe::name)
            std::fprintf(out, "%s\n", gpipe::trace::text(result.timeline, options).c_str());
}

void print_table(std::FILE* out, std::vector<Result> const& results) {
    std::fprintf(out, "%-28s %10s %10s %8s   %s\n", "schedule", "per device", "makespan", "bubble",
                 "peak of each device");
    for (Result const& result : results) {
        std::fprintf(out, "%-28s %10zu %10.6g %6.1f %%  ", result.name.c_str(), result.per_device,
                     result.timeline.makespan(), 100 * result.timeline.bubble());
        for (std::size_t const peak : result.peak) std::fprintf(out, " %zu", peak);
        std::fputc('\n', out);
    }
    std::fprintf(out, "makespan in units of the costs of one cell; peak: activations held, each of "
                      "one cell and micro-batch\n");
}

// What is whole is written as a whole number.
void add(support::JsonObject& object, std::string_view name, double value) {
    if (value == std::floor(value) && value < 1e15)
        object.add(name, static_cast<std::int64_t>(value));
    else
        object.add(name, value);
}

void print_json(Result const& result, Settings const& settings) {
    support::JsonObject object;
    object.add("schedule", result.name)
        .add("cells", settings.cells)
        .add("micro_batches", settings.micro_batches)
        .add("per_device", result.per_device);
    add(object, "makespan", result.timeline.makespan());
    add(object, "bubble", result.timeline.bubble());
    object.add("peak", result.peak);
    std::printf("%s\n", object.text().c_str());
}

// All in one unit, the costs of a device's whole share of the chain, be it one cell or several.
std::vector<gpipe::Timeline> comparable(std::vector<Result> const& results) {
    std::vector<gpipe::Timeline> timelines;
    for (Result const& result : results)
        timelines.push_back(
            gpipe::trace::scaled(result.timeline, 1.0 / static_cast<double>(result.per_device)));
    return timelines;
}

void run(Settings const& settings) {
    if (settings.trace.ends_with(".svg"))
        throw support::UsageError("--trace is for viewers: a figure is written by --svg FILE");
    if (settings.bandwidth > 0 && settings.bytes > 1e6 * settings.bandwidth)
        throw support::UsageError("--bytes over --bandwidth, the time of a transfer, is from 0 to "
                                  "1e+06");
    std::vector<Result> const results = simulate_all(settings);
    std::FILE* const prose = settings.json ? stderr : stdout;
    bool const few = settings.cells * settings.micro_batches <= 64;
    if (settings.text || (few && !settings.json)) draw(prose, results, settings);
    if (!settings.json) print_table(prose, results);
    if (settings.json)
        for (Result const& result : results) print_json(result, settings);
    if (!settings.svg.empty())
        support::write_file(
            settings.svg,
            gpipe::trace::svg(comparable(results),
                              {.axis = "time, in costs of a device's share of the chain"}));
    if (!settings.trace.empty())
        support::write_file(settings.trace, gpipe::trace::chrome(comparable(results), 1000));
}

} // namespace

int main(int count, char** arguments) {
    Settings settings;
    support::Options options("schedules", "Draws and measures schedules by simulation.");
    settings.declare(options);
    if (auto const status = options.parse(count, arguments)) return *status;
    try {
        run(settings);
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    } catch (std::exception const& error) {
        std::fprintf(stderr, "schedules: %s\n", error.what());
        return 1;
    }
}
