// An Inference on streams, over the double of the CUDA runtime.
#include "support/enqueued_net.hpp"

#include <gpipe/device/cuda_memory.hpp>
#include <gpipe/inference.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using cuda_double::count;
using gpipe::Adam;
using gpipe::device::Cuda;
using gpipe::device::Host;

using Real = float;
using Net = toy::EnqueuedNet<Real>;
using Loss = toy::EnqueuedLoss<toy::MeanSquare<Real, 3>>;
using Train = toy::Training<Net, Loss, Adam, Cuda>;
using Inference =
    gpipe::Inference<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>, Cuda>;

Net make_net(toy::Watch& watch) { return toy::make_enqueued_net<Real>(watch); }

template <class T>
typename T::Options options(std::size_t cells, std::size_t micro_batches, std::size_t gpus) {
    typename T::Options o;
    o.samples = 8;
    o.seed = 7;
    o.cells = cells;
    o.micro_batches = micro_batches;
    for (std::size_t k = 0; k < cells; ++k) o.device.gpus.push_back(static_cast<int>(k % gpus));
    return o;
}

// What the same net on the host predicts after two steps.
std::vector<Real> expected(std::vector<Real> const& inputs, bool trained = true) {
    toy::Watch watch;
    using T = toy::Train<Real, Host>;
    T::Options o;
    o.samples = 8;
    o.seed = 7;
    o.cells = 1;
    o.micro_batches = 4;
    T train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
    for (std::uint32_t i = 0; i < 2 && trained; ++i) {
        toy::Data<Real> const data(8, i);
        train.step(data.inputs, data.targets);
    }
    std::vector<Real> outputs(inputs.size() / 5 * 3);
    train.predict(inputs, outputs);
    return outputs;
}

// Pinned: a copy to other memory would make the host wait, and so order what is not.
struct Pinned {
    gpipe::cuda::PinnedBuffer memory;
    std::span<Real> numbers;
    explicit Pinned(std::size_t size)
        : memory(size * sizeof(Real)), numbers(reinterpret_cast<Real*>(memory.data()), size) {}
    explicit Pinned(std::vector<Real> const& values) : Pinned(values.size()) {
        std::copy(values.begin(), values.end(), numbers.begin());
    }
    bool holds(std::vector<Real> const& values) const {
        return std::equal(numbers.begin(), numbers.end(), values.begin(), values.end());
    }
};

} // namespace

TEST_CASE("on streams of one to four GPUs an inference gives what a training predicts on the host, "
          "several under way, in any order that streams and events allow, eager and as graphs, and "
          "nothing races") {
    toy::Data<Real> const whole(8, 9), few(3, 10), many(27, 11);
    auto const of_whole = expected(whole.inputs), of_few = expected(few.inputs),
               of_many = expected(many.inputs);
    std::size_t point = 0, tried = 0;
    for (std::size_t const m : {1, 2, 3, 8})
        for (std::size_t cells = 1; cells <= 4; ++cells)
            for (std::size_t gpus = 1; gpus <= cells; ++gpus)
                for (std::size_t way = 0; way < 3; ++way)
                    for (std::uint64_t order = 0; order < 4; ++order) {
                        if (point++ % toy::one_of(3) != 0) continue;
                        bool const graphs = tried++ % 2 == 1;
                        INFO("M = ", m, ", K = ", cells, ", ", gpus, " GPUs, way ", way, ", order ",
                             order, graphs ? ", graphs" : "");
                        cuda_double::Session session({.devices = static_cast<int>(gpus),
                                                      .seed = order,
                                                      .peers = [=](int, int) { return way != 1; }});
                        {
                            toy::Watch watch;
                            Train train(make_net(watch), {}, Adam{1e-2f},
                                        options<Train>(2, 4, gpus));
                            for (std::uint32_t i = 0; i < 2; ++i) {
                                toy::Data<Real> const data(8, i);
                                train.step(data.inputs, data.targets);
                            }
                            auto o = options<Inference>(cells, m, gpus);
                            if (way == 2) o.device.link = gpipe::Link::copied;
                            if (graphs) o.device.graphs = 2;
                            Inference inference(make_net(watch), o);
                            CHECK(inference.planned_bytes() < train.planned_bytes());
                            inference.copy_from(train);
                            for (int round = 0; round < 1 + 2 * graphs; ++round) {
                                Pinned outputs(27 * 3), one(8 * 3), two(3 * 3), three(8 * 3);
                                inference.predict(many.inputs, outputs.numbers);
                                CHECK(outputs.holds(of_many));
                                std::vector<Inference::Pending> pending;
                                for (auto const& [from, to] :
                                     {std::pair{&whole, &one}, {&few, &two}, {&whole, &three}}) {
                                    auto values = from->inputs;
                                    pending.push_back(inference.start(values, to->numbers));
                                    std::fill(values.begin(), values.end(), Real(1e6));
                                }
                                for (auto& each : pending) each.wait();
                                CHECK(one.holds(of_whole));
                                CHECK(two.holds(of_few));
                                CHECK(three.holds(of_whole));
                            }
                            CHECK(inference.used_bytes() == inference.planned_bytes());
                            CHECK((count("cudaGraphLaunch") > 0) == graphs);
                        }
                        CHECK(cuda_double::races() == std::vector<std::string>{});
                        CHECK(cuda_double::complaints() == "");
                    }
}

