// device::Cuda on GPUs: whatever the pipeline, losses, gradients and parameters are those of the
// plain layers on the host, in every bit, and failures leave what they promise to leave.
#include "support/host_result.hpp"
#include "support/kernels.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace {

using gpipe::device::Cuda;

// Whether kernels can draw random numbers.
constexpr bool dropout = false;

// Its update has one right result in every bit; that of Adam calls pow().
constexpr gpipe::RMSProp optimizer{1e-2f, 0.9f, 0.5f, 1e-6f, 1e-2f};
template <class T> using Result = toy::HostResult<T, dropout, gpipe::RMSProp>;
template <class T> using Train = toy::KernelTrain<T, dropout, gpipe::RMSProp, Cuda>;

// Device k of the pipeline on GPU k mod `gpus`.
template <class Train>
typename Train::Options options(std::size_t cells, std::size_t micro_batches, std::size_t gpus) {
    typename Train::Options result;
    result.samples = Result<float>::most;
    result.seed = Result<float>::seed;
    result.cells = cells;
    result.micro_batches = micro_batches;
    for (std::size_t k = 0; k < cells; ++k)
        result.device.gpus.push_back(static_cast<int>(k % gpus));
    return result;
}

// How many graphs a training keeps: 0 are streams, 1 is fewer than there are sizes of mini-batches.
template <class Options> std::vector<std::size_t> graphs() {
    if constexpr (requires(Options o) { o.device.graphs; })
        return {0, 1, 4};
    else
        return {0};
}
template <class Options> void keep_graphs(Options& options, std::size_t count) {
    if constexpr (requires { options.device.graphs; })
        options.device.graphs = static_cast<decltype(options.device.graphs)>(count);
}

template <class Train>
std::unique_ptr<Train> made(typename Train::Options const& options, toy::Watch& watch) {
    using Net = toy::kernel::Net<typename Train::Input::Element, dropout>;
    return std::make_unique<Train>(
        watched(Net{}, watch), toy::kernel::MeanSquare<typename Train::Input::Element, 3>{&watch},
        optimizer, options);
}

std::size_t gpu_count() { return static_cast<std::size_t>(gpipe::cuda::device_count()); }

} // namespace

TEST_CASE_TEMPLATE("P1 on one GPU or several a training gives what it gives on the host, in every "
                   "bit, for every K, M, schedule and checkpointing",
                   T, float, double) {
    using Options = typename Train<T>::Options;
    std::size_t trained = 0;
    for (std::size_t micro_batches : {1, 2, 3, 8})
        for (toy::NamedSchedule const& schedule : toy::schedules) {
            Result<T> const expected(optimizer, micro_batches, schedule.policy, {8, 7, 1, 8, 7});
            for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
                for (std::size_t cells = 1; cells <= 4; ++cells)
                    for (std::size_t gpus = 1; gpus <= std::min(cells, gpu_count()); ++gpus)
                        for (std::size_t count : graphs<Options>()) {
                            auto o = options<Train<T>>(cells, micro_batches, gpus);
                            o.schedule = schedule.policy;
                            o.checkpointing = checkpointing.policy;
                            keep_graphs(o, count);
                            toy::Watch watch;
                            auto const train = made<Train<T>>(o, watch);
                            INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells,
                                 ", M = ", micro_batches, ", ", gpus, " GPUs, ", count, " graphs");
                            CHECK(expected.differs(*train) == "");
                            ++trained;
                        }
        }
    MESSAGE(trained, " trainings");
    CHECK(trained >= 4 * 4 * 3 * 4);
}

TEST_CASE("P7 two trainings, step by step in turns, do not know of each other") {
    Result<float> const expected(optimizer, 3, gpipe::schedule::GPipe{}, {8, 7, 8});
    for (std::size_t count : graphs<Train<float>::Options>()) {
        auto o = options<Train<float>>(3, 3, 1);
        keep_graphs(o, count);
        toy::Watch watch;
        auto const one = made<Train<float>>(o, watch), other = made<Train<float>>(o, watch);
        for (std::size_t i = 0; i < expected.losses.size(); ++i) {
            CHECK(expected.step(*one, i) == expected.losses[i]);
            CHECK(expected.step(*other, i) == expected.losses[i]);
        }
        CHECK(toy::state_of<float>(*one) == expected.state);
        CHECK(toy::state_of<float>(*other) == expected.state);
    }
}

