// Reversals within a budget: that they fit is said by the plan, that they are fast by all others.
#include <support/long_tests.hpp>
#include <support/random_plan.hpp>

#include <gpipe/checkpoint/dynamic_policy.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/schedule/verify.hpp>
#include <gpipe/search/fit_budget.hpp>
#include <gpipe/search/least_budget.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using gpipe::Array;
using gpipe::BudgetFit;
using gpipe::BudgetProblem;
using gpipe::BudgetSearch;
using gpipe::Checkpointed;
using gpipe::dynamic;
using gpipe::Link;
using gpipe::MemoryPlan;
using gpipe::Reversal;

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

// Each device for itself, or every budget there is simulated.
constexpr gpipe::BudgetEffort with_simulations(std::size_t simulations) {
    gpipe::BudgetEffort effort;
    effort.simulations = simulations;
    return effort;
}
constexpr gpipe::BudgetEffort by_device = with_simulations(0);
constexpr gpipe::BudgetEffort in_full = with_simulations(unlimited);

std::size_t below(std::mt19937_64& random, std::size_t n) {
    return static_cast<std::size_t>(random() % n);
}

// A chain of so many layers, cut anywhere.
struct Problem {
    toy::RandomChain chain;
    BudgetProblem problem;
    gpipe::Programs plain; // with the halves of backwards apart where the schedule has them so

    Problem(std::mt19937_64& random, std::size_t layers, gpipe::schedule::Dynamic schedule,
            std::size_t devices, std::size_t micro_batches)
        : chain(toy::random_chain(random, layers, {})) {
        std::size_t const cells = devices * schedule.cells_per_device();
        for (gpipe::LayerInfo& layer : chain.layers) {
            layer.cost = static_cast<double>(1 + below(random, 5));
            layer.recompute_is_cheap = random() % 2 == 0;
        }
        problem.chain = chain.shape();
        problem.first = toy::some_cut(random, cells, layers);
        plain = schedule.programs(devices, micro_batches);
        problem.schedule = join_halves(plain, Array<bool>(cells));
        problem.states = below(random, 3);
        problem.capacity = 1 + below(random, 4);
        problem.tightness = gpipe::Tightness::quick; // as the search does
    }
    void link(Link link) {
        gpipe::Programs const& programs = problem.schedule;
        problem.links = Array<Link>(programs.cells());
        for (std::size_t c = 1; c < programs.cells(); ++c)
            if (programs.device_of(c) != programs.device_of(c - 1)) problem.links[c] = link;
    }
    Checkpointed with(gpipe::checkpoint::Dynamic const& policy) const {
        return policy.apply(problem.cut_chain(), problem.schedule);
    }
    // What the layers of a device that run again in a step take; what the last cell runs later
    // than its schedule says counts as well.
    double time(Array<Reversal> const& reversals, std::size_t device) const {
        gpipe::Programs const& schedule = problem.schedule;
        auto const extra =
            gpipe::extra_forwards(lower_reversed(problem.cut_chain(), schedule, reversals),
                                  problem.cut_chain(), reversals);
        std::size_t const cells = schedule.cells();
        std::size_t late = 0;
        auto const program = schedule.program(schedule.device_of(cells - 1));
        std::vector<gpipe::Action> own;
        for (gpipe::Action const& a : program)
            if (a.cell + 1 == cells) own.push_back(a);
        for (std::size_t i = 0; i < own.size(); ++i)
            late += own[i].kind == gpipe::Kind::backward &&
                    (i == 0 || own[i - 1].kind != gpipe::Kind::forward ||
                     own[i - 1].micro_batch != own[i].micro_batch);
        double sum = 0;
        for (std::size_t c = 0; c < cells; ++c) {
            if (schedule.device_of(c) != device) continue;
            for (std::size_t l = problem.first[c]; l < problem.first[c + 1]; ++l)
                sum += static_cast<double>(extra[l]) * chain.layers[l].cost;
            if (c + 1 < cells || !gpipe::begins_again(reversals[c])) continue;
            for (std::size_t l = problem.first[c]; l < problem.first[c + 1]; ++l)
                sum += static_cast<double>(late) * chain.layers[l].cost;
        }
        return sum;
    }
};

bool same(gpipe::Programs const& a, gpipe::Programs const& b) {
    return std::equal(a.actions(), a.actions() + a.size(), b.actions(), b.actions() + b.size());
}
std::size_t most_bytes(MemoryPlan const& plan) {
    std::size_t most = 0;
    for (gpipe::DeviceBytes const& device : plan.devices) most = std::max(most, device.total());
    return most;
}

