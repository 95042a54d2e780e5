// What cells move to the host's memory and back: which micro-batches, what it saves and what it
// costs. (That nothing is lost: unit/plan_law.cpp.)
#include <support/long_tests.hpp>
#include <support/random_plan.hpp>

#include <gpipe/checkpoint/offload.hpp>
#include <gpipe/memory/offload_times.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

using gpipe::Action;
using gpipe::Array;
using gpipe::Holds;
using gpipe::Kind;
using gpipe::Link;
using gpipe::MemoryPlan;
using gpipe::Programs;
using gpipe::Reversal;

namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();

double cost(Action const& a) { return a.kind == Kind::backward ? 2 : 1; }

Programs joined(Programs const& schedule) {
    return gpipe::join_halves(schedule, Array<bool>(schedule.cells()));
}
template <class F> void each_schedule(std::mt19937_64& random, F f) {
    std::size_t point = 0;
    for (std::size_t m : {1u, 3u, 8u, 13u})
        toy::each_of_catalogue(4, 9, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            std::string const name(schedule.name());
            CAPTURE(name);
            CAPTURE(k);
            CAPTURE(m);
            if (point++ % (toy::one_of(1) > 1 ? 5 : 1) == 0) f(joined(schedule.programs(k, m)));
        });
    for (int round = 0; round < 60; ++round) {
        CAPTURE(round);
        f(joined(toy::mixed_by_chance(1 + random() % 6, 1 + random() % 9, 50, random)));
    }
}

// The same plan with nothing offloaded.
MemoryPlan kept(toy::RandomPlan const& with) {
    auto reversals = with.reversals;
    for (Reversal& reversal : reversals) reversal.offload = false;
    Array<Link> links(reversals.size());
    for (std::size_t c = 1; c < links.size(); ++c) links[c] = with.plan.lowered.edges[c - 1].link;
    return gpipe::plan_memory(
        {with.chain.shape(), with.plan.first, 1, with.plan.capacity, {}, links},
        with.plan.lowered.computing(), reversals);
}
double time_of(MemoryPlan const& plan, double bandwidth) {
    return gpipe::simulate<double>(plan.lowered, gpipe::OffloadCosts{plan, cost, bandwidth})
        .makespan;
}

} // namespace

TEST_CASE("no device needs more memory because of it, and copies that take no time take none of a "
          "step's, or two percent under BreadthFirst") {
    std::mt19937_64 random(3);
    std::size_t less = 0;
    std::size_t slower = 0;
    std::size_t plans = 0;
    std::size_t point = 0;
    for (std::size_t m : {1u, 3u, 8u, 13u, 32u})
        toy::each_of_catalogue(4, 9, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            if (toy::left_out(point, 7)) return;
            int const rounds = toy::long_tests() ? 40 : toy::sanitized ? 1 : 4;
            for (int round = 0; round < rounds; ++round) {
                std::string const name(schedule.name());
                CAPTURE(name);
                CAPTURE(k);
                CAPTURE(m);
                toy::RandomPlan const with = toy::some_plan(schedule.programs(k, m), true, random);
                MemoryPlan const without = kept(with);
                for (std::size_t d = 0; d < without.devices.size(); ++d) {
                    CHECK(with.plan.devices[d].total() <= without.devices[d].total());
                    less += with.plan.devices[d].total() < without.devices[d].total();
                }
                double const time = time_of(with.plan, unlimited);
                double const least = time_of(without, unlimited);
                CHECK(time <= (name == "BreadthFirst" ? 1.02 : 1) * least);
                slower += time > least;
                ++plans;
            }
        });
    MESSAGE(plans << " plans, " << less << " devices with less, " << slower << " steps slower");
}

TEST_CASE("under GPipe two blocks of a cell are enough, and four slots of a boundary, however many "
          "micro-batches there are") {
    std::mt19937_64 random(4);
    toy::Sizes sizes;
    sizes.percent_parameters = 100;
    sizes.percent_integers = 0;
    for (std::size_t k = 1; k <= 4; ++k)
        for (std::size_t m : {5u, 6u, 16u, 64u}) {
            std::size_t const length = 3 * k;
            toy::RandomChain chain = toy::random_chain(random, length, sizes);
            for (auto& layer : chain.layers) layer.reads_output = false, layer.reads_input = true;
            Array<std::size_t> first(k + 1);
            for (std::size_t c = 0; c <= k; ++c) first[c] = 3 * c;
            Array<Reversal> reversals(k, gpipe::keep_everything(3));
            for (Reversal& reversal : reversals) reversal.offload = true;
            auto const plan = gpipe::plan_memory(
                {chain.shape(), first, 1, 1},
                gpipe::lower_reversed({}, gpipe::schedule::GPipe::programs(k, m), reversals),
                reversals);
            for (std::size_t c = 0; c < k; ++c) {
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(c);
                CHECK(plan.pools.pool(Holds::retained, c).slots == 2);
                CHECK(plan.cells[c].input_moves == (c > 0 && m > 5));
                if (c > 0)
                    CHECK(plan.pools.pool(Holds::input, c - 1).slots ==
                          (m > 5                                               ? 4u
                           : plan.has_room(plan.lowered.programs.device_of(c)) ? 0u
                                                                               : 6u));
                // The last two forwards' are reversed at once.
                CHECK(plan.pools.pool(Holds::offloaded, c).slots == m - 2);
            }
        }
}

