// What schedules take: a step on two threads, with layers that take a known time, beside what the
// simulation of its programs says; steps with immediate updates, beside the simulation of their
// endless repetition; and bubbles by simulation for up to 1,024 devices, beside that of 1F1B.
#include "support/list.hpp"
#include "support/quiet.hpp"
#include "support/record.hpp"
#include "support/statistics.hpp"
#include "support/summary.hpp"

#include <gpipe/gpipe.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace benchmark;

/// Takes `seconds` for each of forward, input gradient and weight gradient.
struct Spin {
    using Input = gpipe::Tensor<float, 4>;
    using Output = Input;
    using Parameters = gpipe::Tensor<float, 4>;
    using Deferred = gpipe::Tensor<float, 1>; // so that the lowest layer's is called, too
    static constexpr bool accepts_none = true;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    double seconds = 0;

    void initialize(auto&) const {}
    void spin() const {
        for (double const end = benchmark::seconds() + seconds; benchmark::seconds() < end;) {
        }
    }
    void forward(auto&, auto x, auto y) const {
        spin();
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = x.data()[i];
    }
    void input_gradient(auto&, auto dy, auto dx) const {
        spin();
        if constexpr (!gpipe::is_none<decltype(dx)>)
            for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = dy.data()[i];
    }
    void weight_gradient(auto& ctx, auto dy) const {
        spin();
        for (std::size_t s = 0; s < dy.samples(); ++s)
            for (std::size_t i = 0; i < 4; ++i) ctx.gradients()(i) += dy(s, i);
    }
};
struct Half {
    using Target = gpipe::Tensor<float, 4>;
    gpipe::LossValue<> operator()(auto&, auto y, auto, auto dy) const {
        if constexpr (!gpipe::is_none<decltype(dy)>)
            for (std::size_t i = 0; i < y.size(); ++i) dy.data()[i] = y.data()[i];
        return {0, static_cast<double>(y.samples())};
    }
};

constexpr std::size_t layers = 12;
constexpr std::size_t devices = 2;
using Net = gpipe::Pipeline<gpipe::Repeat<layers, Spin>>;
template <class Update>
using Train = gpipe::Training<Net, gpipe::Cells<devices>, gpipe::MicroBatches<gpipe::dynamic>,
                              gpipe::Loss<Half>, gpipe::schedule::Dynamic,
                              gpipe::checkpoint::Dynamic, Update>;

struct Settings {
    std::vector<std::size_t> micro_batches;
    std::vector<std::size_t> micros;
    std::uint64_t rounds = 11;
    std::uint64_t steps = 8;
    std::uint64_t most_cells = 1024;
    bool json = false;
};

