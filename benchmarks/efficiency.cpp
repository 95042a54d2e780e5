// How much faster two cells train than one, for the network of train_gpt: beside what the program
// allows with the durations of its actions, and what two independent trainings at once get out of
// this machine, whose cores share caches, memory and power. With --beside, how long both take while
// other processes want all cores but one, beside what a fair share allows.
#include "support/list.hpp"
#include "support/quiet.hpp"
#include "support/record.hpp"
#include "support/spinning_process.hpp"
#include "support/summary.hpp"

#include "gpt/host_operations.hpp"
#include "gpt/model.hpp"
#include "gpt/processor.hpp"

#include <gpipe/gpipe.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace benchmark;

using Model = gpt::Standard;
using Train =
    gpipe::Training<Model::Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<Model::Loss>, gpipe::Optimizer<gpipe::AdamW>,
                    gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic>;

struct Settings {
    gpipe::schedule::Dynamic schedule;
    std::vector<std::size_t> micro_batches;
    std::vector<std::string> checkpointing;
    std::size_t samples = 32;
    std::size_t steps = 2;
    std::size_t rounds = 15;
    double dropout = 0;
    bool beside = false;
    bool json = false;
};

gpipe::checkpoint::Dynamic policy(std::string const& name) {
    if (name == "never") return gpipe::checkpoint::Never{};
    if (name == "always") return gpipe::checkpoint::Always{};
    return gpipe::checkpoint::ExceptLast{};
}

constexpr std::size_t classes = 65; // of the characters in English prose

// The durations of a training's actions, by cell and kind.
class Durations {
  public:
    explicit Durations(std::size_t cells) : of_(cells * kinds) {}
    void add(Train const& train) {
        for (gpipe::ActionTime const& time : train.times())
            if (time.ran) of_[place(time.action)].push_back(time.end - time.start);
    }
    double operator()(gpipe::Action const& action) const { return median(of_[place(action)]); }

  private:
    static constexpr std::size_t kinds = 16;
    static std::size_t place(gpipe::Action const& action) {
        return action.cell * kinds + static_cast<std::size_t>(action.kind);
    }
    std::vector<std::vector<double>> of_;
};

// How many micro-batches each cell recomputes.
std::string recomputed(gpipe::Programs const& programs) {
    std::string text;
    for (std::size_t c = 0; c < programs.cells(); ++c) {
        std::size_t count = 0;
        for (std::size_t i = 0; i < programs.size(); ++i)
            count += programs[i].cell == c && programs[i].kind == gpipe::Kind::recompute;
        text += (c > 0 ? "," : "") + std::to_string(count);
    }
    return text;
}

class Comparison {
  public:
    Comparison(Settings const& settings, std::size_t micro_batches,
               std::string const& checkpointing)
        : settings_(settings), micro_batches_(micro_batches), checkpointing_(checkpointing),
          inputs_(settings.samples * Model::context), targets_(inputs_.size()), one_(make(1, 0)),
          other_(make(1, 0)), two_(make(2, 0)), slow_(make(2, 1)) {
        for (std::size_t i = 0; i < inputs_.size(); ++i) {
            inputs_[i] = static_cast<std::int32_t>(i * i % 61 * 7 % classes);
            targets_[i] = static_cast<std::int32_t>((i + 1) * (i + 1) % 61 * 7 % classes);
        }
        one_timed_ = make(1, 0);
        durations_of_one_ = Durations(one_->programs().cells());
        durations_of_two_ = Durations(two_->programs().cells());
        one_timed_->time_actions();
        slow_->time_actions();
    }

