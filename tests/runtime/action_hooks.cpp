// Hooks of actions: called around each, on whatever device, and gone without a trace.
#include <support/expected.hpp>
#include <support/net.hpp>
#include <support/ranks.hpp>
#include <support/timeline_entries.hpp>

#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using gpipe::Action, gpipe::ActionEvent, gpipe::Kind;
using gpipe::device::Host, toy::Backward, toy::Remote;

using Real = float;
constexpr std::size_t L = toy::layers<Real>;
constexpr std::size_t M = 4;
template <class Device> using Train = toy::Train<Real, Device>;

// What a hook has been told, and where it throws.
struct Heard {
    std::mutex mutex;
    std::vector<ActionEvent> events;
    std::size_t throws_at = static_cast<std::size_t>(-1);

    void add(ActionEvent const& event) {
        std::lock_guard const lock(mutex);
        events.push_back(event);
        if (events.size() - 1 == throws_at) throw throws_at;
    }
    auto hook() {
        return [this](ActionEvent const& event) { add(event); };
    }
    std::vector<ActionEvent> take() {
        std::lock_guard const lock(mutex);
        return std::exchange(events, {});
    }
};
// The program of a device as it was heard: every begin is followed, on its device, by its end,
// where no copy comes between. Empty if it was not like that.
std::vector<Action> heard(std::vector<ActionEvent> const& events, std::size_t device) {
    std::vector<Action> program;
    bool open = false;
    for (ActionEvent const& event : events) {
        if (event.device != device || !computes(event.action.kind)) continue;
        if (event.begins == open) return {};
        if (open && event.action != program.back()) return {};
        if (!open) program.push_back(event.action);
        open = !open;
    }
    return open ? std::vector<Action>{} : program;
}
// Of all that has samples, of these kinds: how often each was begun and ended.
std::map<std::tuple<Kind, std::uint32_t, std::uint32_t, std::uint32_t>, std::size_t>
copies(std::vector<ActionEvent> const& events, bool begins) {
    std::map<std::tuple<Kind, std::uint32_t, std::uint32_t, std::uint32_t>, std::size_t> count;
    for (ActionEvent const& e : events)
        if (is_copy(e.action.kind) && e.begins == begins)
            ++count[{e.action.kind, e.action.cell, e.action.micro_batch, e.action.edge}];
    return count;
}
template <class T>
void check_step(T const& train, std::vector<ActionEvent> const& events, std::size_t samples,
                std::size_t steps) {
    std::size_t const filled = std::min(samples, M);
    for (std::size_t d = 0; d < train.devices(); ++d) {
        std::vector<Action> expected;
        for (Action const& a : train.programs().program(d))
            if (a.micro_batch < filled && computes(a.kind)) expected.push_back(a);
        CHECK(heard(events, d) == expected);
    }
    std::size_t moved = 0;
    gpipe::Lowered const& lowered = train.plan().lowered;
    for (std::size_t i = 0; i < lowered.programs.size(); ++i)
        moved += is_copy(lowered.programs[i].kind) && lowered.programs[i].micro_batch < filled;
    auto const begun = copies(events, true);
    CHECK(begun == copies(events, false));
    CHECK(begun.size() == moved);
    for (auto const& [action, count] : begun) CHECK(count == 1);
    for (ActionEvent const& event : events) {
        CHECK(event.step == steps);
        CHECK(!event.evaluates);
        CHECK(event.replica == 0);
        CHECK(event.device == train.programs().device_of(event.action.cell));
    }
}
template <class Device>
typename Train<Device>::Options options(std::size_t cells, gpipe::schedule::Dynamic schedule,
                                        gpipe::checkpoint::Dynamic checkpointing,
                                        typename Device::Options device) {
    typename Train<Device>::Options o;
    o.samples = 9;
    o.seed = toy::expected_seed;
    o.cells = cells;
    o.micro_batches = M;
    o.schedule = schedule;
    o.checkpointing = checkpointing;
    o.device = device;
    return o;
}

} // namespace

