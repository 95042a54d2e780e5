// Options::debug on GPUs: kernels say what a layer leaves unwritten or writes beyond its end,
// change no bit of anything else, and a kernel on a wrong stream is an error where a step is
// captured.
#include "support/on_gpu.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace debug_on_gpu {

using namespace toy;

// What Careless does wrong in the micro-batch that begins with sample 4.
struct Carelessness {
    std::ptrdiff_t forward = 0;  // elements that it writes too many
    std::ptrdiff_t backward = 0; // likewise
    bool elsewhere = false;      // whether its kernel is on the default stream
    bool looks = true;           // whether it looks if that could be launched
};
/// Passes on what it gets.
struct Careless {
    using Input = gpipe::Tensor<float, 64>;
    using Output = Input;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    Carelessness const* how = nullptr;

    void forward(auto& context, auto x, auto y) const {
        body::Copied<float> const copied{x.data(), y.data()};
        if (how->elsewhere && how->looks) {
            gpipe::cuda::launch(cudaStreamLegacy, 4, 64, 0, body::each_index<body::Copied<float>>,
                                x.size(), copied);
        } else if (how->elsewhere) {
            cudaLaunchConfig_t const config{4, 64, 0, cudaStreamLegacy, nullptr, 0};
            static_cast<void>(cudaLaunchKernelEx(&config, body::each_index<body::Copied<float>>,
                                                 x.size(), copied));
        } else
            launch(context.stream(), count(context, x, how->forward), copied);
    }
    void backward(auto& context, auto dy, auto dx) const {
        launch(context.stream(), count(context, dy, how->backward),
               body::Copied<float>{dy.data(), dx.data()});
    }

  private:
    static std::size_t count(auto& context, auto x, std::ptrdiff_t more) {
        return x.size() + static_cast<std::size_t>(context.first_sample() == 4 ? more : 0);
    }
};

} // namespace debug_on_gpu

namespace {

using debug_on_gpu::Carelessness;
using CarelessNet = gpipe::Pipeline<toy::kernel::Linear<float, 5, 64>, debug_on_gpu::Careless,
                                    toy::kernel::Linear<float, 64, 3>>;
using CarelessTrain =
    toy::Training<CarelessNet, toy::kernel::MeanSquare<float, 3>, gpipe::SGD, gpipe::device::Cuda>;

// Two micro-batches of 4 samples, which fill their slots.
CarelessTrain::Options options(bool debug, std::size_t graphs = 0) {
    CarelessTrain::Options o;
    o.samples = 8;
    o.cells = o.micro_batches = 2;
    o.device.gpus = gpipe::gpus(0, 0);
    o.device.graphs = graphs;
    o.debug = debug;
    return o;
}

// What a step throws, up to the layer's type.
std::string complaint(CarelessTrain& train) {
    toy::Data<float> const data(8, 0);
    try {
        train.step(data.inputs, data.targets);
    } catch (std::exception const& error) {
        std::string const text = error.what();
        return text.substr(0,
                           text.find(" (" + std::string(gpipe::type_name<debug_on_gpu::Careless>)));
    }
    return "nothing";
}

std::vector<float> parameters_of(CarelessTrain& train) {
    std::vector<float> all(64 * 5);
    train.read_parameter(0, 0, std::span(all));
    return all;
}

#ifdef __CUDACC__
using toy::Session;
#else
// Default streams may be used.
struct Session : cuda_double::Session {
    explicit Session(std::uint64_t order)
        : cuda_double::Session({.seed = order, .protects = false, .default_streams = true}) {}
};
#endif

} // namespace

