// A training step of GPT-2's smallest shape on one GPU, as one cell or as several that share it, or
// the loss alone (evaluate()).
// The same step in plain PyTorch is gpu_gpt_torch.py, which prints its fields likewise.
#include "support/list.hpp"
#include "support/record.hpp"
#include "support/summary.hpp"
#include "support/tokens.hpp"
#include "support/turns.hpp"

#include "gpt/cuda_operations.cuh"
#include "gpt/model.hpp"

#include <gpipe/gpipe.cuh>

#include <cuda_bf16.h>
#include <cuda_profiler_api.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <string>
#include <vector>

namespace {

using namespace benchmark;

template <gpt::Precision precision, class T = float>
using ModelIn = gpt::Gpt2On<gpt::CudaOperationsIn<precision>, T>;
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
    double clip_norm = 0;
    bool evaluate = false;
    std::size_t warm_up = 3;
    std::size_t rounds = 10;
    std::size_t gpu = 0;
    bool turns = false;
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

template <class Model> class Measured {
  public:
    Measured(Settings const& settings, std::size_t cells)
        : settings_(settings), cells_(cells), checkpointing_(settings.policy(cells)),
          train_(Model::net(), Model::loss(),
                 gpipe::AdamW{.learning_rate = 3e-4f, .beta2 = 0.95f, .weight_decay = 0.1f},
                 typename Train::Options{
                     .samples = settings.batch,
                     .seed = 1,
                     .cells = cells,
                     .micro_batches = settings.micro_batches,
                     .clip_norm = settings.clip_norm,
                     .checkpointing = policy(checkpointing_),
                     .device = {.gpus = std::vector<int>(cells, static_cast<int>(settings.gpu)),
                                .link = link(settings.link),
                                .graphs = settings.graphs}}) {
        // The same mini-batch in every step: its loss must fall.
        std::size_t const length = Model::context + 1;
        auto const tokens = random_tokens(settings.batch * length, 50'257);
        for (auto first = tokens.begin(); first != tokens.end();
             first += static_cast<std::ptrdiff_t>(length)) {
            inputs_.insert(inputs_.end(), first, first + Model::context);
            targets_.insert(targets_.end(), first + 1, first + 1 + Model::context);
        }
        for (std::size_t step = 0; step < settings.warm_up; ++step) this->step();
        milliseconds_.clear();
    }

    void step() {
        auto const begin = std::chrono::steady_clock::now();
        // Either waits until all is done.
        last_loss_ = (settings_.evaluate ? train_.evaluate(inputs_, targets_)
                                         : train_.step(inputs_, targets_))
                         .loss;
        std::chrono::duration<double, std::milli> const taken =
            std::chrono::steady_clock::now() - begin;
        if (first_loss_ == 0) first_loss_ = last_loss_;
        milliseconds_.push_back(taken.count());
    }

    void sum_up(Summary& summary, Measured const& first) const {
        if (this != &first)
            summary.add("K = " + std::to_string(cells_) + " / K = " + std::to_string(first.cells_) +
                            ", time",
                        median(ratios(milliseconds_, first.milliseconds_)));
        summary.add("used / planned bytes", static_cast<double>(train_.used_bytes()) /
                                                static_cast<double>(train_.planned_bytes()));
        summary.add("last / first loss", last_loss_ / first_loss_);
    }
    void report() const {
        double const middle = median(milliseconds_);
        double const per_second =
            1e3 * static_cast<double>(settings_.batch * Model::context) / middle;
        if (settings_.json) {
            Record record("gpu_gpt");
            record.add("system", "gpipe").add("K", cells_).add("M", settings_.micro_batches);
            record.add("N", settings_.batch).add("context", Model::context);
            record.add("checkpointing", checkpointing_);
            record.add("parameters", Model::Net::parameters());
            record.add("precision", settings_.precision).add("link", settings_.link);
            record.add("graphs", settings_.graphs).add("clip_norm", settings_.clip_norm);
            record.add("evaluates", settings_.evaluate);
            record.add("step_milliseconds", middle);
            record.add("step_milliseconds_q1", quantile(milliseconds_, 0.25));
            record.add("step_milliseconds_q3", quantile(milliseconds_, 0.75));
            record.add("round_milliseconds", milliseconds_);
            record.add("tokens_per_second", per_second);
            record.add("planned_bytes", train_.planned_bytes());
            record.add("used_bytes", train_.used_bytes());
            record.add("first_loss", first_loss_).add("last_loss", last_loss_).print();
            return;
        }
        std::printf("%2zu %4zu  %-12s %9.2f %9.0f %12zu %12zu  %.4f to %.4f\n", cells_,
                    settings_.micro_batches, checkpointing_.c_str(), middle, per_second,
                    train_.planned_bytes(), train_.used_bytes(), first_loss_, last_loss_);
        std::fflush(stdout);
    }

  private:
    using Train = TrainOf<Model>;

    Settings const& settings_;
    std::size_t cells_;
    std::string checkpointing_;
    Train train_;
    std::vector<std::int32_t> inputs_, targets_;
    std::vector<double> milliseconds_; ///< by round
    double first_loss_ = 0, last_loss_ = 0;
};

// All of them are there at once, and take a step each in every round.
template <class Model>
void measure(Settings const& settings, std::vector<std::size_t> const& cells) {
    std::deque<Measured<Model>> each;
    for (std::size_t const k : cells) each.emplace_back(settings, k);
    auto const round = [&] {
        for (Measured<Model>& one : each) one.step();
    };
    if (settings.turns) take_turns(round);
    for (std::size_t n = 0; n < settings.rounds && !settings.turns; ++n) {
        if (n + 1 == settings.rounds)
            cudaProfilerStart(); // a timeline of the last one, if anybody listens
        round();
    }
    cudaProfilerStop();
    if (!settings.json)
        std::printf(" K    M  checkpointing  ms/step  tokens/s      planned         used  loss\n");
    Summary summary("gpu_gpt", settings.json);
    for (Measured<Model> const& one : each) {
        one.report();
        one.sum_up(summary, each.front());
    }
    summary.print();
}

} // namespace

int main(int argc, char** argv) {
    Settings settings;
    std::string cells = "1,4";
    std::uint64_t batch = settings.batch, micro_batches = settings.micro_batches;
    std::uint64_t warm_up = settings.warm_up, rounds = settings.rounds, gpu = settings.gpu;
    support::Options options("gpu_gpt",
                             "A training step of GPT-2's smallest shape (1,024 tokens a sample) on "
                             "one GPU.");
    options.text("cells", "K,...", "numbers of cells, which share the GPU", cells);
    options.number("batch", "samples in a mini-batch", batch, 1, 1024);
    options.number("micro-batches", "slice each mini-batch into n micro-batches", micro_batches, 1,
                   1024);
    options.choice("checkpointing", "default: never for one cell, except-last for more",
                   settings.checkpointing, {"default", "never", "always", "except-last"});
    options.choice("precision",
                   "of products; tf32: of factors rounded for tensor cores; bf16: of activations, "
                   "too",
                   settings.precision, {"fp32", "tf32", "bf16"});
    options.choice("link", "the fastest way that tensors may take between cells", settings.link,
                   {"shared", "copied", "staged"});
    options.number("graphs", "sizes of mini-batches whose steps are kept as CUDA graphs",
                   settings.graphs, 0, 16);
    options.number("clip-norm", "largest norm of the gradients; 0: none is taken",
                   settings.clip_norm, 0, 1e9);
    options.flag("evaluate", "evaluate() in place of step()", settings.evaluate);
    options.number("warm-up", "steps that are not measured", warm_up, 0, 1000);
    options.number("rounds", "steps that are, of each in turns; their median is printed", rounds, 1,
                   100'000);
    options.flag("turns", "in place of --rounds one for each line on stdin", settings.turns);
    options.number("gpu", "its number", gpu, 0, 1023);
    options.flag("json", "one JSON object per line", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    settings.batch = batch, settings.micro_batches = micro_batches;
    settings.warm_up = warm_up, settings.rounds = rounds, settings.gpu = gpu;
    try {
        auto const list = numbers("--cells", cells, {}, ModelIn<gpt::Precision::fp32>::Net::size);
        gpipe::cuda::device_count(); // or there is nothing to measure
        if (settings.precision == "bf16")
            measure<ModelIn<gpt::Precision::fp32, __nv_bfloat16>>(settings, list);
        else if (settings.precision == "tf32")
            measure<ModelIn<gpt::Precision::tf32>>(settings, list);
        else
            measure<ModelIn<gpt::Precision::fp32>>(settings, list);
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    } catch (std::exception const& error) {
        std::fprintf(stderr, "gpu_gpt: %s\n", error.what());
        return 1;
    }
}
