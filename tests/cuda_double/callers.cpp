// What a caller, and other threads, do around the steps of a training on GPUs: errors they leave,
// devices they make current, waits they make while a step is captured, arrays that their streams
// write. Over the double of the CUDA runtime.
#include "support/enqueued.hpp"
#include "support/net.hpp"

#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using cuda_double::count;
using gpipe::Adam;
using gpipe::device::Cuda;
using toy::Enqueued;

using Real = float;

// Enqueues what it should, and before and behind that does what it is told.
struct Meddled {
    using Input = gpipe::Tensor<Real, 6>;
    using Output = Input;
    std::function<void(bool before)>* act;

    static void copy(auto& context, auto from, auto to) {
        toy::Ranges ranges;
        ranges.add(from);
        ranges.add(to);
        toy::enqueue(
            context.stream(), [from, to] { std::copy(from.begin(), from.end(), to.begin()); },
            std::move(ranges), "meddled");
    }
    void forward(auto& context, auto x, auto y) const {
        if (*act) (*act)(true);
        copy(context, x, y);
        if (*act) (*act)(false);
    }
    void backward(auto& context, auto, auto dy, auto dx) const {
        if (*act) (*act)(true);
        copy(context, dy, dx);
        if (*act) (*act)(false);
    }
};

using Loss = toy::EnqueuedLoss<toy::MeanSquare<Real, 3>>;
using Net =
    gpipe::Pipeline<Enqueued<toy::Linear<Real, 5, 6>>, Meddled, Enqueued<toy::Dropout<Real, 6>>,
                    Enqueued<toy::Tanh<Real, 6>>, Enqueued<toy::Linear<Real, 6, 3>>>;
using Train = toy::Training<Net, Loss, Adam, Cuda>;
using Act = std::function<void(bool before)>;

Act nothing;

Train make(std::size_t graphs, Act& act = nothing, std::vector<int> gpus = {0, 1},
           std::size_t micro_batches = 3) {
    Train::Options o;
    o.samples = 16;
    o.seed = 3;
    o.cells = gpus.size();
    o.micro_batches = micro_batches;
    o.device.gpus = std::move(gpus);
    o.device.graphs = graphs;
    return Train(Net{{}, Meddled{&act}, {}, {}, {}}, {}, Adam{1e-2f}, o);
}
toy::Data<Real> data(std::size_t samples, std::size_t step) {
    return toy::Data<Real>(samples, static_cast<std::uint32_t>(step));
}
std::vector<Real> parameters(Train& train) {
    std::vector<Real> all;
    for (std::size_t layer : {0, 4})
        for (std::size_t t = 0; t < train.tensors(layer); ++t) {
            std::vector<Real> values(Net::leaf_info[layer].parameters.bytes[t] / sizeof(Real));
            train.read_parameter(layer, t, std::span(values));
            all.insert(all.end(), values.begin(), values.end());
        }
    return all;
}

// Losses and parameters of steps over these sizes on streams, undisturbed.
struct Expected {
    std::vector<double> losses;
    std::vector<Real> values;
    double evaluated = 0;
    std::vector<Real> predicted = std::vector<Real>(16 * 3);

    explicit Expected(std::vector<std::size_t> const& sizes) {
        cuda_double::Session session({.devices = 2});
        Train train = make(0);
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            auto const d = data(sizes[i], i);
            losses.push_back(train.step(d.inputs, d.targets).loss);
        }
        values = parameters(train);
        auto const d = data(16, 9);
        evaluated = train.evaluate(d.inputs, d.targets).loss;
        train.predict(d.inputs, predicted);
    }
};

template <class Body> std::string what_of(Body body) {
    try {
        body();
    } catch (std::exception const& e) {
        return e.what();
    }
    return "nothing was thrown";
}
void on_another_thread(auto body) { std::thread(body).join(); }

// An array of a GPU or pinned, and kernels that write it.
struct Written {
    std::span<Real> numbers;

    Written(auto const& memory, std::size_t size)
        : numbers(reinterpret_cast<Real*>(memory.data()), size) {}
    void write(cudaStream_t stream, std::vector<Real> values) const {
        toy::Ranges ranges;
        ranges.add(numbers.data(), numbers.size());
        gpipe::cuda::check("a kernel launch", cuda_double::launch(
                                                  stream,
                                                  [to = numbers, values = std::move(values)] {
                                                      std::copy(values.begin(), values.end(),
                                                                to.begin());
                                                  },
                                                  {}, ranges.writes, "the caller's kernel"));
    }
};

} // namespace

