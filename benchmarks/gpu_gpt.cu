// A training step of GPT-2's smallest shape on one GPU, as one cell or as several that share it.
// The same step in plain PyTorch is gpu_gpt_torch.py, which prints the same fields.
#include "support/list.hpp"
#include "support/record.hpp"
#include "support/tokens.hpp"

#include "gpt/cuda_operations.cuh"
#include "gpt/model.hpp"

#include <gpipe/gpipe.cuh>

#include <cuda_profiler_api.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

using namespace benchmark;

template <gpt::Precision precision> using ModelIn = gpt::Gpt2On<gpt::CudaOperationsIn<precision>>;
template <class Model>
using TrainOf = gpipe::Training<typename Model::Net, gpipe::Cells<gpipe::dynamic>,
                                gpipe::MicroBatches<gpipe::dynamic>,
                                gpipe::Loss<typename Model::Loss>, gpipe::Optimizer<gpipe::AdamW>,
                                gpipe::checkpoint::Dynamic, gpipe::device::Cuda>;

struct Settings {
    std::size_t batch = 8;
    std::size_t micro_batches = 8;
    std::string checkpointing = "default";
    std::string precision = "fp32";
    std::string link = "shared";
    std::uint64_t graphs = 0;
    std::size_t warm_up = 3;
    std::size_t rounds = 10;
    std::size_t gpu = 0;
    bool json = false;

    // For `cells` cells.
    std::string policy(std::size_t cells) const {
        if (checkpointing != "default") return checkpointing;
        return cells == 1 ? "never" : "except-last";
    }
};

gpipe::checkpoint::Dynamic policy(std::string const& name) {
    if (name == "never") return gpipe::checkpoint::Never{};
    if (name == "always") return gpipe::checkpoint::Always{};
    return gpipe::checkpoint::ExceptLast{};
}

gpipe::Link link(std::string const& name) {
    if (name == "copied") return gpipe::Link::copied;
    return name == "staged" ? gpipe::Link::staged : gpipe::Link::shared;
}

template <class Model> void measure(Settings const& settings, std::size_t cells) {
    using Train = TrainOf<Model>;
    std::string const checkpointing = settings.policy(cells);
    Train train{Model::net(), Model::loss(),
                gpipe::AdamW{.learning_rate = 3e-4f, .beta2 = 0.95f, .weight_decay = 0.1f},
                typename Train::Options{
                    .samples = settings.batch,
                    .seed = 1,
                    .cells = cells,
                    .micro_batches = settings.micro_batches,
                    .checkpointing = policy(checkpointing),
                    .device = {.gpus = std::vector<int>(cells, static_cast<int>(settings.gpu)),
                               .link = link(settings.link),
                               .graphs = settings.graphs}}};
    // The same mini-batch in every step: its loss must fall.
    auto const tokens = random_tokens(settings.batch * (Model::context + 1), 50'257);
    std::vector<std::int32_t> inputs, targets;
    for (std::size_t s = 0; s < settings.batch; ++s) {
        auto const first = tokens.begin() + static_cast<std::ptrdiff_t>(s * (Model::context + 1));
        inputs.insert(inputs.end(), first, first + Model::context);
        targets.insert(targets.end(), first + 1, first + 1 + Model::context);
    }
    std::vector<double> milliseconds;
    double first_loss = 0;
    double last_loss = 0;
    std::size_t const steps = settings.warm_up + settings.rounds;
    for (std::size_t step = 0; step < steps; ++step) {
        if (step + 1 == steps)
            cudaProfilerStart(); // a timeline of the last one, if anybody listens
        auto const begin = std::chrono::steady_clock::now();
        last_loss = train.step(inputs, targets).loss; // waits until the step is done
        std::chrono::duration<double, std::milli> const taken =
            std::chrono::steady_clock::now() - begin;
        if (step == 0) first_loss = last_loss;
        if (step >= settings.warm_up) milliseconds.push_back(taken.count());
    }
    cudaProfilerStop();
    double const middle = median(milliseconds);
    double const per_second = 1e3 * static_cast<double>(settings.batch * Model::context) / middle;
    if (settings.json) {
        Record record("gpu_gpt");
        record.add("system", "gpipe").add("K", cells).add("M", settings.micro_batches);
        record.add("N", settings.batch).add("context", Model::context);
        record.add("checkpointing", checkpointing).add("parameters", Model::Net::parameters());
        record.add("precision", settings.precision).add("link", settings.link);
        record.add("graphs", settings.graphs);
        record.add("step_milliseconds", middle);
        record.add("step_milliseconds_q1", quantile(milliseconds, 0.25));
        record.add("step_milliseconds_q3", quantile(milliseconds, 0.75));
        record.add("tokens_per_second", per_second).add("planned_bytes", train.planned_bytes());
        record.add("used_bytes", train.used_bytes());
        record.add("first_loss", first_loss).add("last_loss", last_loss).print();
        return;
    }
    std::printf("%2zu %4zu  %-12s %9.2f %9.0f %12zu %12zu  %.4f to %.4f\n", cells,
                settings.micro_batches, checkpointing.c_str(), middle, per_second,
                train.planned_bytes(), train.used_bytes(), first_loss, last_loss);
    std::fflush(stdout);
}

} // namespace

int main(int argc, char** argv) {
    Settings settings;
    std::string cells = "1,4";
    std::uint64_t batch = settings.batch, micro_batches = settings.micro_batches;
    std::uint64_t warm_up = settings.warm_up, rounds = settings.rounds, gpu = settings.gpu;
    support::Options options("gpu_gpt",
                             "A training step of GPT-2's smallest shape (float, 1,024 tokens a "
                             "sample) on one GPU.");
    options.text("cells", "K,...", "numbers of cells, which share the GPU", cells);
    options.number("batch", "samples in a mini-batch", batch, 1, 1024);
    options.number("micro-batches", "slice each mini-batch into n micro-batches", micro_batches, 1,
                   1024);
    options.choice("checkpointing", "default: never for one cell, except-last for more",
                   settings.checkpointing, {"default", "never", "always", "except-last"});
    options.choice("precision", "of products; tf32: of factors rounded for tensor cores",
                   settings.precision, {"fp32", "tf32"});
    options.choice("link", "the fastest way that tensors may take between cells", settings.link,
                   {"shared", "copied", "staged"});
    options.number("graphs", "sizes of mini-batches whose steps are kept as CUDA graphs",
                   settings.graphs, 0, 16);
    options.number("warm-up", "steps that are not measured", warm_up, 0, 1000);
    options.number("rounds", "steps that are; their median is printed", rounds, 1, 100'000);
    options.number("gpu", "its number", gpu, 0, 1023);
    options.flag("json", "one JSON object per line", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    settings.batch = batch, settings.micro_batches = micro_batches;
    settings.warm_up = warm_up, settings.rounds = rounds, settings.gpu = gpu;
    try {
        auto const list = numbers("--cells", cells, {}, ModelIn<gpt::Precision::fp32>::Net::size);
        gpipe::cuda::device_count(); // or there is nothing to measure
        if (!settings.json)
            std::printf(" K    M  checkpointing  ms/step  tokens/s      planned         used  "
                        "loss\n");
        for (std::size_t const k : list)
            if (settings.precision == "tf32")
                measure<ModelIn<gpt::Precision::tf32>>(settings, k);
            else
                measure<ModelIn<gpt::Precision::fp32>>(settings, k);
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    } catch (std::exception const& error) {
        std::fprintf(stderr, "gpu_gpt: %s\n", error.what());
        return 1;
    }
}