// Some budgets from the least to the one in which everything fits.
std::vector<std::size_t> budgets(std::mt19937_64& random, std::size_t least, std::size_t most) {
    std::vector<std::size_t> result{least, least + 1, most};
    for (int i = 0; i < 6; ++i)
        result.push_back(least + below(random, std::max(most, least) - least + 1));
    std::sort(result.begin(), result.end());
    return result;
}

// Calls f(problem, schedule's name) for all schedules.
template <class F> void each_problem(std::uint64_t seed, std::size_t one_of, F f) {
    std::mt19937_64 random(seed);
    std::size_t point = 0;
    for (std::size_t micro_batches : {1u, 2u, 5u, 9u})
        toy::each_of_catalogue(
            4, 12, micro_batches, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
                std::size_t const layers = k * schedule.cells_per_device() + below(random, 12);
                Problem problem(random, layers, schedule, k, micro_batches);
                if (point++ % toy::one_of(one_of) != 0) return;
                INFO(std::string(schedule.name()), " of ", schedule.cells_per_device(),
                     " cells per device, K = ", k, ", M = ", micro_batches, ", L = ", layers);
                f(problem, random);
            });
}

} // namespace

TEST_CASE("every device fits into the budget by its whole plan, whatever the links, and what is "
          "chosen is sound") {
    std::size_t fits = 0;
    std::size_t plans = 0;
    for (int link = 0; link < 3; ++link)
        each_problem(1 + static_cast<std::uint64_t>(link), 7, [&](Problem& problem, auto& random) {
            if (link > 0) problem.link(static_cast<Link>(link));
            BudgetSearch search(problem.problem);
            std::size_t const least = search.fit(0).least_bytes;
            BudgetFit const all = search.fit(unlimited);
            REQUIRE(all.fits);
            std::size_t const most =
                most_bytes(plan_memory(problem.problem, all.programs, all.reversals));
            std::size_t last = all.plans;
            for (std::size_t const bytes : budgets(random, least, most)) {
                BudgetFit const fit = search.fit(bytes);
                REQUIRE(fit.fits);
                CHECK(verify(fit.programs));
                for (Reversal const& reversal : fit.reversals) CHECK(gpipe::verify(reversal));
                CHECK(most_bytes(plan_memory(problem.problem, fit.programs, fit.reversals)) <=
                      bytes);
                ++fits;
                last = fit.plans;
            }
            plans += last;
        });
    MESSAGE(fits << " budgets, " << plans << " plans");
}

TEST_CASE("the least budget is that of the device that is named, and one byte less is refused") {
    std::size_t problems = 0;
    each_problem(11, 5, [&](Problem& problem, auto&) {
        BudgetSearch search(problem.problem);
        BudgetFit const none = search.fit(0);
        REQUIRE(!none.fits);
        BudgetFit const fit = search.fit(none.least_bytes);
        REQUIRE(fit.fits);
        MemoryPlan const plan = plan_memory(problem.problem, fit.programs, fit.reversals);
        CHECK(most_bytes(plan) == none.least_bytes);
        BudgetFit const less = search.fit(none.least_bytes - 1);
        CHECK(!less.fits);
        CHECK(less.device == none.device);
        CHECK(less.least_bytes == none.least_bytes);
        ++problems;
    });
    MESSAGE(problems << " problems");
}

TEST_CASE("no budget that can be met is below what a constant is refused for") {
    std::vector<double> shares;
    each_problem(71, 3, [&](Problem& problem, auto&) {
        std::size_t const least = BudgetSearch(problem.problem, by_device).fit(0).least_bytes;
        gpipe::LeastBudget const bound = gpipe::least_budget(problem.problem);
        CHECK(bound.bytes <= least);
        CHECK(bound.device < problem.problem.schedule.devices());
        shares.push_back(static_cast<double>(bound.bytes) / static_cast<double>(least));
    });
    std::sort(shares.begin(), shares.end());
    double const median = shares[shares.size() / 2];
    MESSAGE("half of the bounds are above " << median << " of the least budget");
    CHECK(median > 0.5);
}

