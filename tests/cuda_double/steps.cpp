// Steps that are started and not waited for, and steps that are kept as graphs, over the double of
// the CUDA runtime.
#include "support/buffer_layers.hpp"
#include "support/enqueued.hpp"
#include "support/net.hpp"

#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Cuda;
using toy::Enqueued;

using Real = float;
using Loss = toy::EnqueuedLoss<toy::MeanSquare<Real, 3>>;
using Net = gpipe::Pipeline<Enqueued<toy::Linear<Real, 5, 6>>, Enqueued<toy::Dropout<Real, 6>>,
                            Enqueued<toy::Tanh<Real, 6>>, Enqueued<toy::Linear<Real, 6, 3>>>;
using Train = toy::Training<Net, Loss, Adam, Cuda>;

Train::Options options(std::size_t graphs, std::size_t cells = 2) {
    Train::Options o;
    o.samples = 8;
    o.seed = 3;
    o.cells = cells;
    o.micro_batches = 3;
    for (std::size_t d = 0; d < cells; ++d) o.device.gpus.push_back(static_cast<int>(d % 2));
    o.device.graphs = graphs;
    return o;
}
std::vector<Real> parameters(Train& train) {
    std::vector<Real> all;
    for (std::size_t layer : {0, 3})
        for (std::size_t t = 0; t < train.tensors(layer); ++t) {
            std::vector<Real> values(Net::leaf_info[layer].parameters.bytes[t] / sizeof(Real));
            train.read_parameter(layer, t, std::span(values));
            all.insert(all.end(), values.begin(), values.end());
        }
    return all;
}
std::size_t count(std::vector<std::string> const& log, char const* call, std::size_t from = 0) {
    return static_cast<std::size_t>(
        std::count_if(log.begin() + static_cast<std::ptrdiff_t>(from), log.end(),
                      [&](std::string const& line) { return line.find(call) == 0; }));
}
toy::Data<Real> data(std::size_t samples, std::uint32_t seed) {
    return toy::Data<Real>(samples, seed);
}

// Losses and parameters of steps over these sizes, one after the other, without graphs.
struct Expected {
    std::vector<double> losses;
    std::vector<Real> values;
    explicit Expected(std::vector<std::size_t> const& sizes) {
        cuda_double::Session session({.devices = 2});
        Train train(Net{}, {}, Adam{1e-2f}, options(0));
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            auto const d = data(sizes[i], static_cast<std::uint32_t>(i));
            losses.push_back(train.step(d.inputs, d.targets).loss);
        }
        values = parameters(train);
    }
};

} // namespace

TEST_CASE("a step that is kept is launched by one call, and its layers are not called again") {
    std::vector<std::size_t> const sizes(7, 8);
    Expected const expected(sizes);
    cuda_double::Session session({.devices = 2});
    Train train(Net{}, {}, Adam{1e-2f}, options(1));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        std::size_t const before = cuda_double::calls();
        auto const d = data(8, static_cast<std::uint32_t>(i));
        CHECK(train.step(d.inputs, d.targets).loss == expected.losses[i]);
        auto const log = cuda_double::call_log();
        CHECK(count(log, "cudaGraphLaunch", before) == (i == 0 ? 0 : 1));
        std::size_t const kernels = count(log, "cudaLaunchKernel", before);
        // The first is not captured; each of two slots has a graph of its own.
        CHECK((i < 3 ? kernels > 30 : kernels == 0));
        // Beside the launch: the mini-batch is brought, and all is held together.
        if (i >= 3) CHECK(cuda_double::calls() - before < 20);
    }
    CHECK(parameters(train) == expected.values);
}