TEST_CASE("whichever GPU is the caller's current one, steps and graphs begin on their own, and it "
          "is current again") {
    std::vector<std::size_t> const sizes(5, 16);
    Expected const expected(sizes);
    for (std::size_t graphs : {0, 1})
        for (int current : {0, 1, 3}) {
            cuda_double::Session session({.devices = 4});
            {
                Act act;
                Train train = make(graphs, act, {2, 1});
                auto const is_current = [&] {
                    int device = -1;
                    gpipe::cuda::check("cudaGetDevice", cudaGetDevice(&device));
                    return device == current;
                };
                gpipe::cuda::check("cudaSetDevice", cudaSetDevice(current));
                for (std::size_t i = 0; i < sizes.size(); ++i) {
                    auto const d = data(sizes[i], i);
                    act = [](bool) { throw std::length_error("mine"); };
                    if (i < 3) CHECK_THROWS_AS(train.step(d.inputs, d.targets), std::length_error);
                    CHECK(is_current());
                    act = nullptr;
                    CHECK(train.step(d.inputs, d.targets).loss == expected.losses[i]);
                    CHECK(is_current());
                }
                CHECK(parameters(train) == expected.values);
                CHECK(is_current());
            }
            CHECK(cuda_double::complaints() == "");
        }
}

TEST_CASE("an error that the caller left behind is called that, no layer is blamed, and the next "
          "step goes on") {
    Expected const expected({16, 16, 16, 16});
    for (std::size_t graphs : {0, 1}) {
        cuda_double::Session session({.devices = 2});
        Train train = make(graphs);
        auto const forgets = [] {
            void* memory = nullptr;
            static_cast<void>(cudaMalloc(&memory, std::size_t{1} << 60));
        };
        auto const says = [&](auto call) {
            forgets();
            std::size_t const works = cuda_double::works();
            std::string const said = what_of(call);
            CHECK(said.find("cudaErrorMemoryAllocation") != std::string::npos);
            CHECK(said.find("before this step") != std::string::npos);
            CHECK(!train.failure());
            CHECK(cuda_double::works() == works); // nothing was begun
            CHECK(cudaPeekAtLastError() == cudaSuccess);
        };
        auto const d = data(16, 9);
        std::vector<Real> outputs(16 * 3);
        for (std::size_t i = 0; i < 4; ++i) {
            auto const step = data(16, i);
            says([&] { train.step(step.inputs, step.targets); });
            CHECK(train.steps() == i);
            CHECK(train.step(step.inputs, step.targets).loss == expected.losses[i]);
        }
        says([&] { train.evaluate(d.inputs, d.targets); });
        CHECK(train.evaluate(d.inputs, d.targets).loss == expected.evaluated);
        says([&] { train.predict(d.inputs, outputs); });
        train.predict(d.inputs, outputs);
        CHECK(outputs == expected.predicted);
        CHECK(parameters(train) == expected.values);
    }
}

TEST_CASE("that a stream or an event was not ready yet is no error that is left behind") {
    Expected const expected({16});
    cuda_double::Session session({.devices = 2});
    Train train = make(0);
    gpipe::cuda::Stream const stream(0);
    for (int i = 0; i < 3; ++i) static_cast<void>(cuda_double::launch(stream.get(), [] {}, {}, {}));
    REQUIRE(cudaStreamQuery(stream.get()) == cudaErrorNotReady);
    auto const d = data(16, 0);
    CHECK(train.step(d.inputs, d.targets).loss == expected.losses[0]);
    stream.synchronize();
}

