// What the library costs per action (a forward or a backward of one cell), with layers that do next
// to nothing, beside the same work written by hand and the same work on oneTBB.
#include "support/handwritten.hpp"
#include "support/list.hpp"
#include "support/quiet.hpp"
#include "support/record.hpp"
#include "support/summary.hpp"
#if GPIPE_HAS_ONETBB
#include "support/onetbb.hpp"
#endif

#include <gpipe/gpipe.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace benchmark;

struct Settings {
    std::vector<std::size_t> cells{2, 4, 8};
    std::vector<std::size_t> micro_batches{16, 64, 256};
    std::size_t samples = 1;
    std::size_t threads = 0;
    std::size_t rounds = 21;
    double seconds = 2e-3;
    bool json = false;
};

// One way to train; `step` trains once and returns the loss.
struct System {
    std::string name;
    std::function<double()> step;
    std::vector<double> nanoseconds{}; // per action, by round
};

template <std::size_t K>
using Ours = gpipe::Training<gpipe::Pipeline<gpipe::Repeat<K, Tiny>>, gpipe::Cells<K>,
                             gpipe::MicroBatches<gpipe::dynamic>, gpipe::Loss<TinyLoss>,
                             gpipe::Optimizer<gpipe::SGD>, gpipe::checkpoint::Never>;

// Only one pool of threads is awake at a time: each system is given its turn when all are asleep,
// and has some steps to wake up before it is timed.
void time_round(std::vector<System>& systems, double seconds_per_turn, std::size_t actions) {
    for (System& system : systems) {
        if (!wait_until_quiet()) {
            std::fprintf(stderr, "overhead: a pool of threads keeps spinning while idle\n");
            std::exit(1);
        }
        std::size_t steps = 0;
        double const warm = seconds();
        while (seconds() - warm < seconds_per_turn / 4) {
            system.step();
            ++steps;
        }
        steps *= 4;
        double const begin = seconds();
        for (std::size_t i = 0; i < steps; ++i) system.step();
        double const taken = seconds() - begin;
        system.nanoseconds.push_back(taken * 1e9 / static_cast<double>(steps * actions));
    }
}

void fail(char const* what) {
    std::fprintf(stderr, "overhead: %s\n", what);
    std::exit(1);
}

template <std::size_t K, std::size_t threads>
void measure(Settings const& settings, std::size_t micro_batches, Summary& summary) {
    std::size_t const samples = settings.samples * micro_batches;
    std::vector<float> inputs(samples * Tiny::width);
    std::vector<float> targets(samples * Tiny::width);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        inputs[i] = static_cast<float>(i % 13) / 13 - 0.5f;
        targets[i] = 0.5f * inputs[i];
    }
    gpipe::SGD const optimizer{1e-3f};

    Ours<K> ours{{},
                 {},
                 optimizer,
                 {.samples = samples,
                  .micro_batches = micro_batches,
                  .device = {.threads = settings.threads}}};
    Ours<K> checked{{},
                    {},
                    optimizer,
                    {.samples = samples,
                     .micro_batches = micro_batches,
                     .finite_gradients = true,
                     .device = {.threads = settings.threads}}};
    Handwritten<K, threads> handwritten{samples, micro_batches, optimizer};
    Handwritten<K, 1> one_thread{samples, micro_batches, optimizer};
    std::vector<System> systems;
    systems.push_back({"ours", [&] { return ours.step(inputs, targets).loss; }});
    systems.push_back(
        {"handwritten", [&] { return handwritten.step(inputs.data(), targets.data()); }});
    systems.push_back({"finite", [&] { return checked.step(inputs, targets).loss; }});
    systems.push_back(
        {"one thread", [&] { return one_thread.step(inputs.data(), targets.data()); }});

#if GPIPE_HAS_ONETBB
    std::vector<std::unique_ptr<OneTbb<K>>> onetbb;
    std::vector<std::size_t> tokens{micro_batches};
    if (2 * K < micro_batches) tokens.push_back(2 * K);
    for (TbbForm form : {TbbForm::two_pipelines, TbbForm::one_pipeline})
        for (std::size_t on_their_way : tokens) {
            onetbb.push_back(std::make_unique<OneTbb<K>>(samples, micro_batches, optimizer, form,
                                                         on_their_way, threads));
            std::string const name =
                form == TbbForm::one_pipeline ? "one pipeline, " : "two pipelines, ";
            systems.push_back({name + std::to_string(on_their_way) + " tokens",
                               [&inputs, &targets, tbb = onetbb.back().get()] {
                                   return tbb->step(inputs.data(), targets.data());
                               }});
        }