TEST_CASE("what the nodes of a captured step wait for: those before them on their stream, and what "
          "comes from other devices") {
    // By number of cells: for how many that are not the one before.
    std::size_t const waits[] = {0, 0, 10, 0, 35};
    for (std::size_t const cells : {1, 2, 4}) {
        cuda_double::Session session({.devices = 2});
        Train train(Net{}, {}, Adam{1e-2f}, options(1, cells));
        for (std::uint32_t i = 0; i < 3; ++i) {
            auto const d = data(8, i);
            (void)train.step(d.inputs, d.targets).loss;
        }
        std::size_t graphs = 0;
        for (std::string const& line : cuda_double::call_log()) {
            std::size_t const at = line.find(" of ");
            if (line.find("cudaStreamEndCapture") != 0 || at == std::string::npos) continue;
            std::size_t nodes = 0, edges = 0;
            REQUIRE(std::sscanf(line.c_str() + at, " of %zu nodes, %zu edges", &nodes, &edges) ==
                    2);
            MESSAGE("K = ", cells, ", M = 3: ", nodes, " nodes, ", edges, " edges");
            CHECK(edges - (nodes - 1) == waits[cells]);
            ++graphs;
        }
        CHECK(graphs == 2);
    }
}

TEST_CASE(
    "with a hook of actions a step is not kept, nor one that was launched: it hears each action "
    "when its work is put on the stream, which it gets; without one steps are kept again") {
    std::vector<std::size_t> const sizes(9, 8);
    Expected const expected(sizes);
    cuda_double::Session session({.devices = 2});
    Train train(Net{}, {}, Adam{1e-2f}, options(1));
    std::size_t heard = 0, streams = 0, kernels = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        bool const hooked = i == 1 || i == 5; // before steps are kept, and then
        std::size_t inside = 0;
        if (hooked)
            train.on_action([&](gpipe::ActionEvent const& event, Cuda::Stream const& stream) {
                ++heard;
                streams += static_cast<cudaStream_t>(stream) != nullptr;
                std::size_t const launched = count(cuda_double::call_log(), "cudaLaunchKernel");
                if (event.begins) inside = launched;
                if (!event.begins && computes(event.action.kind)) kernels += launched - inside;
            });
        std::size_t const before = cuda_double::calls();
        auto const d = data(8, static_cast<std::uint32_t>(i));
        CHECK(train.step(d.inputs, d.targets).loss == expected.losses[i]);
        auto const log = cuda_double::call_log();
        if (hooked) CHECK(count(log, "cudaGraphLaunch", before) == 0);
        if (i == 4 || i == 8) CHECK(count(log, "cudaGraphLaunch", before) == 1);
        if (hooked) {
            CHECK(heard >= 2 * train.programs().size()); // and copies
            CHECK(heard == streams);
            CHECK(kernels >= train.programs().size()); // between begin and end
            heard = streams = kernels = 0;
            train.on_action(nullptr);
        }
    }
    CHECK(heard == 0);
    CHECK(parameters(train) == expected.values);
    // What it throws fails the step.
    train.on_action([](gpipe::ActionEvent const& event) {
        if (event.action == gpipe::backward(1, 1)) throw std::length_error("mine");
    });
    auto const d = data(8, 0);
    CHECK_THROWS_AS(train.step(d.inputs, d.targets), std::length_error);
    CHECK(train.failure()->cell == 1);
    train.on_action(nullptr);
    CHECK(parameters(train) == expected.values);
    CHECK(train.steps() == sizes.size());
    CHECK(std::isfinite(train.step(d.inputs, d.targets).loss));
}

TEST_CASE("graphs are kept of the sizes that were used last, and of no more than were asked for") {
    std::vector<std::size_t> const sizes{8, 7, 8, 7, 5, 5, 8, 8, 7, 8, 5, 8};
    Expected const expected(sizes);
    for (std::size_t graphs : {1, 2, 3}) {
        cuda_double::Session session({.devices = 2});
        {
            Train train(Net{}, {}, Adam{1e-2f}, options(graphs));
            std::vector<Train::Pending> pending;
            for (std::size_t i = 0; i < sizes.size(); ++i) {
                auto const d = data(sizes[i], static_cast<std::uint32_t>(i));
                pending.push_back(train.start(d.inputs, d.targets));
                auto const log = cuda_double::call_log();
                CHECK(count(log, "cudaGraphInstantiate") - count(log, "cudaGraphExecDestroy") <=
                      graphs * Cuda::depth);
            }
            for (std::size_t i = 0; i < sizes.size(); ++i)
                CHECK(pending[i].result().loss == expected.losses[i]);
            CHECK(parameters(train) == expected.values);
            auto const log = cuda_double::call_log();
            if (graphs == 3) CHECK(count(log, "cudaGraphInstantiate") <= 6);
            if (graphs == 3) CHECK(count(log, "cudaGraphExecDestroy") == 0);
        }
        CHECK(cuda_double::complaints() == "");
    }
}

