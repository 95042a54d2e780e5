// Whether the memory plan is true (bytes planned against bytes used), tight (against the least that
// could do) and what the GPipe paper promises (against its formula), for the network of train_gpt;
// and whether it is true for that with skips and ties.
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
#include <gpipe/schedule/schedule_catalogue.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace benchmark;

using Model = gpt::Standard;
using Embedding = gpt::Embedding<float, Model::vocabulary, Model::context, Model::width>;
using Attention = gpt::Attention<float, Model::context, Model::width, Model::heads>;
using Mlp = gpt::Mlp<float, Model::context, Model::width>;
using Head = gpt::Head<float, Model::context, Model::width, Model::vocabulary>;
using Plain =
    gpipe::Pipeline<UsesAll<Embedding>,
                    gpipe::Repeat<Model::blocks, UsesAll<Attention>, UsesAll<Mlp>>, UsesAll<Head>>;

// The same with a skip around each block but one, and one around these; one table for both ends.
template <class Tag>
using Skip = gpipe::Skip<Tag, gpipe::Tensor<float, Model::context, Model::width>>;
// Of a layer whose backward comes in halves only.
template <class Layer, class Tag> struct Gives : Layer {
    using Stash = Skip<Tag>;
    void forward(auto& context, auto x, auto y) const {
        Layer::forward(context, x, y);
        std::copy(x.begin(), x.end(), gpipe::stash<Tag>(context).begin());
    }
    void input_gradient(auto& context, auto x, auto dy, auto dx) const {
        Layer::input_gradient(context, x, dy, dx);
        auto const skip = gpipe::stash_gradient<Tag>(context);
        for (std::size_t i = 0; i < dx.size(); ++i) dx.data()[i] += skip.data()[i];
    }
};
// Of one that comes whole, too.
template <class Layer, class Tag> struct Takes : Layer {
    using Pop = Skip<Tag>;
    static constexpr bool backward_reads_pops = false;
    void forward(auto& context, auto x, auto y) const {
        Layer::forward(context, x, y);
        auto const skip = gpipe::pop<Tag>(context);
        for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] += skip.data()[i];
    }
    void input_gradient(auto& context, auto x, auto dy, auto dx) const {
        Layer::input_gradient(context, x, dy, dx);
        std::copy(dy.begin(), dy.end(), gpipe::pop_gradient<Tag>(context).begin());
    }
    void backward(auto& context, auto x, auto dy, auto dx) const {
        Layer::backward(context, x, dy, dx);
        std::copy(dy.begin(), dy.end(), gpipe::pop_gradient<Tag>(context).begin());
    }
};
struct Block;
struct All;
using Linked = gpipe::Pipeline<
    UsesAll<gpt::WithTable<Embedding, 0>>, Gives<UsesAll<Attention>, All>,
    gpipe::Repeat<Model::blocks - 1, Gives<UsesAll<Attention>, Block>, Takes<UsesAll<Mlp>, Block>>,
    Takes<UsesAll<Mlp>, All>, UsesAll<gpt::WithTable<Head, 2>>>;
static_assert(Linked::size == Plain::size && Linked::skips.size() == Model::blocks);

template <class Net>
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
    auto const layers = Plain::layers();
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
    std::size_t slack = gpipe::no_wait;
    bool json = false;
};

