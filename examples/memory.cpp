// What checkpointing policies take, of memory and of time, by the library's planner and simulator:
// for the network of train_gpt, or for a Transformer of any size.
//
//   memory --cells 2 --micro-batches 8 --svg memory.svg
//   memory --layers 24 --width 1024 --context 1024 --heads 16 --cells 4 --budget 4GiB
//
// Nothing is trained here. Layers take the time of their declared costs at a given speed.

#include "support/json.hpp"
#include "support/options.hpp"
#include "support/output.hpp"
#include "support/trade_off.hpp"
#include "support/transformer.hpp"

#include "gpt/host_operations.hpp"
#include "gpt/model.hpp"

#include <gpipe/balance/partition.hpp>
#include <gpipe/by_name.hpp>
#include <gpipe/checkpoint/reversed_costs.hpp>
#include <gpipe/memory/offload_times.hpp>
#include <gpipe/memory/usage.hpp>
#include <gpipe/schedule/halves.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/search/fit_budget.hpp>
#include <gpipe/trace/svg.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace {

struct Settings {
    std::uint64_t layers = 0;
    std::uint64_t width = 256;
    std::uint64_t context = 128;
    std::uint64_t heads = 4;
    std::uint64_t vocabulary = 256;
    std::uint64_t activation_bytes = 4;
    std::uint64_t samples = 32;
    std::uint64_t cells = 2;
    std::uint64_t per_device = 2;
    std::uint64_t micro_batches = 8;
    std::string schedule{gpipe::schedule::GPipe::name};
    std::string optimizer = "adamw";
    std::string budget;
    std::uint64_t budgets = 12;
    double gigaflops = 50;
    double bandwidth = 10;
    std::string svg;
    bool json = false;

    void declare(support::Options& options) {
        options.number("layers", "of a Transformer; 0: the network of train_gpt", layers, 0, 4096);
        options.number("width", "of its layers, whose hidden layers are four times as wide", width,
                       1, 1u << 16);
        options.number("context", "its tokens in a sample", context, 1, 1u << 20);
        options.number("heads", "of its attention, whose matrices are kept", heads, 1, 1024);
        options.number("vocabulary", "its words", vocabulary, 1, 1u << 24);
        options.number("activation-bytes", "of a number that it keeps", activation_bytes, 1, 8);
        options.number("batch", "samples in a mini-batch", samples, 1, 1u << 20);
        options.number("cells", "devices, each with a cell or, under some schedules, several",
                       cells, 1, 256);
        options.number("micro-batches", "that the mini-batch is split into", micro_batches, 1,
                       1024);
        options.name("schedule", "what each device does, in which order",
                     gpipe::schedule::schedules(), schedule);
        options.number("per-device", "cells of a device under schedules in loops", per_device, 1,
                       gpipe::schedule::most_cells_per_device);
        options.name("optimizer", "whose state is planned", gpipe::optimizer::optimizers(),
                     optimizer);
        options.text("budget", "BYTES",
                     "of each device, KiB, MiB or GiB may follow; else halfway between the least "
                     "that does and what never takes",
                     budget);
        options.number(
            "budgets",
            "that optimal is asked for, from the least on, beside those that other policies need",
            budgets, 2, 1000);
        options.number("gflops", "speed of a device, in 10^9 operations per second", gigaflops,
                       1e-3, 1e9);
        options.number("bandwidth",
                       "between each device and the host, each way, in 10^9 bytes per second: of "
                       "what is offloaded",
                       bandwidth, 1e-3, 1e6);
        options.text("svg", "FILE", "write a figure: time over memory, and memory over time", svg);
        options.flag("json", "print one JSON object per policy", json);
    }
};