namespace {

// Does what it is told while it enqueues, and does not look at what comes of it.
struct Careless {
    using Input = gpipe::Tensor<Real, 3>;
    using Output = Input;
    std::function<void(cudaStream_t)>* act;

    void forward(auto& context, auto x, auto y) const {
        if (*act) (*act)(context.stream());
        toy::Ranges ranges;
        ranges.add(x);
        ranges.add(y);
        static_cast<void>(cuda_double::launch(
            context.stream(), [x, y] { std::copy(x.begin(), x.end(), y.begin()); }, ranges.reads,
            ranges.writes, "careless"));
    }
    void backward(auto& context, auto, auto dy, auto dx) const {
        toy::Ranges ranges;
        ranges.add(dy);
        ranges.add(dx);
        toy::enqueue(
            context.stream(), [dy, dx] { std::copy(dy.begin(), dy.end(), dx.begin()); },
            std::move(ranges), "careless");
    }
};

} // namespace

TEST_CASE("a layer that does what no graph can hold is named, and the object trains on") {
    using Chain = gpipe::Pipeline<Enqueued<toy::Linear<Real, 3, 3>>, Careless>;
    using Chained = toy::Training<Chain, Loss, Adam, Cuda>;
    std::vector<Real> const x(8 * 3, Real(0.5)), t(8 * 3);
    auto const losses = [&](std::function<void(cudaStream_t)> mistake, std::size_t graphs,
                            auto check, bool debug = false) {
        std::function<void(cudaStream_t)> act;
        Chained::Options o;
        o.samples = 8;
        o.cells = 2;
        o.micro_batches = 3;
        o.device.gpus = gpipe::gpus(0, 1);
        o.device.graphs = graphs;
        o.debug = debug;
        Chained train(Chain{{}, Careless{&act}}, {}, Adam{1e-2f}, o);
        std::vector<double> result;
        for (std::size_t i = 0; i < 6; ++i) {
            if (mistake && i > 0 && i < 3) { // while it is captured, once for each slot
                act = mistake;
                check(train);
                REQUIRE(train.failure());
                CHECK(train.failure()->layer == 1);
                CHECK(train.failure()->cell == 1);
                CHECK(train.steps() == i);
                act = nullptr;
            }
            result.push_back(train.step(x, t).loss);
        }
        return result;
    };
    auto const cannot = [&](Chained& train) {
        try {
            train.step(x, t);
            CHECK_MESSAGE(false, "nothing was thrown");
        } catch (gpipe::cuda::CannotCapture const& error) {
            CHECK(std::string(error.what()).find("cannot be part of a CUDA graph") !=
                  std::string::npos);
        }
    };
    cuda_double::Session session({.devices = 2});
    auto const expected = losses({}, 0, cannot);
    CHECK(losses({}, 1, cannot) == expected);
    CHECK(losses([](cudaStream_t stream) { static_cast<void>(cudaStreamSynchronize(stream)); }, 1,
                 cannot) == expected);
    CHECK(losses(
              [](cudaStream_t) {
                  void* memory = nullptr;
                  static_cast<void>(cudaMalloc(&memory, 8));
              },
              1, cannot) == expected);
    // Its own exceptions leave as they are.
    for (std::size_t graphs : {0, 1})
        CHECK(losses([](cudaStream_t) -> void { throw std::length_error("mine"); }, graphs,
                     [&](Chained& train) {
                         CHECK_THROWS_AS(train.step(x, t), std::length_error);
                     }) == expected);
    // Whatever comes behind it on this GPU would fail, and be blamed for that.
    for (std::size_t graphs : {0, 1})
        CHECK(losses([](cudaStream_t) { static_cast<void>(cudaSetDevice(0)); }, graphs,
                     [&](Chained& train) {
                         CHECK_THROWS_WITH_AS(train.step(x, t),
                                              "gpipe: a layer on GPU 1 has left GPU 0 current: see "
                                              "cuda::DeviceGuard",
                                              std::logic_error);
                     },
                     true) == expected);
    // What is refused without spoiling the capture would be missing in the graph.
    CHECK(losses(
              [](cudaStream_t stream) {
                  static_cast<void>(cudaMemcpyPeerAsync(nullptr, 0, nullptr, 0, 8, stream));
              },
              1, cannot) == expected);
    static_cast<void>(cuda_double::complaints());
}

