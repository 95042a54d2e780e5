// Trains a residual convolution network with deferred batch normalisation (GPipe, section 2.2) to
// tell digits apart, as a pipeline on the cores of this machine or, compiled by nvcc, on its GPUs:
//
//   convnet --cells 2 --micro-batches 4
//   convnet --images t10k-images-idx3-ubyte --labels t10k-labels-idx1-ubyte
//   convnet --cells 4 --schedule ZeroBubbleH1 --checkpointing always
//   convnet --device cuda --gpus 0,0
//
// The network is a type (convnet/model.hpp), its layers are plain structs (convnet/*.hpp), written
// once for both: over oneDNN and loops, or over cuDNN and kernels.

#include "convnet/host_convolutions.hpp"
#include "convnet/model.hpp"
#include "gpt/processor.hpp"
#include "support/digit_run.hpp"
#include "support/gpus.hpp"
#include "support/pipeline_options.hpp"

#ifdef __CUDACC__
#include "convnet/cuda_convolutions.cuh"

#include <gpipe/gpipe.cuh>
#else
#include <gpipe/gpipe.hpp>
#endif

#include <cstddef>
#include <cstdint>
#include <string>

namespace {

struct Settings {
    support::PipelineOptions pipeline;
    std::uint64_t threads = 0;
    std::string device = "host";
    std::string gpus;

    void declare(support::Options& options) {
        pipeline.declare(options);
        options.choice("device", "the cores of this machine, or its GPUs", device,
                       {"host", "cuda"});
        options.text("gpus", "n,...",
                     "the GPU of each device, may repeat; else all of them in turn", gpus);
        options.number("threads", "threads at most; 0: as many as there are cores", threads, 0,
                       256);
    }
    void check() const {
        if (auto const* what = gpt::missing_instructions())
            throw support::UsageError(std::string("this processor has no ") + what +
                                      ", which the program was compiled for: build it again here");
        if (device != "cuda" && !gpus.empty())
            throw support::UsageError("--gpus goes with --device cuda only");
#ifndef __CUDACC__
        if (device == "cuda")
            throw support::UsageError("--device cuda: this program was built without CUDA or "
                                      "cuDNN; configure it with -DGPIPE_WITH_CUDA=ON where both "
                                      "are");
#endif
    }
};

template <class Operations, class Device>
void train(support::DigitRun& run, Settings const& settings) {
    using Model = convnet::StandardOn<Operations>;
    using Net = typename Model::Net;
    using Train =
        gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                        gpipe::Loss<typename Model::Loss>, gpipe::Optimizer<gpipe::SGD>,
                        gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic, Device>;
    static_assert(Net::parameters() == 77'754);
    typename Train::Options options{.samples = run.batch(), .seed = run.seed()};
    settings.pipeline.choose(options, Net::size);
    if constexpr (requires { options.device.threads; }) options.device.threads = settings.threads;
#ifdef __CUDACC__
    if constexpr (requires { options.device.gpus; })
        options.device.gpus = support::chosen_gpus(settings.gpus, settings.pipeline.devices());
#endif
    std::size_t const slices = options.micro_batches;
    Model::check_workspaces((run.batch() + slices - 1) / slices);
    Train train{Net{}, {}, {.momentum = 0.9f, .weight_decay = 5e-4f}, options};
    run.each_step(train, [&](auto const& batch, float rate) {
        train.optimizer().learning_rate = rate;
        return train.step(batch.inputs, batch.targets);
    });
    run.report(train, "sgd", train.evaluate(run.held_out().images, run.held_out().labels),
               [&](support::JsonObject& object) {
                   object.add("schedule", settings.pipeline.schedule)
                       .add("checkpointing", settings.pipeline.checkpointing)
                       .add("device", settings.device)
                       .add("parameters", Net::parameters())
                       .add("kernels", Operations::kernels());
               });
}

} // namespace

int main(int count, char** arguments) {
    support::DigitRun run("convnet", "Trains a residual convolution network.",
                          {.steps = 500, .learning_rate = 0.1, .scale = {0.1325f, 0.3105f}});
    Settings settings;
    settings.pipeline.micro_batches = 4;
    settings.declare(run.options());
    return run.main(count, arguments, [&] {
        settings.check();
#ifdef __CUDACC__
        if (settings.device == "cuda")
            return train<convnet::CudaOperations, gpipe::device::Cuda>(run, settings);
#endif
        train<convnet::HostOperations, gpipe::device::Host>(run, settings);
    });
}
