// Trains a small GPT on the characters of a text, as a pipeline on the cores of this machine or,
// compiled by nvcc, on its GPUs:
//
//   train_gpt --text FILE --cells 2 --micro-batches 4
//   train_gpt --text FILE --cells 2 --schedule ZeroBubbleH1
//   train_gpt --text FILE --cells 4 --balance time
//   train_gpt --text FILE --device cuda --gpus 0,0
//   train_gpt --text FILE --save FOLDER --save-every 500 --resume
//   train_gpt --text FILE --ranks 4
//   train_gpt --text FILE --cells 1 --replicas 2
//   train_gpt --text FILE --cells 1 --replicas 2 --device cuda
//   train_gpt --text FILE --cells 2 --replicas 2 --ranks 4 --device cuda
//
// The network is a type (gpt/model.hpp), the layers are plain structs (gpt/*.hpp); how many cells
// and micro-batches and which schedule, checkpointing and optimizer are chosen here at run time,
// for one instantiation of all per kind of device, one per kind for replicas, and one for ranks.

#include "gpt/generate.hpp"
#include "gpt/host_operations.hpp"
#include "gpt/model.hpp"
#include "gpt/processor.hpp"
#include "gpt/text.hpp"
#include "support/bubble.hpp"
#include "support/gpus.hpp"
#include "support/json.hpp"
#include "support/options.hpp"
#include "support/pipeline_options.hpp"
#include "support/progress.hpp"
#include "support/ranks.hpp"
#include "support/saved.hpp"
#include "support/trace.hpp"

#ifdef __CUDACC__
#include "gpt/cuda_operations.cuh"

#include <gpipe/gpipe.cuh>
#else
#include <gpipe/gpipe.hpp>
#endif
#include <gpipe/by_name.hpp>
#include <gpipe/loader.hpp>
#include <gpipe/profile.hpp>
#include <gpipe/replicas.hpp>
#include <gpipe/state/state.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace {

template <class Model, class Device, class Transport, class Replicas>
using TrainOn =
    gpipe::Training<typename Model::Net, gpipe::Cells<gpipe::dynamic>,
                    gpipe::MicroBatches<gpipe::dynamic>, gpipe::Loss<typename Model::Loss>,
                    gpipe::Optimizer<gpipe::optimizer::Dynamic>, gpipe::schedule::Dynamic,
                    gpipe::checkpoint::Dynamic, Device, Transport, Replicas>;

std::string format(char const* words, auto... values) {
    char buffer[256];
    std::snprintf(buffer, sizeof buffer, words, values...);
    return buffer;
}

struct Settings {
    std::string text;
    std::uint64_t steps = 6000;
    std::uint64_t rate_steps = 0;
    std::string save;
    std::uint64_t save_every = 0;
    bool resume = false;
    std::uint64_t batch = 8;
    std::uint64_t parts = 1;
    support::PipelineOptions pipeline;
    std::string balance = "cost";
    bool tie = false;
    std::string optimizer = "adamw";
    std::uint64_t seed = 1;
    double learning_rate = 5e-3;
    double dropout = 0;
    std::string device = "host";
    std::string gpus;
    std::uint64_t threads = 0;
    std::uint64_t replicas = 1;
    std::uint64_t ranks = 1;
    std::uint64_t sample = 400;
    double temperature = 0.8;
    std::string prompt;
    std::string trace;
    bool json = false;