#endif

    // The same work? The order in which gradients are added is the same by hand; not in one of
    // oneTBB's forms.
    for (int i = 0; i < 3; ++i) {
        double const loss = systems[0].step();
        for (System& system : systems)
            if (&system != &systems[0] && !(std::abs(system.step() - loss) <= 1e-5 * loss))
                fail("a baseline does not compute what the library computes");
    }
    for (std::size_t c = 0; c < K; ++c)
        if (std::memcmp(ours.template parameter<float>(c, 0).data(),
                        handwritten.cells().parameters(c), sizeof(float) * Tiny::width) != 0)
            fail("the handwritten baseline does not train what the library trains");

    std::size_t const actions = 2 * K * micro_batches;
    for (std::size_t round = 0; round < settings.rounds; ++round)
        time_round(systems, settings.seconds, actions);

    auto const report = [&](char const* baseline, System const& system, char const* form) {
        Record record("overhead");
        record.add("K", K).add("M", micro_batches).add("L", K);
        record.add("samples", settings.samples).add("threads", settings.threads);
        if (form) record.add("form", form);
        record.compare("ns per action", systems[0].nanoseconds, baseline, system.nanoseconds);
        if (settings.json) record.print();
    };
    report("handwritten", systems[1], nullptr);
    report("ours with finite_gradients", systems[2], nullptr);
    report("handwritten, one thread", systems[3], nullptr);
    System const* best = nullptr;
    for (std::size_t i = 4; i < systems.size(); ++i)
        if (!best || median(systems[i].nanoseconds) < median(best->nanoseconds)) best = &systems[i];
    if (best) report("onetbb", *best, best->name.c_str());
    auto const ratio = [&](System const& system) {
        return median(systems[0].nanoseconds) / median(system.nanoseconds);
    };
    // On as many lanes as ours takes for such short steps, and where others disturb least.
    auto const quiet_ratio = [&](System const& system) {
        return quantile(systems[0].nanoseconds, 0.1) / quantile(system.nanoseconds, 0.1);
    };
    summary.add("ns per action", median(systems[0].nanoseconds));
    summary.add("ours / handwritten", ratio(systems[1]));
    summary.add("ours / handwritten on one thread, 10 % quantiles", quiet_ratio(systems[3]), 1.2);
    if (best) summary.add("ours / onetbb", ratio(*best));
    summary.add("finite_gradients / without", 1 / ratio(systems[2]));
    if (settings.json) return;

    auto const spread = [&](System const& system) {
        std::vector<double> const each = ratios(systems[0].nanoseconds, system.nanoseconds);
        std::printf(" %8.1f %6.2f (%.2f-%.2f)", median(system.nanoseconds), ratio(system),
                    quantile(each, 0.25), quantile(each, 0.75));
    };
    std::printf("%2zu %4zu %8.1f", K, micro_batches, median(systems[0].nanoseconds));
    std::printf(" %8.1f %6.2f", quantile(systems[3].nanoseconds, 0.1), quiet_ratio(systems[3]));
    spread(systems[1]);
    spread(systems[2]);
    if (best) {
        spread(*best);
        std::printf("  %s", best->name.c_str());
    }
    std::printf("\n");
    std::fflush(stdout);
}

template <std::size_t K> void measure_all(Settings const& settings, Summary& summary) {
    for (std::size_t micro_batches : settings.micro_batches)
        if (settings.threads == 1)
            measure<K, 1>(settings, micro_batches, summary);
        else
            measure<K, 2>(settings, micro_batches, summary);
}

} // namespace

int main(int argc, char** argv) {
    Settings settings;
    double milliseconds = 2;
    std::string cells = "2,4,8";
    std::string micro_batches = "16,64,256";
    support::Options options("overhead",
                             "What the library costs per action: nanoseconds per forward or "
                             "backward of a cell\nwith next to nothing in it, beside a "
                             "handwritten loop and oneTBB.");
    options.text("cells", "K,...", "numbers of cells, of 2, 4, 8", cells);
    options.text("micro-batches", "M,...", "numbers of micro-batches", micro_batches);
    options.number("samples", "samples in a micro-batch", settings.samples, 1, 1024);
    options.number("threads", "of each system; 0: 2 of the others, ours as it chooses itself",
                   settings.threads, 0, 2);
    options.number("rounds", "interleaved rounds", settings.rounds, 1, 100'000);
    options.number("milliseconds", "of each system in each round", milliseconds, 0.01, 10'000);
    options.flag("json", "one JSON object per line", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    try {
        settings.cells = numbers("--cells", cells, {2, 4, 8});
        settings.micro_batches = numbers("--micro-batches", micro_batches, {}, 4096);
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    }
    settings.seconds = milliseconds * 1e-3;

    if (!settings.json)
        std::printf(
            "ns per action, medians of %zu rounds; ratio: ours / theirs (quartiles); on one "
            "thread 10 %% quantiles\n"
            " K    M     ours  by hand, one    by hand                 finite_gradients    "
            "    onetbb\n",
            settings.rounds);
    Summary summary("overhead", settings.json);
    for (std::size_t k : settings.cells) {
        if (k == 2) measure_all<2>(settings, summary);
        if (k == 4) measure_all<4>(settings, summary);
        if (k == 8) measure_all<8>(settings, summary);
    }
    summary.print();
}
