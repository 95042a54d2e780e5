// Whether the memory plan is true (bytes planned against bytes used), tight (against the least that
// could do) and what the GPipe paper promises (against its formula), for the network of train_gpt.
#include "support/counting_allocator.hpp"
#include "support/list.hpp"
#include "support/live_bytes.hpp"
#include "support/poison.hpp"
#include "support/record.hpp"
#include "support/summary.hpp"
#include "support/uses_all.hpp"

#include "gpt/host_operations.hpp"
#include "gpt/model.hpp"

#include <gpipe/gpipe.hpp>
#include <gpipe/schedule/catalogue.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace benchmark;

using Model = gpt::Standard;
using Blocks =
    gpipe::Repeat<Model::blocks,
                  UsesAll<gpt::Attention<float, Model::context, Model::width, Model::heads>>,
                  UsesAll<gpt::Mlp<float, Model::context, Model::width>>>;
using Net =
    gpipe::Pipeline<UsesAll<gpt::Embedding<float, Model::vocabulary, Model::context, Model::width>>,
                    Blocks,
                    UsesAll<gpt::Head<float, Model::context, Model::width, Model::vocabulary>>>;
using Train =
    gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<Model::Loss>, gpipe::Optimizer<gpipe::AdamW>,
                    gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic>;

gpipe::checkpoint::Dynamic policy(std::string const& name) {
    if (name == "never") return gpipe::checkpoint::Never{};
    if (name == "always") return gpipe::checkpoint::Always{};
    return gpipe::checkpoint::ExceptLast{};
}

// O(N + L/K x N/M) with the chain's mean bytes put in: N boundary tensors, and the tensors of L/K
// layers for one micro-batch of N/M samples; without recomputation, for all of them.
double formula(std::size_t cells, std::size_t micro_batches, std::size_t samples, bool recomputes) {
    auto const layers = Net::layers();
    double boundary = 0;
    double kept = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
        auto const sum = [](gpipe::GroupSizes const& group) {
            double bytes = 0;
            for (std::size_t t = 0; t < group.count; ++t) bytes += double(group.bytes[t]);
            return bytes;
        };
        if (i > 0) boundary += sum(layers[i].input) / double(layers.size() - 1);
        kept += (sum(layers[i].output) + sum(layers[i].saved)) / double(layers.size());
    }
    double const per_cell = double(layers.size()) / double(cells) * kept;
    double const n = double(samples);
    return recomputes ? n * boundary + per_cell * n / double(micro_batches) : n * per_cell;
}

struct Settings {
    std::vector<gpipe::schedule::Dynamic> schedules;
    std::vector<std::size_t> cells;
    std::vector<std::size_t> micro_batches;
    std::vector<std::string> checkpointing;
    std::size_t samples = 32;
    bool json = false;
};

