// Tables 1 and 2 of the GPipe paper (Huang et al., 2019) for its Transformer, by the library's own
// memory planner and simulator, beside the published figures.
//
//   paper_tables
//   paper_tables --table 1 --micro-batches 32 --activation-bytes 4
//
// Nothing is trained here: the chain is made of values (support/transformer.hpp).

#include "support/json.hpp"
#include "support/options.hpp"
#include "support/transformer.hpp"

#include <gpipe/balance/partition.hpp>
#include <gpipe/checkpoint/reversed_costs.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/optimizer/rmsprop.hpp>
#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

struct Settings {
    std::string table = "all";
    std::uint64_t samples = 32;
    std::uint64_t micro_batches = 8;
    std::uint64_t activation_bytes = 2;
    double budget = 16;
    bool json = false;

    void declare(support::Options& options) {
        options.choice("table", "1: the largest Transformers, 2: throughput", table,
                       {"1", "2", "all"});
        options.number("samples", "of 1,024 tokens in a mini-batch of table 1", samples, 1, 1024);
        options.number("micro-batches", "that it is split into, where it is", micro_batches, 1,
                       1024);
        options.number("activation-bytes", "of a number that is kept for backward",
                       activation_bytes, 1, 8);
        options.number("budget", "GiB of each device", budget, 0.001, 1000);
        options.flag("json", "print one JSON object per cell of the tables", json);
    }
    support::TransformerShape shape() const {
        support::TransformerShape shape;
        shape.activation_bytes = activation_bytes;
        return shape;
    }
    std::size_t micro_batches_of(bool naive) const {
        return naive ? 1 : std::min(micro_batches, samples);
    }
    std::size_t budget_bytes() const {
        return static_cast<std::size_t>(budget * 1024 * 1024 * 1024);
    }
};

// A column of table 1 as it was published; recalled, with "G" as 2^30 bytes.
struct Published {
    char const* name;
    std::size_t devices;
    bool naive; // no micro-batches, nothing computed again
    std::size_t layers;
    double parameters; // millions
    double parameter_memory;
    double activation_memory;
};
constexpr Published table1[] = {{"naive-1", 1, true, 3, 282.2, 3.15, 11.7},
                                {"pipeline-1", 1, false, 13, 785.8, 8.8, 6.4},
                                {"pipeline-8", 8, false, 103, 5300, 59.5, 50.9},
                                {"pipeline-32", 32, false, 415, 21000, 235.1, 199.9},
                                {"pipeline-128", 128, false, 1663, 83900, 937.9, 796.1}};

// What the devices of a setting need for so many layers.
struct Needs {
    std::size_t parameters = 0; // bytes of them and of RMSProp's states, on all devices
    std::size_t gradients = 0;  // likewise
    std::size_t activations = 0;
    std::size_t largest = 0; // of a device, with gradients
    std::size_t largest_without = 0;
};

Needs plan(Settings const& settings, Published const& setting, std::size_t layers, bool gradients,
           gpipe::Tightness tightness = gpipe::Tightness::full) {
    support::TransformerChain const chain(settings.shape(), layers);
    std::size_t const m = settings.micro_batches_of(setting.naive);
    std::size_t const capacity = (settings.samples + m - 1) / m;
    // Cut for equal memory: what a layer takes always and for one micro-batch.
    std::vector<double> bytes;
    std::size_t const copies = 1 + gpipe::RMSProp::states + gradients;
    for (gpipe::LayerInfo const& layer : chain.layers())
        bytes.push_back(static_cast<double>(copies * layer.parameters.slots(1) +
                                            layer.saved.slots(capacity) +
                                            layer.output.slots(capacity)));
    gpipe::Array<std::size_t> first(setting.devices + 1);
    gpipe::cut_by_bottleneck(bytes.data(), bytes.size(), setting.devices, first.data());
    gpipe::Programs const schedule = gpipe::schedule::GPipe::programs(setting.devices, m);
    gpipe::MemoryPlan const plan = gpipe::plan_bytes(
        {chain.shape(),
         first,
         gpipe::RMSProp::states,
         capacity,
         {},
         gpipe::Array<gpipe::Link>(setting.devices, gpipe::Link::copied),
         tightness},
        setting.naive ? schedule : gpipe::checkpoint::ExceptLast::lower(schedule));
    Needs needs;
    for (gpipe::DeviceBytes const& device : plan.devices) {
        needs.parameters += device.parameters + device.optimizer;
        needs.gradients += device.gradients;
        needs.activations += device.boundary + device.activations;
        needs.largest = std::max(needs.largest, device.total());
        needs.largest_without = std::max(needs.largest_without, device.total() - device.gradients);
    }
    return needs;
}

