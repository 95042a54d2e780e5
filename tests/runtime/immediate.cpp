// update::Immediate: the same training, and steps that overlap.
#include "support/expected.hpp"

#include <atomic>
#include <chrono>
#include <doctest/doctest.h>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Backward;
using toy::Deferred;
using toy::Remote;
using Real = float;
constexpr std::size_t L = toy::layers<Real>;

template <class N, class Loss, class Device>
using Immediately =
    gpipe::Training<N, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                    gpipe::checkpoint::Dynamic, gpipe::update::Immediate, Device>;
template <class Device> using Train = Immediately<toy::Net<Real>, toy::MeanSquare<Real, 3>, Device>;
using Plain = toy::Plain<Real>;

template <class T>
typename T::Options options(gpipe::schedule::Dynamic schedule, std::size_t cells,
                            std::size_t micro_batches, std::size_t samples) {
    typename T::Options o;
    o.samples = samples;
    o.seed = 7;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.schedule = schedule;
    return o;
}

} // namespace

TEST_CASE_TEMPLATE("with immediate updates every schedule trains as the plain loop does, one step "
                   "at a time or two",
                   Device, Host, Deferred, Remote) {
    std::size_t const micro_batches = 8;
    std::vector<std::size_t> const sizes{13, 7, 13, 1, 13};
    toy::Expected<Real> const descending(micro_batches, Backward::descending, sizes);
    toy::Expected<Real> const ascending(micro_batches, Backward::ascending, sizes);
    std::size_t point = 0;
    toy::each_of_catalogue(
        L, L, micro_batches, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
                for (auto const& run : toy::runs<Device>())
                    for (bool const overlaps : {false, true}) {
                        if (point++ % toy::one_of(43) != 0) continue;
                        auto o = options<Train<Device>>(schedule, k, micro_batches, 13);
                        o.checkpointing = checkpointing.policy;
                        o.device = run;
                        toy::Watch watch;
                        Train<Device> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
                        INFO(schedule.name(), " of ", schedule.cells_per_device(),
                             " cells per device, ", checkpointing.name, ", K = ", k, ", ",
                             toy::describe(run), overlaps ? ", overlapping" : "");
                        bool const descends = schedule.name() == "GPipe";
                        CHECK((descends ? descending : ascending).differs(train, overlaps) == "");
                    }
        });
}

namespace {

// Two layers that meet: the second ends its part of the first step only when the first has begun
// the next.
struct Meeting {
    std::atomic<int> forwards{0};
    std::atomic<bool> met{false};
};
struct First : toy::Linear<Real, 2, 2> {
    Meeting* meeting = nullptr;
    void forward(auto& ctx, auto x, auto y) const {
        ++meeting->forwards;
        toy::Linear<Real, 2, 2>::forward(ctx, x, y);
    }
};
struct Second : toy::Linear<Real, 2, 2> {
    Meeting* meeting = nullptr;
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        toy::Linear<Real, 2, 2>::weight_gradient(ctx, x, dy);
        if (ctx.step() > 0 || ctx.first_sample() + ctx.samples() < 4) return;
        auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(3);
        while (meeting->forwards < 5 && std::chrono::steady_clock::now() < deadline)
            std::this_thread::yield();
        meeting->met = meeting->forwards >= 5;
    }
};

} // namespace

TEST_CASE("the first device begins the next step while the last is not done with this one") {
    using T = Immediately<gpipe::Pipeline<First, Second>, toy::MeanSquare<Real, 2>, Host>;
    Meeting meeting;
    First first;
    first.meeting = &meeting;
    Second second;
    second.meeting = &meeting;
    auto o = options<T>(gpipe::schedule::ZeroBubbleH2{}, 2, 4, 4);
    o.checkpointing = gpipe::checkpoint::Never{};
    o.device.threads = 2;
    T train(gpipe::Pipeline<First, Second>(first, second), {}, Adam{1e-2f}, o);
    std::vector<Real> const data(8, 0.5f);
    auto one = train.start(data, data);
    auto two = train.start(data, data); // its forwards let the first step end
    one.result();
    two.result();
    CHECK(meeting.met);
    CHECK(train.steps() == 2);
}

TEST_CASE("a layer that throws before any device has updated leaves the parameters as they were") {
    for (std::size_t k : {1, 2, 3}) {
        toy::Watch watch;
        toy::Watch calm;
        auto o = options<Train<Host>>(gpipe::schedule::ZeroBubbleH1{}, k, 4, 8);
        o.device.threads = k;
        Train<Host> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
        Train<Host> other(toy::make_net<Real>(calm), {}, Adam{1e-2f}, o);
        toy::Data<Real> const data(8);
        train.step(data.inputs, data.targets);
        other.step(data.inputs, data.targets);
        watch.faults = {{9, 6, gpipe::Phase::forward}}; // in the last cell, on the last micro-batch
        CHECK_THROWS_AS(train.step(data.inputs, data.targets), toy::Thrown);
        REQUIRE(train.failure());
        CHECK(train.failure()->layer == 9);
        CHECK(train.failure()->micro_batch == 3);
        watch.faults.clear();
        CHECK(train.steps() == 1);
        CHECK(train.step(data.inputs, data.targets).loss ==
              other.step(data.inputs, data.targets).loss);
        auto const a = train.parameter<Real>(0, 0);
        auto const b = other.parameter<Real>(0, 0);
        CHECK(std::equal(a.begin(), a.end(), b.begin()));
    }
}