    void run(Summary& summary) {
        std::vector<std::function<void()>> turns{[&] { alone_.push_back(seconds_for(*one_)); },
                                                 [&] { both_.push_back(seconds_for(*two_)); },
                                                 [&] { at_once(); }, [&] { time_actions(); }};
        if (settings_.beside)
            turns.emplace_back([&] {
                std::deque<SpinningProcess> others; // one less than there are cores
                while (others.size() + 1 < std::thread::hardware_concurrency())
                    others.emplace_back();
                beside_.push_back(seconds_for(*two_));
            });
        for (auto const& turn : turns) turn(); // caches, and what libraries set up once
        alone_.clear(), both_.clear(), machine_.clear(), beside_.clear();
        for (std::size_t round = 0; round < settings_.rounds; ++round)
            for (std::size_t i = 0; i < turns.size(); ++i) {
                wait_until_quiet();
                turns[round % 2 == 0 ? i : turns.size() - 1 - i]();
            }
        report(summary);
    }

  private:
    std::unique_ptr<Train> make(std::size_t cells, std::size_t threads) const {
        return std::make_unique<Train>(Model::net(classes, static_cast<float>(settings_.dropout)),
                                       Model::loss(classes), gpipe::AdamW{1e-4f},
                                       Train::Options{.samples = settings_.samples,
                                                      .seed = 1,
                                                      .cells = cells,
                                                      .micro_batches = micro_batches_,
                                                      .schedule = settings_.schedule,
                                                      .checkpointing = policy(checkpointing_),
                                                      .device = {.threads = threads}});
    }
    double seconds_for(Train& train) const {
        double const begin = seconds();
        for (std::size_t i = 0; i < settings_.steps; ++i) train.step(inputs_, targets_);
        return seconds() - begin;
    }
    // Two trainings of one cell at once. How often that trains, as a multiple of the last time
    // alone, is found in report().
    void at_once() {
        std::barrier start(2);
        double taken[2];
        std::thread second([&] {
            start.arrive_and_wait();
            taken[1] = seconds_for(*other_);
        });
        start.arrive_and_wait();
        taken[0] = seconds_for(*one_);
        second.join();
        machine_.push_back(2 / (1 / taken[0] + 1 / taken[1]));
    }
    // One step of each program on one thread, where nothing else disturbs an action.
    void time_actions() {
        one_timed_->step(inputs_, targets_);
        durations_of_one_.add(*one_timed_);
        slow_->step(inputs_, targets_);
        durations_of_two_.add(*slow_);
    }

    void report(Summary& summary) const {
        auto const alone = gpipe::simulate<double>(one_->programs(), durations_of_one_);
        auto const both = gpipe::simulate<double>(two_->programs(), durations_of_two_);
        double const bound = alone.makespan / both.makespan;
        std::vector<double> const speed_up = ratios(alone_, both_);
        std::vector<double> machine = ratios(alone_, machine_);
        for (double& value : machine) value *= 2;
        std::vector<double> goal = machine;
        for (double& value : goal) value *= bound / 2;
        summary.add("speed-up / goal", median(speed_up) / median(goal));
        // One more wants to run than there are cores.
        double const cores = std::thread::hardware_concurrency();
        std::vector<double> shares = ratios(beside_, both_);
        for (double& share : shares) share *= cores / (cores + 1);
        if (settings_.beside)
            summary.add("two cells beside other processes / fair share", median(shares), 1.15);

        if (settings_.json) {
            Record record("efficiency");
            record.add("K", 2).add("M", micro_batches_).add("L", Model::Net::size);
            record.add("N", settings_.samples).add("checkpointing", checkpointing_);
            // Rows of earlier commits have none.
            if (settings_.schedule.name() != gpipe::schedule::GPipe::name)
                record.add("schedule", settings_.schedule.name());
            record.add("recomputes_per_cell", recomputed(two_->programs()));
            record.add("recomputes_of_one_cell", recomputed(one_->programs()));
            record.add("threads", two_->lanes());
            record.add("bound", bound).add("machine", median(machine));
            record.add("step_seconds_one", median(alone_) / double(settings_.steps));
            record.add("step_seconds_two", median(both_) / double(settings_.steps));
            if (settings_.beside) record.add("fair_share_beside", median(shares));
            record.compare("speed-up of K = 2 over K = 1", speed_up, "machine", goal);
            record.print();
            return;
        }
        std::vector<double> const each = ratios(speed_up, goal);
        std::printf("%3zu  %-12s %7.1f %7.1f %8.3f %7.3f %8.3f %7.3f  %.3f (%.3f-%.3f)  %s; %s\n",
                    micro_batches_, checkpointing_.c_str(),
                    1e3 * median(alone_) / double(settings_.steps),
                    1e3 * median(both_) / double(settings_.steps), median(speed_up), bound,
                    median(machine), median(goal), median(speed_up) / median(goal),
                    quantile(each, 0.25), quantile(each, 0.75),
                    recomputed(two_->programs()).c_str(), recomputed(one_->programs()).c_str());
        std::fflush(stdout);
    }

