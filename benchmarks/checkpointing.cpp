// What checkpointing inside of cells costs, for the network of train_gpt: the time of a step over
// the bytes of the largest device, measured and predicted, for every policy; beside Never, beside
// segments by hand, and for each policy beside Optimal within the same bytes.
#include "support/by_hand.hpp"
#include "support/call_clock.hpp"
#include "support/counting_allocator.hpp"
#include "support/list.hpp"
#include "support/poison.hpp"
#include "support/quiet.hpp"
#include "support/record.hpp"
#include "support/summary.hpp"
#include "support/uses_all.hpp"

#include "gpt/host_operations.hpp"
#include "gpt/model.hpp"
#include "gpt/processor.hpp"

#include <gpipe/checkpoint/checkpointing_catalogue.hpp>
#include <gpipe/gpipe.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace {

using namespace benchmark;

using Model = gpt::Standard;
template <class Net>
using TrainOf = gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>,
                                gpipe::MicroBatches<gpipe::dynamic>, gpipe::Loss<Model::Loss>,
                                gpipe::Optimizer<gpipe::AdamW>, gpipe::checkpoint::Dynamic>;
using Train = TrainOf<Model::Net>;
// The same, with layers that write all the room they are given.
using Filling = gpipe::Pipeline<
    UsesAll<gpt::Embedding<float, Model::vocabulary, Model::context, Model::width>>,
    gpipe::Repeat<Model::blocks,
                  UsesAll<gpt::Attention<float, Model::context, Model::width, Model::heads>>,
                  UsesAll<gpt::Mlp<float, Model::context, Model::width>>>,
    UsesAll<gpt::Head<float, Model::context, Model::width, Model::vocabulary>>>;
using Hand = SegmentsByHand<Model::Net, Model::Loss, gpipe::AdamW, gpipe::device::Host::Stream>;

struct Settings {
    std::vector<std::size_t> cells;
    std::vector<std::string> policies;
    std::size_t micro_batches = 8;
    std::size_t samples = 32;
    std::size_t rounds = 15;
    bool optimal = true;
    bool json = false;
};

struct Data {
    std::vector<std::int32_t> inputs, targets;

    explicit Data(std::size_t samples) : inputs(samples * Model::context), targets(inputs.size()) {
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            inputs[i] = static_cast<std::int32_t>(i * i % 61 * 7 % Model::vocabulary);
            targets[i] = static_cast<std::int32_t>((i + 1) * (i + 1) % 61 * 7 % Model::vocabulary);
        }
    }
};

template <class Net>
std::unique_ptr<TrainOf<Net>> make(Settings const& settings, std::size_t cells,
                                   gpipe::checkpoint::Dynamic const& policy) {
    return std::make_unique<TrainOf<Net>>(
        Net{}, Model::loss(), gpipe::AdamW{1e-4f},
        typename TrainOf<Net>::Options{.samples = settings.samples,
                                       .seed = 1,
                                       .cells = cells,
                                       .micro_batches = settings.micro_batches,
                                       .checkpointing = policy,
                                       .device = {.threads = cells}});
}

// Whether the bytes planned are those allocated and those that a step uses, on every device.
bool planned_is_used(Settings const& settings, std::size_t cells,
                     gpipe::checkpoint::Dynamic const& policy, Data const& data) {
    std::size_t const before = arena_bytes;
    auto const train = make<Filling>(settings, cells, policy);
    std::size_t const allocated = arena_bytes - before;
    train->step(data.inputs, data.targets); // what the layers' own library sets up at first
    poison_arenas(*train, Filling::size);
    train->step(data.inputs, data.targets);
    // Threads have some of their own.
    bool equal = allocated >= train->planned_bytes() && allocated < train->planned_bytes() + 4096;
    for (std::size_t d = 0; d < cells; ++d)
        equal = equal && overwritten(train->arena(d)) == train->plan().devices[d].total();
    return equal;
}

std::size_t largest_device(gpipe::MemoryPlan const& plan) {
    std::size_t most = 0;
    for (gpipe::DeviceBytes const& device : plan.devices) most = std::max(most, device.total());
    return most;
}

