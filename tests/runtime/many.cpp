// Promise P7: no global state, any number of pipelines, and destruction never hangs.

#include "support/net.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <filesystem>
#endif

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Remote;

using Real = float;
template <class Device> using Train = toy::Train<Real, Device>;

template <class Device>
typename Train<Device>::Options options(std::size_t cells, typename Device::Options device = {}) {
    typename Train<Device>::Options o;
    o.samples = 6;
    o.seed = 2;
    o.cells = cells;
    o.micro_batches = 3;
    o.device = device;
    return o;
}

// The state after three steps, from a Training of its own.
template <class Device> std::string trains_rightly(std::size_t cells, typename Device::Options o) {
    toy::Watch watch, other;
    Train<Device> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, options<Device>(cells, o));
    toy::Plain<Real> plain(toy::make_net<Real>(other), {}, Adam{1e-2f}, 2, 3,
                           toy::Backward::descending);
    toy::Data<Real> const data(6);
    for (int step = 0; step < 3; ++step)
        if (train.step(data.inputs, data.targets).loss != plain.step(data.inputs, data.targets))
            return "the loss of step " + std::to_string(step);
    return toy::difference(train, plain);
}

#if defined(__linux__)
[[maybe_unused]] std::size_t threads_alive() {
    std::size_t count = 0;
    for ([[maybe_unused]] auto const& entry :
         std::filesystem::directory_iterator("/proc/self/task"))
        ++count;
    return count;
}
#endif

} // namespace

TEST_CASE_TEMPLATE("P7 many Trainings take turns in one process", Device, Host, Remote) {
    toy::Watch watch, other;
    auto const runs = toy::runs<Device>();
    std::vector<std::unique_ptr<Train<Device>>> trainings;
    for (std::size_t i = 0; i < 20; ++i)
        trainings.push_back(std::make_unique<Train<Device>>(
            toy::make_net<Real>(watch), toy::MeanSquare<Real, 3>{}, Adam{1e-2f},
            options<Device>(1 + i % 10, runs[i % runs.size()])));
    toy::Plain<Real> plain(toy::make_net<Real>(other), {}, Adam{1e-2f}, 2, 3,
                           toy::Backward::descending);
    toy::Data<Real> const data(6);
    for (int step = 0; step < 3; ++step) {
        double const expected = plain.step(data.inputs, data.targets);
        for (auto const& train : trainings)
            CHECK(train->step(data.inputs, data.targets).loss == expected);
    }
    // Destruction in another order than construction.
    for (std::size_t i = 0; i < trainings.size(); i += 2) trainings[i].reset();
    for (std::size_t i = 1; i < trainings.size(); i += 2) {
        CHECK(toy::difference(*trainings[i], plain) == "");
        trainings[i].reset();
    }
}

TEST_CASE_TEMPLATE("P7 Trainings in several threads at once do not know of each other", Device,
                   Host, Remote) {
    std::vector<std::string> outcomes(6, "did not run");
    std::vector<std::thread> threads;
    auto const runs = toy::runs<Device>();
    for (std::size_t i = 0; i < outcomes.size(); ++i)
        threads.emplace_back([&outcomes, &runs, i] {
            std::string outcome;
            for (std::size_t cells : {2, 5, 10})
                outcome += trains_rightly<Device>(cells, runs[(i + cells) % runs.size()]);
            outcomes[i] = outcome;
        });
    for (auto& thread : threads) thread.join();
    for (auto const& outcome : outcomes) CHECK(outcome == "");
}

TEST_CASE_TEMPLATE("P7 a Training may be used and destroyed by another thread than its maker",
                   Device, Host, Remote) {
    toy::Watch watch, other;
    auto train =
        std::make_unique<Train<Device>>(toy::make_net<Real>(watch), toy::MeanSquare<Real, 3>{},
                                        Adam{1e-2f}, options<Device>(4, toy::runs<Device>()[2]));
    toy::Plain<Real> plain(toy::make_net<Real>(other), {}, Adam{1e-2f}, 2, 3,
                           toy::Backward::descending);
    toy::Data<Real> const data(6);
    for (int step = 0; step < 3; ++step) {
        double const expected = plain.step(data.inputs, data.targets);
        double loss = 0;
        std::thread([&] { loss = train->step(data.inputs, data.targets).loss; }).join();
        CHECK(loss == expected);
    }
    std::thread([&] { train.reset(); }).join();
    CHECK(!train);
}

TEST_CASE_TEMPLATE(
    "P7 F5 destruction right after construction, and right after a failure, comes to "
    "its end",
    Device, Host, Remote) {
    for (int times = 0; times < 20; ++times)
        for (std::size_t cells : {1, 3, 10})
            for (auto const& run : toy::runs<Device>()) {
                toy::Watch watch;
                {
                    Train<Device> train(toy::make_net<Real>(watch), {}, Adam{},
                                        options<Device>(cells, run));
                }
                Train<Device> train(toy::make_net<Real>(watch), {}, Adam{},
                                    options<Device>(cells, run));
                toy::Data<Real> const data(6);
                watch.faults = {{std::size_t(times) % 10, 2, toy::Phase::backward}};
                CHECK_THROWS_AS(train.step(data.inputs, data.targets), toy::Thrown);
            }
}

#if defined(__linux__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("P7 F5 no thread outlives its Training, and there are as many as asked for") {
    std::size_t const before = threads_alive();
    for (std::size_t threads : {1, 2, 4, 7}) {
        toy::Watch watch;
        Train<Host> train(toy::make_net<Real>(watch), {}, Adam{}, options<Host>(5, {threads}));
        std::size_t const lanes = threads < 5 ? threads : 5; // never more than devices
        CHECK(train.lanes() == lanes);
        CHECK(threads_alive() == before + lanes - 1); // the caller is the first
        toy::Data<Real> const data(6);
        watch.faults = {{3, 2, toy::Phase::forward}};
        if (threads > 2) CHECK_THROWS_AS(train.step(data.inputs, data.targets), toy::Thrown);
    }
    CHECK(threads_alive() == before);
    {
        toy::Watch watch;
        Train<Host> train(toy::make_net<Real>(watch), {}, Adam{}, options<Host>(10));
        CHECK(train.lanes() <= std::max(1u, std::thread::hardware_concurrency()));
    }
    CHECK(threads_alive() == before);
}
#endif
