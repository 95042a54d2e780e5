// update::Immediate: the same training, and steps that overlap.
#include "support/expected.hpp"
#include "support/overlap_layers.hpp"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
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
using toy::Spoils;
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
                        if (point++ % toy::one_of(89) != 0) continue;
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

TEST_CASE("the first device begins the next step while the last is not done with this one") {
    using T = Immediately<gpipe::Pipeline<toy::FirstToMeet, toy::SecondToMeet>,
                          toy::MeanSquare<Real, 2>, Host>;
    toy::Overlap meeting{.samples = 4};
    toy::FirstToMeet first;
    first.meeting = &meeting;
    toy::SecondToMeet second;
    second.meeting = &meeting;
    auto o = options<T>(gpipe::schedule::ZeroBubbleH2{}, 2, 4, 4);
    o.checkpointing = gpipe::checkpoint::Never{};
    o.device.threads = 2;
    T train(gpipe::Pipeline<toy::FirstToMeet, toy::SecondToMeet>(first, second), {}, Adam{1e-2f},
            o);
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

namespace {

std::atomic<bool> is_slow = false;

/// Takes its time in the third step of a training.
struct Slow : toy::Tanh<Real, 5> {
    void forward(auto& ctx, auto x, auto y) const {
        if (ctx.step() == 2 && is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        toy::Tanh<Real, 5>::forward(ctx, x, y);
    }
};

} // namespace

TEST_CASE("P6 a step that had begun behind one that failed fails, too, and changes nothing") {
    using Net = gpipe::Pipeline<toy::Linear<Real, 5, 5>, Slow, toy::Linear<Real, 5, 3>>;
    using T = gpipe::Training<Net, gpipe::Balance<2, 1>, gpipe::MicroBatches<4>,
                              gpipe::Loss<Spoils>, gpipe::Optimizer<Adam>,
                              gpipe::schedule::OneForwardOneBackward, gpipe::update::Immediate>;
    T::Options o;
    o.samples = 8;
    o.device.threads = 2;
    o.finite_gradients = true;
    char const* const words = "the step before this one failed";
    // Found by the commit, or by each device behind that; the next one's commit comes when that has
    // been heard of, or before, or when its place is that of a third step already.
    for (Real const spoilt : {Real{500}, Real{5000}})
        for (int const when : {0, 1, 2}) {
            T train({}, {}, Adam{1e-2f}, o), other({}, {}, Adam{1e-2f}, o);
            toy::Data<Real> const data(8);
            toy::Data<Real> broken(8);
            for (Real& target : broken.targets) target = spoilt;
            auto const step = [&] {
                CHECK(train.step(data.inputs, data.targets).loss ==
                      other.step(data.inputs, data.targets).loss);
                for (std::size_t layer : {0, 2}) {
                    auto const a = train.parameter<Real>(layer, 0);
                    auto const b = other.parameter<Real>(layer, 0);
                    CHECK(std::equal(a.begin(), a.end(), b.begin()));
                }
                CHECK(train.steps() == other.steps());
            };
            step();
            is_slow = when != 1;
            auto bad = train.start(broken.inputs, broken.targets);
            auto good = train.start(data.inputs, data.targets);
            std::optional<T::Pending> third;
            if (when == 2) third.emplace(train.start(data.inputs, data.targets));
            if (when == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
            CHECK_THROWS_AS(bad.result(), std::domain_error);
            is_slow = false;
            CHECK_THROWS_WITH_AS(good.result(), doctest::Contains(words), std::runtime_error);
            if (third) {
                CHECK(third->result().loss == other.step(data.inputs, data.targets).loss);
            } else {
                REQUIRE(train.failure());
                CHECK(train.failure()->of == gpipe::FailureOf::before);
                CHECK(train.failure()->place() == "step before");
            }
            for (int i = 0; i < 3; ++i) step();
        }
}

namespace {

/// Goes on with a lane a while after others have heard how far it is.
struct SlowBehindMarks : Host {
    using Host::Host;
    void record(std::size_t stream, std::uint64_t position) noexcept {
        Host::record(stream, position);
        if (is_slow && stream == 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
};

std::atomic<bool> third_throws = false;
struct ThrowsInThird : toy::Tanh<Real, 5> {
    void forward(auto& ctx, auto x, auto y) const {
        if (ctx.step() == 2 && third_throws) throw toy::Thrown{};
        toy::Tanh<Real, 5>::forward(ctx, x, y);
    }
};

} // namespace

TEST_CASE("P6 nor does one behind a step of no weight, but a third does; and one that throws says "
          "nothing of those before it") {
    using Net = gpipe::Pipeline<ThrowsInThird, toy::Linear<Real, 5, 3>>;
    using T =
        gpipe::Training<Net, gpipe::Balance<1, 1>, gpipe::MicroBatches<4>, gpipe::Loss<Spoils>,
                        gpipe::Optimizer<Adam>, gpipe::schedule::OneForwardOneBackward,
                        gpipe::update::Immediate, SlowBehindMarks>;
    T::Options o;
    o.samples = 8;
    o.device.threads = 2;
    T train({}, {}, Adam{1e-2f}, o);
    toy::Data<Real> const data(8);
    toy::Data<Real> nothing(8);
    for (Real& target : nothing.targets) target = -500;
    is_slow = true;
    auto bad = train.start(nothing.inputs, nothing.targets);
    auto good = train.start(data.inputs, data.targets);
    auto third = train.start(data.inputs, data.targets);
    CHECK_THROWS_AS(bad.result(), std::domain_error);
    CHECK_THROWS_WITH_AS(good.result(), doctest::Contains("the step before this one failed"),
                         std::runtime_error);
    is_slow = false;
    double const first = third.result().loss;
    T other({}, {}, Adam{1e-2f}, o);
    is_slow = third_throws = true;
    auto one = other.start(data.inputs, data.targets);
    auto two = other.start(data.inputs, data.targets);
    auto three = other.start(data.inputs, data.targets);
    CHECK_THROWS_AS(three.result(), toy::Thrown);
    is_slow = third_throws = false;
    CHECK(one.result().loss == first);
    CHECK(two.result().loss == train.step(data.inputs, data.targets).loss);
    CHECK(train.steps() == 2);
    CHECK(other.steps() == 2);
}

TEST_CASE("P6 who stays a step ahead loses two by one failure, and not all that come") {
    toy::Watch watch, calm;
    auto o = options<Train<Host>>(gpipe::schedule::OneForwardOneBackward{}, 2, 4, 8);
    o.device.threads = 2;
    Train<Host> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
    Train<Host> other(toy::make_net<Real>(calm), {}, Adam{1e-2f}, o);
    toy::Data<Real> const data(8);
    auto step = train.start(data.inputs, data.targets);
    std::size_t failed = 0;
    for (int i = 0; i < 12; ++i) {
        if (i == 5) watch.faults = {{9, 0, gpipe::Phase::forward}};
        auto next = train.start(data.inputs, data.targets);
        CHECK_THROWS_WITH_AS(train.timeline(),
                             doctest::Contains("when actions ran is asked while steps, or"),
                             std::logic_error);
        try {
            double const loss = step.result().loss;
            CHECK(loss == other.step(data.inputs, data.targets).loss);
        } catch (toy::Thrown const&) {
            watch.faults.clear();
            ++failed;
        } catch (std::runtime_error const& error) {
            CHECK(toy::has(error.what(), "can be made again"));
            ++failed;
        }
        step = std::move(next);
    }
    CHECK(step.result().loss == other.step(data.inputs, data.targets).loss);
    CHECK(failed == 2);
}

namespace {

std::atomic<int> updates = 0;
std::atomic<bool> throws_late = false;

struct Counted : gpipe::SGD {
    template <class T>
    void operator()(gpipe::UpdateContext context,
                    gpipe::UpdateTensor<T, states> tensor) const noexcept {
        ++updates;
        gpipe::SGD::operator()(context, tensor);
    }
};
/// Throws once, in the last of all backwards, when another device has updated.
struct Late : toy::Tanh<Real, 5> {
    void backward(auto& ctx, auto y, auto dy, auto dx) const {
        if (ctx.first_sample() == 6 && throws_late.exchange(false)) {
            while (updates == 0) std::this_thread::yield();
            throw toy::Thrown{};
        }
        toy::Tanh<Real, 5>::backward(ctx, y, dy, dx);
    }
};

} // namespace

TEST_CASE("a step behind one that some devices have updated by is of no use, either") {
    using Net = gpipe::Pipeline<toy::Linear<Real, 5, 5>, Late, toy::Linear<Real, 5, 3>>;
    gpipe::Training<Net, gpipe::Balance<2, 1>, gpipe::MicroBatches<4>,
                    gpipe::Loss<toy::MeanSquare<Real, 3>>, gpipe::Optimizer<Counted>,
                    gpipe::schedule::OneForwardOneBackward, gpipe::update::Immediate>
        train({}, {}, {}, {.samples = 8, .seed = 7, .device = {.threads = 2}});
    toy::Data<Real> const data(8);
    updates = 0;
    throws_late = true;
    auto bad = train.start(data.inputs, data.targets);
    auto good = train.start(data.inputs, data.targets);
    CHECK_THROWS_AS(bad.result(), toy::Thrown);
    CHECK_THROWS_WITH_AS(good.result(), doctest::Contains("of no use"), std::runtime_error);
    CHECK(train.steps() == 0);
    CHECK_THROWS_WITH_AS(train.step(data.inputs, data.targets), doctest::Contains("of no use"),
                         std::runtime_error);
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
        auto taker = std::move(pending);
        CHECK(taker.result().loss > 0);
        CHECK_THROWS_WITH_AS(pending.result(),
                             "gpipe: this step has been moved from: who has it now has its result",
                             std::logic_error);
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
