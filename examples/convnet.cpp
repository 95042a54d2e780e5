// Trains a residual convolution network with deferred batch normalisation (GPipe, section 2.2) to
// tell digits apart, as a pipeline on the cores of this machine:
//
//   convnet --cells 2 --micro-batches 4
//   convnet --images t10k-images-idx3-ubyte --labels t10k-labels-idx1-ubyte
//   convnet --cells 4 --schedule ZeroBubbleH1 --checkpointing always
//
// The network is a type (convnet/model.hpp), its layers are plain structs (convnet/*.hpp).

#include "convnet/host_convolutions.hpp"
#include "convnet/model.hpp"
#include "gpt/processor.hpp"
#include "support/digit_run.hpp"
#include "support/pipeline_options.hpp"

#include <gpipe/gpipe.hpp>

#include <cstdint>
#include <string>

namespace {

using Operations = convnet::HostOperations;
using Model = convnet::StandardOn<Operations>;
static_assert(Model::Net::parameters() == 77'754);

using Train =
    gpipe::Training<Model::Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<Model::Loss>, gpipe::Optimizer<gpipe::SGD>,
                    gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic>;

} // namespace

int main(int count, char** arguments) {
    support::DigitRun run("convnet", "Trains a residual convolution network.",
                          {.steps = 500, .learning_rate = 0.1, .scale = {0.1325f, 0.3105f}});
    support::PipelineOptions pipeline{.micro_batches = 4};
    std::uint64_t threads = 0;
    pipeline.declare(run.options());
    run.options().number("threads", "threads at most; 0: as many as there are cores", threads, 0,
                         256);
    if (auto const* what = gpt::missing_instructions())
        return run.options().refuse(std::string("this processor has no ") + what +
                                    ", which the program was compiled for: build it again here");
    return run.main(count, arguments, [&] {
        Train::Options options{.samples = run.batch(), .seed = run.seed()};
        pipeline.choose(options, Model::Net::size);
        options.device.threads = threads;
        std::size_t const most = (run.batch() + options.micro_batches - 1) / options.micro_batches;
        Model::check_workspaces(most);
        Train train{Model::Net{}, {}, {.momentum = 0.9f, .weight_decay = 5e-4f}, options};
        run.each_step(train, [&](auto const& batch, float rate) {
            train.optimizer().learning_rate = rate;
            return train.step(batch.inputs, batch.targets);
        });
        run.report(train, "sgd", train.evaluate(run.held_out().images, run.held_out().labels),
                   [&](support::JsonObject& object) {
                       object.add("schedule", pipeline.schedule)
                           .add("checkpointing", pipeline.checkpointing)
                           .add("parameters", Model::Net::parameters())
                           .add("kernels", Operations::kernels());
                   });
    });
}