TEST_CASE_TEMPLATE(
    "a hook hears each action of a device's program begin and end, in its order, where "
    "there are samples, and changes no bit",
    Device, Host, Remote) {
    std::vector<std::size_t> const sizes{9, 3, 9};
    toy::Expected<Real> const descending(M, Backward::descending, sizes);
    toy::Expected<Real> const ascending(M, Backward::ascending, sizes);
    std::size_t trained = 0;
    toy::each_way<Device>(4, L, M, 37,
                          [&](auto schedule, std::size_t k, auto checkpointing, auto const& run,
                              std::string const& words) {
                              INFO(words);
                              toy::Watch watch;
                              Train<Device> train(toy::make_net<Real>(watch), {},
                                                  gpipe::Adam{1e-2f},
                                                  options<Device>(k, schedule, checkpointing, run));
                              Heard heard;
                              train.on_action(heard.hook());
                              bool const descends = schedule.name() == "GPipe";
                              CHECK((descends ? descending : ascending).differs(train) == "");
                              CHECK(train.used_bytes() == train.planned_bytes());
                              auto const all = heard.take();
                              for (std::size_t step = 0; step < sizes.size(); ++step) {
                                  std::vector<ActionEvent> events;
                                  for (ActionEvent const& event : all)
                                      if (event.step == step) events.push_back(event);
                                  check_step(train, events, sizes[step], step);
                              }
                              ++trained;
                          });
    CHECK(trained > 2);
}

TEST_CASE(
    "what a hook hears of evaluations, predictions and gradients alone; a hook takes the place of "
    "another, and none is none") {
    toy::Watch watch;
    Train<Host> train(toy::make_net<Real>(watch), {}, gpipe::Adam{1e-2f},
                      options<Host>(3, gpipe::schedule::GPipe{}, gpipe::checkpoint::Never{}, {2}));
    toy::Data<Real> const data(9);
    Heard first, second;
    train.on_action(first.hook());
    train.compute_gradients(data.inputs, data.targets);
    check_step(train, first.take(), 9, 0);
    train.accumulate(data.inputs, data.targets); // the first part of a step
    train.evaluate(data.inputs, data.targets);
    auto part = first.take();
    std::erase_if(part, [](ActionEvent const& event) { return event.evaluates; });
    check_step(train, part, 9, 0);
    train.forget_accumulated();
    train.on_action(second.hook());
    train.evaluate(data.inputs, data.targets);
    auto const evaluation = second.take();
    CHECK(evaluation.size() == 2 * 3 * M);
    for (ActionEvent const& event : evaluation) {
        CHECK(event.evaluates);
        CHECK(event.action.kind == Kind::forward);
    }
    std::vector<Real> outputs(9 * 3);
    train.predict(data.inputs, outputs);
    CHECK(second.take().size() == 2 * 3 * M);
    train.on_action(std::function<void(ActionEvent const&)>()); // none, as nullptr is
    train.step(data.inputs, data.targets);
    train.evaluate(data.inputs, data.targets);
    CHECK(second.take().empty());
    CHECK(first.take().empty());
    // Times go on or not, whatever hooks there are.
    CHECK(train.times().empty());
    train.time_actions();
    train.step(data.inputs, data.targets);
    CHECK(toy::entries_of_cells(train.timeline()) == train.programs().size());
    train.on_action(first.hook());
    train.step(data.inputs, data.targets);
    CHECK(toy::entries_of_cells(train.timeline()) == train.programs().size());
    check_step(train, first.take(), 9, 2);
}