    void declare(support::Options& options) {
        options.text("text", "FILE", "train on the characters of this file; a tenth is held out",
                     text);
        options.number("steps", "train up to the n-th mini-batch since the training began", steps,
                       1, 10'000'000);
        options.number("rate-steps",
                       "the learning rate's curve ends after n; 0: 6000, or as it was saved",
                       rate_steps, 0, 10'000'000);
        options.text("save", "FOLDER", "at the end, write what it takes to go on", save);
        options.number("save-every", "and every n mini-batches; 0: only at the end", save_every, 0,
                       10'000'000);
        options.flag("resume", "go on from what is saved there, if anything is", resume);
        options.number("batch", "samples in a mini-batch", batch, 1, 1024);
        options.number("parts", "of so many samples that a mini-batch consists of", parts, 1, 1024);
        pipeline.declare(options);
        options.choice("balance",
                       "cut by what layers declare, or by what they take here: time, or bytes",
                       balance, {"cost", "time", "size"});
        options.flag("tie", "the output's weights are the embedding's", tie);
        options.name("optimizer", "how gradients change parameters", gpipe::optimizer::optimizers(),
                     optimizer);
        options.number("seed", "of parameters, samples and dropout", seed, 0, ~std::uint64_t{0});
        options.number("learning-rate", "greatest of a warm-up and a cosine", learning_rate, 1e-9,
                       10);
        options.number("dropout", "share of each block's result that is dropped", dropout, 0, 0.9);
        options.choice("device", "the cores of this machine, or its GPUs", device,
                       {"host", "cuda"});
        options.text("gpus", "n,...",
                     "the GPU of each device, may repeat, or of each process; else all of them in "
                     "turn",
                     gpus);
        options.number("threads", "threads at most; 0: as many as there are cores", threads, 0,
                       256);
        options.number("replicas",
                       "of the whole, each on so many devices and with its part of a mini-batch",
                       replicas, 1, 64);
        options.number("ranks",
                       "processes, of which each has as many of the devices; without --cells there "
                       "are no fewer than these; by mpirun",
                       ranks, 1, 8);
        options.number("sample", "characters to write at the end", sample, 0, 1'000'000);
        options.number("temperature", "of that text; less is more predictable", temperature, 0.01,
                       100);
        options.text("prompt", "TEXT", "what that text is to continue", prompt);
        options.text("trace", "FILE", "picture of the last step: " + support::trace_endings(),
                     trace);
        options.flag("json", "print one JSON object at the end, and all else on stderr", json);
    }

    std::size_t devices() const { return pipeline.devices(); }
    std::size_t devices_of_rank() const { return devices() * replicas / ranks; }

    gpipe::optimizer::Dynamic chosen_optimizer() const {
        auto chosen = gpipe::optimizer::find_optimizer(optimizer);
        chosen.visit([]<class O>(O& own) {
            if constexpr (std::is_same_v<O, gpipe::AdamW>)
                own = {.beta2 = 0.99f, .weight_decay = 0.2f};
        });
        return chosen;
    }

    template <class Train, class Company> typename Train::Options training(Company& company) const {
        typename Train::Options options;
        options.samples = (batch + replicas - 1) / replicas;
        options.replicas = replicas;
        options.seed = seed;
        pipeline.choose(options, gpt::Standard::Net::size);
        options.snapshot = save_every > 0;
        if constexpr (requires { options.device.threads; }) options.device.threads = threads;
        if constexpr (requires { options.device.transport; })
            options.device = {company.device(threads), company.all(), devices_of_rank()};
#ifdef __CUDACC__
        if constexpr (requires { options.device.gpus; })
            options.device.gpus = support::chosen_gpus(gpus, devices() * replicas);
#endif
        return options;
    }

    // The layers of each cell; none where they are cut by what they declare.
    template <class Device, class Net, class Company>
    std::vector<std::size_t> chosen_balance(Net const& net, Company& company) const {
        if (balance == "cost") return {};
        std::size_t const count =
            devices() * pipeline.chosen_schedule(Net::size).cells_per_device();
        std::vector<std::size_t> sizes(count);
        if (company.speaks()) {
            std::uint64_t const pieces = replicas * pipeline.micro_batches;
            gpipe::ProfileOptions<Device> where{.samples = (batch + pieces - 1) / pieces,
                                                .seed = seed};
#ifdef __CUDACC__
            if constexpr (requires { where.device.gpus; }) {
                if (ranks == 1)
                    where.device.gpus = support::chosen_gpus(gpus, devices() * replicas);
            }
#endif
            gpipe::Profile const found = gpipe::profile(net, where);
            sizes = balance == "time" ? gpipe::balance::by_time(found, count)
                                      : gpipe::balance::by_size(found, count, {.param_scale = 4});
            std::fputs(to_string(found).c_str(), stderr);
        }
        for (std::size_t& size : sizes) size = company.told(size, 0);
        return sizes;
    }

    gpipe::rates::WarmUpCosine rates(std::uint64_t length) const {
        return {.peak = learning_rate,
                .warm_up = std::min(200.0, 0.1 * static_cast<double>(length) + 1),
                .steps = length};
    }
};

template <class Operations, class Device, bool tied, class Replicas = gpipe::OneReplica,
          class Transport = gpipe::transport::Local, class Company = support::Alone>