TEST_CASE("more bytes never make a device slower, and with enough of them nothing runs again") {
    each_problem(21, 5, [&](Problem& problem, auto& random) {
        BudgetSearch search(problem.problem, by_device);
        BudgetFit const all = search.fit(unlimited);
        std::size_t const most =
            most_bytes(plan_memory(problem.problem, all.programs, all.reversals));
        std::size_t const devices = problem.problem.schedule.devices();
        std::vector<double> before(devices, std::numeric_limits<double>::infinity());
        for (std::size_t const bytes : budgets(random, search.fit(0).least_bytes, most)) {
            BudgetFit const fit = search.fit(bytes);
            for (std::size_t d = 0; d < devices; ++d) {
                double const time = problem.time(fit.reversals, d);
                CHECK(time <= before[d]);
                before[d] = time;
            }
        }
        for (std::size_t d = 0; d < devices; ++d) CHECK(problem.time(all.reversals, d) == 0);
        for (std::size_t d = 0; d < devices; ++d) CHECK(before[d] == 0);
    });
}

namespace {

// What the library's policies that reverse each cell by itself make of it, and the bytes that the
// device with the most of them needs.
struct Others {
    std::vector<Checkpointed> others;
    std::vector<std::size_t> needs;

    // `mixed`: with Selective, too, which begins with forwards in some cells and not in others:
    // then boundaries between them may have fewer slots than each device for itself reckons with.
    explicit Others(Problem const& problem, bool mixed) {
        namespace checkpoint = gpipe::checkpoint;
        for (std::size_t n = 1; n <= problem.problem.chain.size; ++n)
            others.push_back(problem.with(checkpoint::EverySegment<dynamic>{n}));
        for (std::size_t slots = 0; slots < problem.problem.chain.size; ++slots)
            others.push_back(problem.with(checkpoint::Revolve<dynamic>{slots}));
        others.push_back(problem.with(checkpoint::SquareRoot{}));
        if (mixed) others.push_back(problem.with(checkpoint::Selective{}));
        // Never and ExceptLast, of which the time is that of these.
        for (checkpoint::Dynamic const& policy : {checkpoint::Dynamic(checkpoint::Never{}),
                                                  checkpoint::Dynamic(checkpoint::ExceptLast{})}) {
            Array<checkpoint::Dynamic> const each(problem.problem.schedule.cells(), policy);
            others.push_back(problem.with(policy));
            others.back().reversals = problem.with(checkpoint::Dynamic::per_cell(each)).reversals;
        }
        for (std::size_t i = 0; i < others.size(); ++i) {
            bool const piecewise = i + 2 < others.size();
            needs.push_back(
                most_bytes(plan_memory(problem.problem, others[i].programs,
                                       piecewise ? others[i].reversals : Array<Reversal>{})));
        }
    }
};

// What a step takes if a layer's forward takes its cost and its backward twice that.
double step_time(Problem const& problem, gpipe::Programs const& programs,
                 Array<Reversal> const& reversals) {
    gpipe::LayerTimes times;
    times.forward = times.backward = times.weight_gradient =
        Array<double>(problem.chain.layers.size());
    for (std::size_t l = 0; l < times.forward.size(); ++l) {
        times.forward[l] = problem.chain.layers[l].cost;
        times.backward[l] = 2 * times.forward[l];
        if (problem.chain.layers[l].splits) times.weight_gradient[l] = times.forward[l];
    }
    return gpipe::simulate<double>(
               programs, gpipe::reversed_costs(times, problem.problem.cut_chain(), reversals))
        .makespan;
}

} // namespace

TEST_CASE("no policy that reverses each cell by itself is faster on a device and fits") {
    std::size_t compared = 0;
    std::size_t faster = 0; // than the best of them
    gpipe::BudgetEffort careless = by_device;
    careless.budgets = careless.heights = 2;
    careless.most_states = 3;
    std::size_t turn = 0;
    each_problem(31, 5, [&](Problem& problem, auto&) {
        // However little is looked at.
        BudgetSearch search(problem.problem, turn++ % 2 == 0 ? by_device : careless);
        Others const all(problem, false);
        auto const& [others, needs] = all;
        for (std::size_t const bytes : needs) {
            BudgetFit const fit = search.fit(bytes);
            REQUIRE(fit.fits);
            for (std::size_t d = 0; d < problem.problem.schedule.devices(); ++d) {
                double best = std::numeric_limits<double>::infinity();
                for (std::size_t i = 0; i < others.size(); ++i)
                    if (needs[i] <= bytes)
                        best = std::min(best, problem.time(others[i].reversals, d));
                double const time = problem.time(fit.reversals, d);
                CHECK(time <= best);
                faster += time < best;
                ++compared;
            }
        }
    });
    MESSAGE("faster than the best of them on " << faster << " of " << compared << " devices");
    CHECK(faster > compared / 20);
}