// The chain, cut and scheduled, and what its layers take.
class Problem {
  public:
    explicit Problem(Settings const& settings)
        : settings_(settings),
          states_(gpipe::optimizer::find_optimizer(settings.optimizer).chosen_states()) {
        gpipe::schedule::Dynamic const schedule =
            gpipe::schedule::find_schedule(settings.schedule, settings.per_device);
        find_chain();
        std::size_t const cells = settings.cells * schedule.cells_per_device();
        if (cells > chain_.size)
            throw support::UsageError("there are " + std::to_string(chain_.size) +
                                      " layers, not enough for " + std::to_string(cells) +
                                      " cells");
        std::size_t const least = schedule.least_micro_batches(settings.cells);
        if (settings.micro_batches < least)
            throw support::UsageError(settings.schedule + " needs at least " +
                                      std::to_string(least) + " micro-batches for --cells " +
                                      std::to_string(settings.cells));
        capacity_ = (settings.samples + settings.micro_batches - 1) / settings.micro_batches;
        times_ = {gpipe::Array<double>(chain_.size), gpipe::Array<double>(chain_.size),
                  gpipe::Array<double>(chain_.size)};
        gpipe::Array<double> costs(chain_.size);
        double const unit = static_cast<double>(capacity_) * 1e-6 / settings.gigaflops; // ms
        for (std::size_t l = 0; l < chain_.size; ++l) {
            costs[l] = chain_.layers[l].cost;
            times_.forward[l] = unit * costs[l];
            times_.backward[l] = 2 * unit * costs[l];
            if (chain_.layers[l].splits) times_.weight_gradient[l] = unit * costs[l];
        }
        first_ = gpipe::Array<std::size_t>(cells + 1);
        gpipe::cut_by_bottleneck(costs.data(), chain_.size, cells, first_.data());
        schedule_ = schedule.programs(settings.cells, settings.micro_batches);
    }

    gpipe::CutChain cut() const { return {chain_.layers, chain_.size, first_.data()}; }
    gpipe::ChainShape const& chain() const { return chain_; }
    gpipe::LayerTimes const& times() const { return times_; }
    std::size_t longest_cell() const {
        std::size_t longest = 0;
        for (std::size_t c = 0; c + 1 < first_.size(); ++c)
            longest = std::max(longest, first_[c + 1] - first_[c]);
        return longest;
    }
    gpipe::Checkpointed apply(std::string const& name) const {
        return gpipe::checkpoint::find_checkpointing(name).apply(cut(), schedule_);
    }
    gpipe::MemoryPlan plan(gpipe::Programs const& programs,
                           gpipe::Array<gpipe::Reversal> const& reversals) const {
        return gpipe::plan_memory({chain_, first_, states_, capacity_}, programs, reversals);
    }
    gpipe::BudgetSearch search() const {
        return gpipe::BudgetSearch({{chain_, first_, states_, capacity_}, schedule_});
    }

  private:
    void find_chain() {
        if (settings_.layers > 0) {
            support::TransformerShape shape{settings_.width,      4 * settings_.width,
                                            settings_.heads,      settings_.context,
                                            settings_.vocabulary, settings_.activation_bytes};
            transformer_ = std::make_unique<support::TransformerChain>(shape, settings_.layers);
            chain_ = transformer_->shape();
            return;
        }
        using Loss = gpt::Standard::Loss;
        gpt_ = gpt::Standard::Net::layers();
        chain_ = {gpt_.data(), gpt_.size(), gpipe::lowest_learner(gpt_.data(), gpt_.size()),
                  gpipe::detail::sizes_of<typename gpipe::detail::ScratchOf<Loss>::type>(),
                  gpipe::detail::handle_needs<Loss>()};
    }

    Settings const& settings_;
    std::unique_ptr<support::TransformerChain> transformer_;
    gpipe::Array<gpipe::LayerInfo> gpt_;
    gpipe::ChainShape chain_;
    gpipe::LayerTimes times_;
    gpipe::Array<std::size_t> first_;
    gpipe::Programs schedule_;
    std::size_t capacity_ = 1;
    std::size_t states_ = 0;
};

// What a policy makes of it.
struct Result {
    std::string name;
    std::string family;
    std::string number;
    std::size_t extra = 0; // forwards of a layer, on all micro-batches together
    double milliseconds = 0;
    std::size_t bytes = 0; // of the largest device, planned
    std::size_t host = 0;  // of the host's memory
    double free_from = 0;  // bandwidth from which on offloading takes no time, in 10^9 bytes/s
    std::vector<std::size_t> by_device;
    gpipe::Timeline timeline;
};