    Settings const& settings_;
    std::size_t micro_batches_;
    std::string checkpointing_;
    std::vector<std::int32_t> inputs_;
    std::vector<std::int32_t> targets_;
    std::unique_ptr<Train> one_;
    std::unique_ptr<Train> other_;
    std::unique_ptr<Train> two_;
    std::unique_ptr<Train> slow_; // two cells on one thread
    std::unique_ptr<Train> one_timed_;
    Durations durations_of_one_{0};
    Durations durations_of_two_{0};
    // By round: seconds of the steps of one cell, of two, of one while another runs.
    std::vector<double> alone_;
    std::vector<double> both_;
    std::vector<double> machine_;
    std::vector<double> beside_; // two cells, beside another process
};

} // namespace

int main(int argc, char** argv) {
    Settings settings;
    std::string schedule(gpipe::schedule::GPipe::name);
    std::string micro_batches = "4,8,16,32";
    std::string checkpointing = "never,always,except-last";
    support::Options options(
        "efficiency", "The speed-up of two cells over one in training train_gpt's network, beside\n"
                      "bound x machine / 2: what the program allows with the durations of its "
                      "actions,\ntimes what two independent trainings at once get out of this "
                      "machine.");
    options.name("schedule", "of one cell and of two", gpipe::schedule::schedules(), schedule);
    options.text("micro-batches", "M,...", "numbers of micro-batches", micro_batches);
    options.text("checkpointing", "NAME,...", "policies", checkpointing);
    options.number("samples", "N, samples in a mini-batch", settings.samples, 1, 1024);
    options.number("steps", "steps of each system in each round", settings.steps, 1, 1000);
    options.number("rounds", "interleaved rounds", settings.rounds, 1, 100'000);
    options.number("dropout", "of the network", settings.dropout, 0, 0.9);
    options.flag("beside",
                 "two cells while other processes want all cores but one, too / what a fair\n"
                 "share allows (goal: at most 1.15)",
                 settings.beside);
    options.flag("json", "one JSON object per line", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    if (auto const* what = gpt::missing_instructions())
        return options.refuse(std::string("this processor has no ") + what +
                              ", which the program was compiled for: build it again here");
    if (std::thread::hardware_concurrency() < 2)
        return options.refuse("there is one core only: nothing to compare");
    try {
        settings.micro_batches = numbers("--micro-batches", micro_batches, {}, 1024);
        settings.checkpointing =
            words("--checkpointing", checkpointing, {"never", "always", "except-last"});
        settings.schedule = gpipe::schedule::find_schedule(schedule);
        std::size_t const least = settings.schedule.least_micro_batches(2);
        if (std::ranges::min(settings.micro_batches) < least)
            throw support::UsageError(schedule + " needs at least " + std::to_string(least) +
                                      " micro-batches for two devices");
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    }
    std::fprintf(stderr, "%s\n", gpt::kernels().c_str());
    if (!settings.json)
        std::printf("%s, N = %zu; ms per step of one cell and of two; medians of %zu rounds; the "
                    "ratio's quartiles;\nmicro-batches recomputed by each of two cells; by one\n"
                    "  M  checkpointing     one     two speed-up   bound  machine    goal  "
                    "speed-up / goal      recomputed\n",
                    schedule.c_str(), settings.samples, settings.rounds);
    Summary summary("efficiency", settings.json);
    for (std::string const& name : settings.checkpointing)
        for (std::size_t m : settings.micro_batches) Comparison(settings, m, name).run(summary);
    summary.print();
}