TEST_CASE("handles: moved, dropped, late, and longer lived than their training") {
    std::vector<std::size_t> const sizes{8, 7, 8, 8, 7};
    Expected const expected(sizes);
    for (std::size_t graphs : {0, 2}) {
        cuda_double::Session session({.devices = 2});
        std::optional<Train> train;
        train.emplace(Net{}, Loss{}, Adam{1e-2f}, options(graphs));
        auto const start = [&](std::size_t i) {
            auto const d = data(sizes[i], static_cast<std::uint32_t>(i));
            return train->start(d.inputs, d.targets);
        };
        auto first = start(0);
        CHECK(!first.ready());
        auto moved = std::move(first);
        static_cast<void>(start(1)); // nobody wants to know
        auto third = start(2);       // takes the place of the first
        CHECK(moved.ready());
        CHECK(train->steps() == 1);
        auto again = std::move(moved);
        auto fourth = start(3);
        CHECK(float(fourth) == float(expected.losses[3])); // waits for the third, too
        CHECK(third.ready());
        CHECK(train->steps() == 4);
        CHECK(third.result().loss == expected.losses[2]);
        CHECK(third.result().loss == expected.losses[2]); // as often as one likes
        auto fifth = start(4);
        CHECK(parameters(*train) == expected.values); // waits
        CHECK(fifth.ready());
        CHECK(train->steps() == 5);
        auto last = start(0);
        train.reset();
        CHECK(last.ready());
        CHECK(last.result().weight == 8);
        CHECK(again.result().loss == expected.losses[0]);
        CHECK(cuda_double::complaints() == "");
        CHECK(cuda_double::leaks() == std::vector<std::string>{});
    }
}

TEST_CASE("what the caller gave may be changed as soon as a step has been started") {
    std::vector<std::size_t> const sizes{8, 7, 8, 8, 7, 8};
    Expected const expected(sizes);
    for (std::size_t graphs : {0, 2}) {
        cuda_double::Session session({.devices = 2, .seed = 2});
        Train train(Net{}, {}, Adam{1e-2f}, options(graphs));
        std::vector<Train::Pending> pending;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            auto d = data(sizes[i], static_cast<std::uint32_t>(i));
            train.optimizer().learning_rate = 1e-2f;
            pending.push_back(train.start(d.inputs, d.targets));
            train.optimizer().learning_rate = 1e30f;
            std::fill(d.inputs.begin(), d.inputs.end(), Real(1e30));
            std::fill(d.targets.begin(), d.targets.end(), Real(1e30));
        }
        for (std::size_t i = 0; i < sizes.size(); ++i)
            CHECK(pending[i].result().loss == expected.losses[i]);
        CHECK(cuda_double::races() == std::vector<std::string>{});
    }
}