TEST_CASE_TEMPLATE(
    "P6 what a hook throws, at the begin or the end of any action, arrives as it was "
    "thrown, changes nothing, and training goes on as if nothing had happened",
    Device, Host, Remote) {
    auto const runs = toy::runs<Device>();
    std::size_t point = 0, thrown = 0;
    for (std::size_t const cells : {1u, 3u})
        for (toy::NamedSchedule const& schedule : toy::schedules)
            for (gpipe::checkpoint::Dynamic const& checkpointing :
                 {gpipe::checkpoint::Dynamic(gpipe::checkpoint::ExceptLast{}),
                  gpipe::checkpoint::Dynamic(
                      gpipe::checkpoint::Offload<gpipe::checkpoint::Never>{})}) {
                auto const run = runs[point++ % runs.size()];
                INFO(schedule.name, ", K = ", cells, ", ", toy::describe(run));
                toy::Watch watch, other;
                Train<Device> train(toy::make_net<Real>(watch), {}, gpipe::Adam{1e-2f},
                                    options<Device>(cells, schedule.policy, checkpointing, run));
                toy::Plain<Real> plain(toy::make_net<Real>(other), {}, gpipe::Adam{1e-2f},
                                       toy::expected_seed, M, schedule.order);
                toy::Data<Real> const data(9);
                Heard heard;
                train.on_action(heard.hook());
                CHECK(train.step(data.inputs, data.targets).loss ==
                      plain.step(data.inputs, data.targets));
                std::size_t const count = heard.take().size();
                for (std::size_t at = point % 5; at < count; at += toy::long_tests() ? 1 : 5) {
                    heard.throws_at = at;
                    try {
                        train.step(data.inputs, data.targets);
                        FAIL("nothing was thrown");
                    } catch (std::size_t where) {
                        CHECK(where == at);
                    }
                    ++thrown;
                    auto const events = heard.take();
                    REQUIRE(events.size() > at);
                    REQUIRE(train.failure());
                    CHECK(train.failure()->cell == events[at].action.cell);
                    CHECK(train.failure()->micro_batch == events[at].action.micro_batch);
                    CHECK(train.failure()->action == events[at].action.kind);
                    CHECK(train.steps() == 1);
                    // An action at whose begin it threw has no end, and did not run.
                    for (std::size_t i = at + 1; i < events.size(); ++i)
                        CHECK(!(events[i].action == events[at].action));
                }
                heard.throws_at = static_cast<std::size_t>(-1);
                for (int step = 0; step < 2; ++step) {
                    CHECK(train.step(data.inputs, data.targets).loss ==
                          plain.step(data.inputs, data.targets));
                    CHECK(toy::difference(train, plain) == "");
                    CHECK(!train.failure());
                }
            }
    CHECK(thrown > 50);
}

TEST_CASE("an action that a layer fails has no end, and those behind it have no begin") {
    toy::Watch watch;
    Train<Host> train(toy::make_net<Real>(watch), {}, gpipe::Adam{1e-2f},
                      options<Host>(1, gpipe::schedule::GPipe{}, gpipe::checkpoint::Never{}, {1}));
    toy::Data<Real> const data(9);
    Heard heard;
    train.on_action(heard.hook());
    watch.faults = {{4, 3, toy::Phase::forward}}; // of the second micro-batch
    CHECK_THROWS(train.step(data.inputs, data.targets));
    auto const events = heard.take();
    REQUIRE(events.size() == 3);
    CHECK(events[0].action == gpipe::forward(0, 0));
    CHECK(!events[1].begins);
    CHECK(events[2].action == gpipe::forward(0, 1));
    CHECK(events[2].begins);
}

TEST_CASE(
    "a hook is called by several threads, for each device by one at a time, with its stream if it "
    "takes one") {
    using T = gpipe::Training<toy::Net<Real>, gpipe::Cells<4>, gpipe::MicroBatches<M>,
                              gpipe::Loss<toy::MeanSquare<Real, 3>>,
                              gpipe::schedule::OneForwardOneBackward, gpipe::update::Immediate>;
    for (std::size_t const threads : {1u, 2u, 4u}) {
        toy::Watch watch;
        T train(toy::make_net<Real>(watch), {}, {}, {.samples = 9, .device = {.threads = threads}});
        int inside[4] = {}, count[4] = {}; // not atomic: ThreadSanitizer would tell
        train.on_action([&](ActionEvent const& event, Host::Stream const&) {
            int& here = inside[event.device];
            if (here != (event.begins ? 0 : 1)) throw std::logic_error("not one at a time");
            here += event.begins ? 1 : -1;
            ++count[event.device];
        });
        toy::Data<Real> const data(9);
        std::vector<T::Pending> pending;
        std::size_t const steps = toy::sanitized ? 20 : 200;
        for (std::size_t step = 0; step < steps; ++step)
            pending.push_back(train.start(data.inputs, data.targets));
        train.on_action(nullptr); // waits for all
        for (std::size_t d = 0; d < 4; ++d)
            CHECK(count[d] == static_cast<int>(steps * 2 * train.programs().program(d).size()));
        for (auto& step : pending) CHECK_NOTHROW(step.result());
    }
}