template <class Update> class Runner {
  public:
    Runner(gpipe::schedule::Dynamic schedule, std::size_t micro_batches, double cost)
        : schedule_(schedule), cost_(cost), data_(4 * micro_batches),
          train_(std::make_unique<Train<Update>>(
              Net{gpipe::Repeat<layers, Spin>{Spin{cost}}}, Half{}, gpipe::SGD{},
              typename Train<Update>::Options{.samples = micro_batches,
                                              .micro_batches = micro_batches,
                                              .schedule = schedule,
                                              .checkpointing = gpipe::checkpoint::Never{},
                                              .device = {.threads = devices}})) {}

    gpipe::schedule::Dynamic const& schedule() const { return schedule_; }
    double makespan() const { return simulated(train_->programs()); }
    /// What a step takes where the next begins on a device as soon as that is done with this one.
    double period() const {
        constexpr std::size_t repetitions = 9;
        return (simulated(repeated(train_->programs(), repetitions)) - makespan()) /
               (repetitions - 1);
    }
    double step() {
        double const begin = seconds();
        train_->step(data_, data_);
        return seconds() - begin;
    }
    /// Mean over steps of which two are under way, without the first and the last.
    double steps(std::size_t count) {
        auto before = train_->start(data_, data_);
        double const begin = seconds();
        for (std::size_t n = 0; n < count; ++n) {
            auto next = train_->start(data_, data_);
            before.result();
            before = std::move(next);
        }
        double const end = seconds();
        before.result();
        return (end - begin) / static_cast<double>(count);
    }

  private:
    double simulated(gpipe::Programs const& programs) const {
        double const cell = cost_ * static_cast<double>(layers / train_->cells());
        return gpipe::simulate<double>(programs,
                                       [&](gpipe::Action const& action) {
                                           return action.kind == gpipe::Kind::backward ? 2 * cell
                                                                                       : cell;
                                       })
            .makespan;
    }
    static gpipe::Programs repeated(gpipe::Programs const& programs, std::size_t times) {
        gpipe::Programs result(programs.devices(), programs.cells(),
                               times * programs.micro_batches(), times * programs.size());
        for (std::size_t c = 0; c < programs.cells(); ++c) result.place(c, programs.device_of(c));
        for (std::size_t d = 0; d < programs.devices(); ++d) {
            for (std::size_t n = 0; n < times; ++n)
                for (gpipe::Action action : programs.program(d)) {
                    action.micro_batch += static_cast<std::uint32_t>(n * programs.micro_batches());
                    result.add(action);
                }
            result.next_device();
        }
        return result;
    }

    gpipe::schedule::Dynamic schedule_;
    double cost_;
    std::vector<float> data_;
    std::unique_ptr<Train<Update>> train_;
};

/// Every schedule of the library with at most two cells per device, or three in loops.
std::vector<gpipe::schedule::Dynamic> schedules(std::size_t cells, std::size_t micro_batches) {
    std::vector<gpipe::schedule::Dynamic> result;
    std::size_t const others = gpipe::schedule::catalogue(0).size();
    for (std::size_t v : {0, 2, 3}) {
        auto const catalogue = gpipe::schedule::catalogue(v);
        for (std::size_t s = v == 0 ? 0 : others; s < catalogue.size(); ++s)
            if (micro_batches >= catalogue[s].least_micro_batches(cells))
                result.push_back(catalogue[s]);
    }
    return result;
}

Record record(gpipe::schedule::Dynamic const& schedule, std::size_t cells,
              std::size_t micro_batches) {
    Record result("schedules");
    result.add("schedule", schedule.name()).add("K", cells).add("M", micro_batches);
    result.add("per_device", schedule.cells_per_device());
    return result;
}

template <class Update, class Measure, class Simulate>
void measure(Settings const& settings, std::size_t micro_batches, std::size_t micros,
             std::string const& updates, Summary& summary, Measure measure_one,
             Simulate simulate_one) {
    std::vector<Runner<Update>> runners;
    for (auto const& schedule : schedules(devices, micro_batches))
        runners.emplace_back(schedule, micro_batches, 1e-6 * static_cast<double>(micros));
    std::vector<std::vector<double>> taken(runners.size());
    for (auto& runner : runners) measure_one(runner); // threads start, pages are touched
    for (std::size_t round = 0; round < settings.rounds; ++round)
        for (std::size_t i = 0; i < runners.size(); ++i) {
            wait_until_quiet();
            taken[i].push_back(measure_one(runners[i]));
        }
    for (std::size_t i = 0; i < runners.size(); ++i) {
        double const simulated = simulate_one(runners[i]);
        double const ours = median(taken[i]);
        summary.add("step / simulated", ours / simulated);
        auto const& schedule = runners[i].schedule();
        if (settings.json) {
            Record result = record(schedule, devices, micro_batches);
            result.add("updates", updates).add("layer_us", micros).add("L", layers);
            result.compare("s per step", taken[i], "simulated",
                           std::vector<double>(taken[i].size(), simulated));
            result.print();
        } else {
            std::printf("%-27s %zu %4zu %6zu  %-12s %10.3f %10.3f %8.4f\n",
                        std::string(schedule.name()).c_str(), schedule.cells_per_device(),
                        micro_batches, micros, updates.c_str(), 1e3 * ours, 1e3 * simulated,
                        ours / simulated);
            std::fflush(stdout);
        }
    }
}