TEST_CASE(
    "B13 arrays on a GPU are read behind the caller's stream, which may then write them again") {
    std::vector<std::size_t> const sizes{8, 7, 8, 8, 7, 8};
    Expected const expected(sizes);
    for (std::size_t graphs : {0, 2})
        for (int gpu : {0, 1})
            for (std::uint64_t order : {0, 1, 2, 3}) {
                cuda_double::Session session({.devices = 2, .seed = order});
                Train train(Net{}, {}, Adam{1e-2f}, options(graphs));
                gpipe::cuda::Stream const mine(gpu);
                gpipe::cuda::Buffer const inputs(gpu, 8 * 5 * sizeof(Real));
                gpipe::cuda::Buffer const targets(gpu, 8 * 3 * sizeof(Real));
                auto const span = [](gpipe::cuda::Buffer const& buffer, std::size_t n) {
                    return std::span<Real>(reinterpret_cast<Real*>(buffer.data()), n);
                };
                gpipe::cuda::DeviceGuard const guard(gpu);
                auto const write = [&](std::span<Real> to, std::vector<Real> from) {
                    toy::Ranges ranges;
                    ranges.add(to.data(), to.size());
                    static_cast<void>(cuda_double::launch(
                        mine.get(),
                        [to, from = std::move(from)] {
                            std::copy(from.begin(), from.end(), to.begin());
                        },
                        {}, ranges.writes, "the caller's kernel"));
                };
                std::vector<Train::Pending> pending;
                for (std::size_t i = 0; i < sizes.size(); ++i) {
                    auto const d = data(sizes[i], static_cast<std::uint32_t>(i));
                    auto const x = span(inputs, d.inputs.size());
                    auto const t = span(targets, d.targets.size());
                    write(x, d.inputs);
                    write(t, d.targets);
                    pending.push_back(train.start(x, t, mine.get()));
                }
                for (std::size_t i = 0; i < sizes.size(); ++i)
                    CHECK(pending[i].result().loss == expected.losses[i]);
                CHECK(parameters(train) == expected.values);
                CHECK(cuda_double::races() == std::vector<std::string>{});
            }
}

TEST_CASE("arrays on a GPU without a stream are read before start() returns") {
    std::vector<std::size_t> const sizes{8, 8, 8, 8};
    Expected const expected(sizes);
    for (std::size_t graphs : {0, 1}) {
        cuda_double::Session session({.devices = 2, .default_streams = true});
        Train train(Net{}, {}, Adam{1e-2f}, options(graphs));
        gpipe::cuda::Buffer const inputs(1, 8 * 5 * sizeof(Real));
        gpipe::cuda::Buffer const targets(0, 8 * 3 * sizeof(Real));
        std::vector<Train::Pending> pending;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            auto const d = data(sizes[i], static_cast<std::uint32_t>(i));
            cuda_double::poke(inputs.data(), d.inputs.data(), d.inputs.size() * sizeof(Real));
            cuda_double::poke(targets.data(), d.targets.data(), d.targets.size() * sizeof(Real));
            pending.push_back(
                train.start(std::span<Real>(reinterpret_cast<Real*>(inputs.data()), 8 * 5),
                            std::span<Real>(reinterpret_cast<Real*>(targets.data()), 8 * 3)));
        }
        for (std::size_t i = 0; i < sizes.size(); ++i)
            CHECK(pending[i].result().loss == expected.losses[i]);
    }
}

TEST_CASE("work that fails on the device is thrown where the step is waited for, or at the next") {
    std::size_t works = 0;
    for (std::size_t n = 0; n <= works; ++n)
        for (std::size_t graphs : {0, 1}) {
            cuda_double::Session session({.devices = 2});
            bool refused = false;
            {
                Train train(Net{}, {}, Adam{1e-2f}, options(graphs));
                auto const d = data(8, 0);
                static_cast<void>(train.step(d.inputs, d.targets));
                std::size_t const before = cuda_double::works();
                cuda_double::fail_work(n);
                auto first = train.start(d.inputs, d.targets);
                if (n % 2 == 0) {
                    try {
                        static_cast<void>(first.result());
                        static_cast<void>(train.step(d.inputs, d.targets));
                    } catch (gpipe::cuda::Error const& error) {
                        CHECK(error.code() == cudaErrorLaunchFailure);
                        refused = true;
                    }
                } else {
                    try {
                        { auto const dropped = std::move(first); }
                        auto const second = train.start(d.inputs, d.targets);
                        static_cast<void>(train.step(d.inputs, d.targets));
                    } catch (gpipe::cuda::Error const& error) {
                        CHECK(error.code() == cudaErrorLaunchFailure);
                        refused = true;
                    }
                }
                works = cuda_double::works() - before;
                if (refused) CHECK_THROWS(train.step(d.inputs, d.targets));
            }
            CHECK(refused);
            static_cast<void>(cuda_double::complaints());
            if (n > 80) return; // of the first step, and far into the second
        }
}

