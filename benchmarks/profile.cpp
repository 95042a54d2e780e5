// What a profile is worth: steps of train_gpt's network cut by what its layers take here, beside
// steps of it cut by what they declare, in turns. And what it takes to make one.
#include "support/list.hpp"
#include "support/quiet.hpp"
#include "support/record.hpp"
#include "support/summary.hpp"
#include "support/tokens.hpp"

#include "gpt/host_operations.hpp"
#include "gpt/model.hpp"
#include "gpt/processor.hpp"

#include <gpipe/gpipe.hpp>
#include <gpipe/profile.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace benchmark;

using Model = gpt::Standard;
using Train = gpipe::Training<Model::Net, gpipe::Cells<gpipe::dynamic>,
                              gpipe::MicroBatches<gpipe::dynamic>, gpipe::Loss<Model::Loss>,
                              gpipe::Optimizer<gpipe::AdamW>, gpipe::checkpoint::Never>;

constexpr std::uint32_t classes = 65; // of the characters in English prose

struct Settings {
    std::size_t samples = 32;
    std::size_t steps = 4;
    std::size_t rounds = 20;
    bool json = false;
};

std::string sizes_of(gpipe::Array<std::size_t> const& first) {
    std::string text;
    for (std::size_t c = 0; c + 1 < first.size(); ++c) {
        if (c > 0) text += ',';
        text += std::to_string(first[c + 1] - first[c]);
    }
    return text;
}

void compare(Settings const& settings, std::size_t cells, std::size_t micro_batches,
             Summary& summary) {
    auto const net = Model::net(classes);
    double const began = seconds();
    gpipe::Profile const profile = gpipe::profile(
        net, {.samples = (settings.samples + micro_batches - 1) / micro_batches, .seed = 1});
    double const taken = seconds() - began;
    Train::Options options{.samples = settings.samples, .seed = 1, .cells = cells};
    options.micro_batches = micro_batches;
    Train declared(net, Model::loss(classes), gpipe::AdamW{1e-4f}, options);
    options.balance = gpipe::balance::by_time(profile, cells);
    Train profiled(net, Model::loss(classes), gpipe::AdamW{1e-4f}, options);

    auto const inputs = random_tokens(settings.samples * Model::context, classes);
    auto const targets = random_tokens(settings.samples * Model::context, classes);
    std::vector<double> times[2];
    for (std::size_t round = 0; round <= settings.rounds; ++round) // the first for caches
        for (std::size_t turn = 0; turn < 2; ++turn) {
            bool const ours = (round + turn) % 2 == 0;
            wait_until_quiet();
            double const begin = seconds();
            for (std::size_t i = 0; i < settings.steps; ++i)
                (ours ? profiled : declared).step(inputs, targets);
            double const each = (seconds() - begin) / static_cast<double>(settings.steps);
            if (round > 0) times[ours].push_back(each);
        }
    std::string const own = sizes_of(profiled.plan().first);
    std::string const theirs = sizes_of(declared.plan().first);
    double const ratio = median(times[1]) / median(times[0]);
    summary.add("step by profile / by declared costs", ratio);
    if (settings.json) {
        Record record("profile");
        record.add("K", cells).add("M", micro_batches).add("L", Model::Net::size);
        record.add("N", settings.samples).add("threads", profiled.lanes());
        record.add("cells", own).add("declared_cells", theirs).add("profile_seconds", taken);
        record.compare("seconds per step", times[1], "cut by declared costs", times[0]);
        return record.print();
    }
    std::vector<double> const each = ratios(times[1], times[0]);
    std::printf("%zu  %3zu  %8.2f  %8.2f  %.3f (%.3f-%.3f)  %-14s %-14s %8.1f\n", cells,
                micro_batches, 1e3 * median(times[1]), 1e3 * median(times[0]), ratio,
                quantile(each, 0.25), quantile(each, 0.75), own.c_str(), theirs.c_str(),
                1e3 * taken);
    std::fflush(stdout);
}

} // namespace

int main(int argc, char** argv) {
    Settings settings;
    std::string cells = "2", micro_batches = "8,32";
    support::Options options("profile",
                             "Steps of train_gpt's network cut by a profile of its layers, beside "
                             "steps cut by\nwhat they declare.");
    options.text("cells", "K,...", "numbers of cells", cells);
    options.text("micro-batches", "M,...", "numbers of micro-batches", micro_batches);
    options.number("samples", "N, samples in a mini-batch", settings.samples, 1, 1024);
    options.number("steps", "steps of each system in each round", settings.steps, 1, 1000);
    options.number("rounds", "interleaved rounds", settings.rounds, 1, 100'000);
    options.flag("json", "one JSON object per line", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    if (auto const* what = gpt::missing_instructions())
        return options.refuse(std::string("this processor has no ") + what +
                              ", which the program was compiled for: build it again here");
    try {
        auto const ks = numbers("--cells", cells, {}, Model::Net::size);
        auto const ms = numbers("--micro-batches", micro_batches, {}, 1024);
        if (!settings.json)
            std::printf("N = %zu; ms per step, medians of %zu rounds; the ratio's quartiles; the "
                        "layers of each cell;\nms that the profile took\n"
                        "K    M  profiled  declared  ratio                profiled       declared "
                        "       profile\n",
                        settings.samples, settings.rounds);
        Summary summary("profile", settings.json);
        for (std::size_t const k : ks)
            for (std::size_t const m : ms) compare(settings, k, m, summary);
        summary.print();
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    }
}