TEST_CASE("parameters are read back as they were written, and trained from there") {
    toy::Watch watch;
    auto const from = made<Train<float>>(options<Train<float>>(2, 2, 1), watch);
    auto const to = made<Train<float>>(options<Train<float>>(3, 2, 1), watch);
    std::vector<float> weights(6 * 5), back(6 * 5), as_made(6 * 5);
    to->read_parameter(0, 0, std::span(as_made));
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 0.01f * static_cast<float>(i);
    REQUIRE(as_made != weights);
    for (Train<float>* train : {from.get(), to.get()}) {
        train->write_parameter(0, 0, std::span<float const>(weights));
        train->read_parameter(0, 0, std::span(back));
        CHECK(back == weights);
    }
    toy::Data<float> const data(8, 0);
    CHECK(from->step(data.inputs, data.targets).loss == to->step(data.inputs, data.targets).loss);
    CHECK(toy::state_of<float>(*from) == toy::state_of<float>(*to));
}

TEST_CASE("with Adam a training is close to the host's: pow() has no one right result") {
    constexpr gpipe::Adam adam{1e-2f};
    toy::HostResult<float, dropout, gpipe::Adam> const expected(adam, 3, gpipe::schedule::GPipe{},
                                                                {8, 7, 8});
    using Trained = toy::KernelTrain<float, dropout, gpipe::Adam, Cuda>;
    toy::Watch watch;
    Trained train(watched(toy::kernel::Net<float, dropout>{}, watch), {}, adam,
                  options<Trained>(3, 3, 1));
    for (std::size_t i = 0; i < expected.losses.size(); ++i)
        CHECK(std::abs(expected.step(train, i) / expected.losses[i] - 1) <= 1e-6);
    auto const state = toy::state_of<float>(train);
    REQUIRE(state.size() == expected.state.size());
    float worst = 0;
    for (std::size_t i = 0; i < state.size(); ++i)
        worst = std::max(worst, std::abs(state[i] - expected.state[i]));
    MESSAGE("parameters and gradients differ by at most ", worst);
    CHECK(worst <= 1e-6f);
}

TEST_CASE("P6 a layer or loss that throws while it enqueues leaves everything as it was") {
    constexpr std::size_t micro_batches = 3;
    constexpr std::size_t layers = toy::kernel::Net<float, dropout>::size;
    Result<float> const expected(optimizer, micro_batches, gpipe::schedule::GPipe{}, {8, 7});
    std::size_t thrown = 0;
    for (std::size_t count : graphs<Train<float>::Options>())
        for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
            for (gpipe::Phase phase :
                 {gpipe::Phase::forward, gpipe::Phase::recompute, gpipe::Phase::backward})
                for (std::size_t at = 0; at <= layers; ++at) {
                    std::size_t const layer = at < layers ? at : toy::Watch::loss;
                    auto o = options<Train<float>>(3, micro_batches,
                                                   std::min<std::size_t>(gpu_count(), 3));
                    o.checkpointing = checkpointing.policy;
                    keep_graphs(o, count);
                    toy::Watch watch;
                    auto const train = made<Train<float>>(o, watch);
                    toy::Data<float> const data(8, 0);
                    watch.faults = {{layer, 3, phase}};
                    try {
                        train->step(data.inputs, data.targets);
                        continue; // the layer is not called for that
                    } catch (toy::Thrown const& fault) {
                        CHECK(fault.at.layer == layer);
                    }
                    ++thrown;
                    watch.faults.clear();
                    INFO(checkpointing.name, ", layer ", at, ", ", count, " graphs");
                    REQUIRE(train->failure());
                    CHECK(train->failure()->layer == at);
                    CHECK(train->failure()->micro_batch == 1);
                    CHECK(train->steps() == 0);
                    CHECK(expected.differs(*train) == "");
                }
    MESSAGE(thrown, " throws");
    CHECK(thrown >= 3 * 2 * layers); // forward and backward, at least
}

TEST_CASE("GPUs that are not there, and too few, are refused by name") {
    toy::Watch watch;
    auto const says = [&](std::vector<int> gpus, std::size_t cells) -> std::string {
        auto o = options<Train<float>>(cells, 2, 1);
        o.device.gpus = std::move(gpus);
        try {
            made<Train<float>>(o, watch);
            return "nothing";
        } catch (gpipe::cuda::TooFewDevices const& error) {
            return std::string("too few: ") + error.what();
        } catch (std::invalid_argument const& error) {
            return error.what();
        }
    };
    std::string const present = std::to_string(gpu_count());
    CHECK(says({99}, 1) == "gpipe: there is no GPU 99, but " + present + " of them");
    CHECK(says({0, -1}, 2) == "gpipe: there is no GPU -1, but " + present + " of them");
    CHECK(says({0}, 2) == "too few: gpipe: 2 GPUs are needed, but CUDA sees only 1");
    if (gpu_count() < toy::kernel::Net<float, dropout>::size)
        CHECK(says({}, gpu_count() + 1) == "too few: gpipe: " + std::to_string(gpu_count() + 1) +
                                               " GPUs are needed, but CUDA sees only " + present);
    CHECK(says({0, 0}, 2) == "nothing");
    CHECK(says({}, 1) == "nothing");
}