TEST_CASE("a capture that another thread spoils, at whatever point, is given up: its step runs on "
          "streams, as do all of that size, and others are captured") {
    std::vector<std::size_t> const sizes{16, 16, 16, 16, 7, 7, 7};
    Expected const expected(sizes);
    std::size_t spoilt = 0;
    for (std::size_t n = 0;; ++n) {
        cuda_double::Session session({.devices = 2});
        {
            std::size_t calls = 0;
            bool done = false;
            Act act;
            Train train = make(2, act);
            for (std::size_t i = 0; i < sizes.size(); ++i) {
                auto const d = data(sizes[i], i);
                if (i == 1) // while it is captured
                    act = [&](bool) {
                        if (calls++ != n) return;
                        done = true;
                        on_another_thread([] {
                            for (int gpu : {0, 1}) {
                                static_cast<void>(cudaSetDevice(gpu));
                                static_cast<void>(cudaDeviceSynchronize());
                            }
                        });
                    };
                std::size_t const before = cuda_double::call_log().size();
                CHECK(train.step(d.inputs, d.targets).loss == expected.losses[i]);
                CHECK(!train.failure());
                std::size_t const captures = count("cudaStreamBeginCapture", before);
                std::size_t const launches = count("cudaGraphLaunch", before);
                if (i == 1) CHECK(captures == 1);
                if (done && i < 4) CHECK(launches == 0);
                if (done && (i == 2 || i == 3)) CHECK(captures == 0);
                if (i > 4) CHECK(launches == 1);
                act = nullptr;
            }
            CHECK(parameters(train) == expected.values);
            CHECK(train.kept_runs() == (done ? 2 : 4)); // of each size one for each slot
            train.change_layer<0>([](auto&) {});        // with another layer a step is another
            CHECK(train.kept_runs() == 0);
            spoilt += done;
            if (!done) n = SIZE_MAX - 1;
        }
        CHECK(cuda_double::complaints() == "");
        CHECK(cuda_double::leaks() == std::vector<std::string>{});
        if (n == SIZE_MAX - 1) break;
    }
    CHECK(spoilt == 12); // before and behind forward and backward of three micro-batches
}

TEST_CASE("a capture that cannot be begun, ended, instantiated or launched is given up, too") {
    std::vector<std::size_t> const sizes{16, 16, 16, 7, 7};
    Expected const expected(sizes);
    auto const trains = [&](Train& train, std::size_t graph_launches) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            auto const d = data(sizes[i], i);
            CHECK(train.step(d.inputs, d.targets).loss == expected.losses[i]);
            CHECK(!train.failure());
            CHECK(cudaPeekAtLastError() == cudaSuccess);
        }
        CHECK(count("cudaGraphLaunch") == graph_launches);
        CHECK(parameters(train) == expected.values);
    };
    std::vector<std::string> undisturbed;
    {
        cuda_double::Session session({.devices = 2});
        Train train = make(2);
        trains(train, 3);
        undisturbed = cuda_double::call_log();
    }
    for (std::string const call : {"cudaStreamBeginCapture", "cudaStreamEndCapture",
                                   "cudaGraphInstantiate", "cudaGraphLaunch"}) {
        CAPTURE(call);
        auto const first = std::find_if(undisturbed.begin(), undisturbed.end(),
                                        [&](auto const& line) { return line.find(call) == 0; });
        cuda_double::Session session({.devices = 2});
        {
            cuda_double::fail_call(static_cast<std::size_t>(first - undisturbed.begin()),
                                   cudaErrorMemoryAllocation);
            Train train = make(2);
            // That of the other size alone, besides the launch that failed.
            trains(train, call == "cudaGraphLaunch" ? 2 : 1);
            CHECK(count("cudaStreamBeginCapture") == 2); // once for each size
        }
        CHECK(cuda_double::complaints() == "");
        CHECK(cuda_double::leaks() == std::vector<std::string>{});
    }
    // No memory for graphs beside what is planned.
    std::size_t used = 0;
    {
        cuda_double::Session session({.devices = 2});
        Train train = make(2);
        std::size_t free = 0, total = 0;
        gpipe::cuda::check("cudaMemGetInfo", cudaMemGetInfo(&free, &total));
        used = total - free;
    }
    cuda_double::Session session({.devices = 2, .memory = used + 4096, .graph_memory = 512});
    Train train = make(2);
    trains(train, 0);
    CHECK(count("cudaGraphInstantiate") == 2); // once for each size
}