void compare_with_simulation(Settings const& settings, Summary& summary) {
    if (!settings.json)
        std::printf("a step on %zu threads, %zu layers, medians of %zu rounds\n"
                    "schedule                    v    M  layer  updates        ms per step  "
                    "simulated  / simulated\n",
                    devices, layers, static_cast<std::size_t>(settings.rounds));
    for (std::size_t micro_batches : settings.micro_batches)
        for (std::size_t micros : settings.micros) {
            measure<gpipe::update::AfterCommit>(
                settings, micro_batches, micros, "after commit", summary,
                [](auto& runner) { return runner.step(); },
                [](auto& runner) { return runner.makespan(); });
            measure<gpipe::update::Immediate>(
                settings, micro_batches, micros, "immediate", summary,
                [&](auto& runner) { return runner.steps(settings.steps); },
                [](auto& runner) { return runner.period(); });
        }
}

void bubbles(Settings const& settings) {
    if (!settings.json)
        std::printf("\nbubbles at unit costs, M = 2 K, by simulation; against that of 1F1B\n"
                    "schedule                    v     K     M     bubble    / 1F1B\n");
    for (std::size_t cells = 2; cells <= settings.most_cells; cells *= 2) {
        std::size_t const micro_batches = 2 * cells;
        double const other = static_cast<double>(
            gpipe::bubble(gpipe::schedule::OneForwardOneBackward::programs(cells, micro_batches)));
        for (auto const& schedule : schedules(cells, micro_batches)) {
            double const ours =
                static_cast<double>(gpipe::bubble(schedule.programs(cells, micro_batches)));
            if (settings.json)
                record(schedule, cells, micro_batches)
                    .compare("bubble", ours, "OneForwardOneBackward", other)
                    .print();
            else
                std::printf("%-27s %zu %5zu %5zu %10.5f %9.4f\n",
                            std::string(schedule.name()).c_str(), schedule.cells_per_device(),
                            cells, micro_batches, ours, ours / other);
        }
    }
}

// What it is worth that cells which run again keep their backward's halves apart.
void compare_joined(Summary& summary) {
    auto const makespan = [](gpipe::Programs const& programs) {
        return gpipe::simulate<double>(
                   programs, [](gpipe::Action const& a) { return double(gpipe::unit_cost(a)); })
            .makespan;
    };
    for (auto const& schedule : schedules(8, 32)) {
        gpipe::Programs const apart = gpipe::checkpoint::Always::lower(schedule.programs(8, 32));
        auto const joined = gpipe::join_halves(apart, gpipe::Array<bool>(apart.cells()));
        if (joined.size() < apart.size())
            summary.add(std::string(schedule.name()) + ", always, K = 8, M = 32: joined / halves",
                        makespan(joined) / makespan(apart));
    }
}

} // namespace

int main(int argc, char** argv) {
    Settings settings;
    std::string micro_batches = "4,8";
    std::string micros = "50,150,500";
    support::Options options(
        "schedules", "Steps of every schedule on two threads, with layers that take a known time,\n"
                     "beside what simulation says; and bubbles by simulation.");
    options.text("micro-batches", "M,...", "numbers of micro-batches", micro_batches);
    options.text("layer-us", "N,...", "microseconds for each function of a layer", micros);
    options.number("rounds", "of each measurement", settings.rounds, 1, 1000);
    options.number("steps", "in a measurement of immediate updates", settings.steps, 1, 1000);
    options.number("most-cells", "largest K of the bubbles; 1: none", settings.most_cells, 1, 1024);
    options.flag("json", "one JSON object per line", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    try {
        settings.micro_batches = numbers("--micro-batches", micro_batches, {}, 256);
        settings.micros = numbers("--layer-us", micros, {}, 100000);
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    }
    Summary summary("schedules", settings.json);
    compare_with_simulation(settings, summary);
    bubbles(settings);
    if (settings.most_cells >= 8) compare_joined(summary);
    summary.print();
}
