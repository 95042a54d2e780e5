// How many layers of a Transformer train within the memory of one accelerator, with all activations
// kept and with re-materialisation: the first column of the GPipe paper's table of model sizes
// (section 2.3), where one accelerator has 16 GB. Planned, then trained for a step.
#include "support/list.hpp"
#include "support/record.hpp"
#include "support/summary.hpp"
#include "support/tokens.hpp"

#include "gpt/cuda_operations.cuh"
#include "gpt/model.hpp"

#include <gpipe/gpipe.cuh>

#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace benchmark;

constexpr std::size_t batch = 32;
constexpr std::size_t most_layers = 24;

// A layer is what the paper calls one: attention and a feed-forward layer of 8,192.
template <std::size_t layers>
using Model = gpt::Model<float, 1024, 2048, 32, layers, gpt::CudaOperations, 32'000>;

// The micro-batches have one sample each: K = 1 makes no bubble, however many there are.
template <std::size_t layers, class Checkpointing>
using Train = gpipe::Training<typename Model<layers>::Net, gpipe::Cells<1>,
                              gpipe::MicroBatches<batch>, gpipe::Loss<typename Model<layers>::Loss>,
                              gpipe::Optimizer<gpipe::AdamW>, Checkpointing, gpipe::device::Cuda>;

struct Step {
    double loss = 0;
    std::size_t used_bytes = 0;
};

template <std::size_t layers, class Checkpointing> std::size_t planned() {
    return Train<layers, Checkpointing>::plan_for(1).total();
}
template <std::size_t layers, class Checkpointing> Step train(int gpu, std::size_t rounds) {
    using M = Model<layers>;
    Train<layers, Checkpointing> trained{
        M::net(), M::loss(), {}, {.samples = batch, .seed = 1, .device = {.gpus = {gpu}}}};
    auto const tokens = random_tokens(2 * batch * M::context, M::vocabulary);
    auto const half = tokens.begin() + static_cast<std::ptrdiff_t>(batch * M::context);
    std::vector<std::int32_t> const inputs(tokens.begin(), half), targets(half, tokens.end());
    double loss = 0;
    for (std::size_t i = 0; i < rounds; ++i) loss = trained.step(inputs, targets).loss;
    return {loss, trained.used_bytes()};
}

// Of one number of layers.
struct Size {
    std::size_t parameters;
    std::size_t (*planned)();
    Step (*train)(int gpu, std::size_t rounds);
};
template <class Checkpointing, std::size_t... is>
constexpr std::array<Size, sizeof...(is)> sizes(std::index_sequence<is...>) {
    return {Size{Model<is + 1>::Net::parameters(), &planned<is + 1, Checkpointing>,
                 &train<is + 1, Checkpointing>}...};
}

struct Settings {
    double budget = 16;
    std::uint64_t gpu = 0;
    std::uint64_t rounds = 1;
    bool plan = false;
    bool json = false;
};

template <class Checkpointing>
void measure(char const* name, double paper, Settings const& settings, Summary& summary) {
    auto const budget = static_cast<std::size_t>(settings.budget * 1024 * 1024 * 1024);
    constexpr auto all = sizes<Checkpointing>(std::make_index_sequence<most_layers>{});
    std::size_t layers = 0;
    while (layers < most_layers && all[layers].planned() <= budget) ++layers;
    if (layers == 0) {
        std::fprintf(stderr, "%s: not even one layer fits\n", name);
        return;
    }
    Size const& size = all[layers - 1];
    std::size_t const bytes = size.planned();
    std::size_t const one_more = layers < most_layers ? all[layers].planned() : 0;
    Step step;
    if (!settings.plan) step = size.train(static_cast<int>(settings.gpu), settings.rounds);
    summary.add(std::string("layers, ") + name, static_cast<double>(layers));
    if (!settings.plan)
        summary.add("used / planned bytes",
                    static_cast<double>(step.used_bytes) / static_cast<double>(bytes), 1.0);
    if (settings.json) {
        Record record("gpu_memory");
        record.add("K", 1).add("M", batch).add("N", batch).add("checkpointing", name);
        record.add("budget_bytes", budget).add("parameters", size.parameters);
        record.add("planned_bytes", bytes).add("one_more_layer_bytes", one_more);
        record.add("at_most", most_layers);
        if (!settings.plan) record.add("used_bytes", step.used_bytes).add("loss", step.loss);
        record.compare("layers", static_cast<double>(layers), "GPipe paper, 16 GB", paper).print();
        return;
    }
    std::printf("%-8s %6zu %7.0f %12zu %12zu %12zu", name, layers, paper, size.parameters, bytes,
                one_more);
    if (!settings.plan) std::printf(" %12zu  %.4f", step.used_bytes, step.loss);
    std::printf("\n");
    std::fflush(stdout);
}

} // namespace

int main(int argc, char** argv) {
    Settings settings;
    support::Options options(
        "gpu_memory", "The most Transformer layers (2,048 wide, 8,192 in between, 32 heads) that "
                      "train on one\nGPU within a budget: 32 samples of 1,024 tokens of 32,000, "
                      "float, AdamW, one cell.");
    options.number("budget", "GiB that the plan may take", settings.budget, 0.1, 1024);
    options.number("gpu", "its number", settings.gpu, 0, 1023);
    options.number("rounds", "steps to train", settings.rounds, 1, 1000);
    options.flag("plan", "plan only, which needs no GPU", settings.plan);
    options.flag("json", "one JSON object per line", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    try {
        if (!settings.plan) gpipe::cuda::device_count(); // or there is nothing to train on
        if (!settings.json)
            std::printf("         layers   paper   parameters      planned     one more%s\n",
                        settings.plan ? "" : "         used  loss");
        Summary summary("gpu_memory", settings.json);
        measure<gpipe::checkpoint::Never>("never", 3, settings, summary);
        measure<gpipe::checkpoint::Always>("always", 13, settings, summary);
        summary.print();
    } catch (std::exception const& error) {
        std::fprintf(stderr, "gpu_memory: %s\n", error.what());
        return 1;
    }
}