TEST_CASE("without access between GPUs what is read and written between steps takes the way of the "
          "GPU that has it") {
    std::vector<std::size_t> const sizes{16, 7};
    Expected const expected(sizes);
    cuda_double::Session session({.devices = 2, .peers = [](int, int) { return false; }});
    Train train = make(0);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        auto const d = data(sizes[i], i);
        CHECK(train.step(d.inputs, d.targets).loss == expected.losses[i]);
    }
    CHECK(parameters(train) == expected.values);
    for (std::string const& call : cuda_double::call_log())
        CHECK_MESSAGE(call.find("through the host") == std::string::npos, call);
}

TEST_CASE("pinned arrays that the caller's stream writes are read behind it; pageable ones are "
          "refused, and the object trains on") {
    std::vector<std::size_t> const sizes(7, 16);
    Expected const expected(sizes);
    for (std::size_t graphs : {0, 1})
        for (std::uint64_t order : {0, 1, 2, 3}) {
            cuda_double::Session session({.devices = 2, .seed = order});
            Train train = make(graphs);
            gpipe::cuda::Stream const mine(0);
            gpipe::cuda::PinnedBuffer const inputs(16 * 5 * sizeof(Real));
            gpipe::cuda::PinnedBuffer const targets(16 * 3 * sizeof(Real));
            Written const x(inputs, 16 * 5), t(targets, 16 * 3);
            std::vector<Train::Pending> pending;
            for (std::size_t i = 0; i < sizes.size(); ++i) {
                auto const d = data(sizes[i], i);
                CHECK(what_of([&] {
                          train.start(x.numbers, d.targets, mine.get());
                      }).find("pageable") != std::string::npos);
                CHECK_THROWS_AS(train.start(d.inputs, t.numbers, mine.get()),
                                std::invalid_argument);
                x.write(mine.get(), d.inputs);
                t.write(mine.get(), d.targets);
                pending.push_back(train.start(x.numbers, t.numbers, mine.get()));
            }
            for (std::size_t i = 0; i < sizes.size(); ++i)
                CHECK(pending[i].result().loss == expected.losses[i]);
            // Without a stream they are read at once, and what refuses is over.
            auto const d = data(16, 9);
            CHECK_NOTHROW(train.step(d.inputs, d.targets));
            CHECK(cuda_double::races() == std::vector<std::string>{});
        }
}

TEST_CASE("arrays on a GPU without a stream are read behind its default stream, and so behind "
          "every stream that waits for that") {
    std::vector<std::size_t> const sizes(5, 16);
    Expected const expected(sizes);
    enum Writer { legacy, threads, blocking };
    for (Writer writer : {legacy, threads, blocking})
        for (std::size_t graphs : {0, 1})
            for (int gpu : {0, 1})
                for (std::uint64_t order : {0, 1, 2, 3}) {
                    CAPTURE(writer);
                    cuda_double::Session session(
                        {.devices = 2, .seed = order, .default_streams = true});
                    Train train = make(graphs);
                    gpipe::cuda::Buffer const inputs(gpu, 16 * 5 * sizeof(Real));
                    gpipe::cuda::Buffer const targets(gpu, 16 * 3 * sizeof(Real));
                    gpipe::cuda::Buffer const outputs(gpu, 16 * 3 * sizeof(Real));
                    Written const x(inputs, 16 * 5), t(targets, 16 * 3), y(outputs, 16 * 3);
                    gpipe::cuda::DeviceGuard const guard(gpu);
                    cudaStream_t stream = writer == threads ? cudaStreamPerThread : nullptr;
                    if (writer == blocking)
                        gpipe::cuda::check("cudaStreamCreate", cudaStreamCreate(&stream));
                    auto const write = [&](toy::Data<Real> const& d) {
                        x.write(stream, d.inputs);
                        t.write(stream, d.targets);
                    };
                    for (std::size_t i = 0; i < sizes.size(); ++i) {
                        write(data(sizes[i], i));
                        CHECK(train.step(x.numbers, t.numbers).loss == expected.losses[i]);
                    }
                    write(data(16, 9));
                    CHECK(train.evaluate(x.numbers, t.numbers).loss == expected.evaluated);
                    write(data(16, 9));
                    y.write(stream, std::vector<Real>(16 * 3));
                    train.predict(x.numbers, y.numbers);
                    std::vector<Real> predicted(16 * 3);
                    cuda_double::peek(predicted.data(), y.numbers.data(), 16 * 3 * sizeof(Real));
                    CHECK(predicted == expected.predicted);
                    CHECK(cuda_double::races() == std::vector<std::string>{});
                    if (writer == blocking) static_cast<void>(cudaStreamDestroy(stream));
                }
}