int run(Settings const& settings, gpt::Text const& text, Company& company) {
    using Model = gpt::StandardOn<Operations, tied>;
    using Train = TrainOn<Model, Device, Transport, Replicas>;
    // Where actions only enqueue, how long that takes says nothing of them; and a rank knows its
    // own at once, those of all only if it asks.
    constexpr bool alone = std::is_same_v<Company, support::Alone>;
    constexpr bool times = !gpipe::calls_enqueue<Device> && alone;
    bool const speaks = company.speaks();
    bool const traces = !settings.trace.empty();
    auto const net = Model::net(text.classes(), static_cast<float>(settings.dropout));
    auto options = settings.training<Train>(company);
    options.balance = settings.chosen_balance<Device>(net, company);
    Train train{net, Model::loss(text.classes()), settings.chosen_optimizer(), options};
    if (times || traces) train.time_actions();
    if (speaks)
        std::fprintf(
            stderr,
            "%zu characters, %zu of them distinct; %zu parameters in %zu layers, %zu cells, "
            "%zu threads\n%s\n",
            text.size(), text.classes(), Model::Net::parameters(), Model::Net::size, train.cells(),
            train.lanes(), Operations::kernels().c_str());

    // What is held out is looked at on the way in a few samples, at the end in many.
    constexpr std::size_t few = 64, many = 4096;
    gpt::Samples const glance = gpt::spread(text.held_out(), Model::context, few);
    gpt::Samples const held_out = gpt::spread(text.held_out(), Model::context, many);
    support::Progressed progressed{settings.rate_steps, text};
    if (!settings.save.empty()) progressed.begin(train, settings.save, settings.resume, speaks);
    std::optional<support::TraceFile> trace;
    // Who goes on may have nothing to train, and then a picture that is there stays.
    if (traces && speaks && train.steps() < settings.steps) trace.emplace(settings.trace);
    gpipe::Loader loader(
        train, gpt::Windows{text.training(), Model::context},
        {.batch = settings.batch, .seed = train.seed(), .parts = settings.parts}); // as saved
    support::BubbleMeter bubble(train.cells(), train.lanes());
    support::Progress progress(settings.steps);
    std::vector<double> losses;
    losses.reserve(settings.steps);
    double held_out_loss = std::numeric_limits<double>::quiet_NaN();
    double training_seconds = 0;
    auto const begin = std::chrono::steady_clock::now();
    auto const seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    auto const tokens_per_second = [&] {
        return static_cast<double>(losses.size() * settings.parts * settings.batch *
                                   Model::context) /
               training_seconds;
    };
    for (std::uint64_t step = train.steps(); step < settings.steps; ++step) {
        double const started = seconds();
        train.optimizer().visit(
            [&](auto& own) { own.learning_rate = settings.rates(progressed.curve()).rate(step); });
        try {
            for (std::uint64_t part = 1; part < settings.parts; ++part) {
                auto const batch = loader.next();
                train.accumulate(batch.inputs, batch.targets);
            }
            auto const batch = loader.next();
            losses.push_back(train.step(batch.inputs, batch.targets));
        } catch (std::domain_error const& error) { // not finite
            throw std::runtime_error(format("%s after %zu steps; try a lower --learning-rate",
                                            error.what(), static_cast<std::size_t>(step)));
        }
        training_seconds += seconds() - started;
        if constexpr (times) bubble.add(train);
        std::uint64_t const done = step + 1;
        if (done * 20 / settings.steps > step * 20 / settings.steps && done < settings.steps)
            held_out_loss = train.evaluate(glance.inputs, glance.targets);
        if (settings.save_every > 0 && done % settings.save_every == 0)
            gpipe::start_save(train, progressed.path(), progressed.metadata());
        if (speaks && progress.due(done)) {
            auto const recent = std::min<std::size_t>(losses.size(), 20);
            double sum = 0;
            for (std::size_t i = losses.size() - recent; i < losses.size(); ++i) sum += losses[i];
            std::string words = format("loss %.3f, %.0f tokens/s",
                                       sum / static_cast<double>(recent), tokens_per_second());
            if constexpr (times)
                words += format(", bubble %.1f %% (predicted %.1f %%)", 100 * bubble.measured(),
                                100 * train.predicted_bubble(bubble));
            if (std::isfinite(held_out_loss)) words += format(", held out %.3f", held_out_loss);
            progress.show(done, words + format(", %.0f s", seconds()));
        }
    }
    progress.end();
    std::optional<gpipe::Timeline> last_step; // before anything else runs
    if (traces && !losses.empty())
        last_step = train.timeline(settings.pipeline.schedule + ", as its last step ran");
    if (losses.empty() && speaks)
        std::fprintf(stderr, "nothing to train: --steps %zu, and %zu are trained\n",
                     static_cast<std::size_t>(settings.steps),
                     static_cast<std::size_t>(train.steps()));
    auto const result = train.evaluate(held_out.inputs, held_out.targets);
    if (!std::isfinite(result.loss))
        throw std::runtime_error(format("the held-out loss is %g after %zu steps: nothing is "
                                        "saved; try a lower --learning-rate",
                                        result.loss, static_cast<std::size_t>(train.steps())));
    if (!settings.save.empty()) gpipe::save(train, progressed.path(), progressed.metadata());
    if (trace && last_step)
        trace->write(train, *last_step, settings.batch, settings.pipeline.schedule);

    auto const last = std::min(losses.size(), std::max<std::size_t>(1, losses.size() / 10));
    double final_loss = losses.empty() ? std::numeric_limits<double>::quiet_NaN() : 0;
    for (std::size_t i = losses.size() - last; i < losses.size(); ++i)
        final_loss += losses[i] / static_cast<double>(last);
    std::FILE* const prose = settings.json ? stderr : stdout;
    if (speaks)
        std::fprintf(
            prose,
            "held-out loss %.4f nats per character, %.1f %% of the characters right, of %zu "
            "samples (on the way: of %zu), after %.1f s\n",
            result.loss, 100 * result.metric[0], many, few, seconds());
    if (settings.sample > 0) {
        std::string const prompt =
            settings.prompt.empty() ? std::string{text.character(0)} : settings.prompt;
        // Who has the last cell has the outputs.
        std::size_t const teller =
            train.programs().device_of(train.cells() - 1) / settings.devices_of_rank();
        std::string const written = gpt::generate<Model>(
            train, text, prompt, settings.sample, settings.temperature, train.seed(),
            [&](std::uint64_t choice) { return company.told(choice, teller); });
        if (speaks)
            std::fprintf(prose, "a sample:\n%s%s\n", settings.prompt.c_str(), written.c_str());
    }
    if (settings.json && speaks) {
        support::JsonObject object;
        object.add("steps", train.steps())
            .add("batch", settings.batch)
            .add("parts", settings.parts)
            .add("context", Model::context)
            .add("devices", train.devices())
            .add("cells", train.cells())
            .add("balance", settings.balance)
            .add("micro_batches", train.micro_batches())
            .add("schedule", settings.pipeline.schedule)
            .add("checkpointing", settings.pipeline.checkpointing)
            .add("optimizer", settings.optimizer)
            .add("tied", settings.tie)
            .add("device", settings.device)
            .add("replicas", settings.replicas)
            .add("ranks", settings.ranks)
            .add("threads", train.lanes())
            .add("seed", train.seed())
            .add("learning_rate", settings.learning_rate)
            .add("dropout", settings.dropout)
            .add("characters", text.size())
            .add("classes", text.classes())
            .add("layers", Model::Net::size)
            .add("parameters", Model::Net::parameters())
            .add("first_loss", losses.empty() ? final_loss : losses.front())
            .add("final_loss", final_loss)
            .add("held_out_loss", result.loss)
            .add("held_out_accuracy", result.metric[0])
            .add("tokens_per_second", tokens_per_second())
            .add("step_milliseconds", 1e3 * training_seconds / static_cast<double>(losses.size()))
            .add("seconds", seconds())
            .add("planned_bytes", train.planned_bytes())
            .add("used_bytes", train.used_bytes())
            .add("transport_bytes", company.transport_bytes())
            .add("kernels", Operations::kernels());
        if constexpr (times)
            object.add("bubble", bubble.measured())
                .add("predicted_bubble", train.predicted_bubble(bubble));
        std::printf("%s\n", object.text().c_str());
    }
    return 0;
}

} // namespace

