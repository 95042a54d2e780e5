// Layers with buffers: what moves once per mini-batch, by statistics of its micro-batches. On
// streams: cuda_double/buffers.cpp; over replicas: replicas.cpp; in saved states: state/resume.cpp;
// what must not compile: compile_fail/layers.cpp.
#include "support/buffer_layers.hpp"
#include "support/net.hpp"

#include <gpipe/check_gradients.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Backward;
using toy::Counting;
using toy::Remote;
using Real = float;

using Net = toy::BufferNet<Real>;
using Loss = toy::MeanSquare<Real, 3>;
constexpr std::size_t L = Net::size;
constexpr std::size_t counter = 3, step_counter = 6;
template <class Device> using Train = toy::Training<Net, Loss, Adam, Device>;
using Plain = toy::Reference<Net, Loss, Adam>;

struct Expected {
    Plain plain;
    std::vector<std::size_t> sizes;
    std::vector<double> losses;

    Expected(Backward order, std::vector<std::size_t> batches)
        : plain(Net{}, {}, Adam{1e-2f}, 7, 8, order), sizes(std::move(batches)) {
        for (std::size_t const size : sizes) {
            toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
            losses.push_back(plain.step(data.inputs, data.targets));
        }
    }
    // Evaluations and gradients between steps move nothing.
    template <class Train> std::string differs(Train& train) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            toy::Data<Real> const data(sizes[i], static_cast<std::uint32_t>(sizes[i]));
            (void)train.evaluate(data.inputs, data.targets);
            (void)train.compute_gradients(data.inputs, data.targets);
            double const loss = train.step(data.inputs, data.targets).loss;
            if (loss != losses[i])
                return "the loss of step " + std::to_string(i) + ": " + std::to_string(loss);
        }
        std::string const difference = toy::difference(train, plain);
        if (!difference.empty()) return difference;
        toy::Data<Real> const data(5, 99);
        if (train.evaluate(data.inputs, data.targets).loss !=
            plain.evaluate(data.inputs, data.targets))
            return "the loss of an evaluation";
        return {};
    }
};

template <class Device> typename Train<Device>::Options options(std::size_t devices) {
    typename Train<Device>::Options o;
    o.samples = 13;
    o.seed = 7;
    o.cells = devices;
    o.micro_batches = 8;
    return o;
}
template <class T> std::vector<std::int64_t> counted(T& train) {
    std::vector<std::int64_t> steps(1), seen(2);
    train.read_buffer(counter, 0, std::span(steps));
    train.read_buffer(counter, 1, std::span(seen));
    return {steps[0], seen[0], seen[1]};
}

} // namespace

TEST_CASE_TEMPLATE("P1 buffers: every schedule, checkpointing, number of devices and link trains "
                   "as the plain loop",
                   Device, Host, Remote) {
    std::vector<std::size_t> const sizes{13, 7, 13}; // of 7 samples one micro-batch stays empty
    Expected descending(Backward::descending, sizes);
    Expected ascending(Backward::ascending, sizes);
    std::size_t trained = 0;
    toy::each_way<Device>(L, L, 8, 61,
                          [&](auto schedule, std::size_t k, auto checkpointing, auto const& run,
                              std::string const& words) {
                              auto o = options<Device>(k);
                              o.schedule = schedule;
                              o.checkpointing = checkpointing;
                              o.device = run;
                              INFO(words);
                              Train<Device> train(Net{}, {}, Adam{1e-2f}, o);
                              bool const descends = schedule.name() == "GPipe";
                              CHECK((descends ? descending : ascending).differs(train) == "");
                              CHECK(train.used_bytes() == train.planned_bytes());
                              ++trained;
                          });
    MESSAGE(trained << " trainings");
    CHECK(trained > 3); // under sanitizers, too
}