TEST_CASE("an inference follows a stream of the caller's, which may write the inputs again behind "
          "it") {
    toy::Data<Real> const first(8, 9), second(8, 10);
    auto const of_first = expected(first.inputs, false), of_second = expected(second.inputs, false);
    for (std::uint64_t order = 0; order < 4; ++order) {
        cuda_double::Session session({.devices = 2, .seed = order});
        {
            toy::Watch watch;
            Inference inference(make_net(watch), options<Inference>(2, 4, 2));
            gpipe::cuda::Stream const stream(0);
            Pinned inputs(8 * 5), one(8 * 3), two(8 * 3);
            auto const write = [&](std::vector<Real> const& values) {
                toy::Ranges ranges;
                ranges.add(inputs.numbers.data(), inputs.numbers.size());
                gpipe::cuda::check("a kernel launch",
                                   cuda_double::launch(
                                       stream.get(),
                                       [to = inputs.numbers, &values] {
                                           std::copy(values.begin(), values.end(), to.begin());
                                       },
                                       {}, ranges.writes, "the caller's kernel"));
            };
            write(first.inputs);
            auto now = inference.start(inputs.numbers, one.numbers, stream.get());
            write(second.inputs);
            auto next = inference.start(inputs.numbers, two.numbers, stream.get());
            now.wait();
            next.wait();
            CHECK(one.holds(of_first));
            CHECK(two.holds(of_second));
            std::vector<Real> pageable(8 * 5);
            CHECK_THROWS_AS(inference.start(pageable, one.numbers, stream.get()),
                            std::invalid_argument);
            stream.synchronize();
        }
        CHECK(cuda_double::races() == std::vector<std::string>{});
    }
}

TEST_CASE("whatever call fails while an inference is started, nobody reads or writes the caller's "
          "arrays once that has thrown, and the same object goes on") {
    toy::Data<Real> const data(8, 9);
    auto const of_data = expected(data.inputs, false);
    for (bool const follows : {false, true}) {
        cuda_double::Session session({.devices = 2, .default_streams = true});
        {
            toy::Watch watch;
            Inference inference(make_net(watch), options<Inference>(2, 4, 2));
            gpipe::cuda::Stream const stream(0);
            std::size_t failures = 0;
            for (bool failed = true; failed; ++failures) {
                CAPTURE(failures);
                // The host waits until what is on a GPU is read, else a stream of the caller's.
                gpipe::cuda::Buffer const there(0, data.inputs.size() * sizeof(Real));
                cuda_double::poke(there.data(), data.inputs.data(), there.size());
                std::optional<Pinned> inputs(data.inputs), outputs(8 * 3);
                std::span<Real> const from =
                    follows ? inputs->numbers
                            : std::span(reinterpret_cast<Real*>(there.data()), data.inputs.size());
                std::size_t const before = cuda_double::calls();
                cuda_double::fail_call(failures, cudaErrorMemoryAllocation);
                try {
                    auto pending = follows ? inference.start(from, outputs->numbers, stream.get())
                                           : inference.start(from, outputs->numbers);
                    failed = cuda_double::calls() > before + failures;
                    cuda_double::fail_call(SIZE_MAX / 2, cudaSuccess); // no more
                    pending.wait();
                    CHECK(outputs->holds(of_data));
                } catch (gpipe::cuda::Error const&) {
                    cuda_double::fail_call(SIZE_MAX / 2, cudaSuccess);
                    inputs.reset();
                    outputs.reset();
                    CHECK(cuda_double::faults() == std::vector<std::string>{});
                }
                stream.synchronize();
            }
            CHECK(failures > 50);
            Pinned outputs(8 * 3);
            inference.predict(data.inputs, outputs.numbers);
            CHECK(outputs.holds(of_data));
        }
        CHECK(cuda_double::complaints() == "");
    }
}

