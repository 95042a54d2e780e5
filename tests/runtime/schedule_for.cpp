// The best schedule for a chain, its devices and their bytes.
#include "support/net.hpp"
#include "support/schedules.hpp"
#include "support/skip_layers.hpp"

#include <gpipe/optimizer/groups.hpp>
#include <gpipe/optimizer/one_of.hpp>
#include <gpipe/schedule_for.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using gpipe::best_schedule_for, gpipe::dynamic, gpipe::FoundSchedule, gpipe::ScheduleSearch;
using gpipe::device::Host;

// Devices and micro-batches: a search plans them all, which takes sanitizers many times as long.
constexpr std::size_t few = toy::sanitized ? 2 : 3;

template <class Net, class Device = Host>
using TrainOf =
    gpipe::Training<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>,
                    gpipe::Loss<toy::MeanSquare<float, 3>>, gpipe::Optimizer<gpipe::Adam>,
                    gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic, Device>;
using Train = TrainOf<toy::SkipNet<float>>;
constexpr std::size_t L = toy::SkipNet<float>::size;

Train::Options options(std::size_t cells, std::size_t micro_batches = 4) {
    return {.samples = 4 * micro_batches, .cells = cells, .micro_batches = micro_batches};
}
std::size_t most_bytes(auto const& train) {
    std::size_t most = 0;
    for (auto const& device : train.plan().devices) most = std::max(most, device.total());
    return most;
}
// The least bytes that somebody would do with.
std::size_t least_of(std::string const& shortage) {
    return std::stoull(shortage.substr(shortage.rfind(' ') + 1));
}
// Of a step, by the layers' declared costs.
double step_time(auto const& train, double latency = 0) {
    auto const layers = toy::SkipNet<float>::layers();
    return gpipe::simulate<double>(
               train.programs(),
               train.costs_of(gpipe::declared_times(layers.data(), layers.size())), latency)
        .makespan;
}

} // namespace

TEST_CASE(
    "what is found is what a training with it has and takes, and no other that fits is faster") {
    std::size_t compared = 0;
    for (std::size_t const cells : {std::size_t{1}, few}) {
        std::vector<std::size_t> budgets{std::numeric_limits<std::size_t>::max()};
        std::vector<FoundSchedule> others; // each policy with each schedule
        toy::each_of_catalogue(cells, L, 4, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            if (k != cells || schedule.cells_per_device() > 2) return;
            for (gpipe::checkpoint::Dynamic const& policy :
                 {gpipe::checkpoint::Dynamic(gpipe::checkpoint::Never{}),
                  gpipe::checkpoint::Dynamic(gpipe::checkpoint::ExceptLast{}),
                  gpipe::checkpoint::Dynamic(gpipe::checkpoint::SquareRoot{})}) {
                auto o = options(cells);
                o.schedule = schedule;
                o.checkpointing = policy;
                Train const train({}, {}, {}, o);
                FoundSchedule one{schedule, policy};
                one.makespan = step_time(train);
                one.bytes = {1, most_bytes(train)};
                others.push_back(one);
            }
        });
        for (FoundSchedule const& one : others) budgets.push_back(one.most_bytes());
        std::sort(budgets.begin(), budgets.end());
        for (std::size_t b = toy::sanitized ? budgets.size() / 2 : 0; b < budgets.size();
             b += toy::one_of(31)) {
            CAPTURE(cells);
            CAPTURE(budgets[b]);
            auto const found = best_schedule_for<Train>(options(cells), {.bytes = budgets[b]});
            REQUIRE(found);
            CHECK(found.shortage == "");
            auto o = options(cells);
            found.best().apply(o);
            Train const train({}, {}, {}, o);
            CHECK(most_bytes(train) == found.best().most_bytes());
            CHECK(most_bytes(train) <= budgets[b]);
            CHECK(train.used_bytes() == train.planned_bytes());
            CHECK(step_time(train) == found.best().makespan);
            for (FoundSchedule const& one : others)
                if (one.most_bytes() <= budgets[b])
                    CHECK(found.best().makespan <= one.makespan * (1 + 1e-9));
            ++compared;
        }
    }
    CHECK((compared > 3 || toy::sanitized));
}

TEST_CASE("where nothing fits it is said with what it would, and then it does") {
    auto const with = [](std::size_t bytes) {
        return best_schedule_for<Train>(options(2, few),
                                        {.bytes = bytes, .most_cells_per_device = 1});
    };
    auto const found = with(1000);
    CHECK_FALSE(found);
    CHECK(found.shortage.find("gpipe: no schedule fits into 1000 bytes for each device: the least, "
                              "with ") == 0);
    std::size_t const least = least_of(found.shortage);
    CHECK(least <= found.best().most_bytes());
    CHECK(with(least));
    CHECK_FALSE(with(least - 1));
}