// The most layers with which no device needs more than the budget. Never less than one per device.
std::size_t most_layers(Settings const& settings, Published const& setting, bool gradients) {
    using gpipe::Tightness;
    auto const fits = [&](std::size_t layers, Tightness tightness) {
        Needs const needs = plan(settings, setting, layers, gradients, tightness);
        return (gradients ? needs.largest : needs.largest_without) <= settings.budget_bytes();
    };
    std::size_t low = setting.devices;
    if (!fits(low, Tightness::full)) return 0;
    // A quick plan has no fewer bytes: what fits by it, fits.
    for (Tightness const tightness : {Tightness::quick, Tightness::full}) {
        std::size_t step = tightness == Tightness::quick ? low : 1;
        for (; fits(low + step, tightness); step *= 2) low += step;
        for (std::size_t high = low + step; low + 1 < high;) {
            std::size_t const middle = (low + high) / 2;
            (fits(middle, tightness) ? low : high) = middle;
        }
    }
    return low;
}

double gib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

void print_table1(Settings const& settings) {
    if (!settings.json)
        std::printf(
            "Table 1: the largest Transformer, %g GiB per device, %llu samples of 1,024 "
            "tokens, RMSProp\n"
            "              layers that fit              with as many layers as published, "
            "in parentheses the paper\n"
            "              planned  no gradients  paper      parameters, M    their memory, "
            "GiB   activations, GiB  device, GiB\n",
            settings.budget, static_cast<unsigned long long>(settings.samples));
    support::TransformerShape const shape = settings.shape();
    for (Published const& setting : table1) {
        std::size_t const layers = most_layers(settings, setting, true);
        std::size_t const without = most_layers(settings, setting, false);
        Needs const needs = plan(settings, setting, setting.layers, true);
        if (settings.json) {
            support::JsonObject object;
            object.add("table", 1)
                .add("setting", setting.name)
                .add("devices", setting.devices)
                .add("micro_batches", settings.micro_batches_of(setting.naive))
                .add("activation_bytes", settings.activation_bytes)
                .add("layers", layers)
                .add("layers_without_gradients", without)
                .add("published_layers", setting.layers)
                .add("parameters", shape.parameters(setting.layers))
                .add("published_parameters", 1e6 * setting.parameters)
                .add("parameter_gib", gib(needs.parameters))
                .add("published_parameter_gib", setting.parameter_memory)
                .add("gradient_gib", gib(needs.gradients))
                .add("activation_gib", gib(needs.activations))
                .add("published_activation_gib", setting.activation_memory)
                .add("largest_device_gib", gib(needs.largest));
            std::printf("%s\n", object.text().c_str());
            continue;
        }
        std::printf("%-13s %7zu  %12zu  %5zu  %8.1f (%7.1f)  %8.2f (%6.2f)  %8.2f (%5.1f)  %9.2f\n",
                    setting.name, layers, without, setting.layers,
                    1e-6 * static_cast<double>(shape.parameters(setting.layers)),
                    setting.parameters, gib(needs.parameters), setting.parameter_memory,
                    gib(needs.activations), setting.activation_memory, gib(needs.largest));
    }
}

void explain_table1(Settings const& settings) {
    if (settings.json) return;
    std::printf(
        "paper: its figures as recalled, with 2^30 bytes as a G. The two memories of naive-1 are "
        "in "
        "the order in which\n"
        "  12 bytes per parameter make the first.\n"
        "parameters: 12 width^2, biases and norms in a layer; an embedding and a softmax of 32,000 "
        "words. Their memory\n"
        "  is 12 bytes each: the parameter and the two states of RMSProp.\n"
        "planned: with 4 bytes more per parameter, the gradient that micro-batches add to. The "
        "published memories of\n"
        "  pipeline-8 and larger leave 2.2 to 2.5 GiB of each device; gradients take as much. With "
        "them those settings\n"
        "  come within a layer; for naive-1 and pipeline-1 the published memories leave no room "
        "for gradients.\n"
        "activations: of each token and layer, in %llu bytes, the input, queries, keys and values, "
        "the attention matrices\n"
        "  of 32 heads, what they give, the sum before the second half, the hidden layer; norms "
        "are computed again.\n"
        "  Of the softmax the logits. No dropout. For the whole mini-batch in naive-1, else for "
        "one "
        "of %llu micro-batches,\n"
        "  and beside that the inputs of cells.\n"
        "  The paper says neither what was kept nor how many micro-batches there were. But in 4 "
        "bytes the matrices of\n"
        "  three layers take 12 GiB in naive-1, more than all that is published; and the published "
        "activations of\n"
        "  pipeline-1 are 1/7.9 of naive-1's in each layer: so 2 bytes and 8 micro-batches. What "
        "is missing to the\n"
        "  published sums, 11 to 14 %% but for naive-1, is what else was kept there: norms, masks "
        "and padding may be.\n",
        static_cast<unsigned long long>(settings.activation_bytes),
        static_cast<unsigned long long>(settings.micro_batches));
}