// One policy.
struct Runner {
    std::string name;
    std::unique_ptr<Train> train;
    std::size_t bytes; // of the largest device
    bool used;         // and all that is planned is what a step uses
    std::unique_ptr<Hand> hand{};
    std::vector<double> taken{}, by_hand{}, predicted{}; // by round
    std::vector<double> by_layer{}; // predicted with one time per layer, wherever tensors are
    std::vector<double> pace{};     // what one micro-batch took by hand right before

    // Rounds are long: what did not run side by side is compared by the machine's pace at its time.
    std::vector<double> paced(std::vector<double> const& times) const {
        return ratios(times, pace);
    }
    double step(Data const& data) const {
        double const begin = seconds();
        train->step(data.inputs, data.targets);
        return seconds() - begin;
    }
};

class Comparison {
  public:
    Comparison(Settings const& settings, std::size_t cells)
        : settings_(settings), cells_(cells), data_(settings.samples),
          clock_(cells,
                 [&](std::size_t length, ByHand keeps) { return make_hand(length, keeps); }) {
        add("never", gpipe::checkpoint::Never{});
        for (std::string const& name : settings.policies)
            if (name != "never") add(name, gpipe::checkpoint::find_checkpointing(name));
        if (settings.optimal) add_optimal();
    }

    // False if something is not as it should be.
    bool run(Summary& summary) {
        bool const same = losses_are_the_same();
        for (std::size_t round = 0; round < settings_.rounds; ++round) {
            for (std::size_t i = 0; i < runners_.size(); ++i) {
                Runner& runner = runners_[round % 2 == 0 ? i : runners_.size() - 1 - i];
                predict(runner);
                wait_until_quiet();
                runner.taken.push_back(runner.step(data_));
                if (runner.hand) runner.by_hand.push_back(hand_step(*runner.hand));
            }
        }
        for (Runner const& runner : runners_) report(runner);
        summarize(summary);
        return same;
    }

  private:
    void add(std::string const& name, gpipe::checkpoint::Dynamic const& policy) {
        Runner runner{name, make<Model::Net>(settings_, cells_, policy), 0,
                      planned_is_used(settings_, cells_, policy, data_)};
        runner.bytes = largest_device(runner.train->plan());
        std::string const segments = "every-segment-";
        if (cells_ == 1 && name.find(segments) == 0) {
            std::size_t const length = std::stoul(name.substr(segments.size()));
            if (length <= Model::Net::size) runner.hand = make_hand(length);
        }
        runners_.push_back(std::move(runner));
    }
    // Within what each of the others takes, and between.
    void add_optimal() {
        std::vector<std::size_t> budgets;
        for (Runner const& runner : runners_) budgets.push_back(runner.bytes);
        std::sort(budgets.begin(), budgets.end());
        budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
        for (std::size_t const bytes : budgets) try {
                add("optimal-" + std::to_string(bytes),
                    gpipe::checkpoint::Optimal<gpipe::dynamic, gpipe::dynamic>{bytes});
            } catch (std::invalid_argument const&) { // less than it can do with
            }
    }
    std::unique_ptr<Hand> make_hand(std::size_t length, ByHand keeps = ByHand::segments) const {
        return std::make_unique<Hand>(Model::Net{}, Model::loss(), gpipe::AdamW{1e-4f},
                                      settings_.samples, settings_.micro_batches, length, keeps);
    }
    double hand_step(Hand& hand) const {
        double const begin = seconds();
        hand.step(data_.inputs, data_.targets);
        return seconds() - begin;
    }

    // Two steps of everything: threads start, pages are touched, and all must learn the same.
    bool losses_are_the_same() {
        bool same = true;
        auto const hand = make_hand(Model::Net::size);
        auto const keeping = make_hand(Model::Net::size, ByHand::everything);
        for (std::size_t n = 0; n < 2; ++n) {
            double const loss = hand->step(data_.inputs, data_.targets);
            same = same && keeping->step(data_.inputs, data_.targets) == loss;
            for (Runner& runner : runners_) {
                same = same && double(runner.train->step(data_.inputs, data_.targets)) == loss;
                if (runner.hand)
                    same = same && runner.hand->step(data_.inputs, data_.targets) == loss;
            }
        }
        if (!same) std::fprintf(stderr, "checkpointing: the losses differ\n");
        return same;
    }