TEST_CASE(
    "what is not finite is thrown by result(), and the device has skipped the update, whether the "
    "step was launched as a graph or not, and although the next was under way") {
    for (std::size_t graphs : {0, 1})
        for (int asks : {0, 1, 2}) {
            cuda_double::Session session({.devices = 2});
            auto o = options(graphs);
            o.clip_norm = asks == 1 ? 1e6 : 0;
            o.finite_gradients = asks == 2;
            Train train(Net{}, {}, Adam{1e-2f}, o), twin(Net{}, {}, Adam{1e-2f}, o);
            for (std::uint32_t i = 0; i < 6; ++i) {
                auto const good = data(8, i);
                auto bad = good;
                bad.targets[3 * 3] = std::numeric_limits<Real>::quiet_NaN(); // of the second
                auto first = train.start(bad.inputs, bad.targets);
                auto second = train.start(good.inputs, good.targets);
                CHECK_THROWS_WITH_AS(first.result(), "gpipe: the loss of micro-batch 1 is nan",
                                     std::domain_error);
                REQUIRE(train.failure());
                CHECK(train.failure()->micro_batch == 1);
                CHECK(second.result().loss == twin.step(good.inputs, good.targets).loss);
                CHECK(train.steps() == i + 1);
            }
            CHECK(parameters(train) == parameters(twin));
            if (asks == 0) continue;
            // A finite loss of large inputs whose weights are zero; not so their gradients.
            std::vector<Real> const zeros(5 * 6);
            for (Train* each : {&train, &twin})
                each->write_parameter(0, 0, std::span<Real const>(zeros));
            auto broken = data(8, 1);
            for (Real& x : broken.inputs) x = 3e38f;
            for (Real& y : broken.targets) y = 1e3f;
            CHECK_THROWS_WITH_AS(train.step(broken.inputs, broken.targets),
                                 doctest::Contains("not finite: the sum of its squares is"),
                                 std::domain_error);
            CHECK(train.failure()->of == gpipe::FailureOf::gradient);
            CHECK(parameters(train) == parameters(twin));
        }
}

namespace {

// The first number of a sample goes through, and says which layers' gradients are spoilt: a set of
// bits. The others are scaled, by the number of the step, too.
struct Spoils {
    using Input = gpipe::Tensor<Real, 3>;
    using Output = Input;
    using Parameters = gpipe::Tensor<Real, 3>;
    void initialize(auto& ctx) const {
        for (Real& w : ctx.parameters()) w = 1;
    }
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 3; ++i)
                y(s, i) = i == 0 ? x(s, i) : ctx.parameters()[i] * by(ctx) * x(s, i);
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 3; ++i) {
                ctx.gradients()[i] += i == 0 ? 0 : dy(s, i) * by(ctx) * x(s, i);
                dx(s, i) = i == 0 ? 0 : ctx.parameters()[i] * by(ctx) * dy(s, i);
            }
        if ((static_cast<unsigned>(x(0, 0)) >> ctx.layer()) % 2 == 1)
            ctx.gradients()[2] = std::numeric_limits<Real>::infinity();
    }

  private:
    static Real by(auto& ctx) { return 1 + Real(0.01) * static_cast<Real>(ctx.state()->step); }
};
using Spoilt =
    gpipe::Training<gpipe::Pipeline<gpipe::Repeat<4, Enqueued<Spoils>>>,
                    gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<3>, gpipe::Loss<Loss>,
                    gpipe::Optimizer<Adam>, gpipe::update::Immediate, Cuda>;