TEST_CASE("no step is shorter and fits: not within fewer bytes, nor under any of the policies") {
    std::size_t compared = 0;
    std::size_t shorter = 0; // than each device for itself would have it
    std::size_t problems = 0, exact = 0;
    each_problem(51, 13, [&](Problem& problem, auto& random) {
        BudgetSearch search(problem.problem, in_full);
        BudgetSearch alone(problem.problem, by_device);
        Others const all(problem, true);
        std::size_t const least = search.fit(0).least_bytes;
        // A device by itself takes its boundaries for as large as those of other reversals.
        CHECK(least <= alone.fit(0).least_bytes);
        exact += least == alone.fit(0).least_bytes;
        ++problems;
        std::size_t const most = *std::max_element(all.needs.begin(), all.needs.end());
        double before = std::numeric_limits<double>::infinity();
        for (std::size_t const bytes : budgets(random, least, most)) {
            BudgetFit const fit = search.fit(bytes);
            REQUIRE(fit.fits);
            CHECK(most_bytes(plan_memory(problem.problem, fit.programs, fit.reversals)) <= bytes);
            CHECK(fit.makespan == step_time(problem, fit.programs, fit.reversals));
            CHECK(fit.makespan <= before);
            before = fit.makespan;
            for (std::size_t i = 0; i < all.others.size(); ++i)
                if (all.needs[i] <= bytes)
                    CHECK(fit.makespan <=
                          step_time(problem, all.others[i].programs, all.others[i].reversals));
            BudgetFit const other = alone.fit(bytes);
            double const time = step_time(problem, other.programs, other.reversals);
            CHECK(fit.makespan <= time);
            shorter += fit.makespan < time;
            ++compared;
        }
    });
    MESSAGE(shorter << " of " << compared
                    << " steps shorter; each device for itself finds the least "
                    << "bytes of " << exact << " of " << problems << " problems");
    CHECK((shorter > 0 || toy::sanitized));
    CHECK((10 * exact >= 9 * problems || toy::sanitized));
}

TEST_CASE("where backwards come in halves no budget is the worse for it, and larger ones keep them "
          "apart") {
    namespace checkpoint = gpipe::checkpoint;
    using gpipe::WeightHalf;
    std::size_t compared = 0, shorter = 0, apart = 0;
    each_problem(74, 13, [&](Problem& problem, auto& random) {
        if (same(problem.plain, problem.problem.schedule)) return;
        BudgetSearch joined(problem.problem, in_full);
        problem.problem.schedule = problem.plain;
        BudgetSearch search(problem.problem, in_full);
        std::vector<Checkpointed> others;
        for (std::size_t n = 0; n <= 3; ++n) {
            checkpoint::Dynamic const policy =
                n == 0 ? checkpoint::Dynamic(checkpoint::SquareRoot{})
                       : checkpoint::Dynamic(checkpoint::EverySegment<dynamic>{n});
            others.push_back(problem.with(policy));
            others.push_back(
                problem.with(checkpoint::Dynamic::weight_halves<WeightHalf::later>(policy)));
            others.push_back(
                problem.with(checkpoint::Dynamic::weight_halves<WeightHalf::again>(policy)));
        }
        std::size_t most = 0;
        std::vector<std::size_t> needs;
        for (Checkpointed const& other : others) {
            needs.push_back(
                most_bytes(plan_memory(problem.problem, other.programs, other.reversals)));
            most = std::max(most, needs.back());
        }
        std::size_t const least = search.fit(0).least_bytes;
        CHECK(least <= joined.fit(0).least_bytes);
        double before = std::numeric_limits<double>::infinity();
        std::vector<std::size_t> each = budgets(random, least, most);
        each.insert(each.end(), needs.begin(), needs.end()); // each policy's own, to the byte
        std::sort(each.begin(), each.end());
        for (std::size_t const bytes : each) {
            BudgetFit const fit = search.fit(bytes);
            REQUIRE(fit.fits);
            REQUIRE(verify(fit.programs));
            for (Reversal const& reversal : fit.reversals) REQUIRE(verify(reversal));
            CHECK(most_bytes(plan_memory(problem.problem, fit.programs, fit.reversals)) <= bytes);
            CHECK(fit.makespan == step_time(problem, fit.programs, fit.reversals));
            CHECK(fit.makespan <= before);
            before = fit.makespan;
            BudgetFit const whole = joined.fit(bytes);
            if (whole.fits) CHECK(fit.makespan <= whole.makespan);
            shorter += fit.makespan < whole.makespan;
            for (std::size_t i = 0; i < others.size(); ++i)
                if (needs[i] <= bytes)
                    CHECK(fit.makespan <=
                          step_time(problem, others[i].programs, others[i].reversals));
            for (std::size_t i = 0; i < fit.programs.size(); ++i)
                if (fit.programs[i].kind == gpipe::Kind::weight_gradient) {
                    ++apart;
                    break;
                }
            ++compared;
        }
    });
    MESSAGE(shorter << " of " << compared << " steps shorter, " << apart << " with halves apart");
    CHECK((apart > compared / 5 || toy::sanitized));
    CHECK((shorter > compared / 5 || toy::sanitized));
}