Result measured(Problem const& problem, double bandwidth, std::string const& family,
                std::string const& number, gpipe::Programs const& programs,
                gpipe::Array<gpipe::Reversal> const& reversals) {
    Result result;
    result.name = number.empty() ? family : family + "-" + number;
    result.family = family;
    result.number = number;
    gpipe::MemoryPlan const plan = problem.plan(programs, reversals);
    auto const costs = gpipe::reversed_costs(problem.times(), problem.cut(), reversals);
    double const unit = 1e6; // 10^9 bytes per second, in bytes per millisecond
    auto const times =
        gpipe::simulate<double>(plan.lowered, gpipe::OffloadCosts{plan, costs, unit * bandwidth});
    result.milliseconds = times.makespan;
    result.host = plan.host;
    result.free_from = gpipe::least_free_bandwidth(plan, costs) / unit;
    for (std::size_t const runs : gpipe::extra_forwards(programs, problem.cut(), reversals))
        result.extra += runs;
    for (gpipe::DeviceBytes const& device : plan.devices) {
        result.by_device.push_back(device.total());
        result.bytes = std::max(result.bytes, device.total());
    }
    result.timeline = gpipe::timeline(plan.lowered, times, result.name);
    result.timeline.memory(gpipe::memory_usage(plan, times));
    return result;
}

std::size_t bytes_of(std::string const& text) {
    std::size_t bytes = 0;
    if (!gpipe::read_bytes(text, bytes) || bytes == 0)
        throw support::UsageError("--budget takes a number of bytes, of KiB, MiB or GiB, not '" +
                                  text + "'");
    return bytes;
}

struct Results {
    std::vector<Result> all; // optimal where more bytes change it, then at the budget
    std::size_t budget = 0;
    std::size_t least = 0;
};

Results measure_all(Problem const& problem, Settings const& settings) {
    Results results;
    auto const add = [&](std::string const& family, std::string const& number = {}) {
        std::string const name = number.empty() ? family : family + '-' + number;
        gpipe::Checkpointed const applied = problem.apply(name);
        results.all.push_back(measured(problem, settings.bandwidth, family, number,
                                       applied.programs, applied.reversals));
    };
    std::size_t const asked = settings.budget.empty() ? 0 : bytes_of(settings.budget);
    for (char const* name : {"never", "except-last", "always"}) add(name);
    std::size_t const longest = problem.longest_cell();
    for (std::size_t n = 1; n < longest; ++n) add("every-segment", std::to_string(n));
    add("square-root");
    for (std::size_t slots = 0; slots + 1 < longest; ++slots) add("revolve", std::to_string(slots));
    auto const layers = problem.chain().layers;
    if (std::any_of(layers, layers + problem.chain().size,
                    [](gpipe::LayerInfo const& layer) { return layer.recompute_is_cheap; }))
        add("selective");
    for (char const* number : {"", "except-last"}) {
        add("offload", number);
        if (results.all.back().host == 0) results.all.pop_back(); // nothing is away long enough
    }

    gpipe::BudgetSearch search = problem.search();
    auto const add_optimal = [&](std::size_t bytes) {
        gpipe::BudgetFit const fit = search.fit(bytes);
        if (!fit.fits) return;
        Result result = measured(problem, settings.bandwidth, "optimal", std::to_string(bytes),
                                 fit.programs, fit.reversals);
        Result const& last = results.all.back();
        bool const same = last.family == result.family && last.by_device == result.by_device &&
                          last.milliseconds == result.milliseconds;
        if (!same) results.all.push_back(std::move(result));
    };
    std::size_t const never = results.all[0].bytes;
    results.least = search.fit(0).least_bytes;
    results.budget = asked > 0 ? asked : (results.least + never) / 2;
    std::size_t const span = never > results.least ? never - results.least : 0;
    std::vector<std::size_t> budgets; // those of the other policies, too
    for (std::size_t i = 0; i < settings.budgets; ++i)
        budgets.push_back(results.least + span * i / (settings.budgets - 1));
    for (Result const& result : results.all)
        if (result.host == 0) budgets.push_back(result.bytes);
    std::sort(budgets.begin(), budgets.end());
    for (std::size_t const bytes : budgets) add_optimal(bytes);
    add_optimal(results.budget);
    return results;
}

