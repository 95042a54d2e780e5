// The GPT's layers and its loss on a GPU: in float against the host's in double, in double against
// differences, and the same bits however they are run.
#include "support/gpt_layer.cuh"

#include <gpt/model.hpp>

#include <gpipe/schedule/schedule_catalogue.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

namespace gpt_on_gpu {

// Rows of all lengths: for one warp and for a block, few and many.
template <class T, class O> using Attention = gpt::Attention<T, 40, 48, 4, O>;
template <class T, class O> using LongAttention = gpt::Attention<T, 600, 48, 4, O>;
template <class T, class O> using NarrowAttention = gpt::Attention<T, 20, 40, 4, O>;
template <class T, class O> using Mlp = gpt::Mlp<T, 20, 40, O>;
template <class T, class O> using Head = gpt::Head<T, 20, 24, 60, O>;
template <class T, class O> using LongHead = gpt::Head<T, 7, 24, 1500, O>;
template <class T, class O> struct Embedding : gpt::Embedding<T, 11, 40, 24, O> {
    static constexpr std::size_t vocabulary_size = 11;
};

} // namespace gpt_on_gpu

namespace {

using namespace gpu_test;
using namespace gpt_on_gpu;

template <template <class, class> class L, class Make> void compare_with_differences(Make make) {
    Around<L, double, gpt::CudaOperations, Cuda> gpu(
        make.template operator()<L<double, gpt::CudaOperations>>(), 0.0);
    gpu.step();
    gpu.each_tensor([&](std::size_t l, std::size_t t, std::size_t size) {
        auto const gradient = gpu.gradient(l, t, size);
        auto values = gpu.parameter(l, t, size);
        double most = 0;
        for (std::size_t i = 0; i < size; i += size / 12 + 1) {
            auto const at = [&](double shift) {
                double const kept = values[i];
                values[i] += shift;
                gpu.write(l, t, values);
                values[i] = kept;
                return gpu.value();
            };
            double const slope = (at(1e-5) - at(-1e-5)) / 2e-5;
            CAPTURE(l);
            CAPTURE(t);
            CAPTURE(i);
            CHECK(std::abs(gradient[i] - slope) <=
                  1e-6 * (1 + std::abs(gradient[i]) + std::abs(slope)));
            most = std::max(most, std::abs(slope));
        }
        gpu.write(l, t, values);
        CHECK(most > 1e-4); // else nothing was checked
    });
}

TEST_CASE("attention on a GPU is the host's, and its gradients those of differences") {
    compare_with_host<Attention>(Default{});
    compare_with_host<Attention>(WithDropout{});
    compare_with_differences<Attention>(Default{});
}

TEST_CASE("attention on a GPU whose scores are not in memory all at once is the host's") {
    using L = LongAttention<float, gpt::CudaOperations>;
    static_assert(L::Scratch::size ==
                  2 * 4 * 512 * 600 + 3 * 4 * 2); // a strip of 512 rows, one of 88
    compare_with_host<LongAttention>(Default{});
}

TEST_CASE("attention on a GPU with heads that are no multiple of 16 bytes is the host's") {
    compare_with_host<NarrowAttention>(Default{});
}

TEST_CASE("the perceptron on a GPU is the host's, and its gradients those of differences") {
    compare_with_host<Mlp>(Default{});
    compare_with_host<Mlp>(WithDropout{});
    compare_with_differences<Mlp>(Default{});
}

TEST_CASE("the head on a GPU is the host's, and its gradients those of differences") {
    compare_with_host<Head>(Default{});
    compare_with_host<Head>(Bounded{});
    compare_with_host<LongHead>(Bounded{});
    compare_with_differences<Head>(Default{});
    compare_with_differences<LongHead>(Default{});
}

TEST_CASE("the embedding on a GPU is the host's, and its gradients those of differences") {
    compare_with_host<Embedding>(Default{});
    compare_with_differences<Embedding>(Default{});
}

// The whole model, with its own loss. Of bytes both its ends have one table.
template <class T, class Operations, std::size_t vocabulary = 256>
using Model = gpt::Model<T, 24, 32, 4, 2, Operations, vocabulary, vocabulary == 256>;
template <class M, class Device>
using TrainOf = gpipe::Training<typename M::Net, gpipe::Cells<gpipe::dynamic>,
                                gpipe::MicroBatches<gpipe::dynamic>, gpipe::Loss<typename M::Loss>,
                                gpipe::Optimizer<gpipe::AdamW>, gpipe::schedule::Dynamic,
                                gpipe::checkpoint::Dynamic, Device>;

constexpr std::size_t characters = 61;
struct Data {
    std::vector<std::int32_t> inputs = std::vector<std::int32_t>(5 * 24), targets = inputs;