TEST_CASE("what may wait in the host's memory makes no step longer, and no budget larger") {
    std::size_t compared = 0, shorter = 0, fewer = 0;
    each_problem(81, 23, [&](Problem& problem, auto& random) {
        BudgetSearch kept(problem.problem, in_full);
        problem.problem.offloads = true;
        BudgetSearch free(problem.problem, in_full);
        problem.problem.bandwidth = 1e-30;
        BudgetSearch slow(problem.problem, in_full);
        std::size_t const least = kept.fit(0).least_bytes;
        std::size_t const least_moved = free.fit(0).least_bytes;
        CHECK(least_moved <= least);
        CHECK(gpipe::least_budget(problem.problem).bytes <= least_moved);
        fewer += least_moved < least;
        for (std::size_t const bytes : budgets(random, least_moved, 2 * least)) {
            BudgetFit const fit = free.fit(bytes);
            REQUIRE(fit.fits);
            MemoryPlan const plan = plan_memory(problem.problem, fit.programs, fit.reversals);
            CHECK(most_bytes(plan) <= bytes);
            BudgetFit const whole = kept.fit(bytes);
            if (!whole.fits) continue;
            CHECK(fit.makespan <= whole.makespan);
            shorter += fit.makespan < whole.makespan;
            // Nobody waits for ever for a copy who can do without.
            CHECK(slow.fit(bytes).makespan == whole.makespan);
            ++compared;
        }
    });
    MESSAGE(shorter << " of " << compared << " steps shorter, " << fewer << " budgets smaller");
    CHECK((shorter > 0 || toy::sanitized));
}

TEST_CASE("no limit is a budget, too; that nothing is looked at is refused") {
    std::mt19937_64 random(61);
    for (std::size_t i = 0; i < toy::cases(20); ++i) {
        Problem const problem(random, 4 + below(random, 10), gpipe::schedule::GPipe{},
                              1 + below(random, 4), 5);
        BudgetFit const fit = BudgetSearch(problem.problem).fit(unlimited);
        REQUIRE(fit.fits);
        REQUIRE(fit.reversals.size() == problem.problem.schedule.cells());
        for (std::size_t d = 0; d < problem.problem.schedule.devices(); ++d)
            CHECK(problem.time(fit.reversals, d) == 0);
    }
    Problem const problem(random, 6, gpipe::schedule::GPipe{}, 2, 5);
    gpipe::BudgetEffort effort;
    effort.heights = 1;
    CHECK_THROWS_AS(BudgetSearch(problem.problem, effort), std::invalid_argument);
}

TEST_CASE("what is chosen for some samples fits for fewer, too") {
    std::mt19937_64 random(41);
    for (std::size_t i = 0; i < toy::cases(60); ++i) {
        Problem problem(random, 4 + below(random, 10), gpipe::schedule::OneForwardOneBackward{},
                        1 + below(random, 4), 5);
        problem.problem.capacity = 8;
        BudgetSearch search(problem.problem);
        std::size_t const least = search.fit(0).least_bytes;
        BudgetFit const fit = search.fit(least);
        for (std::size_t samples = 1; samples < 8; ++samples) {
            problem.problem.capacity = samples;
            CHECK(most_bytes(plan_memory(problem.problem, fit.programs, fit.reversals)) <= least);
        }
    }
}
