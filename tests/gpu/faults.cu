// A kernel that faults on a GPU: an error that names a call, and an object that refuses.
#include "support/kernels.cuh"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace faults_on_gpu {

using namespace toy;

// Ends the work of this process on its GPU for good.
__global__ void fault() { __trap(); }

// Passes on what it gets; its forward has a kernel that faults while `armed` points to true.
struct Faulty {
    using Input = gpipe::Tensor<float, 3>;
    using Output = Input;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    bool const* armed = nullptr;

    void forward(auto& context, auto x, auto y) const {
        launch(context.stream(), x.size(), body::Copied<float>{x.data(), y.data()});
        if (armed && *armed) gpipe::cuda::launch(context.stream(), 1, 1, 0, fault);
    }
    void backward(auto& context, auto dy, auto dx) const {
        launch(context.stream(), dy.size(), body::Copied<float>{dy.data(), dx.data()});
    }
};

} // namespace faults_on_gpu

namespace {

using faults_on_gpu::Faulty;
using FaultyNet =
    gpipe::Pipeline<toy::kernel::Linear<float, 5, 3>, Faulty, toy::kernel::Linear<float, 3, 3>>;
using FaultyTrain =
    toy::Training<FaultyNet, toy::kernel::MeanSquare<float, 3>, gpipe::SGD, gpipe::device::Cuda>;

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
    FaultyTrain::Options options;
    options.samples = 8;
    options.cells = options.micro_batches = 2;
    options.device.gpus = gpipe::gpus(0, 0);
    options.device.graphs = graphs;
    FaultyTrain train(FaultyNet({}, Faulty{&armed}, {}), {}, {}, options);
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
    for (std::string const name :
         {"child: a kernel faults on streams", "child: a kernel faults in a graph"}) {
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