template <class Net>
void measure(Settings const& settings, gpipe::schedule::Dynamic const& schedule, std::size_t cells,
             std::size_t micro_batches, std::string const& checkpointing, Summary& summary) {
    if (cells * schedule.cells_per_device() > Plain::size ||
        micro_batches < schedule.least_micro_batches(cells))
        return;
    std::vector<std::int32_t> inputs(settings.samples * Model::context);
    std::vector<std::int32_t> targets(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        inputs[i] = static_cast<std::int32_t>(i * 7 % Model::vocabulary);
        targets[i] = static_cast<std::int32_t>(i * 11 % Model::vocabulary);
    }
    std::size_t const allocated_before = arena_bytes;
    constexpr bool links = Net::skips.size() > 0;
    auto const options = [&](std::size_t slack) {
        return typename Train<Net>::Options{.samples = settings.samples,
                                            .seed = 1,
                                            .cells = cells,
                                            .micro_batches = micro_batches,
                                            .slack = slack,
                                            .schedule = schedule,
                                            .checkpointing = policy(checkpointing)};
    };
    Train<Net> train{{}, {}, {}, options(settings.slack)};
    std::size_t const allocated = arena_bytes - allocated_before;
    train.step(inputs, targets); // what the layers' own library sets up at its first call
    poison_arenas(train, Plain::size);
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
        result.add("network", links ? "with skips and ties" : "plain");
        if (settings.slack == gpipe::chosen_slack)
            result.add("slack", "chosen");
        else if (settings.slack != gpipe::no_wait)
            result.add("slack", settings.slack);
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
        if (!links) least_high = std::max(least_high, double(planned) / double(bound));
        if (!settings.json) continue;
        Record of_use = record();
        of_use.add("device", d).compare("bytes", double(planned), "used", double(used));
        of_use.add("allocations_in_step", allocations_in_step);
        of_use.print();
        if (links) continue; // the bound knows no skips
        Record of_bound = record();
        of_bound.add("device", d).compare("bytes", double(planned), "lower_bound", double(bound));
        of_bound.print();
    }
    double const paper = formula(cells, micro_batches, settings.samples, checkpointing != "never");
    summary.add(links ? "planned / used, with skips and ties" : "planned / used", used_low);
    summary.add(links ? "planned / used, with skips and ties" : "planned / used", used_high);
    summary.add("planned / allocated", double(train.planned_bytes()) / double(allocated));
    if (settings.slack != gpipe::no_wait) {
        Train<Net> const without{{}, {}, {}, options(gpipe::no_wait)};
        summary.add("planned / nobody waiting for room",
                    double(train.planned_bytes()) / double(without.planned_bytes()));
    }
    if (!links) {
        summary.add(schedule.cells_per_device() == 1 ? "planned / live, one cell per device"
                                                     : "planned / live, two cells per device",
                    least_high, settings.slack == 0 ? 1.05 : 1.10);
        summary.add("activations / the paper's formula", double(activations) / paper);
    }
    summary.add("allocations in a step", double(allocations_in_step));
    if (settings.json) {
        Record whole = record();
        whole.compare("bytes", double(train.planned_bytes()), "allocated", double(allocated));
        whole.print();
        if (links) return;
        Record beside = record();
        beside.compare("bytes of activations", double(activations), "formula", paper);
        beside.print();
        return;
    }
    std::printf("%-27s %zu %2zu %4zu  %-12s %9.3f %9.4f-%.4f %10.4f",
                std::string(schedule.name()).c_str(), schedule.cells_per_device(), cells,
                micro_batches, checkpointing.c_str(), double(largest) / (1 << 20), used_low,
                used_high, double(train.planned_bytes()) / double(allocated));
    if (links)
        std::printf("   with skips and ties %26zu\n", allocations_in_step);
    else
        std::printf(" %14.4f %10.3f %8.2f %6zu\n", least_high, double(activations) / (1 << 20),
                    double(activations) / paper, allocations_in_step);
    std::fflush(stdout);
}

} // namespace

int main(int argc, char** argv) {
    Settings settings;
    std::string schedules = "all";
    std::string cells = "1,2,4,8";
    std::string micro_batches = "1,4,8,32";
    std::string checkpointing = "never,always,except-last";
    std::string slack = "none";
    support::Options options(
        "memory", "Planned bytes per device of train_gpt's network, beside what a step uses, the "
                  "least\nthat it could do with, and the GPipe paper's formula.");
    options.names("schedule", "schedules, or all that there are", gpipe::schedule::schedules(),
                  schedules, "all");
    options.text("cells", "K,...", "numbers of devices", cells);
    options.text("micro-batches", "M,...", "numbers of micro-batches", micro_batches);
    options.text("checkpointing", "NAME,...", "policies", checkpointing);
    options.number("samples", "N, samples in a mini-batch", settings.samples, 1, 1024);
    options.text("slack", "UNITS",
                 "how late others may be before somebody waits for room: 0, 1, 4 forwards; chosen: "
                 "by the library; none: nobody waits",
                 slack);
    options.flag("json", "one JSON object per line", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    try {
        if (schedules == "all")
            for (auto const& each : gpipe::schedule::catalogue(2))
                settings.schedules.push_back(each);
        else
            for (std::string const& name : split(schedules))
                settings.schedules.push_back(gpipe::schedule::find_schedule(name));
        settings.cells = numbers("--cells", cells, {}, Plain::size);
        settings.micro_batches = numbers("--micro-batches", micro_batches, {}, 1024);
        settings.checkpointing =
            words("--checkpointing", checkpointing, {"never", "always", "except-last"});
        if (slack == "chosen")
            settings.slack = gpipe::chosen_slack;
        else if (slack != "none")
            settings.slack = numbers("--slack", slack, {0, 1, 4}).back();
    } catch (support::UsageError const& error) {
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
                    for (bool const links : {false, true})
                        (links ? measure<Linked> : measure<Plain>)(settings, schedule, k, m,
                                                                   policy_name, summary);
    summary.print();
}