TEST_CASE("after a step that failed when some devices had updated the object is of no use") {
    toy::Watch watch;
    auto o = options<Train<Deferred>>(gpipe::schedule::ZeroBubbleH2{}, 2, 4, 8);
    o.device.seed = 0; // the first device comes to its end before the last one's last action
    Train<Deferred> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
    toy::Data<Real> const data(8);
    train.step(data.inputs, data.targets);
    watch.faults = {{9, 6, gpipe::Phase::weight_gradient}};
    CHECK_THROWS_AS(train.step(data.inputs, data.targets), toy::Thrown);
    REQUIRE(train.failure());
    CHECK(train.failure()->layer == 9);
    CHECK(train.failure()->action == gpipe::Kind::weight_gradient);
    watch.faults.clear();
    CHECK_THROWS_WITH_AS(train.step(data.inputs, data.targets),
                         doctest::Contains("interrupted an update"), std::runtime_error);
}

TEST_CASE("P6 a step that had begun behind one that failed fails, too, and changes nothing") {
    for (std::size_t const k : {2, 3}) {
        toy::Watch watch, calm;
        auto o = options<Train<Host>>(gpipe::schedule::OneForwardOneBackward{}, k, 4, 8);
        o.device.threads = k;
        Train<Host> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
        Train<Host> other(toy::make_net<Real>(calm), {}, Adam{1e-2f}, o);
        toy::Data<Real> const data(8);
        toy::Data<Real> broken(8);
        broken.targets[3] = std::numeric_limits<Real>::infinity();
        auto const step = [&] {
            CHECK(train.step(data.inputs, data.targets).loss ==
                  other.step(data.inputs, data.targets).loss);
            auto const a = train.parameter<Real>(0, 0);
            auto const b = other.parameter<Real>(0, 0);
            CHECK(std::equal(a.begin(), a.end(), b.begin()));
            CHECK(train.steps() == other.steps());
        };
        step();
        auto bad = train.start(broken.inputs, broken.targets);
        auto good = train.start(data.inputs, data.targets);
        CHECK_THROWS_AS(bad.result(), std::domain_error);
        CHECK_THROWS_WITH_AS(good.result(), doctest::Contains("the step before this one failed"),
                             std::runtime_error);
        REQUIRE(train.failure());
        CHECK(train.failure()->of == gpipe::FailureOf::before);
        CHECK(train.failure()->place() == "step before");
        for (int i = 0; i < 3; ++i) step();
    }
}

TEST_CASE("what goes wrong in a step that nobody listens to is thrown by the next call") {
    toy::Watch watch;
    auto o = options<Train<Host>>(gpipe::schedule::ZeroBubbleH2{}, 2, 4, 8);
    o.device.threads = 2;
    Train<Host> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
    toy::Data<Real> const data(8);
    watch.faults = {{9, 0, gpipe::Phase::forward}};
    static_cast<void>(train.start(data.inputs, data.targets));
    CHECK_THROWS_AS(train.parameters<0>(), toy::Thrown);
    watch.faults.clear();
    CHECK(train.step(data.inputs, data.targets).loss > 0);
    CHECK(train.steps() == 1);
    { // and a handle may outlive its training
        std::optional<Train<Host>> brief(std::in_place, toy::make_net<Real>(watch),
                                         toy::MeanSquare<Real, 3>{}, Adam{1e-2f}, o);
        auto pending = brief->start(data.inputs, data.targets);
        brief.reset();
        CHECK(pending.ready());
        CHECK(pending.result().loss > 0);
    }
}

TEST_CASE("evaluation between steps that are under way waits for them") {
    toy::Watch watch;
    auto o = options<Train<Host>>(gpipe::schedule::ZeroBubbleV{}, 2, 4, 8);
    o.device.threads = 2;
    Train<Host> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
    Plain plain(toy::make_net<Real>(watch), {}, Adam{1e-2f}, 7, 4, Backward::ascending);
    toy::Data<Real> const data(8);
    for (int i = 0; i < 50; ++i) {
        auto step = train.start(data.inputs, data.targets);
        double const expected = plain.step(data.inputs, data.targets);
        if (i % 3 == 0)
            CHECK(train.evaluate(data.inputs, data.targets).loss ==
                  plain.evaluate(data.inputs, data.targets));
        CHECK(step.result().loss == expected);
    }
}

TEST_CASE("gradients cannot be clipped by a norm that is not known yet") {
    toy::Watch watch;
    auto o = options<Train<Host>>(gpipe::schedule::ZeroBubbleH1{}, 2, 4, 8);
    o.clip_norm = 1;
    CHECK_THROWS_WITH_AS((Train<Host>(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o)),
                         doctest::Contains("clip_norm is 1"), std::invalid_argument);
}