TEST_CASE("what a layer throws when it is called leaves an inference on streams as it was thrown, "
          "and the same object goes on") {
    toy::Data<Real> const data(8, 9), many(27, 11);
    auto const of_data = expected(data.inputs, false), of_many = expected(many.inputs, false);
    for (std::size_t n = 0; n < 2 * Net::size; ++n) {
        std::size_t const layer = n / 2, graphs = n % 2;
        cuda_double::Session session({.devices = 2});
        {
            toy::Watch watch;
            auto o = options<Inference>(2, 4, 2);
            o.device.graphs = graphs;
            Inference inference(make_net(watch), o);
            Pinned outputs(27 * 3), one(8 * 3);
            if (graphs) inference.predict(data.inputs, one.numbers); // then it is captured
            watch.faults = {{layer, 2, gpipe::Phase::evaluate}};
            INFO("layer ", layer, ", graphs ", graphs);
            CHECK_THROWS_AS(inference.predict(many.inputs, outputs.numbers), toy::Thrown);
            REQUIRE(inference.failure());
            CHECK(inference.failure()->layer == layer);
            CHECK_THROWS_AS(inference.start(data.inputs, one.numbers).wait(), toy::Thrown);
            watch.faults.clear();
            auto pending = inference.start(data.inputs, one.numbers);
            inference.predict(many.inputs, outputs.numbers);
            CHECK(pending.ready());
            CHECK(one.holds(of_data));
            CHECK(outputs.holds(of_many));
        }
        CHECK(cuda_double::races() == std::vector<std::string>{});
    }
}

TEST_CASE(
    "inferences of few sizes are kept as graphs, which write the outputs wherever they are to "
    "be, with parameters as they are then, and take a mini-batch of outputs more") {
    cuda_double::Session session({.devices = 2, .seed = 1, .default_streams = true});
    {
        toy::Watch watch;
        auto o = options<Inference>(2, 3, 2);
        std::size_t const n = o.samples = 64;
        Inference eager(make_net(watch), o);
        o.device.graphs = 1;
        Inference inference(make_net(watch), o);
        std::size_t const room = 3 * 22 * 3 * sizeof(Real); // of rounded micro-batches
        CHECK(inference.planned_bytes() - eager.planned_bytes() == gpipe::slot_bytes(room));
        toy::Data<Real> const data(n, 9);
        std::vector<Real> expected(n * 3), pageable(n * 3), many(3 * n * 5), of_many(3 * n * 3);
        gpipe::cuda::Buffer const there(1, n * 3 * sizeof(Real));
        std::span<Real> const on_gpu(reinterpret_cast<Real*>(there.data()), n * 3);
        Pinned pinned(n * 3);
        std::size_t runs = 0;
        for (Real const bias : {Real(0), Real(0.5)}) {
            std::vector<Real> const biases(6, bias);
            for (Inference* const each : {&eager, &inference})
                each->write_parameter(0, 1, std::as_bytes(std::span(biases)));
            eager.predict(data.inputs, expected);
            for (int round = 0; round < 3; ++round) {
                std::fill(pageable.begin(), pageable.end(), Real(0));
                inference.predict(data.inputs, pageable);
                CHECK((pageable == expected));
                std::fill(pinned.numbers.begin(), pinned.numbers.end(), Real(0));
                std::vector<Real> seen(n * 3);
                auto first = inference.start(data.inputs, pinned.numbers);
                inference.start(data.inputs, on_gpu).wait();
                first.wait();
                CHECK(pinned.holds(expected));
                cuda_double::peek(seen.data(), there.data(), there.size());
                CHECK((seen == expected));
                runs += 3;
            }
        }
        CHECK(count("cudaStreamBeginCapture") == 2);
        CHECK(count("cudaGraphLaunch") == runs - 1);
        // Of several parts the first alone.
        for (std::size_t i = 0; i < 3; ++i)
            std::copy(data.inputs.begin(), data.inputs.end(),
                      many.begin() + static_cast<std::ptrdiff_t>(i * n * 5));
        for (int twice = 0; twice < 2; ++twice) {
            inference.predict(many, of_many);
            for (std::size_t i = 0; i < 3; ++i)
                CHECK(std::equal(expected.begin(), expected.end(),
                                 of_many.begin() + static_cast<std::ptrdiff_t>(i * n * 3)));
            CHECK(count("cudaGraphLaunch") == runs++);
        }
        // Whoever looks at actions has them walked.
        inference.time_actions();
        inference.predict(data.inputs, pageable);
        CHECK((pageable == expected));
        CHECK(count("cudaGraphLaunch") == runs - 1);
    }
    CHECK(cuda_double::complaints() == "");
}
