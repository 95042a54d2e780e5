// An Inference: what Training::predict() gives, in every bit, without what training needs.
#include "support/buffer_layers.hpp"
#include "support/counting.hpp"
#include "support/net.hpp"
#include "support/ranks.hpp"
#include "support/skip_layers.hpp"

#include <gpipe/check_gradients.hpp>
#include <gpipe/inference.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Phase;
using toy::Remote;
using Real = float;
using Loss = toy::MeanSquare<Real, 3>;
constexpr std::size_t most = 13; // Options::samples

template <class Net, class Device>
using InferenceOf = gpipe::Inference<Net, Device, gpipe::MicroBatches<gpipe::dynamic>,
                                     gpipe::Cells<gpipe::dynamic, toy::ByHand>>;
template <class Net> using TrainOf = toy::Training<Net, Loss, Adam, Host>;

template <class T> typename T::Options options(std::size_t cells, std::size_t micro_batches) {
    return {.samples = most, .seed = 7, .cells = cells, .micro_batches = micro_batches};
}

// A training that has made some steps, and what it predicts, as the plain loop does.
template <class Net> struct Trained {
    using Train = TrainOf<Net>;
    toy::Reference<Net, Loss, Adam> plain;
    Train train;

    explicit Trained(Net net, std::vector<std::size_t> frozen = {})
        : plain(net, {}, Adam{1e-2f}, 7, 4, toy::Backward::descending),
          train(net, {}, Adam{1e-2f}, [&] {
              auto o = options<Train>(2, 4);
              o.frozen = std::move(frozen);
              return o;
          }()) {
        for (std::uint32_t i = 0; i < 3; ++i) {
            toy::Data<Real> const data(13 - i, i);
            train.step(data.inputs, data.targets);
            plain.step(data.inputs, data.targets);
        }
    }
    std::vector<Real> predict(std::vector<Real> const& inputs) {
        std::vector<Real> outputs(inputs.size() / 5 * 3);
        train.predict(inputs, outputs);
        return outputs;
    }
};

// Of what an Inference does with several numbers of samples the first thing that is other than it
// should be; nothing if that is empty.
template <class Net, class T> std::string differs(Trained<Net>& trained, T& inference) {
    for (std::size_t const samples : {13, 1, 5, 40, 27}) {
        toy::Data<Real> const data(samples, static_cast<std::uint32_t>(samples));
        std::vector<Real> outputs(samples * 3);
        inference.predict(data.inputs, outputs);
        if (outputs != trained.predict(data.inputs))
            return "what is predicted of " + std::to_string(samples) + " samples";
    }
    // Some under way, the inputs changed as soon as they are.
    std::vector<std::size_t> const sizes{13, 2, 13, 7, 1};
    std::vector<std::vector<Real>> found;
    std::vector<typename T::Pending> pending;
    for (std::size_t const samples : sizes) {
        toy::Data<Real> data(samples, static_cast<std::uint32_t>(samples));
        found.emplace_back(samples * 3);
        pending.push_back(inference.start(data.inputs, found.back()));
        for (Real& value : data.inputs) value = Real(1e6);
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        pending[i].wait();
        toy::Data<Real> const data(sizes[i], static_cast<std::uint32_t>(sizes[i]));
        if (found[i] != trained.predict(data.inputs))
            return "what was started as number " + std::to_string(i);
    }
    if (inference.used_bytes() != inference.planned_bytes()) return "its bytes";
    return {};
}

