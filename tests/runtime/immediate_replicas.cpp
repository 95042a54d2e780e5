// update::Immediate with replicas: each adds its gradients up with the others, updates behind its
// own part of a step, and begins the next.
#include "support/buffer_layers.hpp"
#include "support/exchange_layers.hpp"
#include "support/overlap_layers.hpp"
#include "support/replicas.hpp"
#include "support/skip_layers.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <doctest/doctest.h>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

using namespace toy::replicas;
using toy::has;
using toy::thrown_by;

namespace {

using gpipe::update::Immediate;

// The losses of mini-batches, of which so many are under way at once; those of fewer samples than
// there are replicas are parts of the next.
template <class T>
std::vector<double> trained(T& train, Sizes const& sizes, std::size_t replicas, std::size_t most) {
    std::vector<double> losses;
    std::deque<typename T::Pending> pending;
    auto const end_one = [&] {
        losses.push_back(pending.front().result().loss);
        pending.pop_front();
    };
    for (std::size_t const size : sizes) {
        toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
        if (size < replicas) {
            train.accumulate(data.inputs, data.targets);
            continue;
        }
        pending.push_back(train.start(data.inputs, data.targets));
        if (pending.size() == most) end_one();
    }
    while (!pending.empty()) end_one();
    return losses;
}
template <class Plain>
std::vector<double> plain_losses(Plain& plain, Sizes const& sizes, std::size_t replicas) {
    std::vector<double> losses;
    for (std::size_t const size : sizes) {
        toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
        if (size < replicas)
            plain.accumulate(data.inputs, data.targets);
        else
            losses.push_back(plain.step(data.inputs, data.targets));
    }
    return losses;
}
// All that there is room for; not as many everywhere; a part, none of it in the last replica.
Sizes sizes_for(std::size_t replicas) {
    std::size_t const most = 7 * replicas;
    return {most, most - replicas - 1, std::max<std::size_t>(replicas, 2) - 1, most, replicas,
            most};
}

// One of `points` trainings on ranks out of all, and of as many in one process.
template <class Net, class Shard, class Make>
void train_at_once(std::size_t replicas, std::size_t points, Make make) {
    using T = Train<Net, Shard, Immediate>;
    using Local = OfThreads<Net, Shard, Immediate>;
    constexpr bool shards = std::is_same_v<Shard, OptimizerState>;
    std::size_t point = 0;
    Sizes const sizes = sizes_for(replicas);
    toy::each_of_catalogue(3, Net::size, 4, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
            for (Sizes const& devices : std::vector<Sizes>{Sizes(k, 1), Sizes{k}, {}})
                for (std::size_t const most : {1, 2, 3}) {
                    if (point++ % toy::one_of(points) != 0) continue;
                    INFO(replicas, " replicas, ", schedule.name(), ", ", checkpointing.name,
                         ", K = ", k, " on ", devices.size(), " ranks, ", most, " steps");
                    toy::Reference<Net, Loss, Adam> plain(make(), {}, Adam{1e-2f}, 7, 4,
                                                          schedule.name() == "GPipe"
                                                              ? toy::Backward::descending
                                                              : toy::Backward::ascending,
                                                          replicas);
                    auto const expected = plain_losses(plain, sizes, replicas);
                    auto const choose = [&](auto o) {
                        o.schedule = schedule;
                        o.checkpointing = checkpointing.policy;
                        o.debug = point % 5 == 0;
                        o.finite_gradients = point % 4 == 0;
                        return o;
                    };
                    if (devices.empty()) {
                        auto o = choose(options<Local>(k, 4));
                        o.replicas = replicas;
                        o.device.threads = point % 4;
                        Local train(make(), Loss{}, Adam{1e-2f}, o);
                        CHECK(trained(train, sizes, replicas, most) == expected);
                        check_parameters(train, plain);
                        CHECK(train.used_bytes() == train.planned_bytes());
                        continue;
                    }
                    auto all = crew<T>(replicas, devices, point % 2 == 0, 1 + point % 3,
                                       choose(options<T>(k, 4)), make);
                    std::vector<std::vector<double>> losses(all.ranks());
                    all.each(
                        [&](std::size_t r) { losses[r] = trained(all[r], sizes, replicas, most); });
                    all.rethrow();
                    for (auto const& found : losses) CHECK(found == expected);
                    CHECK(differs(all, plain, replicas, shards) == "");
                    CHECK(all.wire->fault() == "");
                }
    });
}

} // namespace