TEST_CASE("P1 with debug every bit is that of the plain layers on the host, on streams and as "
          "graphs") {
    constexpr gpipe::RMSProp optimizer{1e-2f, 0.9f, 0.5f, 1e-6f, 1e-2f};
    using Train = toy::CudaTrain<float, gpipe::RMSProp>;
    std::size_t point = 0;
    for (toy::NamedSchedule const& schedule : toy::schedules) {
        toy::PlainResult<float, true, gpipe::RMSProp> const expected(optimizer, 3, schedule.policy,
                                                                     {8, 7, 8, 7, 1, 8});
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
            for (std::size_t cells = 1; cells <= 4; ++cells)
                for (gpipe::Link link :
                     {gpipe::Link::shared, gpipe::Link::copied, gpipe::Link::staged})
                    for (std::size_t graphs : {0, 2}) {
                        if (point++ % toy::one_of(31) != 0) continue;
                        toy::Session const session(point % 4);
                        Train::Options o;
                        o.samples = expected.most;
                        o.seed = expected.seed;
                        o.cells = cells;
                        o.micro_batches = 3;
                        o.clip_norm = toy::clip_of(3);
                        o.schedule = schedule.policy;
                        o.checkpointing = checkpointing.policy;
                        o.device.gpus.assign(cells, 0);
                        o.device.link = link;
                        o.device.graphs = graphs;
                        o.debug = true;
                        toy::Watch watch;
                        toy::LossOnGpu<toy::kernel::MeanSquare<float, 3>> loss;
                        loss.watch = &watch;
                        Train train(watched(toy::KernelNet<float, true>{}, watch), loss, optimizer,
                                    o);
                        INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells, ", ", graphs,
                             " graphs");
                        CHECK(expected.differs(train, graphs > 0) == "");
                        CHECK(train.planned_bytes() == train.used_bytes());
                    }
    }
}

TEST_CASE("what kernels leave unwritten, or write beyond the end, is named, and the object trains "
          "on") {
    Session const session(0);
    Carelessness how;
    CarelessTrain train(CarelessNet({}, {&how}, {}), {}, {}, options(true));
    auto const before = parameters_of(train);
    auto const says = [&](Carelessness const& wrong, std::string const& what) {
        how = wrong;
        CHECK(complaint(train) == "gpipe: " + what);
        REQUIRE(train.failure());
        CHECK(train.failure()->layer == 1);
        CHECK(train.failure()->micro_batch == 1);
        CHECK(train.steps() == 0);
        CHECK(parameters_of(train) == before);
    };
    says({.forward = -1}, "output 0 is left unwritten, first at element 63 of sample 7 of the "
                          "mini-batch, by the forward of layer 1");
    says({.forward = -65}, "output 0 is left unwritten, first at element 63 of sample 6 of the "
                           "mini-batch, by the forward of layer 1");
    says({.backward = -64}, "dx 0 is left unwritten, first at element 0 of sample 7 of the "
                            "mini-batch, by the backward of layer 1");
    says({.forward = 1},
         "output 0 is written up to 4 bytes beyond its end, by the forward of layer 1");
    says({.backward = 33},
         "dx 0 is written up to 132 bytes beyond its end, by the backward of layer 1");
    how = {};
    CHECK(complaint(train) == "nothing");
    CHECK(train.steps() == 1);
    CHECK(parameters_of(train) != before);
}

TEST_CASE("with debug a kernel on the default stream is an error where a step is captured") {
    for (bool debug : {true, false})
        for (bool looks : {true, false}) {
            Session const session(1);
            Carelessness how;
            CarelessTrain train(CarelessNet({}, {&how}, {}), {}, {}, options(debug, 1));
            CHECK(complaint(train) == "nothing");
            auto const before = parameters_of(train);
            how.elsewhere = true;
            how.looks = looks;
            std::string const said = complaint(train);
            CHECK((said.find("cudaErrorStreamCaptureImplicit") != said.npos) == debug);
            CHECK((said.find("what a layer did cannot be part of a CUDA graph") != said.npos) ==
                  (debug && !looks));
            if (!debug) continue; // who knows when that kernel has run
            REQUIRE(train.failure());
            CHECK(train.failure()->layer == 1);
            how.elsewhere = false;
            CHECK(parameters_of(train) == before);
            CHECK(complaint(train) == "nothing");
            CHECK(train.steps() == 2);
        }
}

TEST_CASE("with debug a kernel on the default stream runs in order where nothing is captured") {
    for (std::size_t order = 0; order < 4; ++order) {
        Session const session(order);
        toy::Data<float> const data(8, 0);
        Carelessness right, wrong{.elsewhere = true};
        CarelessTrain train(CarelessNet({}, {&right}, {}), {}, {}, options(true));
        CarelessTrain other(CarelessNet({}, {&wrong}, {}), {}, {}, options(true));
        CHECK(train.step(data.inputs, data.targets).loss ==
              other.step(data.inputs, data.targets).loss);
        CHECK(parameters_of(train) == parameters_of(other));
    }
}