// Every K, some M, and every way to run on a device.
template <class Device, class Net> void infer_alike(std::size_t one_in, Net net) {
    Trained<Net> trained(net);
    toy::Data<Real> const data(9);
    auto const bytes = trained.plain.predict(data.inputs);
    auto const predicted = trained.predict(data.inputs);
    REQUIRE(std::memcmp(bytes.data(), predicted.data(), bytes.size()) == 0);
    std::size_t point = 0, inferences = 0;
    for (std::size_t k = 1; k <= Net::size; ++k)
        for (std::size_t const m : {1, 2, 3, 8, 13, 16})
            for (auto const& run : toy::runs<Device>()) {
                if (point++ % toy::one_of(one_in) != 0) continue;
                using T = InferenceOf<Net, Device>;
                auto o = options<T>(k, m);
                o.device = run;
                o.debug = inferences % 4 == 3;
                INFO("K = ", k, ", M = ", m, ", ", toy::describe(run));
                T inference(net, o);
                inference.copy_from(trained.train);
                CHECK(differs(trained, inference) == "");
                CHECK(!inference.failure());
                ++inferences;
            }
    MESSAGE(inferences << " inferences");
    CHECK(inferences > 1); // under sanitizers, too
}

} // namespace

TEST_CASE_TEMPLATE("an inference gives what a training predicts, in every bit, for any K, M and "
                   "number of samples, several under way",
                   Device, Host, Remote) {
    toy::Watch watch;
    infer_alike<Device>(3, toy::make_net<Real>(watch));
}

TEST_CASE_TEMPLATE("an inference of skips and ties, and of running statistics, too", Device, Host,
                   Remote) {
    infer_alike<Device>(7, toy::SkipNet<Real>{});
    infer_alike<Device>(5, toy::BufferNet<Real>{});
}

TEST_CASE("frozen layers are layers like any other in an inference, whoever has frozen them") {
    using Net = toy::BufferNet<Real>;
    Trained<Net> trained(Net{}, {0, 4});
    auto o = options<InferenceOf<Net, Host>>(3, 4);
    o.device.threads = 3;
    InferenceOf<Net, Host> inference(Net{}, o);
    inference.copy_from(trained.train);
    CHECK(differs(trained, inference) == "");
    using Frozen = gpipe::Pipeline<gpipe::Frozen<toy::Linear<Real, 5, 4>>, toy::Linear<Real, 4, 3>>;
    Trained<Frozen> half(Frozen{});
    InferenceOf<Frozen, Host> other(Frozen{}, options<InferenceOf<Frozen, Host>>(2, 4));
    other.copy_from(half.train);
    CHECK(differs(half, other) == "");
}

TEST_CASE("an inference takes parameters from a training under any policies, and by itself has "
          "those that a training of this seed begins with") {
    using Net = toy::SkipNet<Real>;
    using T = InferenceOf<Net, Host>;
    Trained<Net> trained(Net{});
    T inference(Net{}, options<T>(4, 4));
    toy::Data<Real> const data(9);
    std::vector<Real> outputs(9 * 3);
    for (toy::NamedSchedule const& schedule : toy::schedules) {
        using Train = toy::Training<Net, Loss, Adam, Remote>;
        auto o = options<Train>(3, 4);
        o.schedule = schedule.policy;
        o.checkpointing = gpipe::checkpoint::EverySegment<2>{};
        Train train(Net{}, {}, Adam{1e-2f}, o);
        std::vector<Real> expected(9 * 3);
        train.predict(data.inputs, expected);
        T fresh(Net{}, options<T>(2, 4));
        fresh.predict(data.inputs, outputs);
        CHECK(outputs == expected);
        train.step(data.inputs, data.targets);
        train.predict(data.inputs, expected);
        inference.copy_from(train);
        inference.predict(data.inputs, outputs);
        CHECK(outputs == expected);
        CHECK(inference.steps() == 1);
    }
    // One end of a tie is written, and all have it.
    std::vector<Real> values(inference.parameter<Real>(1, 0).size(), 0.25f);
    inference.write_parameter(1, 0, std::span<Real const>(values));
    std::vector<Real> read(values.size());
    inference.read_parameter(5, 0, std::span(read));
    CHECK(read == values);
    inference.parameter<Real>(5, 0)[0] = 0.5f;
    CHECK(inference.parameter<Real>(1, 0)[0] == 0.5f);
}