TEST_CASE("P1 replicas that update at once train as the plain loop, in every bit, with several "
          "steps under way, on ranks and in one process") {
    toy::Watch watch;
    auto const make = [&] { return toy::make_net<Real>(watch); };
    train_at_once<toy::Net<Real>, gpipe::shard::Nothing>(1, 293, make);
    train_at_once<toy::Net<Real>, gpipe::shard::Nothing>(2, 149, make);
    train_at_once<toy::Net<Real>, OptimizerState>(3, 149, make);
}

TEST_CASE("P1 so they do with skips and ties, with buffers, and where they tell each other "
          "something within a step") {
    train_at_once<toy::SkipNet<Real>, gpipe::shard::Nothing>(2, 211,
                                                             [] { return toy::SkipNet<Real>{}; });
    train_at_once<toy::SkipNet<Real>, OptimizerState>(3, 211, [] { return toy::SkipNet<Real>{}; });
    train_at_once<toy::BufferNet<Real>, gpipe::shard::Nothing>(
        3, 179, [] { return toy::BufferNet<Real>{}; });
    train_at_once<toy::ExchangeNet<Real>, gpipe::shard::Nothing>(
        2, 179, [] { return toy::ExchangeNet<Real>{}; });
}

TEST_CASE("the first device of all replicas begins the next step while the last is not done with "
          "this one") {
    using Net = gpipe::Pipeline<toy::FirstToMeet, toy::SecondToMeet>;
    using T = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<4>,
                              gpipe::Loss<toy::MeanSquare<Real, 2>>, gpipe::Optimizer<Adam>,
                              gpipe::schedule::ZeroBubbleH2, gpipe::checkpoint::Never, Replicas<2>,
                              Immediate>;
    toy::Overlap meeting{.samples = 26, .first_step = 8};
    toy::FirstToMeet first;
    first.meeting = &meeting;
    toy::SecondToMeet second;
    second.meeting = &meeting;
    T::Options o;
    o.samples = 13;
    o.device.threads = 2;
    T train(Net(first, second), {}, Adam{}, o);
    std::vector<Real> const data(52, 0.5f);
    auto one = train.start(data, data);
    auto two = train.start(data, data);
    one.result();
    two.result();
    CHECK(meeting.met);
    CHECK(train.steps() == 2);
}

namespace {

using Net = toy::Net<Real>;
template <class Shard> using Watched = Train<Net, Shard, Immediate>;
using Local = OfThreads<Net, gpipe::shard::Nothing, Immediate>;

} // namespace

TEST_CASE("P6 what a layer of any replica throws before its losses are known is thrown on all, so "
          "is the step behind it; nothing has changed") {
    toy::Data<Real> const data(8), more(14); // of two replicas
    for (Sizes const& devices : {Sizes{2}, Sizes{1, 1}, Sizes{1, 2}})
        for (std::size_t const sample : {5, 10, 12}) // that micro-batches begin with there alone
            for (std::size_t const layer : {0, 9}) {
                INFO(devices.size(), " ranks of a replica, layer ", layer, ", sample ", sample);
                toy::Watch watch, calm;
                auto o = options<Watched<OptimizerState>>(
                    devices.size() == 2 ? devices[0] + devices[1] : 2, 3);
                o.schedule = gpipe::schedule::ZeroBubbleH2{};
                auto all = crew<Watched<OptimizerState>>(
                    2, devices, sample < 12, 2, o, [&] { return toy::make_net<Real>(watch); });
                toy::Reference<Net, Loss, Adam> plain(toy::make_net<Real>(calm), {}, Adam{1e-2f}, 7,
                                                      3, toy::Backward::ascending, 2);
                CHECK(all.step(data.inputs, data.targets).loss ==
                      plain.step(data.inputs, data.targets));
                watch.faults = {{layer, sample, toy::Phase::forward}};
                std::vector<std::string> bad(all.ranks()), good(all.ranks());
                all.each([&](std::size_t r) {
                    auto one = all[r].start(more.inputs, more.targets);
                    auto two = all[r].start(data.inputs, data.targets);
                    bad[r] = thrown_by([&] { one.result(); });
                    good[r] = thrown_by([&] { two.result(); });
                });
                all.rethrow();
                CHECK(std::count(bad.begin(), bad.end(), "Thrown") == 1);
                for (std::size_t r = 0; r < all.ranks(); ++r) {
                    INFO("rank ", r, ": ", bad[r], "; ", good[r]);
                    CHECK((bad[r] == "Thrown" || has(bad[r], "gpipe: on rank ")));
                    CHECK(has(good[r], "the step before this one failed"));
                    CHECK(all[r].steps() == 1);
                }
                watch.faults.clear();
                for (int i = 0; i < 2; ++i)
                    CHECK(all.step(data.inputs, data.targets).loss ==
                          plain.step(data.inputs, data.targets));
                CHECK(differs(all, plain, 2, true) == "");
            }
}