TEST_CASE("each replica in a process has the hook, and says which it is") {
    using T = gpipe::Training<toy::Net<Real>, gpipe::Cells<2>, gpipe::MicroBatches<M>,
                              gpipe::Loss<toy::MeanSquare<Real, 3>>, gpipe::Replicas<3>,
                              gpipe::schedule::OneForwardOneBackward>;
    toy::Watch watch;
    T train(toy::make_net<Real>(watch), {}, {}, {.samples = 9});
    Heard heard;
    train.on_action(heard.hook());
    toy::Data<Real> const data(26);
    train.step(data.inputs, data.targets);
    auto const all = heard.take();
    for (std::size_t r = 0; r < 3; ++r) {
        std::vector<ActionEvent> own;
        for (ActionEvent event : all)
            if (event.replica == r) {
                event.replica = 0;
                own.push_back(event);
            }
        check_step(train, own, 8, 0);
    }
    heard.throws_at = all.size() / 2;
    CHECK_THROWS_AS(train.step(data.inputs, data.targets), std::size_t);
    CHECK(train.steps() == 1);
    heard.take();
    heard.throws_at = static_cast<std::size_t>(-1);
    train.step(data.inputs, data.targets);
    CHECK(train.steps() == 2);
    train.on_action(nullptr);
    heard.take();
    train.step(data.inputs, data.targets);
    CHECK(heard.take().empty());
}

// What a call from within a call threw.
template <class F> std::string refused(F call) {
    try {
        call();
    } catch (std::logic_error const& error) {
        return error.what();
    }
    return "nothing";
}

TEST_CASE_TEMPLATE(
    "a call from within the object's own step, or by a second thread meanwhile, is refused",
    Replicated, gpipe::Replicas<1>, gpipe::Replicas<2>) {
    using T = gpipe::Training<toy::Net<Real>, gpipe::Cells<2>, gpipe::MicroBatches<M>,
                              gpipe::Loss<toy::MeanSquare<Real, 3>>, Replicated>;
    toy::Data<Real> const data(9);

    auto const calls = [&](T& train, std::size_t which) {
        if (which == 0) train.step(data.inputs, data.targets);
        if (which == 1) train.evaluate(data.inputs, data.targets);
        if (which == 2) train.compute_gradients(data.inputs, data.targets);
        if (which == 3) train.accumulate(data.inputs, data.targets);
        if (which == 4) train.time_actions();
        if (which == 5) train.on_action(nullptr);
        if (which == 6) (void)train.timeline();
    };
    for (std::size_t const threads : {1u, 2u})
        for (std::size_t which = 0; which < 7; ++which)
            for (bool const elsewhere : {false, true}) {
                CAPTURE(threads);
                CAPTURE(which);
                CAPTURE(elsewhere);
                toy::Watch watch;
                T train(toy::make_net<Real>(watch), {}, {},
                        {.samples = 9, .device = {.threads = threads}});
                T plain(toy::make_net<Real>(watch), {}, {},
                        {.samples = 9, .device = {.threads = threads}});
                std::atomic<bool> first{true};
                std::string said;
                train.on_action([&](ActionEvent const&) {
                    if (!first.exchange(false)) return;
                    auto const call = [&] { said = refused([&] { calls(train, which); }); };
                    elsewhere ? std::thread(call).join() : call();
                });
                train.step(data.inputs, data.targets);
                CHECK(said.find("is in another call") != std::string::npos);
                train.on_action(nullptr);
                plain.step(data.inputs, data.targets);
                for (int step = 0; step < 2; ++step)
                    CHECK(train.step(data.inputs, data.targets).loss ==
                          plain.step(data.inputs, data.targets).loss);
            }
}

TEST_CASE_TEMPLATE(
    "a second thread that looks at an object is refused, or who trains it, and nobody "
    "waits for ever",
    Replicated, gpipe::Replicas<1>, gpipe::Replicas<2>) {
    using T = gpipe::Training<toy::Net<Real>, gpipe::Cells<1>, gpipe::MicroBatches<M>,
                              gpipe::Loss<toy::MeanSquare<Real, 3>>, Replicated>;
    toy::Watch watch;
    T train(toy::make_net<Real>(watch), {}, {}, {.samples = 9});
    toy::Data<Real> const data(9);
    std::vector<std::byte> copy(train.template parameter<std::byte>(0, 0).size());
    std::atomic<bool> stops{false};
    std::thread second([&] {
        while (!stops)
            static_cast<void>(refused([&] { train.read_parameter(0, 0, std::span(copy)); }));
    });
    std::size_t steps = 0, other_words = 0;
    while (steps < 20 && other_words == 0) {
        std::string const said = refused([&] { train.step(data.inputs, data.targets); });
        steps += said == "nothing";
        other_words += said != "nothing" && said.find("is in another call") == std::string::npos;
        std::this_thread::yield();
    }
    stops = true;
    second.join();
    CHECK(steps == 20);
    CHECK(train.steps() == 20);
}