namespace {

template <class Net> void takes_fewer_bytes(std::string const& name, Net net) {
    for (std::size_t k : {1, 2, 4}) {
        std::size_t allocated = 0;
        using T = InferenceOf<Net, Remote>;
        using Train = toy::Training<Net, Loss, Adam, Remote>;
        auto o = options<Train>(k, 4);
        Train train(net, {}, Adam{}, o);
        auto own = options<T>(k, 4);
        own.device.allocated = &allocated;
        T inference(net, own);
        auto const& plan = inference.plan();
        MESSAGE(name << ", K = " << k << ": " << inference.planned_bytes() << " bytes, training "
                     << train.planned_bytes());
        CHECK(inference.planned_bytes() < train.planned_bytes());
        CHECK(inference.used_bytes() == inference.planned_bytes());
        CHECK(allocated == inference.planned_bytes());
        // As many for any number of such micro-batches.
        auto many = options<InferenceOf<Net, Host>>(k, 4), more = many;
        more.micro_batches = 16;
        more.samples = 4 * most;
        CHECK(InferenceOf<Net, Host>(net, more).planned_bytes() ==
              InferenceOf<Net, Host>(net, many).planned_bytes());
        for (std::size_t d = 0; d < k; ++d) {
            CHECK(plan.devices[d].total() < train.plan().devices[d].total());
            CHECK(plan.devices[d].gradients == 0);
            CHECK(plan.devices[d].optimizer == 0);
            // The step's state, the inputs, and where a loss would leave its numbers.
            CHECK(plan.devices[d].staging == gpipe::slot_bytes(sizeof(gpipe::StepState)) +
                                                 (d == 0 ? Remote::depth * plan.staged_inputs : 0) +
                                                 (d + 1 == k ? gpipe::slot_alignment : 0));
            CHECK(plan.devices[d].parameters + plan.devices[d].frozen ==
                  train.plan().devices[d].parameters + train.plan().devices[d].frozen);
        }
        // Two slots for what goes from neighbour to neighbour.
        gpipe::Edges const& edges = plan.lowered.edges;
        for (std::size_t e = 0; e < edges.size(); ++e)
            if (!edges[e].is_skip())
                CHECK(plan.pools.pool(gpipe::Holds::input, e).slots == 2);
            else
                CHECK(plan.pools.pool(gpipe::Holds::input, e).slots <=
                      edges[e].to - edges[e].from + 1);
    }
}

} // namespace

TEST_CASE("an inference has room for parameters, buffers and one micro-batch on each device, with "
          "two slots between, and takes what is planned") {
    toy::Watch watch;
    takes_fewer_bytes("net", toy::make_net<Real>(watch));
    takes_fewer_bytes("skips", toy::SkipNet<Real>{});
    takes_fewer_bytes("buffers", toy::BufferNet<Real>{});
}

TEST_CASE("an inference allocates nothing once it is made") {
    for (std::size_t const threads : {1, 2, 3}) {
        toy::Watch watch;
        using T = InferenceOf<toy::Net<Real>, Host>;
        auto o = options<T>(3, 4);
        o.device.threads = threads;
        T inference(toy::make_net<Real>(watch), o);
        toy::Data<Real> const data(13), many(40);
        std::vector<Real> one(13 * 3), two(13 * 3), outputs(40 * 3);
        std::size_t const before = toy::allocations;
        inference.predict(many.inputs, outputs);
        auto first = inference.start(data.inputs, one);
        auto second = inference.start(data.inputs, two);
        second.wait();
        first.wait();
        std::size_t const after = toy::allocations;
        CHECK(after == before);
        CHECK(one == two);
    }
}