TEST_CASE("default streams may be the caller's, too") {
    std::vector<std::size_t> const sizes(5, 16);
    Expected const expected(sizes);
    for (cudaStream_t stream : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread})
        for (std::uint64_t order : {0, 1, 2, 3}) {
            cuda_double::Session session({.devices = 2, .seed = order, .default_streams = true});
            Train train = make(1);
            gpipe::cuda::Buffer const inputs(1, 16 * 5 * sizeof(Real));
            gpipe::cuda::Buffer const targets(1, 16 * 3 * sizeof(Real));
            Written const x(inputs, 16 * 5), t(targets, 16 * 3);
            gpipe::cuda::DeviceGuard const guard(1);
            std::vector<Train::Pending> pending;
            for (std::size_t i = 0; i < sizes.size(); ++i) {
                auto const d = data(sizes[i], i);
                x.write(stream, d.inputs);
                t.write(stream, d.targets);
                pending.push_back(train.start(x.numbers, t.numbers, stream));
            }
            for (std::size_t i = 0; i < sizes.size(); ++i)
                CHECK(pending[i].result().loss == expected.losses[i]);
            CHECK(parameters(train) == expected.values);
            CHECK(cuda_double::races() == std::vector<std::string>{});
        }
}

TEST_CASE(
    "P6 what fails in a part of a mini-batch is heard of in that one alone, whatever is under "
    "way") {
    for (std::size_t graphs : {0, 1})
        for (std::size_t parts : {0, 1, 2}) { // before the one that throws
            CAPTURE(graphs);
            CAPTURE(parts);
            cuda_double::Session session({.devices = 2});
            bool throws = false;
            Act act = [&](bool before) {
                if (throws && before) throw std::range_error("now");
            };
            Train train = make(graphs, act);
            Train plain = make(0);
            auto const d = data(16, 0);
            for (int turn = 0; turn < 2; ++turn) {
                train.accumulate(d.inputs, d.targets);
                auto under_way = train.start(d.inputs, d.targets);
                for (std::size_t p = 0; p < parts; ++p) train.accumulate(d.inputs, d.targets);
                throws = true;
                CHECK_THROWS_AS(train.accumulate(d.inputs, d.targets), std::range_error);
                throws = false;
                CHECK(train.accumulated() == 0);
                plain.accumulate(d.inputs, d.targets);
                CHECK(under_way.result().loss == plain.step(d.inputs, d.targets).loss);
                CHECK(train.steps() == plain.steps());
                CHECK(train.step(d.inputs, d.targets).loss == plain.step(d.inputs, d.targets).loss);
                CHECK(parameters(train) == parameters(plain));
            }
        }
}

TEST_CASE("P6 a step that fails when its handle is gone is heard of at the next call, which then "
          "does nothing") {
    cuda_double::Session session({.devices = 2});
    Train train = make(0), plain = make(0);
    auto const d = data(16, 0);
    auto bad = d;
    bad.targets[3] = std::numeric_limits<Real>::infinity();
    auto const drop = [&] {
        static_cast<void>(train.start(bad.inputs, bad.targets));
        CHECK(train.step(d.inputs, d.targets).loss == plain.step(d.inputs, d.targets).loss);
    };
    drop();
    CHECK_THROWS_AS(train.step(d.inputs, d.targets), std::domain_error);
    drop();
    CHECK_THROWS_AS(train.accumulate(d.inputs, d.targets), std::domain_error);
    drop();
    CHECK_THROWS_AS(train.evaluate(d.inputs, d.targets), std::domain_error);
    CHECK(train.steps() == 3);
    CHECK(train.step(d.inputs, d.targets).loss == plain.step(d.inputs, d.targets).loss);
    CHECK(parameters(train) == parameters(plain));
}