namespace {

/// Counts what it is told; its n-th copy cannot be made.
struct Copied {
    int* copies;
    std::atomic<int>* calls; // of all replicas
    int last;

    Copied(int* made, std::atomic<int>* called, int n) : copies(made), calls(called), last(n) {}
    Copied(Copied const& other) : copies(other.copies), calls(other.calls), last(other.last) {
        static std::mutex mutex;
        std::lock_guard const lock(mutex);
        if (++*copies == last) throw std::runtime_error("no copy");
    }
    void operator()(ActionEvent const&) const { ++*calls; }
};

} // namespace

TEST_CASE("a hook that cannot be copied for a replica is set on none") {
    using T = gpipe::Training<toy::Net<Real>, gpipe::Cells<1>, gpipe::MicroBatches<1>,
                              gpipe::Loss<toy::MeanSquare<Real, 3>>, gpipe::Replicas<2>>;
    toy::Data<Real> const data(2);
    for (int n = 1, set = 0; set == 0; ++n) {
        REQUIRE(n < 20);
        toy::Watch watch;
        T train(toy::make_net<Real>(watch), {}, {}, {.samples = 1, .device = {.threads = 1}});
        int copies = 0;
        std::atomic<int> calls = 0;
        try {
            train.on_action(Copied(&copies, &calls, n));
            set = 1;
        } catch (std::runtime_error const& error) {
            CHECK(std::string(error.what()) == "no copy");
        }
        train.step(data.inputs, data.targets);
        CHECK((calls > 0) == (set == 1));
    }
}

TEST_CASE("on ranks each hears its own devices, messages with samples among it, and what a hook "
          "throws on "
          "one is told on all") {
    using T = toy::Training<toy::Net<Real>, toy::MeanSquare<Real, 3>, gpipe::Adam, toy::Wired>;
    for (std::vector<std::size_t> const& devices :
         {std::vector<std::size_t>{1, 1, 1}, std::vector<std::size_t>{2, 1}}) {
        toy::Watch watch;
        toy::Crew<T> crew(devices, true, 2, [&](std::size_t, toy::Rank::Options device) {
            typename T::Options o;
            o.samples = 9;
            o.seed = toy::expected_seed;
            o.cells = 3;
            o.micro_batches = M;
            o.schedule = gpipe::schedule::OneForwardOneBackward{};
            o.device = device;
            return std::make_unique<T>(toy::make_net<Real>(watch), toy::MeanSquare<Real, 3>{},
                                       gpipe::Adam{1e-2f}, o);
        });
        std::vector<Heard> heard(devices.size());
        crew.each([&](std::size_t r) { crew[r].on_action(heard[r].hook()); });
        std::size_t steps = 0;
        for (std::size_t const samples : {9u, 2u, 9u}) { // of 2 two micro-batches stay empty
            toy::Data<Real> const data(samples);
            if (samples == 2) {
                heard[1].throws_at = 5;
                crew.each([&](std::size_t r) { crew[r].step(data.inputs, data.targets); });
                for (std::size_t r = 0; r < devices.size(); ++r) {
                    REQUIRE(crew.errors[r]);
                    REQUIRE(crew[r].failure());
                    CHECK(crew[r].failure()->cell == crew[0].failure()->cell);
                    CHECK(crew[r].steps() == steps);
                    heard[r].take();
                }
                CHECK_THROWS_AS(std::rethrow_exception(crew.errors[1]), std::size_t);
                heard[1].throws_at = static_cast<std::size_t>(-1);
            }
            crew.step(data.inputs, data.targets);
            std::vector<ActionEvent> all;
            std::size_t first = 0;
            for (std::size_t r = 0; r < devices.size(); ++r) {
                for (ActionEvent const& event : heard[r].take()) {
                    CHECK(event.device >= first);
                    CHECK(event.device < first + devices[r]);
                    all.push_back(event);
                }
                first += devices[r];
            }
            check_step(crew[0], all, samples, steps++);
        }
    }
}