TEST_CASE_TEMPLATE("what a layer throws in an inference leaves as it was thrown, failure() tells "
                   "where, and the same object goes on",
                   Device, Host, Remote) {
    toy::Watch watch, calm;
    Trained<toy::Net<Real>> trained(toy::make_net<Real>(calm));
    for (std::size_t const cells : {1, 2, 4}) {
        using T = InferenceOf<toy::Net<Real>, Device>;
        auto o = options<T>(cells, 4);
        o.device = toy::runs<Device>()[2];
        T inference(toy::make_net<Real>(watch), o);
        inference.copy_from(trained.train);
        toy::Data<Real> const data(40);
        std::vector<Real> outputs(40 * 3), others(40 * 3);
        for (std::size_t layer = 0; layer < T::layer_count; ++layer)
            for (std::size_t const sample : {0, 4}) {
                // In the first part and, of as many samples, in the second.
                watch.faults = {{layer, sample, Phase::evaluate}};
                INFO("K = ", cells, ", layer ", layer, ", sample ", sample);
                CHECK_THROWS_AS(inference.predict(data.inputs, outputs), toy::Thrown);
                REQUIRE(inference.failure());
                CHECK(inference.failure()->layer == layer);
                CHECK(inference.failure()->micro_batch == (sample == 0 ? 0u : 1u));
                CHECK(inference.failure()->action == gpipe::Kind::forward);
                // Where it is done at once start() throws, else who waits.
                CHECK_THROWS_AS(inference
                                    .start(std::span(data.inputs).first(13 * 5),
                                           std::span(outputs).first(13 * 3))
                                    .wait(),
                                toy::Thrown);
                watch.faults.clear();
                CHECK_NOTHROW(inference.predict(data.inputs, outputs));
                CHECK(!inference.failure());
                CHECK(outputs == trained.predict(data.inputs));
            }
    }
}

TEST_CASE("of two that are under way one may fail, and one whose handle is gone is heard of by the "
          "next call") {
    toy::Watch watch;
    using T = InferenceOf<toy::Net<Real>, Host>;
    auto o = options<T>(3, 4);
    o.device.threads = 3;
    T inference(toy::make_net<Real>(watch), o);
    toy::Data<Real> const data(13), few(5);
    std::vector<Real> expected(13 * 3), one(13 * 3), two(5 * 3), three(13 * 3);
    inference.predict(data.inputs, expected);
    watch.faults = {{9, 7, Phase::evaluate}}; // of the mini-batch of five nobody sees that
    auto first = inference.start(data.inputs, one);
    auto second = inference.start(few.inputs, two);
    auto third = inference.start(data.inputs, three);
    CHECK_THROWS_AS(first.wait(), toy::Thrown);
    CHECK_NOTHROW(second.wait());
    CHECK_THROWS_AS(third.wait(), toy::Thrown);
    static_cast<void>(inference.start(data.inputs, one));
    CHECK_THROWS_AS(inference.predict(few.inputs, two), toy::Thrown);
    watch.faults.clear();
    inference.predict(data.inputs, one);
    CHECK(one == expected);
    // Of two parts that fail the first is told of, wherever in the chain that is.
    toy::Data<Real> const parts(18);
    std::vector<Real> outputs(18 * 3);
    watch.faults = {{9, 10, Phase::evaluate}, {3, 15, Phase::evaluate}}; // of 13 samples, and of 5
    CHECK_THROWS_AS(inference.predict(parts.inputs, outputs), toy::Thrown);
    CHECK(inference.failure()->layer == 9);
    watch.faults = {{3, 15, Phase::evaluate}};
    CHECK_THROWS_AS(inference.predict(parts.inputs, outputs), toy::Thrown);
    CHECK(inference.failure()->layer == 3);
    watch.faults.clear();
    // Handles may outlive it.
    auto last = std::make_unique<T>(toy::make_net<Real>(watch), o);
    auto pending = last->start(data.inputs, one);
    last.reset();
    CHECK(pending.ready());
}

namespace {

// Two layers that meet: the second ends a call, counted from 1, only when the first has begun so
// many.
struct Meeting {
    std::atomic<int> first{0}, second{0}; // calls
    std::atomic<int> holds{0}, until{0};
    std::atomic<bool> met{false};