TEST_CASE("P1 buffers: updates that wait for no other device, and steps that overlap") {
    using Immediate =
        gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                        gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                        gpipe::checkpoint::Dynamic, gpipe::update::Immediate, Remote>;
    Expected expected(Backward::ascending, {13, 7, 13});
    for (std::size_t k = 1; k <= 4; ++k)
        for (auto const& run : toy::runs<Remote>()) {
            typename Immediate::Options o;
            o.samples = 13;
            o.seed = 7;
            o.cells = k;
            o.micro_batches = 8;
            o.schedule = gpipe::schedule::OneForwardOneBackward{};
            o.device = run;
            Immediate train(Net{}, {}, Adam{1e-2f}, o);
            INFO("K = ", k, ", ", toy::describe(run));
            CHECK(expected.differs(train) == "");
        }
}

TEST_CASE_TEMPLATE("P6 buffers: a step that fails, wherever it does, leaves them as they were",
                   Device, Host, Remote) {
    toy::Data<Real> const data(13, 13);
    auto const o = options<Device>(3);
    for (Counting::Function const function :
         {Counting::forward, Counting::merge, Counting::update}) {
        CAPTURE(static_cast<int>(function));
        Counting counting;
        Train<Device> train(Net{}, {}, Adam{1e-2f}, o);
        train.template change_layer<counter>([&](auto& layer) { layer.counting = &counting; });
        Plain plain(Net{}, {}, Adam{1e-2f}, 7, 8, Backward::descending);
        for (int step = 0; step < 3; ++step) {
            if (step == 1) {
                counting.throws = function;
                int const updates = counting.updates;
                CHECK_THROWS_AS(train.step(data.inputs, data.targets), std::range_error);
                // Nobody looks at statistics that may be missing.
                CHECK(counting.updates == updates + (function == Counting::update));
                CHECK(train.steps() == 1);
                CHECK(train.failure()->layer == counter);
                bool const at_end = function != Counting::forward;
                CHECK(train.failure()->action ==
                      (at_end ? gpipe::Kind::next_buffers : gpipe::Kind::forward));
                if (at_end)
                    CHECK(train.failure()->place().find(
                              ") in the update of buffers of all micro-batches, cell ") !=
                          std::string::npos);
                counting.throws = Counting::nothing;
            }
            CHECK(train.step(data.inputs, data.targets).loss ==
                  plain.step(data.inputs, data.targets));
        }
        CHECK(toy::difference(train, plain) == "");
        CHECK(counted(train) == std::vector<std::int64_t>{4, counted(train)[1], counted(train)[2]});
    }
}

TEST_CASE_TEMPLATE("a step that is skipped, for something is not finite, moves no buffers", Device,
                   Host, Remote) {
    toy::Data<Real> const data(13, 13);
    toy::Data<Real> broken(13, 13);
    broken.inputs[0] = std::numeric_limits<Real>::infinity();
    for (bool const fails : {true, false}) {
        auto o = options<Device>(3);
        o.clip_norm = 100;
        o.not_finite = fails ? gpipe::NotFinite::fail : gpipe::NotFinite::go_on;
        Train<Device> train(Net{}, {}, Adam{1e-2f}, o);
        (void)train.step(data.inputs, data.targets);
        auto const before = counted(train);
        CHECK(before == std::vector<std::int64_t>{2, before[1], before[2]});
        std::vector<double> mean(6), after(6);
        train.read_buffer(1, 0, std::span(mean));
        if (fails)
            CHECK_THROWS_AS(train.step(broken.inputs, broken.targets), std::domain_error);
        else
            (void)train.step(broken.inputs, broken.targets);
        CHECK(train.steps() == 1);
        CHECK(counted(train) == before);
        train.read_buffer(1, 0, std::span(after));
        CHECK(mean == after);
    }
}