TEST_CASE("of optimizers that may be chosen the one with most states is planned for") {
    using Chosen = gpipe::Training<
        toy::SkipNet<float>, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>,
        gpipe::Loss<toy::MeanSquare<float, 3>>,
        gpipe::Optimizer<gpipe::Grouped<gpipe::optimizer::OneOf<gpipe::SGD, gpipe::Adam>>>,
        gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic>;
    Chosen::Options const o{.samples = 16, .cells = 2, .micro_batches = 4};
    auto const found = best_schedule_for<Chosen>(o);
    auto const expected = best_schedule_for<Train>(options(2));
    REQUIRE(found.ranked.size() == expected.ranked.size());
    CHECK(found.best().name() == expected.best().name());
    CHECK(found.best().most_bytes() == expected.best().most_bytes());
    // If it is given, that is.
    gpipe::optimizer::OneOf<gpipe::SGD, gpipe::Adam> const sgd{gpipe::SGD{}};
    CHECK(best_schedule_for<Chosen>(o, {}, {}, {}, {sgd}).best().most_bytes() <
          expected.best().most_bytes());
}

TEST_CASE("transfers, and times that were measured, are weighed") {
    auto const free = best_schedule_for<Train>(options(3));
    CHECK(free.best().schedule.cells_per_device() == 2);
    // So late that a loop through the devices, or a way back, costs more than its bubble saves.
    auto const slow = best_schedule_for<Train>(options(3), {.latency = 100});
    CHECK(slow.best().schedule.cells_per_device() == 1);
    auto o = options(3);
    slow.best().apply(o);
    CHECK(step_time(Train({}, {}, {}, o), 100) == slow.best().makespan);
    auto const layers = toy::SkipNet<float>::layers();
    auto times = gpipe::declared_times(layers.data(), layers.size());
    for (auto* const each : {&times.forward, &times.backward, &times.weight_gradient})
        for (double& time : *each) time *= 3;
    auto const thrice = best_schedule_for<Train>(options(3), {.times = &times});
    CHECK(thrice.best().makespan == doctest::Approx(3 * free.best().makespan));
    CHECK(thrice.best().name() == free.best().name());
}

TEST_CASE("what the host could hold is weighed, too, and makes no step longer") {
    ScheduleSearch search{.bytes = 1000, .most_cells_per_device = 1};
    std::size_t const least =
        least_of(best_schedule_for<Train>(options(few, few), search).shortage);
    search.bytes = least + 256;
    auto const again = best_schedule_for<Train>(options(few, few), search);
    search.host_bandwidth = 1e9;
    auto const moved = best_schedule_for<Train>(options(few, few), search);
    REQUIRE(again);
    REQUIRE(moved);
    CHECK(moved.best().makespan <= again.best().makespan);
    auto const offloads = [](FoundSchedule const& one) {
        return one.checkpointing.name() == "offload";
    };
    CHECK(std::count_if(moved.ranked.begin(), moved.ranked.end(), offloads) > 0);
    CHECK(std::count_if(again.ranked.begin(), again.ranked.end(), offloads) == 0);
}

namespace {

struct Keeps { // four times its input
    using Input = gpipe::Tensor<float, 16>;
    using Output = Input;
    using Saved = gpipe::Tensor<float, 64>;
    using Parameters = Input;
    void initialize(auto&) const {}
    void forward(auto&, auto, auto) const {}
    void input_gradient(auto&, auto, auto, auto) const {}
    void weight_gradient(auto&, auto, auto) const {}
};
struct Nothing {
    using Target = gpipe::Tensors<>;
    gpipe::LossValue<> operator()(auto&, auto, auto, auto) const { return {0, 1}; }
};
using Keeping = gpipe::Training<gpipe::Pipeline<gpipe::Repeat<9, Keeps>>, gpipe::Cells<dynamic>,
                                gpipe::MicroBatches<dynamic>, gpipe::Loss<Nothing>,
                                gpipe::Optimizer<gpipe::Adam>, gpipe::schedule::Dynamic,
                                gpipe::checkpoint::Dynamic>;

} // namespace

TEST_CASE(
    "where transfers take time, too, no schedule with offloads is faster than what is found") {
    // In steps that offload transfers take none, so that schedules are in another order.
    ScheduleSearch const search{
        .bytes = 7167, .latency = 3, .bandwidth = 800, .host_bandwidth = 316};
    Keeping::Options o{.samples = 4, .cells = 4, .micro_batches = 3};
    auto const found = best_schedule_for<Keeping>(o, search);
    REQUIRE(found);
    gpipe::checkpoint::Optimal<> optimal;
    optimal.bytes = search.bytes;
    optimal.bandwidth = search.host_bandwidth;
    o.checkpointing = gpipe::checkpoint::Offload<gpipe::checkpoint::Optimal<>>{optimal};
    for (gpipe::schedule::Dynamic const& schedule : gpipe::schedule::catalogue(2)) {
        o.schedule = schedule;
        if (schedule.least_micro_batches(4) > 3) continue;
        CAPTURE(schedule.name());
        try {
            Keeping const train({}, {}, {}, o);
            if (train.host_bytes() == 0) continue;
            auto const layers = gpipe::Pipeline<gpipe::Repeat<9, Keeps>>::layers();
            auto const costs = train.costs_of(gpipe::declared_times(layers.data(), layers.size()));
            CHECK(found.best().makespan <=
                  gpipe::offload_times(train.plan(), costs, search.host_bandwidth).makespan);
        } catch (gpipe::BudgetTooSmall const&) {
        }
    }
}