    void of(int call, int calls_of_first) {
        first = second = 0;
        holds = call;
        until = calls_of_first;
        met = false;
    }
};
struct Meets : toy::Linear<Real, 2, 2> {
    Meeting* meeting = nullptr;
    bool second = false;
    void forward(auto& ctx, auto x, auto y) const {
        if (!second) ++meeting->first;
        toy::Linear<Real, 2, 2>::forward(ctx, x, y);
        if (!second || ++meeting->second != meeting->holds) return;
        auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
        while (meeting->first < meeting->until && std::chrono::steady_clock::now() < deadline)
            std::this_thread::yield();
        meeting->met = meeting->first >= meeting->until;
    }
};

} // namespace

TEST_CASE("a device begins the next micro-batch, the next part and the next mini-batch while the "
          "one behind it is at this one") {
    using Net = gpipe::Pipeline<Meets, Meets>;
    using T = InferenceOf<Net, Host>;
    Meeting meeting;
    Meets first, second;
    first.meeting = second.meeting = &meeting;
    second.second = true;
    std::vector<Real> const data(16, 0.5f); // eight samples
    std::vector<Real> outputs(16), others(16);
    auto const halves = [](auto& values) { return std::span(values).first(8); };
    for (std::size_t const m : {2, 4}) {
        auto o = options<T>(2, m);
        o.samples = 4;
        o.device.threads = 2;
        T inference(Net(first, second), o);
        auto const calls = static_cast<int>(m); // of a part
        meeting.of(1, 2);
        inference.predict(halves(data), halves(outputs));
        CHECK(meeting.met);
        meeting.of(calls, calls + 1);
        inference.predict(data, outputs);
        CHECK(meeting.met);
        meeting.of(calls, calls + 1);
        auto now = inference.start(halves(data), halves(outputs));
        auto next = inference.start(halves(data), halves(others));
        now.wait();
        next.wait();
        CHECK(meeting.met);
    }
}

TEST_CASE("an inference shows when its actions ran, and what its plan would take") {
    toy::Watch watch;
    using T = InferenceOf<toy::Net<Real>, Host>;
    auto o = options<T>(3, 4);
    o.device.threads = 3;
    T inference(toy::make_net<Real>(watch), o);
    CHECK_THROWS_AS(static_cast<void>(inference.timeline()), std::logic_error);
    inference.time_actions();
    toy::Data<Real> const data(13), few(2);
    std::vector<Real> outputs(13 * 3), two(2 * 3);
    inference.predict(data.inputs, outputs);
    CHECK(inference.timeline().size() == 3 * 4);
    inference.predict(few.inputs, two);
    CHECK(inference.timeline().size() == 3 * 2); // two micro-batches were empty
    auto const cost = [](gpipe::Action const&) { return 1.0; };
    CHECK(inference.predicted_timeline(cost).size() == 3 * 4);
    CHECK(inference.predicted_bubble(cost) == doctest::Approx(2.0 / 6));
    CHECK(inference.summary().find("3 devices, 3 cells, M = 4") != std::string::npos);
    CHECK(inference.tensors(0) == 2);
    CHECK(inference.lanes() == 3);
    // A hook is called around each, of two mini-batches that are under way, too.
    std::atomic<int> events{0};
    inference.on_action([&](gpipe::ActionEvent const&) { ++events; });
    auto first = inference.start(data.inputs, outputs), second = inference.start(few.inputs, two);
    first.wait();
    second.wait();
    CHECK(events == 2 * 3 * (4 + 2));
    inference.on_action(nullptr);
    inference.predict(few.inputs, two);
    CHECK(events == 2 * 3 * (4 + 2));
}