    // What a runner's next step should take: every call what it takes in loops by hand, which run
    // right before on as many threads.
    void predict(Runner& runner) {
        CallTimes const times = clock_.measure(data_.inputs, data_.targets);
        gpipe::Programs const& programs = runner.train->programs();
        gpipe::MemoryPlan const& plan = runner.train->plan();
        double updates = 0;
        for (std::size_t c = 0; c < cells_; ++c)
            updates = std::max(updates, std::accumulate(&times.update[plan.first[c]],
                                                        &times.update[plan.first[c + 1]], 0.));
        auto const step = [&](gpipe::ChainCosts<double> const& costs) {
            return updates + gpipe::simulate<double>(programs, costs).makespan;
        };
        runner.predicted.push_back(step(costs_of(times, programs, plan)));
        gpipe::LayerTimes layers{gpipe::Array<double>(Model::Net::size),
                                 gpipe::Array<double>(Model::Net::size)};
        std::ranges::copy(times.fresh.forward, layers.forward.data());
        std::ranges::copy(times.fresh.backward, layers.backward.data());
        layers.loss = times.loss;
        runner.by_layer.push_back(step(runner.train->costs_of(layers)));
        runner.pace.push_back(sum(times.fresh.forward) + sum(times.fresh.backward));
    }

    Runner const* optimal_within(std::size_t bytes) const {
        Runner const* best = nullptr;
        for (Runner const& runner : runners_)
            if (runner.name.find("optimal-") == 0 && runner.bytes <= bytes &&
                (!best ||
                 median(runner.paced(runner.by_layer)) < median(best->paced(best->by_layer))))
                best = &runner;
        return best;
    }
    Record record(Runner const& runner) const {
        Record result("checkpointing");
        result.add("K", cells_).add("M", settings_.micro_batches).add("L", Model::Net::size);
        result.add("N", settings_.samples).add("policy", runner.name);
        result.add("bytes", runner.bytes).add("planned_is_used", runner.used);
        result.add("extra_forwards", sum(runner.train->extra_forwards()));
        return result;
    }
    // In parts of never's step, as it was measured.
    double beyond_never(Runner const& runner, std::vector<double> Runner::*times) const {
        Runner const& never = runners_[0];
        return (median(runner.paced(runner.*times)) - median(never.paced(never.*times))) /
               median(never.paced(never.taken));
    }
    // A row for each policy and budget.
    void summarize(Summary& summary) const {
        std::string const k = "K = " + std::to_string(cells_) + ", ";
        for (Runner const& runner : runners_) {
            summary.add(k + "step / predicted call by call",
                        median(ratios(runner.taken, runner.predicted)));
            summary.add(k + "step / predicted with a time per layer",
                        median(ratios(runner.taken, runner.by_layer)));
            if (sum(runner.train->extra_forwards()) > 0)
                summary.add(k + "beyond never's: off the predicted by, %",
                            1e2 * std::abs(beyond_never(runner, &Runner::taken) -
                                           beyond_never(runner, &Runner::predicted)));
            Runner const* const best = optimal_within(runner.bytes);
            if (best && runner.name.find("optimal-") != 0)
                summary.add(k + "optimal / a policy within whose bytes it is",
                            median(best->paced(best->taken)) / median(runner.paced(runner.taken)));
        }
    }
    void report(Runner const& runner) const {
        Runner const& never = runners_[0];
        double const extra = beyond_never(runner, &Runner::taken);
        double const predicted_extra = beyond_never(runner, &Runner::predicted);
        bool const runs_again = sum(runner.train->extra_forwards()) > 0;
        Runner const* const optimal = optimal_within(runner.bytes);
        if (settings_.json) {
            record(runner)
                .compare("s per step", runner.taken, "predicted", runner.predicted)
                .print();
            record(runner)
                .compare("s per step", runner.taken, "predicted by layer", runner.by_layer)
                .print();
            if (runs_again)
                record(runner)
                    .compare("never's steps beyond it", extra, "predicted", predicted_extra)
                    .print();
            record(runner).compare("s per step", runner.taken, "never", never.taken).print();
            if (optimal)
                record(runner)
                    .compare("plain micro-batches per step", optimal->paced(optimal->taken),
                             "the policy, optimal being ours", runner.paced(runner.taken))
                    .print();
            if (runner.hand) {
                record(runner)
                    .compare("s per step", runner.taken, "by hand", runner.by_hand)
                    .print();
                record(runner)
                    .compare("bytes", double(runner.bytes), "by hand", double(runner.hand->bytes()))
                    .print();
            }
            return;
        }
        std::printf("%zu  %-18s %9.3f %-4s %8.3f %8.3f %8.4f %8.4f", cells_, runner.name.c_str(),
                    double(runner.bytes) / (1 << 20), runner.used ? "used" : "not!",
                    1e3 * median(runner.taken), 1e3 * median(runner.predicted),
                    median(ratios(runner.taken, runner.predicted)),
                    median(ratios(runner.taken, runner.by_layer)));
        if (runs_again)
            std::printf(" %5.1f %9.1f", 1e2 * extra, 1e2 * predicted_extra);
        else
            std::printf(" %5s %9s", "-", "-");
        if (optimal)
            std::printf(" %8.4f %8.4f",
                        median(optimal->paced(optimal->taken)) / median(runner.paced(runner.taken)),
                        median(optimal->paced(optimal->by_layer)) /
                            median(runner.paced(runner.by_layer)));
        else
            std::printf(" %8s %8s", "-", "-");
        if (runner.hand)
            std::printf(" %8.4f %8.4f", median(ratios(runner.taken, runner.by_hand)),
                        double(runner.bytes) / double(runner.hand->bytes()));
        std::printf("\n");
        std::fflush(stdout);
    }