constexpr std::size_t cells2[] = {2, 4, 8};
struct Row {
    std::size_t micro_batches;
    double published[3];
};
constexpr Row table2[] = {{1, {1, 1.07, 1.3}}, {4, {1.7, 3.2, 4.8}}, {32, {1.8, 3.4, 6.3}}};

// Mini-batches per unit of time: 48 equal layers, a backward twice a forward, a mini-batch always
// as large, everything or nothing computed again.
double throughput(std::size_t devices, std::size_t micro_batches, bool recomputes) {
    constexpr std::size_t layers = 48;
    support::TransformerChain const chain(support::TransformerShape{}, layers - 2);
    gpipe::Array<std::size_t> first(devices + 1);
    for (std::size_t c = 0; c <= devices; ++c) first[c] = c * layers / devices;
    double const forward = 1 / static_cast<double>(micro_batches);
    gpipe::LayerTimes const times{gpipe::Array<double>(layers, forward),
                                  gpipe::Array<double>(layers, 2 * forward)};
    gpipe::Programs const schedule = gpipe::schedule::GPipe::programs(devices, micro_batches);
    auto const costs =
        gpipe::reversed_costs(times, {chain.layers().data(), layers, first.data()}, {});
    return 1 / gpipe::simulate<double>(
                   recomputes ? gpipe::checkpoint::Always::lower(schedule) : schedule, costs)
                   .makespan;
}

void print_table2(Settings const& settings) {
    if (!settings.json)
        std::printf("Table 2: throughput of Transformer-48 by simulation, over that of 2 devices "
                    "and one micro-batch; in parentheses as published\n"
                    "                    K = 2         K = 4         K = 8\n");
    double const base = throughput(2, 1, true);
    for (Row const& row : table2) {
        if (!settings.json) std::printf("M = %-4zu", row.micro_batches);
        for (std::size_t k = 0; k < 3; ++k) {
            double const ours = throughput(cells2[k], row.micro_batches, true) / base;
            double const most = throughput(cells2[k], row.micro_batches, false) / base;
            if (settings.json)
                std::printf("%s\n", support::JsonObject()
                                        .add("table", 2)
                                        .add("devices", cells2[k])
                                        .add("micro_batches", row.micro_batches)
                                        .add("throughput", ours)
                                        .add("published", row.published[k])
                                        .add("without_recompute", most)
                                        .text()
                                        .c_str());
            else
                std::printf("   %5.2f (%4.2f)%s", ours, row.published[k],
                            row.published[k] > most ? "*" : " ");
        }
        if (!settings.json) std::printf("\n");
    }
    if (settings.json) return;
    std::printf(
        "equal layers, a backward twice a forward, no time for tensors on their way; everything is "
        "computed again,\n"
        "  in front of the wait for the gradient. So throughput is K M / (4 M + 3 K - 3), here "
        "over 2 / 7.\n"
        "*: more than filling and draining leave to a mini-batch of that size, even if nothing "
        "were "
        "computed again:\n"
        "  3.5 K M / (3 (M + K - 1)). There the paper changed the mini-batch, to what fits into "
        "memory.\n");
}

} // namespace

int main(int count, char** arguments) {
    Settings settings;
    support::Options options("paper_tables", "Tables 1 and 2 of the GPipe paper for its "
                                             "Transformer, planned and simulated.");
    settings.declare(options);
    if (auto const status = options.parse(count, arguments)) return *status;
    try {
        if (settings.table != "2") print_table1(settings);
        if (settings.table != "2") explain_table1(settings);
        if (settings.table == "all" && !settings.json) std::printf("\n");
        if (settings.table != "1") print_table2(settings);
    } catch (std::exception const& error) {
        std::fprintf(stderr, "paper_tables: %s\n", error.what());
        return 1;
    }
}