TEST_CASE("P6 so it is in one process") {
    toy::Data<Real> const data(8), more(14); // of two replicas
    for (std::size_t const sample : {5, 12}) {
        CAPTURE(sample);
        toy::Watch watch;
        auto o = options<Local>(2, 3);
        o.replicas = 2;
        o.schedule = gpipe::schedule::ZeroBubbleH2{};
        o.device.threads = 2;
        Local train(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, o);
        Local other(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, o);
        train.step(data.inputs, data.targets);
        other.step(data.inputs, data.targets);
        watch.faults = {{9, sample, toy::Phase::forward}};
        auto bad = train.start(more.inputs, more.targets);
        auto good = train.start(data.inputs, data.targets);
        CHECK(thrown_by([&] { bad.result(); }) == "Thrown");
        REQUIRE(train.failure());
        CHECK(train.failure()->layer == 9);
        CHECK(has(thrown_by([&] { good.result(); }), "the step before this one failed"));
        watch.faults.clear();
        for (int i = 0; i < 2; ++i)
            CHECK(train.step(data.inputs, data.targets).loss ==
                  other.step(data.inputs, data.targets).loss);
        CHECK(train.steps() == 3);
        // A handle that is gone.
        watch.faults = {{9, sample, toy::Phase::forward}};
        train.start(more.inputs, more.targets);
        CHECK(thrown_by([&] { train.evaluate(data.inputs, data.targets); }) == "Thrown");
        watch.faults.clear();
        CHECK(train.step(data.inputs, data.targets).loss ==
              other.step(data.inputs, data.targets).loss);
    }
}

TEST_CASE("a learning rate that is none is refused while a step is under way; that one ends well") {
    toy::Data<Real> const data(12);
    toy::Watch watch;
    auto o = options<Local>(2, 3);
    o.replicas = 2;
    o.schedule = gpipe::schedule::ZeroBubbleH2{};
    Local train(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, o);
    Local other(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, o);
    auto one = train.start(data.inputs, data.targets);
    train.optimizer().learning_rate = std::numeric_limits<Real>::quiet_NaN();
    CHECK_THROWS_AS(train.start(data.inputs, data.targets), std::invalid_argument);
    train.optimizer().learning_rate = 1e-2f;
    CHECK(one.result().loss == other.step(data.inputs, data.targets).loss);
    CHECK(train.step(data.inputs, data.targets).loss == other.step(data.inputs, data.targets).loss);
}

TEST_CASE("after a step that failed when some ranks had updated, that of all ranks is of no use") {
    toy::Data<Real> const data(12);
    using T = Watched<gpipe::shard::Nothing>;
    toy::Watch watch;
    auto o = options<T>(2, 3);
    o.schedule = gpipe::schedule::ZeroBubbleH2{};
    auto all = crew<T>(2, {1, 1}, false, 1, o, [&] { return toy::make_net<Real>(watch); });
    all.step(data.inputs, data.targets);
    // The last of all in the second replica: the first devices need nothing of it.
    watch.faults = {{9, 10, toy::Phase::weight_gradient}};
    std::vector<std::string> bad(all.ranks()), next(all.ranks());
    all.each([&](std::size_t r) {
        bad[r] = thrown_by([&] { all[r].step(data.inputs, data.targets); });
        next[r] = thrown_by([&] { all[r].step(data.inputs, data.targets); });
    });
    all.rethrow();
    for (std::size_t r = 0; r < all.ranks(); ++r) {
        INFO("rank ", r, ": ", bad[r], "; ", next[r]);
        CHECK((r == 3 ? bad[r] == "Thrown" : has(bad[r], "gpipe: on rank 3, ")));
        CHECK(has(next[r], "of no use"));
    }
}