TEST_CASE("buffers are read and written between steps, and what does not fit is refused") {
    Train<Host> train(Net{}, {}, Adam{1e-2f}, options<Host>(2));
    toy::Data<Real> const data(13, 13);
    (void)train.step(data.inputs, data.targets);
    std::vector<std::int32_t> steps{41};
    train.write_buffer(step_counter, 0, std::span<std::int32_t const>(steps));
    (void)train.step(data.inputs, data.targets);
    train.read_buffer(step_counter, 0, std::span(steps));
    CHECK(steps[0] == 42);
    std::vector<float> wrong(1), two(2);
    std::vector<std::int32_t> many(2);
    auto const says = [](auto f) {
        try {
            f();
        } catch (std::exception const& error) {
            return std::string(error.what());
        }
        return std::string("nothing");
    };
    CHECK(says([&] {
              train.read_buffer(step_counter, 0, std::span(wrong));
          }).find("gpipe: the elements of buffer 0 of layer 6 (toy::StepCounter<float, 6") == 0);
    CHECK(says([&] { train.read_buffer(step_counter, 0, std::span(many)); }) ==
          "gpipe: buffer 0 of layer 6 has 1 elements, not 2");
    CHECK(says([&] {
              train.read_buffer(step_counter, 1, std::span(steps));
          }).find("gpipe: there is no buffer 1 in layer 6 (") == 0);
    CHECK(says([&] {
              train.read_buffer(0, 0, std::span(two));
          }).find("gpipe: there is no buffer 0 in layer 0 (") == 0);
    CHECK(says([&] {
              train.read_buffer(L, 0, std::span(two));
          }).find("gpipe: there is no layer 9: the layers of the pipeline are 0 to 8") == 0);
    CHECK(train.summary().find("  buffers  ") != std::string::npos);
}

TEST_CASE("looking at gradients moves no buffers, and finds none wrong") {
    using Exact = toy::BufferNet<double>;
    toy::Training<Exact, toy::MeanSquare<double, 3>, Adam, Host> train(
        Exact{}, {}, Adam{1e-2f}, [] {
            typename toy::Training<Exact, toy::MeanSquare<double, 3>, Adam, Host>::Options o;
            o.samples = 12;
            o.cells = 2;
            o.micro_batches = 2;
            return o;
        }());
    toy::Data<double> const data(12, 3);
    (void)train.step(data.inputs, data.targets);
    auto const before = counted(train);
    auto const report = gpipe::check_gradients(train, data.inputs, data.targets);
    INFO(to_string(report));
    CHECK(report.passed());
    CHECK(counted(train) == before);
}

namespace {

/// Moves a buffer, and throws there.
template <int number> struct Refuses {
    using Input = gpipe::Tensor<Real, 3>;
    using Output = Input;
    using Buffers = gpipe::Tensor<Real>;
    using Statistics = gpipe::Tensor<Real>;
    static constexpr auto backward_reads = gpipe::Reads::neither;
    std::atomic<bool> const* waits = nullptr; // in its last backward
    std::atomic<bool>* moved = nullptr;

    void initialize(auto& ctx) const { ctx.buffers()[0] = 1; }
    void forward(auto&, auto x, auto y) const { std::copy_n(x.data(), x.size(), y.data()); }
    void backward(auto&, auto dy, auto dx) const {
        for (int i = 0; waits && !*waits && i < 1000; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::copy_n(dy.data(), dy.size(), dx.data());
    }
    void merge_statistics(auto&, auto, auto) const {}
    void update_buffers(auto&, auto, auto) const {
        if (moved) *moved = true;
        throw std::runtime_error(std::to_string(number));
    }
};

} // namespace

TEST_CASE("of two devices whose buffers cannot be moved the first is told, whichever comes first") {
    using Both = gpipe::Pipeline<Refuses<0>, Refuses<1>>;
    for (std::size_t const threads : {1, 2}) {
        std::atomic<bool> moved = false;
        toy::Training<Both, Loss, Adam, Host> train(
            Both{{threads == 2 ? &moved : nullptr}, {nullptr, &moved}}, {}, {},
            {.samples = 4, .cells = 2, .micro_batches = 2, .device = {.threads = threads}});
        std::vector<Real> const numbers(4 * 3, 2);
        CHECK_THROWS_WITH(train.step(numbers, numbers), "0");
        REQUIRE(train.failure());
        CHECK(train.failure()->layer == 0);
        std::vector<Real> value(1);
        train.read_buffer(0, 0, std::span(value));
        CHECK(value[0] == 1);
    }
}