TEST_CASE("what is chosen at construction and does not fit is refused") {
    using Net = toy::SkipNet<Real>;
    using T =
        gpipe::Inference<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>>;
    auto const says = [](auto change, char const* words) {
        auto o = options<T>(2, 4);
        change(o);
        CHECK_THROWS_WITH_AS(T(Net{}, o), doctest::Contains(words), std::invalid_argument);
    };
    says([](auto& o) { o.samples = 0; }, "gpipe: Options::samples, the largest mini-batch");
    says([](auto& o) { o.cells = 99; }, "99 cells");
    says([](auto& o) { o.balance = {3, 3}; }, "balance");
    using Fixed = gpipe::Inference<Net, gpipe::Cells<2>, gpipe::MicroBatches<4>>;
    Fixed::Options fixed;
    fixed.samples = 4;
    fixed.micro_batches = 3;
    CHECK_THROWS_WITH_AS(Fixed(Net{}, fixed), doctest::Contains("but the type says 4"),
                         std::invalid_argument);
    fixed.micro_batches = 0;
    fixed.balance = {3, 3};
    CHECK_THROWS_WITH_AS(Fixed(Net{}, fixed), doctest::Contains("is for Cells<dynamic>"),
                         std::invalid_argument);
    auto o = options<T>(0, 4);
    o.balance = {3, Net::size - 3};
    T by_hand(Net{}, o);
    CHECK(by_hand.plan().first[1] == 3);
    CHECK(by_hand.devices() == 2);
    toy::Data<Real> const data(14);
    std::vector<Real> outputs(14 * 3);
    CHECK_THROWS_WITH_AS(static_cast<void>(by_hand.start(data.inputs, outputs)),
                         doctest::Contains("14 samples, but memory was planned for 13"),
                         std::invalid_argument);
    CHECK_THROWS_AS(by_hand.predict(data.inputs, std::span(outputs).first(3)),
                    std::invalid_argument);
    CHECK_NOTHROW(by_hand.predict(data.inputs, outputs));
    CHECK_THROWS_AS(static_cast<void>(by_hand.parameter<double>(1, 0)), std::invalid_argument);
    CHECK_THROWS_AS(static_cast<void>(by_hand.parameter<Real>(99, 0)), std::out_of_range);
}

namespace {

// Draws numbers in evaluations, too.
struct Noise {
    using Input = gpipe::Tensor<Real, 5>;
    using Output = Input;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t n = 0; n < x.samples(); ++n)
            for (std::size_t i = 0; i < 5; ++i)
                y(n, i) = x(n, i) + static_cast<Real>(ctx.random().uniform(n, i));
    }
    void backward(auto&, auto dy, auto dx) const {
        for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = dy.data()[i];
    }
};

} // namespace

TEST_CASE("random numbers of an inference are those of its training's seed and step, however many "
          "are under way") {
    using Net = gpipe::Pipeline<Noise, toy::Linear<Real, 5, 4>, toy::Linear<Real, 4, 3>>;
    TrainOf<Net> train(Net{}, {}, Adam{1e-2f}, options<TrainOf<Net>>(2, 4));
    toy::Data<Real> const data(13);
    for (int i = 0; i < 3; ++i) train.step(data.inputs, data.targets);
    std::vector<Real> expected(13 * 3), one(13 * 3), two(13 * 3);
    train.predict(data.inputs, expected);
    auto o = options<InferenceOf<Net, Host>>(3, 4);
    o.seed = 1;
    o.device.threads = 3;
    InferenceOf<Net, Host> inference(Net{}, o);
    inference.copy_from(train);
    auto first = inference.start(data.inputs, one), second = inference.start(data.inputs, two);
    first.wait();
    second.wait();
    CHECK(one == expected);
    CHECK(two == expected);
}

namespace {

// Leaves its last sample as it was.
struct Forgets {
    using Input = gpipe::Tensor<Real, 5>;
    using Output = Input;
    static constexpr bool only_evaluates = true;
    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i + 5 < x.size(); ++i) y.data()[i] = x.data()[i];
    }
};

} // namespace