    Data() {
        std::mt19937 random{3};
        for (auto& token : inputs) token = static_cast<std::int32_t>(random() % characters);
        for (auto& token : targets) token = static_cast<std::int32_t>(random() % characters);
        targets[7] = -1; // ignored
    }
};

template <class M>
auto on_gpu(std::size_t cells, gpipe::checkpoint::Dynamic checkpointing,
            gpipe::schedule::Dynamic schedule = gpipe::schedule::GPipe{}, std::size_t slices = 3) {
    using Train = TrainOf<M, Cuda>;
    return std::make_unique<Train>(
        M::net(characters, 0.125f), M::loss(characters), gpipe::AdamW{.learning_rate = 1e-2f},
        typename Train::Options{.samples = 5,
                                .seed = 4,
                                .cells = cells,
                                .micro_batches = slices,
                                .schedule = schedule,
                                .checkpointing = checkpointing,
                                .device = {.gpus = std::vector<int>(cells, 0)}});
}

TEST_CASE_TEMPLATE("a model on a GPU trains as on the host", M, Model<float, gpt::CudaOperations>,
                   Model<float, gpt::CudaOperations, 1100>) {
    using OnHost = Model<double, gpt::HostOperations, M::vocabulary>;
    using Reference = TrainOf<OnHost, Host>;
    Data const data;
    auto const gpu = on_gpu<M>(1, gpipe::checkpoint::Never{});
    Reference host(OnHost::net(characters, 0.125f), OnHost::loss(characters),
                   gpipe::AdamW{.learning_rate = 1e-2f},
                   {.samples = 5,
                    .seed = 4,
                    .cells = 1,
                    .micro_batches = 3,
                    .checkpointing = gpipe::checkpoint::Never{}});
    for (int i = 0; i < 10; ++i) {
        auto const of_gpu = gpu->step(data.inputs, data.targets);
        auto const of_host = host.step(data.inputs, data.targets);
        CHECK(of_gpu.loss == doctest::Approx(of_host.loss).epsilon(1e-3));
        CHECK(of_gpu.weight == of_host.weight);
    }
    auto const of_gpu = gpu->evaluate(data.inputs, data.targets);
    auto const of_host = host.evaluate(data.inputs, data.targets);
    CHECK(of_gpu.loss == doctest::Approx(of_host.loss).epsilon(1e-3));
    CHECK(std::abs(of_gpu.metric[0] - of_host.metric[0]) < 0.05);
    CHECK(of_gpu.loss < 4);
}

// The losses of some steps, and what the model then gives.
std::vector<float> trained(auto& train) {
    using M = Model<float, gpt::CudaOperations>;
    Data const data;
    std::vector<float> result;
    for (int i = 0; i < 5; ++i)
        result.push_back(static_cast<float>(train.step(data.inputs, data.targets).loss));
    std::vector<float> logits(data.inputs.size() * M::vocabulary);
    train.predict(data.inputs, logits);
    result.insert(result.end(), logits.begin(), logits.end());
    return result;
}

TEST_CASE("a model on a GPU has the same bits for every cut and checkpointing") {
    using M = Model<float, gpt::CudaOperations>;
    auto const run = [](std::size_t cells, gpipe::checkpoint::Dynamic checkpointing) {
        return trained(*on_gpu<M>(cells, checkpointing));
    };
    auto const expected = run(1, gpipe::checkpoint::Never{});
    CHECK(run(1, gpipe::checkpoint::Never{}) == expected);
    CHECK(run(1, gpipe::checkpoint::Always{}) == expected);
    CHECK(run(2, gpipe::checkpoint::ExceptLast{}) == expected);
    CHECK(run(3, gpipe::checkpoint::Never{}) == expected);
}

TEST_CASE("a model on a GPU has the same bits whether backwards are whole or in halves") {
    using M = Model<float, gpt::CudaOperations>;
    auto const run = [](gpipe::schedule::Dynamic schedule, std::size_t devices,
                        gpipe::checkpoint::Dynamic checkpointing = gpipe::checkpoint::Never{}) {
        return trained(*on_gpu<M>(devices, checkpointing, schedule, 5));
    };
    auto const expected = run(gpipe::schedule::GPipeAscending{}, 1);
    CHECK(run(gpipe::schedule::ZeroBubbleH1{}, 1) == expected);
    CHECK(run(gpipe::schedule::ZeroBubbleH1{}, 2, gpipe::checkpoint::Always{}) == expected);
    CHECK(run(gpipe::schedule::ZeroBubbleH2{}, 3) == expected);
    CHECK(run(gpipe::schedule::ZeroBubbleV{}, 2) == expected);
    CHECK(run(gpipe::schedule::DualPipeV{}, 2, gpipe::checkpoint::ExceptLast{}) == expected);
    CHECK(run(gpipe::schedule::Interleaved1F1B<3>{}, 2) == expected);
}

TEST_CASE("a token that is none makes the loss on a GPU no number") {
    using M = Model<float, gpt::CudaOperations>;
    Data data;
    auto const train = on_gpu<M>(1, gpipe::checkpoint::Never{});
    data.inputs[3] = M::vocabulary;
    CHECK(std::isnan(train->evaluate(data.inputs, data.targets).loss));
    data.inputs[3] = 0;
    data.targets[3] = characters + 20;
    CHECK(std::isnan(train->evaluate(data.inputs, data.targets).loss));
}

} // namespace
