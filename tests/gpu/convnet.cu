// The network of examples/convnet on a GPU: losses and gradients as the host's in double, and the
// same bits however it is cut.
#include <convnet/cuda_convolutions.cuh>
#include <convnet/host_convolutions.hpp>
#include <convnet/model.hpp>

#include <gpipe/gpipe.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace convnet_on_gpu {

using gpipe::device::Cuda;
using gpipe::device::Host;

constexpr std::size_t side = 9, channels = 3, classes = 4, samples = 7;
template <class T, class Operations>
using Model = convnet::Model<T, side, channels, classes, Operations>;
template <class M, class Device>
using TrainOf = gpipe::Training<typename M::Net, gpipe::Cells<gpipe::dynamic>,
                                gpipe::MicroBatches<gpipe::dynamic>, gpipe::Loss<typename M::Loss>,
                                gpipe::Optimizer<gpipe::SGD>, gpipe::schedule::Dynamic,
                                gpipe::checkpoint::Dynamic, Device>;

struct Way {
    std::size_t cells = 1;
    gpipe::schedule::Dynamic schedule = gpipe::schedule::GPipeAscending{};
    gpipe::checkpoint::Dynamic checkpointing = gpipe::checkpoint::Never{};
    float learning_rate = 0.05f;
    std::size_t graphs = 0; // kept
};

// Pictures, and which quarter of the brightest numbers is theirs.
template <class T> struct Data {
    std::vector<T> inputs = std::vector<T>(samples * side * side);
    std::vector<std::int32_t> targets = std::vector<std::int32_t>(samples);

    Data() {
        std::mt19937 random{3};
        std::normal_distribution<double> normal;
        for (T& pixel : inputs) pixel = static_cast<T>(static_cast<float>(normal(random)));
        for (auto& target : targets) target = static_cast<std::int32_t>(random() % classes);
    }
};

template <class T, class Operations, class Device> struct Trained {
    using M = Model<T, Operations>;
    using Train = TrainOf<M, Device>;
    Data<T> const data{};
    Train train;
    std::vector<double> losses;

    static typename Train::Options options(Way const& way) {
        typename Train::Options options;
        options.samples = samples;
        options.seed = 4;
        options.cells = way.cells;
        options.micro_batches = 4;
        options.schedule = way.schedule;
        options.checkpointing = way.checkpointing;
        if constexpr (requires { options.device.gpus; }) {
            options.device.gpus.assign(way.cells, 0);
            options.device.graphs = way.graphs;
        }
        return options;
    }
    explicit Trained(Way const& way = {}, int steps = 5)
        : train(typename M::Net{}, {}, {.learning_rate = way.learning_rate, .momentum = 0.9f},
                options(way)) {
        for (int i = 0; i < steps; ++i) losses.push_back(step());
        losses.push_back(value()); // by the running statistics
    }
    double step() { return train.step(data.inputs, data.targets).loss; }
    double value() { return train.evaluate(data.inputs, data.targets).loss; }
};

TEST_CASE("the convolution network trains on a GPU as on the host") {
    Trained<float, convnet::CudaOperations, Cuda> const gpu;
    Trained<double, convnet::HostOperations, Host> const host;
    for (std::size_t i = 0; i < host.losses.size(); ++i) {
        CAPTURE(i);
        CHECK(gpu.losses[i] == doctest::Approx(host.losses[i]).epsilon(2e-3));
    }
    CHECK(host.losses[4] < 0.9 * host.losses[0]);
}

TEST_CASE("the convolution network has the same bits on a GPU for every cut, schedule and policy") {
    using Gpu = Trained<float, convnet::CudaOperations, Cuda>;
    auto const expected = Gpu().losses;
    CHECK(Gpu().losses == expected);
    CHECK(Gpu({.cells = 2,
               .schedule = gpipe::schedule::OneForwardOneBackward{},
               .checkpointing = gpipe::checkpoint::Always{}})
              .losses == expected);
    CHECK(Gpu({.cells = 3, .schedule = gpipe::schedule::ZeroBubbleV{}}).losses == expected);
    CHECK(Gpu({.cells = 2, .graphs = 1}).losses == expected);
}

TEST_CASE("the gradients of the convolution network on a GPU are those of the host") {
    Trained<float, convnet::CudaOperations, Cuda> gpu({.learning_rate = 0}, 1);
    Trained<double, convnet::HostOperations, Host> host({.learning_rate = 0}, 1);
    using Net = Model<double, convnet::HostOperations>::Net;
    auto const layers = Net::layers();
    std::size_t tensors = 0;
    for (std::size_t l = 0; l < Net::size; ++l)
        for (std::size_t t = 0; t < layers[l].parameters.count; ++t, ++tensors) {
            std::vector<double> b(layers[l].parameters.bytes[t] / sizeof(double));
            std::vector<float> a(b.size());
            gpu.train.read_gradient(l, t, std::span<float>(a));
            host.train.read_gradient(l, t, std::span<double>(b));
            double most = 0, worst = 0;
            for (std::size_t i = 0; i < a.size(); ++i) {
                double const difference = std::abs(static_cast<double>(a[i]) - b[i]);
                worst = difference <= worst ? worst : difference; // also where it is no number
                most = std::max(most, std::abs(b[i]));
            }
            CAPTURE(l);
            CAPTURE(t);
            CHECK(worst <= 1e-4 * most);
            CHECK(most > 1e-4);
        }
    CHECK(tensors == 9 + 2 * 9 + 2);
}

TEST_CASE("a convolution whose workspace on a GPU would be too small is refused at construction") {
    convnet::CudnnWorkspaceCheck const check;
    CHECK_NOTHROW(Model<float, convnet::CudaOperations>::check_workspaces(samples));
    CHECK_NOTHROW(convnet::StandardOn<convnet::CudaOperations>::check_workspaces(64));
    std::string words;
    try {
        check({16, 14, 32, 3, 2}, 4096, 1);
    } catch (std::runtime_error const& error) {
        words = error.what();
    }
    CHECK(words.find(
              "convolution 3x3 of 16x14x14 to 32x7x7 with 4096 samples needs a workspace of ") !=
          std::string::npos);
    CHECK(words.find(" bytes, but its bound is 1") != std::string::npos);
}

} // namespace convnet_on_gpu