TEST_CASE("with Options::debug what a layer leaves unwritten in an inference is an error") {
    using Net = gpipe::Pipeline<toy::Linear<Real, 5, 5>, Forgets>;
    using T = InferenceOf<Net, Host>;
    auto o = options<T>(2, 4);
    toy::Data<Real> const data(9);
    std::vector<Real> outputs(9 * 5);
    CHECK_NOTHROW(T(Net{}, o).predict(data.inputs, outputs));
    o.debug = true;
    T inference(Net{}, o);
    CHECK_THROWS_WITH_AS(inference.predict(data.inputs, outputs),
                         doctest::Contains("gpipe: output 0 is left unwritten"), std::logic_error);
    CHECK(inference.failure()->layer == 1);
}

namespace {

// Rounds, and has no backward.
struct Rounds {
    using Input = gpipe::Tensor<Real, 5>;
    using Output = Input;
    static constexpr bool only_evaluates = true;
    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = std::round(8 * x.data()[i]) / 8;
    }
};

} // namespace

TEST_CASE("a layer that only evaluates is one of an inference, and of a training below all that "
          "learns") {
    using Net = gpipe::Pipeline<Rounds, gpipe::Frozen<toy::Linear<Real, 5, 5>>, Rounds,
                                toy::Linear<Real, 5, 6>, toy::Linear<Real, 6, 3>>;
    Trained<Net> trained(Net{});
    InferenceOf<Net, Host> inference(Net{}, options<InferenceOf<Net, Host>>(3, 4));
    inference.copy_from(trained.train);
    CHECK(differs(trained, inference) == "");
    toy::Data<Real> const data(5);
    auto const before = trained.predict(data.inputs);
    trained.train.step(data.inputs, data.targets);
    CHECK(trained.predict(data.inputs) != before);
    std::ostringstream report;
    report << gpipe::check_gradients(trained.train, data.inputs, data.targets);
    CHECK(report.str().find("layer 0") == std::string::npos);
    // Above what learns there is no training, but an inference.
    using Above = gpipe::Pipeline<toy::Linear<Real, 5, 5>, Rounds, toy::Linear<Real, 5, 3>,
                                  toy::Tanh<Real, 3>>;
    InferenceOf<Above, Host> above(Above{}, options<InferenceOf<Above, Host>>(2, 4));
    InferenceOf<Above, Host> whole(Above{}, options<InferenceOf<Above, Host>>(1, 1));
    std::vector<Real> one(5 * 3), two(5 * 3);
    above.predict(data.inputs, one);
    whole.predict(data.inputs, two);
    CHECK(one == two);
}

namespace {

using RankInference = InferenceOf<toy::SkipNet<Real>, toy::Rank>;

} // namespace