int main(int count, char** arguments) {
    Settings settings;
    support::Options options("train_gpt", "Trains a small GPT on the characters of a text.");
    settings.declare(options);
    if (auto const status = options.parse(count, arguments)) return *status;
    if (settings.text.empty()) return options.refuse("--text FILE is missing; try --help");
    if (auto const* what = gpt::missing_instructions())
        return options.refuse(std::string("this processor has no ") + what +
                              ", which the program was compiled for: build it again here");
#ifndef __CUDACC__
    if (settings.device == "cuda")
        return options.refuse("--device cuda: this program was built without CUDA; configure it "
                              "with -DGPIPE_WITH_CUDA=ON where there is an nvcc");
#endif
    if (settings.save.empty() && (settings.resume || settings.save_every > 0))
        return options.refuse("--resume and --save-every need --save FOLDER");
    if (settings.device != "cuda" && !settings.gpus.empty())
        return options.refuse("--gpus goes with --device cuda only");
    if (settings.device == "cuda" && !settings.trace.empty())
        return options.refuse("--trace goes with --device host only: a GPU's actions are enqueued, "
                              "and nobody sees when they run");
    if (settings.ranks > 1) {
        if (std::size_t const each = settings.ranks / settings.replicas;
            each > settings.devices() && !options.given("cells"))
            settings.pipeline.cells = std::to_string(each);
#ifndef GPIPE_EXAMPLE_MPI
        return options.refuse("--ranks: this program was built without MPI; configure it anew "
                              "where there is one (Debian: libopenmpi-dev)");
#endif
#ifndef GPIPE_EXAMPLE_NCCL
        if (settings.device == "cuda")
            return options.refuse("--ranks with --device cuda: this program was built without NCCL "
                                  "or MPI; configure it anew where both are");
#endif
        if (settings.device == "cuda" && settings.devices() * settings.replicas != settings.ranks)
            return options.refuse(format("--ranks with --device cuda is for a GPU each: %zu for "
                                         "--cells %zu and %zu replicas",
                                         settings.devices() * settings.replicas, settings.devices(),
                                         std::size_t{settings.replicas}));
        if (settings.devices() * settings.replicas % settings.ranks != 0 ||
            settings.ranks % settings.replicas != 0)
            return options.refuse(format("--ranks %zu are not as many for each of %zu replicas of "
                                         "--cells %zu",
                                         std::size_t{settings.ranks},
                                         std::size_t{settings.replicas}, settings.devices()));
    }
    try {
        gpt::Text const text(settings.text, gpt::Standard::context);
        for (char const c : settings.prompt)
            if (text.id(c) < 0)
                return options.refuse("--prompt has a character that the text has not");
        (void)settings.pipeline.chosen_schedule(
            gpt::Standard::Net::size); // what is refused is refused once
        if (!settings.trace.empty()) support::TraceFile::check(settings.trace);
#ifdef GPIPE_EXAMPLE_MPI
        if (settings.ranks > 1 && !support::is_launched())
            support::launch(settings.ranks, count, arguments);
#endif
        support::Alone alone;
#ifdef __CUDACC__
        using gpt::CudaOperations, gpipe::device::Cuda;
#ifdef GPIPE_EXAMPLE_NCCL
        if (settings.device == "cuda" && settings.ranks > 1) {
            support::GpuRank rank(settings.ranks, settings.gpus);
            using Any = gpipe::Replicas<gpipe::dynamic>;
            using Nccl = gpipe::transport::Nccl<gpipe::MpiRanks>;
            return settings.tie ? run<CudaOperations, Cuda, true, Any, Nccl>(settings, text, rank)
                                : run<CudaOperations, Cuda, false, Any, Nccl>(settings, text, rank);
        }
#endif
        if (settings.device == "cuda" && settings.replicas > 1) {
            using Any = gpipe::Replicas<gpipe::dynamic>;
            return settings.tie ? run<CudaOperations, Cuda, true, Any>(settings, text, alone)
                                : run<CudaOperations, Cuda, false, Any>(settings, text, alone);
        }
        if (settings.device == "cuda")
            return settings.tie ? run<CudaOperations, Cuda, true>(settings, text, alone)
                                : run<CudaOperations, Cuda, false>(settings, text, alone);
#endif
        using gpt::HostOperations, gpipe::device::Host;
#ifdef GPIPE_EXAMPLE_MPI
        if (settings.ranks > 1) {
            using gpipe::transport::Mpi;
            support::Rank rank(settings.ranks);
            using Any = gpipe::Replicas<gpipe::dynamic>;
            return settings.tie ? run<HostOperations, Host, true, Any, Mpi>(settings, text, rank)
                                : run<HostOperations, Host, false, Any, Mpi>(settings, text, rank);
        }
#endif
        if (settings.replicas > 1) {
            using Any = gpipe::Replicas<gpipe::dynamic>;
            return settings.tie ? run<HostOperations, Host, true, Any>(settings, text, alone)
                                : run<HostOperations, Host, false, Any>(settings, text, alone);
        }
        return settings.tie ? run<HostOperations, Host, true>(settings, text, alone)
                            : run<HostOperations, Host, false>(settings, text, alone);
    } catch (gpt::BadText const& error) {
        return options.refuse(error.what());
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    } catch (std::exception const& error) {
        std::fprintf(stderr, "train_gpt: %s\n", error.what());
        return 1;
    }
}