TEST_CASE("P6 losses and sums of gradients that are not finite change nothing in any replica") {
    toy::Data<Real> const data(12);
    for (bool const gradients : {false, true}) {
        CAPTURE(gradients);
        using T = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<3>,
                                  gpipe::Loss<toy::Spoils>, gpipe::Optimizer<Adam>,
                                  gpipe::schedule::OneForwardOneBackward, Replicas<2>, Immediate>;
        toy::Watch watch;
        T::Options o;
        o.samples = 6;
        o.finite_gradients = true;
        o.device.threads = 2;
        T train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
        T other(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
        auto broken = data;
        for (std::size_t i = 3 * 8; i < broken.targets.size(); ++i) // of the second
            broken.targets[i] = gradients ? 5000 : 500;
        train.step(data.inputs, data.targets);
        other.step(data.inputs, data.targets);
        auto bad = train.start(broken.inputs, broken.targets);
        auto good = train.start(data.inputs, data.targets);
        std::string const words = thrown_by([&] { bad.result(); });
        INFO(words);
        CHECK(has(words, gradients ? "gradient" : "the loss of micro-batch 1 of replica 1 is inf"));
        CHECK(has(thrown_by([&] { good.result(); }), "the step before this one failed"));
        CHECK(train.step(data.inputs, data.targets).loss ==
              other.step(data.inputs, data.targets).loss);
        CHECK(train.evaluate(data.inputs, data.targets).loss ==
              other.evaluate(data.inputs, data.targets).loss);
    }
}

namespace {

// Of large targets the gradients of biases alone have sums that are not finite.
struct Overflows {
    using Target = gpipe::Tensor<Real, 3>;
    gpipe::LossValue<> operator()(auto&, auto y, auto target, auto dy) const {
        for (std::size_t s = 0; s < y.samples(); ++s)
            for (std::size_t i = 0; i < 3; ++i)
                if constexpr (!gpipe::is_none<decltype(dy)>)
                    dy(s, i) = target(s, i) > 1000 ? 1e38f : y(s, i);
        return {1, static_cast<double>(y.samples())};
    }
};

} // namespace

TEST_CASE("P6 where one replica would add up what is not finite none updates") {
    using T = gpipe::Training<gpipe::Pipeline<toy::Linear<Real, 5, 3>>, gpipe::Cells<1>,
                              gpipe::MicroBatches<2>, gpipe::Loss<Overflows>,
                              gpipe::Optimizer<Adam>, Replicas<2>, Immediate>;
    T::Options o;
    o.samples = 6;
    o.finite_gradients = true;
    T train({}, {}, Adam{1e-2f}, o);
    std::vector<Real> const inputs(5 * 12, 1e-3f), targets(3 * 12), large(3 * 12, 5000);
    train.step(inputs, targets);
    std::vector<Real> before(15), after(15);
    train.read_parameter(0, 0, std::span(before));
    CHECK(has(thrown_by([&] { train.step(inputs, large); }), "parameter tensor 1 of layer 0"));
    train.read_parameter(0, 0, std::span(after));
    CHECK(after == before);
    train.step(inputs, targets);
    train.read_parameter(0, 0, std::span(after));
    CHECK(after != before);
}

namespace {

std::function<void()> within;
std::atomic<std::size_t> within_sample = ~std::size_t{0};
// Calls that in the forward of the micro-batch which begins with that sample.
struct Calls : toy::Linear<Real, 3, 3> {
    void forward(auto& ctx, auto x, auto y) const {
        toy::Linear<Real, 3, 3>::forward(ctx, x, y);
        if (ctx.first_sample() == within_sample) within();
    }
};

} // namespace

TEST_CASE("a layer of any replica that calls its training is refused, when start() has returned, "
          "too") {
    using T = gpipe::Training<gpipe::Pipeline<Calls, toy::Linear<Real, 3, 3>>, gpipe::Cells<2>,
                              gpipe::MicroBatches<2>, gpipe::Loss<Loss>, gpipe::Optimizer<Adam>,
                              gpipe::schedule::OneForwardOneBackward, Replicas<2>, Immediate>;
    T::Options o;
    o.samples = 4;
    o.device.threads = 2;
    T train({}, {}, Adam{}, o);
    std::vector<Real> const data(3 * 8, 0.5f);
    std::atomic<bool> started = false;
    within = [&] {
        while (!started) std::this_thread::yield();
        std::vector<Real> values(9);
        train.read_parameter(0, 0, std::span(values));
    };
    train.step(data, data);
    for (std::size_t const sample : {0, 4}) { // of the first replica, and the second
        CAPTURE(sample);
        started = false;
        within_sample = sample;
        auto pending = train.start(data, data);
        started = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(50)); // in no call
        CHECK_THROWS_AS(pending.result(), std::logic_error);
        REQUIRE(train.failure());
        CHECK(train.failure()->layer == 0);
        CHECK(train.failure()->action == gpipe::Kind::forward);
    }
    within_sample = ~std::size_t{0};
    train.step(data, data);
    CHECK(train.steps() == 2);
}