void print_table(Results const& results) {
    std::printf("%-24s %14s %12s %16s\n", "policy", "extra forwards", "ms per step",
                "largest device");
    for (Result const& result : results.all) {
        std::printf("%-24s %14zu %12.4g %12.3f MiB%s", result.name.c_str(), result.extra,
                    result.milliseconds, double(result.bytes) / (1 << 20),
                    result.bytes <= results.budget ? "  fits" : "");
        if (result.host > 0)
            std::printf("  (the host %.3f MiB; free from %.3g GB/s on)",
                        double(result.host) / (1 << 20), result.free_from);
        std::printf("\n");
    }
    std::printf("extra forwards: runs of a layer again, on all micro-batches of a step; ms: by "
                "simulation;\nfits: into %.3f MiB on every device; the least that optimal can do "
                "with is %.3f MiB\n",
                double(results.budget) / (1 << 20), double(results.least) / (1 << 20));
}

void print_json(Results const& results, Settings const& settings) {
    for (Result const& result : results.all)
        std::printf("%s\n", support::JsonObject()
                                .add("policy", result.name)
                                .add("family", result.family)
                                .add("schedule", settings.schedule)
                                .add("cells", settings.cells)
                                .add("micro_batches", settings.micro_batches)
                                .add("batch", settings.samples)
                                .add("extra_forwards", result.extra)
                                .add("step_milliseconds", result.milliseconds)
                                .add("peak_bytes", result.bytes)
                                .add("peak_by_device", result.by_device)
                                .add("host_bytes", result.host)
                                .add("budget_bytes", results.budget)
                                .add("least_bytes", results.least)
                                .add("fits", result.bytes <= results.budget)
                                .text()
                                .c_str());
}

// The trade-off, and below it how memory is used under never and the fastest policy that fits.
std::string figure(Results const& results, Settings const& settings) {
    std::vector<support::TradeOff::Point> points;
    Result const* best = nullptr;
    for (Result const& result : results.all) {
        bool const line = result.family == "optimal";
        points.push_back({result.family,
                          line                    ? ""
                          : result.number.empty() ? result.family
                                                  : result.number,
                          double(result.bytes) / (1 << 20), result.milliseconds});
        if (result.bytes <= results.budget && (!best || result.milliseconds < best->milliseconds))
            best = &result;
    }
    std::vector<gpipe::Timeline> timelines{results.all[0].timeline};
    if (best && best != results.all.data()) timelines.push_back(best->timeline);
    std::string below = gpipe::trace::svg(timelines, {.axis = "milliseconds"});
    auto const attribute = [&](char const* name) {
        std::size_t const at = below.find(name) + std::string(name).size() + 2;
        return std::stod(below.substr(at));
    };
    double const height = support::TradeOff::height + attribute("height");
    below.insert(4, " y='" + std::to_string(int(support::TradeOff::height)) + '\'');
    support::TradeOff trade(std::move(points), "optimal", double(results.budget) / (1 << 20));
    char head[320];
    std::snprintf(head, sizeof head,
                  "<svg xmlns='http://www.w3.org/2000/svg' width='%g' height='%g' viewBox='0 0 %g "
                  "%g' font-family='Helvetica, Arial, Liberation Sans, sans-serif' "
                  "font-size='11' fill='#222'>\n"
                  "<rect width='100%%' height='100%%' fill='#fff'/>\n",
                  support::TradeOff::width, height, support::TradeOff::width, height);
    return head +
           trade.draw("Checkpointing policies under " + settings.schedule + ", " +
                      std::to_string(settings.cells) + " devices, " +
                      std::to_string(settings.micro_batches) + " micro-batches") +
           below + "</svg>\n";
}

void run(Settings const& settings) {
    Problem const problem(settings);
    Results const results = measure_all(problem, settings);
    if (settings.json)
        print_json(results, settings);
    else
        print_table(results);
    if (!settings.svg.empty()) support::write_file(settings.svg, figure(results, settings));
}

} // namespace

int main(int count, char** arguments) {
    Settings settings;
    support::Options options("memory", "What checkpointing policies take, of memory and of time.");
    settings.declare(options);
    if (auto const status = options.parse(count, arguments)) return *status;
    try {
        run(settings);
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    } catch (std::exception const& error) {
        std::fprintf(stderr, "memory: %s\n", error.what());
        return 1;
    }
}