namespace toy::body {

// Ends the work of this process on its GPU for good.
__global__ void fault() { __trap(); }

} // namespace toy::body

namespace toy {

// Passes on what it gets; its forward has a kernel that faults while `armed` points to true.
struct Faulty {
    using Input = gpipe::Tensor<float, 3>;
    using Output = Input;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    bool const* armed = nullptr;

    void forward(auto& context, auto x, auto y) const {
        launch(context.stream(), x.size(), body::Copied<float>{x.data(), y.data()});
        if (armed && *armed) body::fault<<<1, 1, 0, context.stream()>>>();
    }
    void backward(auto& context, auto dy, auto dx) const {
        launch(context.stream(), dy.size(), body::Copied<float>{dy.data(), dx.data()});
    }
};

} // namespace toy

namespace {

using toy::Faulty;
using FaultyNet =
    gpipe::Pipeline<toy::kernel::Linear<float, 5, 3>, Faulty, toy::kernel::Linear<float, 3, 3>>;
using FaultyTrain = toy::Training<FaultyNet, toy::kernel::MeanSquare<float, 3>, gpipe::SGD, Cuda>;

template <class Body> std::string what_of(Body body) {
    try {
        body();
    } catch (std::runtime_error const& error) {
        return error.what();
    }
    return "nothing was thrown";
}

void train_until_fault(std::size_t graphs) {
    bool armed = false;
    toy::Data<float> const data(8, 0), fewer(5, 0); // of a size of its own: no graph is ready
    auto o = options<FaultyTrain>(2, 2, 1);
    keep_graphs(o, graphs);
    FaultyTrain train(FaultyNet({}, Faulty{&armed}, {}), {}, {}, o);
    train.step(data.inputs, data.targets);
    armed = true;
    std::string call;
    std::string const said = what_of([&] {
        try {
            train.step(fewer.inputs, fewer.targets);
        } catch (gpipe::cuda::Error const& error) {
            call = error.call();
            throw;
        }
    });
    std::printf("step: %s\n", said.c_str());
    if (train.failure()) std::printf("at: %s\n", train.failure()->place().c_str());
    CHECK(said.find("gpipe: ") == 0);
    CHECK(said.find(" failed with cudaError") != std::string::npos);
    // Waiting for the end failed, or else a call before that, which has its place.
    CHECK((call.find("Synchronize") != std::string::npos || train.failure().has_value()));
    armed = false;
    for (int again = 0; again < 2; ++again) {
        std::string const refusal = what_of([&] { train.step(data.inputs, data.targets); });
        std::printf("again: %s\n", refusal.c_str());
        CHECK(refusal.find("gpipe: ") == 0);
    }
    std::vector<float> weights(3 * 5);
    CHECK_THROWS_AS(train.read_parameter(0, 0, std::span(weights)), gpipe::cuda::Error);
    CHECK(train.steps() == 1);
}

} // namespace

// In processes of their own, for nothing runs on the GPU afterwards: see the next test.
TEST_CASE("child: a kernel faults on streams" * doctest::skip()) { train_until_fault(0); }
TEST_CASE("child: a kernel faults in a graph" * doctest::skip()) { train_until_fault(4); }

TEST_CASE(
    "P6 a kernel that faults is an error that names a call, and the object refuses for good") {
    std::string self(4096, '\0');
    auto const length = readlink("/proc/self/exe", self.data(), self.size());
    REQUIRE(length > 0);
    self.resize(static_cast<std::size_t>(length));
    std::vector<std::string> children{"child: a kernel faults on streams"};
    if (graphs<FaultyTrain::Options>().size() > 1)
        children.push_back("child: a kernel faults in a graph");
    for (std::string const& name : children) {
        std::string const command =
            "'" + self + "' --no-skip --no-colors --test-case='" + name + "' 2>&1";
        std::FILE* const child = popen(command.c_str(), "r");
        REQUIRE(child);
        std::string output;
        char line[512];
        while (std::fgets(line, sizeof line, child)) output += line;
        int const status = pclose(child);
        MESSAGE(output);
        CHECK(WIFEXITED(status)); // destruction neither hangs nor crashes
        CHECK(WEXITSTATUS(status) == 0);
        CHECK(output.find("step: gpipe: ") != std::string::npos);
        CHECK(output.find("1 passed | 0 failed") != std::string::npos);
    }
}