TEST_CASE("ranks infer what one does, in every bit, and what throws on one is thrown on all") {
    using Net = toy::SkipNet<Real>;
    Trained<Net> trained(Net{});
    std::size_t point = 0;
    for (std::vector<std::size_t> const& devices :
         {std::vector<std::size_t>{1, 1}, {2, 1}, {1, 2}, {1, 1, 1}, {2, 2}, {1, 2, 1}})
        for (bool const meets : {true, false})
            for (std::size_t const m : {1, 3, 8}) {
                if (point++ % toy::one_of(2) != 0) continue;
                std::size_t k = 0;
                for (std::size_t const d : devices) k += d;
                INFO("K = ", k, " on ", devices.size(), " ranks, M = ", m);
                toy::Crew<RankInference> all(
                    devices, meets, 1 + point % 2, [&](std::size_t, toy::Rank::Options device) {
                        auto o = options<RankInference>(k, m);
                        o.device = device;
                        auto made = std::make_unique<RankInference>(Net{}, o);
                        return made;
                    });
                for (std::size_t r = 0; r < all.ranks(); ++r) {
                    // One behind the other: the training is used by one at a time.
                    all[r].copy_from(trained.train);
                }
                for (std::size_t const samples : {13, 1, 40}) {
                    toy::Data<Real> const data(samples, 3);
                    std::vector<Real> found(samples * 3), other(samples * 3);
                    all.each([&](std::size_t r) {
                        all[r].predict(data.inputs, r + 1 == all.ranks() ? found : other);
                    });
                    all.rethrow();
                    CHECK(found == trained.predict(data.inputs));
                    CHECK(other == std::vector<Real>(samples * 3));
                }
                // Other samples on one, in parts as many as fit, or what it refuses by itself.
                toy::Data<Real> const few(8, 3), many(16, 3);
                for (std::size_t const refused : {0, 1}) {
                    std::vector<Real> outputs(16 * 3 + refused);
                    all.each([&](std::size_t r) {
                        std::vector<Real> own(8 * 3);
                        if (r == 0) return all[r].predict(many.inputs, outputs);
                        all[r].predict(few.inputs, own);
                    });
                    for (std::size_t r = 0; r < all.ranks(); ++r) {
                        REQUIRE(all.errors[r]);
                        CHECK_THROWS_AS(std::rethrow_exception(all.errors[r]),
                                        std::invalid_argument);
                    }
                    std::vector<Real> found(8 * 3), other(8 * 3);
                    all.each([&](std::size_t r) {
                        all[r].predict(few.inputs, r + 1 == all.ranks() ? found : other);
                    });
                    all.rethrow();
                    CHECK(found == trained.predict(few.inputs));
                }
                CHECK(all.wire->fault() == "");
            }
}

namespace {

/// Passes its input on; before that, does what it is told.
struct Told {
    using Input = gpipe::Tensor<Real, 3>;
    using Output = Input;
    std::function<void()> const* what = nullptr;

    void forward(auto&, auto x, auto y) const {
        if (what) (*what)();
        std::copy_n(x.data(), x.size(), y.data());
    }
    void backward(auto&, auto, auto dy, auto dx) const {
        std::copy_n(dy.data(), dy.size(), dx.data());
    }
};

} // namespace

TEST_CASE(
    "what a layer calls of an inference that goes on by itself is refused, and so is who asks "
    "meanwhile when its actions ran") {
    using Net = gpipe::Pipeline<Told, Told>;
    std::atomic<bool> started = false, called = false, answered = false;
    std::function<void()> what = [] {};
    InferenceOf<Net, Host> infer(Net{Told{}, Told{&what}}, options<InferenceOf<Net, Host>>(2, 2));
    infer.time_actions();
    std::vector<Real> const inputs(8 * 3, 2);
    std::vector<Real> outputs(8 * 3), others(8 * 3);
    what = [&] {
        if (called.exchange(true)) return;
        while (!started) std::this_thread::yield();
        struct Answer {
            std::atomic<bool>& to;
            ~Answer() { to = true; }
        } const answer{answered};
        // Also from within what another object walks in this thread.
        std::function<void()> const inside = [&] { infer.predict(inputs, others); };
        using One = gpipe::Pipeline<Told>;
        InferenceOf<One, Host> inner(One{Told{&inside}}, options<InferenceOf<One, Host>>(1, 1));
        std::vector<Real> passed(3);
        inner.predict(std::vector<Real>(3), passed);
    };
    // With one thread the layer is called within start(), which then waits for it.
    if (infer.lanes() > 1) {
        auto pending = infer.start(inputs, outputs);
        REQUIRE(!pending.ready());
        CHECK_THROWS_AS((void)infer.times(), std::logic_error);
        started = true;
        while (!answered) std::this_thread::yield(); // before anybody is in a call
        CHECK_THROWS_WITH_AS(pending.wait(), doctest::Contains("is in another call"),
                             std::logic_error);
    }
    what = [] {};
    infer.predict(inputs, outputs);
    CHECK(outputs == inputs);
    CHECK(infer.times().size() > 0);
}