TEST_CASE("P6 who waits for all steps waits for those behind one that fails, too") {
    for (std::size_t graphs : {0, 1})
        for (int way = 0; way < 3; ++way) {
            cuda_double::Session session({.devices = 2});
            Train train = make(graphs);
            auto const d = data(16, 0);
            auto bad = d;
            bad.targets[3] = std::numeric_limits<Real>::infinity();
            static_cast<void>(train.start(bad.inputs, bad.targets));
            auto const behind = train.start(d.inputs, d.targets);
            std::vector<Real> outputs(16 * 3);
            if (way == 0) CHECK_THROWS_AS(train.evaluate(d.inputs, d.targets), std::domain_error);
            if (way == 1) CHECK_THROWS_AS(train.predict(d.inputs, outputs), std::domain_error);
            if (way == 2) CHECK_THROWS_AS(parameters(train), std::domain_error);
            CHECK(behind.ready());
            CHECK_NOTHROW(train.evaluate(d.inputs, d.targets));
            CHECK(train.steps() == 1);
        }
}

TEST_CASE("arrays at null are refused, with or without a stream") {
    cuda_double::Session session({.devices = 2});
    Train train = make(0), plain = make(0);
    auto const d = data(16, 0);
    std::span<Real const> const none(static_cast<Real const*>(nullptr), 16 * 5);
    gpipe::cuda::Stream const mine(0);
    CHECK(train.step(d.inputs, d.targets).loss == plain.step(d.inputs, d.targets).loss);
    CHECK(what_of([&] { train.step(none, d.targets); }).find("null") != std::string::npos);
    CHECK(what_of([&] { train.evaluate(none, d.targets); }).find("null") != std::string::npos);
    CHECK(what_of([&] { train.start(none, d.targets, mine.get()); }).find("null") !=
          std::string::npos);
    CHECK(train.step(d.inputs, d.targets).loss == plain.step(d.inputs, d.targets).loss);
    CHECK(parameters(train) == parameters(plain));
}

TEST_CASE("a stream that captures is no stream to read behind: refused, and both go on") {
    cuda_double::Session session({.devices = 2});
    Train train = make(1), plain = make(0);
    gpipe::cuda::Stream const mine(0);
    gpipe::cuda::PinnedBuffer const inputs(16 * 5 * sizeof(Real)), targets(16 * 3 * sizeof(Real));
    Written const x(inputs, 16 * 5), t(targets, 16 * 3);
    auto const d = data(16, 0);
    x.write(mine.get(), d.inputs);
    t.write(mine.get(), d.targets);
    for (auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal}) {
        gpipe::cuda::check("cudaStreamBeginCapture", cudaStreamBeginCapture(mine.get(), mode));
        for (auto const& start : std::vector<std::function<void()>>{
                 [&] { train.start(x.numbers, t.numbers, mine.get()); },
                 [&] { train.accumulate(x.numbers, t.numbers, mine.get()); }}) {
            CHECK_THROWS_WITH_AS(start(),
                                 "gpipe: the stream that the arrays are written on is capturing: "
                                 "what is started would not be in its graph, nor before it",
                                 std::invalid_argument);
        }
        cudaGraph_t graph = nullptr;
        CHECK(cudaStreamEndCapture(mine.get(), &graph) == cudaSuccess);
        gpipe::cuda::check("cudaGraphDestroy", cudaGraphDestroy(graph));
        auto pending = train.start(x.numbers, t.numbers, mine.get());
        CHECK(pending.result().loss == plain.step(d.inputs, d.targets).loss);
    }
    CHECK(parameters(train) == parameters(plain));
}

TEST_CASE("copies, records and waits need no current device: a step makes one current for what it "
          "launches and fills, and asks for it once") {
    cuda_double::Session session({.devices = 4});
    Train train = make(0, nothing, {0, 1, 2, 3}, 16);
    auto const d = data(16, 0);
    train.step(d.inputs, d.targets);
    std::size_t const before = cuda_double::call_log().size();
    train.step(d.inputs, d.targets);
    std::size_t const all = cuda_double::call_log().size() - before;
    std::size_t const gets = count("cudaGetDevice", before);
    std::size_t const sets = count("cudaSetDevice", before);
    std::size_t const launches = count("cudaLaunchKernel", before);
    MESSAGE(all, " calls: ", launches, " launches, ", gets, " cudaGetDevice, ", sets,
            " cudaSetDevice");
    CHECK(gets <= 1);
    CHECK(sets <= launches + count("cudaMemsetAsync", before) + 3);
}