// In the second micro-batch.
toy::Data<Real> spoiling(unsigned layers, std::uint32_t seed) {
    toy::Data<Real> result(8, seed);
    result.inputs = toy::numbers<Real>(8 * 3, seed);
    for (std::size_t s = 0; s < 8; ++s) result.inputs[3 * s] = 0;
    result.inputs[3 * 3] = static_cast<Real>(layers);
    return result;
}
std::vector<std::vector<Real>> weights(Spoilt& of) {
    std::vector<std::vector<Real>> all(4, std::vector<Real>(3));
    for (std::size_t layer = 0; layer < 4; ++layer)
        of.read_parameter(layer, 0, std::span(all[layer]));
    return all;
}
Spoilt::Options spoilt_options(std::size_t graphs, std::size_t cells, int gpus = 2) {
    Spoilt::Options o;
    o.samples = 8;
    o.cells = cells;
    o.finite_gradients = true;
    for (std::size_t d = 0; d < cells; ++d) o.device.gpus.push_back(static_cast<int>(d) % gpus);
    o.device.graphs = graphs;
    return o;
}

} // namespace

TEST_CASE("with immediate updates a step whose gradients are finite on no device has not been, "
          "although the next was under way") {
    for (std::size_t graphs : {0, 1})
        for (std::size_t cells : {1, 2, 4}) {
            INFO("K = ", cells, ", graphs of ", graphs);
            cuda_double::Session session({.devices = 2});
            auto o = spoilt_options(graphs, cells);
            Spoilt train({}, {}, Adam{1e-2f}, o);
            o.finite_gradients = false;
            Spoilt twin({}, {}, Adam{1e-2f}, o);
            for (std::uint32_t i = 0; i < 5; ++i) {
                auto const bad = spoiling(cells == 1 ? 4u : 15u, i), good = spoiling(0, i);
                auto first = train.start(bad.inputs, bad.targets);
                auto second = train.start(good.inputs, good.targets);
                CHECK_THROWS_WITH_AS(first.result(),
                                     doctest::Contains(cells == 1 ? "tensor 0 of layer 2 ("
                                                                  : "tensor 0 of layer 0 ("),
                                     std::domain_error);
                CHECK(train.failure()->of == gpipe::FailureOf::gradient);
                CHECK(second.result().loss == twin.step(good.inputs, good.targets).loss);
                CHECK(weights(train) == weights(twin));
                CHECK(train.steps() == i + 1);
                CHECK_THROWS_AS(train.compute_gradients(bad.inputs, bad.targets),
                                std::domain_error);
            }
        }
}

TEST_CASE("with immediate updates a device whose gradients are not finite does not update, and the "
          "others make the object one of no use") {
    for (std::size_t graphs : {0, 1})
        for (bool const later : {false, true})
            for (std::size_t layer : {0, 1, 2, 3, 4, 5, 6, 7}) {
                int const gpus = layer < 4 ? 2 : 1; // whose devices read one state
                layer %= 4;
                INFO("layer ", layer, ", graphs of ", graphs, ", ", gpus, " GPUs");
                cuda_double::Session session({.devices = 2});
                Spoilt train({}, {}, Adam{1e-2f}, spoilt_options(graphs, 2, gpus));
                auto const bad = spoiling(1u << layer, 1), good = spoiling(0, 1);
                for (int i = 0; later && i < 4; ++i) train.step(good.inputs, good.targets);
                CHECK_THROWS_AS(train.compute_gradients(bad.inputs, bad.targets),
                                std::domain_error); // which updates nothing
                auto const before = weights(train);
                auto first = train.start(bad.inputs, bad.targets);
                auto second = train.start(good.inputs, good.targets);
                std::string const place =
                    "gradient of parameter tensor 0 of layer " + std::to_string(layer);
                CHECK_THROWS_WITH_AS(first.result(), doctest::Contains(place.c_str()),
                                     std::domain_error);
                CHECK_THROWS_WITH_AS(second.result(), doctest::Contains("of no use"),
                                     std::runtime_error);
                CHECK(train.failure()->layer == layer);
                CHECK_THROWS_WITH_AS(train.step(good.inputs, good.targets),
                                     doctest::Contains("of no use"), std::runtime_error);
                auto const after = weights(train); // by the second step, too
                for (std::size_t other = 0; other < 4; ++other)
                    CHECK(std::isfinite(after[other][2]));
                CHECK(after != before);
            }
}