TEST_CASE("what leaves is away for two actions at least, and back when the reversal before its own "
          "has run") {
    std::mt19937_64 random(5);
    std::size_t moved = 0;
    each_schedule(random, [&](Programs const& schedule) {
        Array<Reversal> reversals(schedule.cells());
        for (Reversal& reversal : reversals) reversal = toy::some_reversal(random, 3);
        Programs const programs = gpipe::lower_reversed({}, schedule, reversals);
        Array<bool> const cells(programs.cells(), true);
        auto const offloads = gpipe::choose_offloads(programs, cells);
        for (std::size_t c = 0; c < programs.cells(); ++c) {
            // By the definition: position of the forward, of the reversal, of the one before.
            auto const program = programs.program(programs.device_of(c));
            std::vector<std::size_t> begins; // of reversals on the device
            for (std::size_t i = 0; i < program.size(); ++i) {
                bool const again = i > 0 && program[i - 1].kind == Kind::recompute;
                if (program[i].kind == Kind::recompute ||
                    (gives_gradient(program[i].kind) && !again))
                    begins.push_back(i);
            }
            std::vector<std::size_t> with(program.size() + 2), without(program.size() + 2);
            std::vector<std::size_t> triggers(programs.micro_batches(), gpipe::no_action);
            for (std::size_t m = 0; m < programs.micro_batches(); ++m) {
                auto const find = [&](auto kind) {
                    return static_cast<std::size_t>(std::find_if(program.begin(), program.end(),
                                                                 [&](Action const& a) {
                                                                     return a.cell == c &&
                                                                            a.micro_batch == m &&
                                                                            kind(a.kind);
                                                                 }) -
                                                    program.begin());
                };
                std::size_t const forward = find([](Kind k) { return k == Kind::forward; });
                std::size_t const end = find([](Kind k) { return ends_backward(k); });
                std::size_t const reversal =
                    find([](Kind k) { return k == Kind::recompute || k == Kind::backward; });
                std::size_t before = 0;
                bool any = false;
                for (std::size_t const b : begins)
                    if (b < reversal) before = b, any = true;
                for (std::size_t i = forward; i <= end; ++i) ++without[i];
                if (any && before >= forward + 3) {
                    triggers[m] = programs.begin(programs.device_of(c)) + before - 1;
                    for (std::size_t i = forward; i <= forward + 1; ++i) ++with[i];
                    for (std::size_t i = before; i <= end; ++i) ++with[i];
                } else {
                    for (std::size_t i = forward; i <= end; ++i) ++with[i];
                }
            }
            bool const helps = *std::max_element(with.begin(), with.end()) <
                               *std::max_element(without.begin(), without.end());
            for (std::size_t m = 0; m < programs.micro_batches(); ++m) {
                bool const leaves = helps && triggers[m] != gpipe::no_action;
                CHECK(offloads.moved(c, m) == leaves);
                if (leaves) {
                    std::size_t const behind = offloads.behind(triggers[m]);
                    REQUIRE(behind < programs.size());
                    CHECK((programs[behind].cell == c && programs[behind].micro_batch == m));
                }
                moved += leaves;
            }
        }
    });
    MESSAGE(moved << " moved");
}

TEST_CASE("without copies programs take what they take without streams for these") {
    std::mt19937_64 random(6);
    auto const any_cost = [](Action const& a) {
        return 0.5 +
               static_cast<double>(
                   (a.cell * 7 + a.micro_batch * 3 + static_cast<std::size_t>(a.kind) * 5) % 11);
    };
    each_schedule(random, [&](Programs const& programs) {
        auto const times = gpipe::simulate<double>(programs, any_cost);
        auto const lowered = gpipe::simulate<double>(toy::lower(programs), any_cost);
        CHECK(lowered.makespan == times.makespan);
        CHECK(lowered.busy == times.busy);
        for (std::size_t i = 0; i < programs.size(); ++i) {
            REQUIRE(lowered.start[i] == times.start[i]);
            REQUIRE(lowered.end[i] == times.end[i]);
        }
    });
    auto lowered = toy::lower(gpipe::schedule::GPipe::programs(2, 2));
    lowered.needs = toy::with_need(lowered.needs, 0, 1);
    CHECK_THROWS_WITH_AS(gpipe::simulate<double>(lowered, cost),
                         "gpipe: the programs wait for each other", std::logic_error);
}

TEST_CASE("offloading is free from some bandwidth on, and that is found") {
    std::mt19937_64 random(7);
    std::size_t found = 0;
    each_schedule(random, [&](Programs const& schedule) {
        toy::RandomPlan const with = toy::some_plan(schedule, true, random);
        double const least = gpipe::least_free_bandwidth(with.plan, cost);
        auto const times = [&](double bandwidth) {
            return gpipe::offload_times(with.plan, cost, bandwidth);
        };
        CHECK(times(unlimited).makespan == time_of(with.plan, unlimited));
        if (times(unlimited).bytes == 0) {
            CHECK(least == 0);
            CHECK(times(1).free());
        } else if (least < unlimited) {
            CHECK(times(least).free());
            CHECK_FALSE(times(least / 1.002).free());
            CHECK(times(10 * least).free());
            ++found;
        } else {
            CHECK_FALSE(times(unlimited).free());
        }
    });
    MESSAGE(found << " bandwidths");
}