    Settings const& settings_;
    std::size_t cells_;
    Data data_;
    std::vector<Runner> runners_; // Never the first
    CallClock<Hand> clock_;
};

} // namespace

int main(int argc, char** argv) {
    Settings settings;
    std::string cells = "1,2";
    std::string policies = "except-last,always,every-segment-1,every-segment-2,every-segment-3,"
                           "every-segment-5,square-root,revolve-0,revolve-1,revolve-2,selective";
    std::uint64_t micro_batches = settings.micro_batches;
    std::uint64_t samples = settings.samples;
    std::uint64_t rounds = settings.rounds;
    bool without = false;
    support::Options options(
        "checkpointing",
        "Step time over bytes per device for policies that run layers again, in training\n"
        "train_gpt's network: beside the simulation, beside segments by hand, beside optimal.");
    options.text("cells", "K,...", "numbers of devices", cells);
    options.names("policies", "beside never", gpipe::checkpoint::policies(), policies);
    options.number("micro-batches", "M", micro_batches, 1, 1024);
    options.number("samples", "N, samples in a mini-batch", samples, 1, 1024);
    options.number("rounds", "interleaved rounds", rounds, 1, 100'000);
    options.flag("without-optimal", "do not add optimal within the bytes of the others", without);
    options.flag("json", "one JSON object per line", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    if (auto const* what = gpt::missing_instructions())
        return options.refuse(std::string("this processor has no ") + what +
                              ", which the program was compiled for: build it again here");
    try {
        settings.cells = numbers("--cells", cells, {}, Model::Net::size);
        settings.policies = split(policies);
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    }
    settings.micro_batches = micro_batches;
    settings.samples = samples;
    settings.rounds = rounds;
    settings.optimal = !without;
    if (!settings.json)
        std::printf("N = %zu, M = %zu; MiB planned on the largest device, and whether a step uses "
                    "just that;\nms per step, predicted call by call, their ratio, the ratio to "
                    "what one time per layer\npredicts; %% beyond never's step, predicted; optimal "
                    "within the same bytes over the\npolicy, measured and by layer; over "
                    "segments by hand: time, bytes\n"
                    "K  policy                   MiB             ms predicted    ratio by layer "
                    "extra predicted  optimal predicted  by hand    bytes\n",
                    settings.samples, settings.micro_batches);
    bool good = true;
    Summary summary("checkpointing", settings.json);
    try {
        for (std::size_t k : settings.cells) good = Comparison(settings, k).run(summary) && good;
        summary.print();
    } catch (std::exception const& error) {
        std::fprintf(stderr, "checkpointing: %s\n", error.what());
        return 1;
    }
    return good ? 0 : 1;
}