namespace {

struct Light : Keeps {
    static constexpr double cost = 1;
};
struct Heavy {
    using Input = gpipe::Tensor<float, 16>;
    using Output = Input;
    using Saved = gpipe::Tensor<float, 128>;
    using Parameters = Input;
    static constexpr double cost = 5;
    void initialize(auto&) const {}
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};

} // namespace

TEST_CASE("where transfers are slow a schedule may be faster if layers run again, and is found") {
    // For then the last cell runs its forwards late, and gradients are sent sooner.
    using Net = gpipe::Pipeline<gpipe::Repeat<4, Light>, gpipe::Repeat<2, Heavy>>;
    using T = gpipe::Training<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>,
                              gpipe::Loss<Nothing>, gpipe::Optimizer<gpipe::Adam>,
                              gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic>;
    auto const layers = Net::layers();
    auto const times = gpipe::declared_times(layers.data(), layers.size());
    T::Options o{.samples = 5, .cells = 2, .micro_batches = 5};
    ScheduleSearch const search{.bytes = 7041, .most_cells_per_device = 1, .bandwidth = 7};
    auto const found = best_schedule_for<T>(o, search);
    REQUIRE(found);
    auto const step = [&](gpipe::checkpoint::Dynamic const& policy) {
        o.checkpointing = policy;
        T const train({}, {}, {}, o);
        return gpipe::simulate<double>(train.programs(), train.costs_of(times), 0, 7).makespan;
    };
    std::size_t sooner = 0;
    for (gpipe::schedule::Dynamic const& schedule : gpipe::schedule::catalogue(1)) {
        o.schedule = schedule;
        if (schedule.cells_per_device() > 1) continue;
        CAPTURE(schedule.name());
        try {
            gpipe::checkpoint::Optimal<> optimal;
            optimal.bytes = search.bytes;
            double const again = step(optimal);
            CHECK(found.best().makespan <= again * (1 + 1e-9));
            sooner += again < step(gpipe::checkpoint::Never{});
        } catch (gpipe::BudgetTooSmall const&) {
        }
    }
    CHECK(sooner > 0);
}

TEST_CASE("options that no schedule goes with, and numbers that are none, are refused") {
    CHECK_THROWS_WITH_AS(best_schedule_for<Train>(options(L + 1)),
                         doctest::Contains("more than the"), std::invalid_argument);
    auto none = options(2);
    none.samples = 0;
    CHECK_THROWS_WITH_AS(best_schedule_for<Train>(none), doctest::Contains("Options::samples"),
                         std::invalid_argument);
    // Not that two cells on each device were too many.
    auto negative = options(L);
    negative.clip_norm = -1;
    CHECK_THROWS_WITH_AS(best_schedule_for<Train>(negative),
                         doctest::Contains("Options::clip_norm"), std::invalid_argument);
    double const nan = std::numeric_limits<double>::quiet_NaN();
    for (ScheduleSearch const& search :
         {ScheduleSearch{.most_cells_per_device = 0}, ScheduleSearch{.most_cells_per_device = 9},
          ScheduleSearch{.latency = -1}, ScheduleSearch{.latency = nan},
          ScheduleSearch{.latency = HUGE_VAL}, ScheduleSearch{.bandwidth = 0},
          ScheduleSearch{.host_bandwidth = -1}})
        CHECK_THROWS_AS(best_schedule_for<Train>(options(2), search), std::invalid_argument);
    for (double const wrong : {nan, -1.0, HUGE_VAL})
        for (int which = 0; which < 4; ++which) {
            gpipe::LayerTimes times{gpipe::Array<double>(L), gpipe::Array<double>(L),
                                    gpipe::Array<double>(L), 0};
            (which == 0   ? times.forward[1]
             : which == 1 ? times.backward[L - 1]
             : which == 2 ? times.weight_gradient[0]
                          : times.loss) = wrong;
            CHECK_THROWS_WITH_AS(best_schedule_for<Train>(options(2), {.times = &times}),
                                 doctest::Contains("finite and not negative"),
                                 std::invalid_argument);
        }
    // One cell on each device at the most: the others are left out.
    auto const tight = best_schedule_for<Train>(options(L, 2 * L));
    REQUIRE(tight);
    for (FoundSchedule const& one : tight.ranked) CHECK(one.schedule.cells_per_device() == 1);
}

TEST_CASE_TEMPLATE("it is found for other devices, too", Device, toy::Remote) {
    using Other = TrainOf<toy::SkipNet<float>, Device>;
    typename Other::Options o{.samples = 24, .cells = 3, .micro_batches = 6};
    auto const found = best_schedule_for<Other>(o);
    found.best().apply(o);
    Other const train({}, {}, {}, o);
    CHECK(most_bytes(train) == found.best().most_bytes());
}