void measure(Settings const& settings, gpipe::schedule::Dynamic const& schedule, std::size_t cells,
             std::size_t micro_batches, std::string const& checkpointing, Summary& summary) {
    if (cells * schedule.cells_per_device() > Net::size ||
        micro_batches < schedule.least_micro_batches(cells))
        return;
    std::vector<std::int32_t> inputs(settings.samples * Model::context);
    std::vector<std::int32_t> targets(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        inputs[i] = static_cast<std::int32_t>(i * 7 % Model::vocabulary);
        targets[i] = static_cast<std::int32_t>(i * 11 % Model::vocabulary);
    }
    std::size_t const allocated_before = arena_bytes;
    Train train{{},
                {},
                {},
                {.samples = settings.samples,
                 .seed = 1,
                 .cells = cells,
                 .micro_batches = micro_batches,
                 .schedule = schedule,
                 .checkpointing = policy(checkpointing)}};
    std::size_t const allocated = arena_bytes - allocated_before;
    train.step(inputs, targets); // what the layers' own library sets up at its first call
    poison_arenas(train, Net::size);
    std::size_t const allocations_before = allocations;
    train.step(inputs, targets);
    std::size_t const allocations_in_step = allocations - allocations_before;

    auto const layers = Net::layers();
    gpipe::ChainShape const chain{
        layers.data(), layers.size(), gpipe::lowest_learner(layers.data(), layers.size()), {}};
    LiveBytes const least(chain, train.plan().first, train.programs(), gpipe::AdamW::states,
                          settings.samples);

    auto const record = [&] {
        Record result("memory");
        result.add("K", cells).add("M", micro_batches).add("L", layers.size());
        result.add("N", settings.samples).add("checkpointing", checkpointing);
        result.add("schedule", schedule.name()).add("per_device", schedule.cells_per_device());
        return result;
    };
    double used_low = 2;
    double used_high = 0;
    double least_high = 0;
    std::size_t largest = 0;
    std::size_t activations = 0;
    for (std::size_t d = 0; d < cells; ++d) {
        std::size_t const planned = train.plan().devices[d].total();
        std::size_t const used = overwritten(train.arena(d));
        std::size_t const bound = least.peak(d);
        largest = std::max(largest, planned);
        activations = std::max(activations, train.plan().devices[d].boundary +
                                                train.plan().devices[d].activations);
        used_low = std::min(used_low, double(planned) / double(used));
        used_high = std::max(used_high, double(planned) / double(used));
        least_high = std::max(least_high, double(planned) / double(bound));
        if (!settings.json) continue;
        Record of_use = record();
        of_use.add("device", d).compare("bytes", double(planned), "used", double(used));
        of_use.add("allocations_in_step", allocations_in_step);
        of_use.print();
        Record of_bound = record();
        of_bound.add("device", d).compare("bytes", double(planned), "lower_bound", double(bound));
        of_bound.print();
    }
    double const paper = formula(cells, micro_batches, settings.samples, checkpointing != "never");
    summary.add("planned / used", used_low);
    summary.add("planned / used", used_high);
    summary.add("planned / allocated", double(train.planned_bytes()) / double(allocated));
    summary.add(schedule.cells_per_device() == 1 ? "planned / live, one cell per device"
                                                 : "planned / live, two cells per device",
                least_high);
    summary.add("activations / the paper's formula", double(activations) / paper);
    summary.add("allocations in a step", double(allocations_in_step));
    if (settings.json) {
        Record whole = record();
        whole.compare("bytes", double(train.planned_bytes()), "allocated", double(allocated));
        whole.print();
        Record beside = record();
        beside.compare("bytes of activations", double(activations), "formula", paper);
        beside.print();
        return;
    }
    std::printf("%-27s %zu %2zu %4zu  %-12s %9.3f %9.4f-%.4f %10.4f %14.4f %10.3f %8.2f %6zu\n",
                std::string(schedule.name()).c_str(), schedule.cells_per_device(), cells,
                micro_batches, checkpointing.c_str(), double(largest) / (1 << 20), used_low,
                used_high, double(train.planned_bytes()) / double(allocated), least_high,
                double(activations) / (1 << 20), double(activations) / paper, allocations_in_step);
    std::fflush(stdout);
}

} // namespace

int main(int argc, char** argv) {
    Settings settings;
    std::string schedules = "all";
    std::string cells = "1,2,4,8";
    std::string micro_batches = "1,4,8,32";
    std::string checkpointing = "never,always,except-last";
    support::Options options(
        "memory", "Planned bytes per device of train_gpt's network, beside what a step uses, the "
                  "least\nthat it could do with, and the GPipe paper's formula.");
    options.text("schedule", "NAME,...", "schedules, or all that there are", schedules);
    options.text("cells", "K,...", "numbers of devices", cells);
    options.text("micro-batches", "M,...", "numbers of micro-batches", micro_batches);
    options.text("checkpointing", "NAME,...", "policies", checkpointing);
    options.number("samples", "N, samples in a mini-batch", settings.samples, 1, 1024);
    options.flag("json", "one JSON object per line", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    try {
        if (schedules == "all")
            for (auto const& each : gpipe::schedule::catalogue(2))
                settings.schedules.push_back(each);
        else
            for (std::string const& name : split(schedules))
                settings.schedules.push_back(gpipe::schedule::find_schedule(name));
        settings.cells = numbers("--cells", cells, {}, Net::size);
        settings.micro_batches = numbers("--micro-batches", micro_batches, {}, 1024);
        settings.checkpointing =
            words("--checkpointing", checkpointing, {"never", "always", "except-last"});
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    } catch (std::invalid_argument const& error) {
        return options.refuse(error.what());
    }
    if (!settings.json)
        std::printf("largest device in MiB; planned / used over the devices; planned / allocated; "
                    "largest planned / live;\nits activations in MiB and against the paper's "
                    "formula; allocations in a step\n"
                    "schedule                    v  K    M  checkpointing   device      / used     "
                    "   / allocated    / live  "
                    "activations / formula\n");
    Summary summary("memory", settings.json);
    for (gpipe::schedule::Dynamic const& schedule : settings.schedules)
        for (std::size_t k : settings.cells)
            for (std::size_t m : settings.micro_batches)
                for (std::string const& policy_name : settings.checkpointing)
                    measure(settings, schedule, k, m, policy_name, summary);
    summary.print();
}