TEST_CASE("with immediate updates only the device whose gradients are not finite stays as it was") {
    for (std::size_t layer : {0, 3}) {
        cuda_double::Session session({.devices = 2});
        Spoilt train({}, {}, Adam{1e-2f}, spoilt_options(0, 4));
        auto const bad = spoiling(1u << layer, 1);
        auto const before = weights(train);
        CHECK_THROWS_AS(train.step(bad.inputs, bad.targets), std::domain_error);
        auto const after = weights(train);
        for (std::size_t other = 0; other < 4; ++other)
            CHECK((after[other] == before[other]) == (other == layer));
    }
}

TEST_CASE(
    "with immediate updates a device that has buffers and nothing that learns has moved them") {
    using Counts =
        gpipe::Pipeline<Enqueued<Spoils>, Enqueued<toy::StepCounter<Real, 3>>, Enqueued<Spoils>>;
    using Trains =
        gpipe::Training<Counts, gpipe::Cells<3>, gpipe::MicroBatches<3>, gpipe::Loss<Loss>,
                        gpipe::Optimizer<Adam>, gpipe::update::Immediate, Cuda>;
    for (unsigned const spoilt : {0u, 5u}) { // both of the layers that learn
        cuda_double::Session session({.devices = 2});
        Trains::Options o;
        o.samples = 8;
        o.finite_gradients = true;
        o.device.gpus = gpipe::gpus(0, 1, 0);
        Trains train({}, {}, Adam{1e-2f}, o);
        auto const data = spoiling(spoilt, 1);
        std::int32_t count = 0;
        if (spoilt) {
            CHECK_THROWS_AS(train.step(data.inputs, data.targets), std::domain_error);
            train.read_buffer(1, 0, std::span(&count, 1));
            CHECK(count == 6);
            CHECK_THROWS_WITH_AS(train.step(data.inputs, data.targets),
                                 doctest::Contains("of no use"), std::runtime_error);
        } else {
            train.step(data.inputs, data.targets);
            train.step(data.inputs, data.targets);
            CHECK(train.steps() == 2);
        }
    }
}

TEST_CASE("with immediate updates, too, a loss that is not finite updates nothing on the device") {
    using Immediately =
        gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<3>, gpipe::Loss<Loss>,
                        gpipe::Optimizer<Adam>, gpipe::update::Immediate, Cuda>;
    cuda_double::Session session({.devices = 2});
    Immediately::Options o;
    o.samples = 8;
    o.device.gpus = gpipe::gpus(0, 1);
    Immediately train(Net{}, {}, Adam{1e-2f}, o), twin(Net{}, {}, Adam{1e-2f}, o);
    auto const weights = [](Immediately& of) {
        std::vector<Real> values(5 * 6 + 6 * 3);
        of.read_parameter(0, 0, std::span(values).first(5 * 6));
        of.read_parameter(3, 0, std::span(values).last(6 * 3));
        return values;
    };
    for (std::uint32_t i = 0; i < 3; ++i) {
        auto const good = data(8, i);
        auto bad = good;
        bad.targets[0] = std::numeric_limits<Real>::infinity();
        auto const before = weights(train);
        CHECK_THROWS_WITH_AS(train.step(bad.inputs, bad.targets),
                             "gpipe: the loss of micro-batch 0 is inf", std::domain_error);
        CHECK(weights(train) == before);
        CHECK(train.step(good.inputs, good.targets).loss ==
              twin.step(good.inputs, good.targets).loss);
        CHECK(weights(train) == weights(twin));
    }
    o.finite_gradients = true;
    o.not_finite = gpipe::NotFinite::go_on;
    CHECK_THROWS_WITH_AS((Immediately(Net{}, {}, Adam{}, o)), doctest::Contains("go_on"),
                         std::invalid_argument);
}
