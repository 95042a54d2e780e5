// Which slack is chosen for a plan: its bytes, and what waits for room cost a simulated step.
#include <support/long_tests.hpp>
#include <support/random_plan.hpp>
#include <support/schedules.hpp>

#include <gpipe/plan/simulate_lowered.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/search/fit_budget.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace {

using gpipe::chosen_slack;
using gpipe::MemoryPlan;
using gpipe::no_wait;
using gpipe::Programs;

using Costs = std::vector<std::int64_t>; // by action

std::int64_t makespan(gpipe::Lowered const& lowered, Costs const& costs) {
    gpipe::Action const* const first = lowered.programs.actions();
    auto const cost = [&](gpipe::Action const& a) {
        return costs[static_cast<std::size_t>(&a - first)];
    };
    return gpipe::simulate<std::int64_t>(lowered, cost).makespan;
}
bool is_late(MemoryPlan const& plan, MemoryPlan const& without, Costs const& costs) {
    return 100 * makespan(plan.lowered, costs) > 101 * makespan(without.lowered, costs);
}
// In the draws by which a slack is chosen.
std::size_t late_draws(MemoryPlan const& plan, MemoryPlan const& without) {
    std::size_t late = 0;
    for (std::uint32_t draw = 0; draw < gpipe::detail::cost_draws; ++draw) {
        auto const costs = gpipe::detail::drawn_costs(plan.lowered.programs, draw);
        late += is_late(plan, without, {costs.begin(), costs.end()});
    }
    return late;
}
// Of the same kind, but others.
Costs other_costs(Programs const& programs, std::mt19937_64& random) {
    auto const within = [&](double low, double high) {
        return std::uniform_real_distribution<double>(low, high)(random);
    };
    std::vector<double> cells(programs.cells());
    for (double& cell : cells) cell = within(1, 2);
    double const copies = within(0.25, 1);
    Costs costs;
    for (gpipe::Action const& a : programs)
        costs.push_back(static_cast<std::int64_t>(1e6 * double(gpipe::unit_cost(a)) *
                                                  (is_copy(a.kind) ? copies : cells[a.cell]) *
                                                  within(0.8, 1.2)));
    return costs;
}

} // namespace

TEST_CASE("P3 on no device a chosen slack takes more bytes than none, and steps hardly wait") {
    std::mt19937_64 random(11);
    std::size_t plans = 0, saves = 0, draws = 0, late = 0, point = 0;
    for (std::size_t m : {2u, 5u, 8u})
        toy::each_of_catalogue(4, 12, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            for (bool const in_pieces : {false, true}) {
                if (point++ % toy::one_of(1) != 0) continue;
                std::string const name(schedule.name());
                CAPTURE(name);
                CAPTURE(k);
                CAPTURE(m);
                auto again = random;
                Programs const programs = schedule.programs(k, m);
                auto const with = [&](std::mt19937_64& numbers, std::size_t slack) {
                    return toy::some_plan(programs, in_pieces, numbers, 10, nullptr, slack).plan;
                };
                MemoryPlan const without = with(random, no_wait);
                MemoryPlan const chosen = with(again, chosen_slack);
                ++plans;
                for (std::size_t d = 0; d < k; ++d)
                    REQUIRE(chosen.devices[d].total() <= without.devices[d].total());
                if (chosen.total() == without.total()) continue;
                ++saves;
                CHECK(late_draws(chosen, without) <= 1);
                for (int n = 0; n < 10; ++n, ++draws)
                    late += is_late(chosen, without, other_costs(chosen.lowered.programs, random));
            }
        });
    MESSAGE(saves << " of " << plans << " plans have fewer bytes; of their steps at other costs "
                  << late << " of " << draws << " take more than 1.01 x as long");
    CHECK((saves > plans / 10 || toy::sanitized));
    CHECK((late <= draws / 20 || toy::sanitized));
}

namespace {

// Two layers of 1,024 bytes for each cell.
toy::RandomChain equal_layers(std::size_t cells) {
    toy::RandomChain chain;
    for (std::size_t i = 0; i < 2 * cells; ++i) {
        gpipe::LayerInfo layer;
        layer.input = layer.input_gradient = layer.output = layer.output_gradient =
            chain.group({1024});
        layer.parameters = chain.group({256});
        layer.reads_input = layer.output_carries_gradient = layer.accepts_none = true;
        layer.splits = layer.has_whole = true;
        chain.layers.push_back(layer);
    }
    return chain;
}

struct Planned {
    toy::RandomChain chain;
    gpipe::PlanRequest request;
    Programs programs;

    Planned(gpipe::schedule::Dynamic const& schedule, std::size_t k, std::size_t m,
            Programs (*lower)(Programs const&)) {
        std::size_t const cells = k * schedule.cells_per_device();
        chain = equal_layers(cells);
        request = {chain.shape(), gpipe::Array<std::size_t>(cells + 1), 1, 1};
        for (std::size_t c = 0; c <= cells; ++c) request.first[c] = 2 * c;
        programs = lower(schedule.programs(k, m));
    }
    MemoryPlan with(std::size_t slack) {
        request.slack = slack;
        return plan_memory(request, programs);
    }
};

} // namespace

TEST_CASE("the least slack is chosen that hardly delays a step, down to 0, or none") {
    using namespace gpipe;
    struct {
        schedule::Dynamic schedule;
        std::size_t devices, micro_batches;
        Programs (*lower)(Programs const&);
        std::size_t expected;
    } const cases[] = {
        {schedule::VHalf{}, 4, 8, &checkpoint::ExceptLast::lower, 0},
        {schedule::ZeroBubbleH1{}, 4, 4, &checkpoint::ExceptLast::lower, 0}, // late in one draw
        {schedule::ZeroBubbleH2{}, 4, 4, &checkpoint::Always::lower, 1},
        {schedule::ZeroBubbleV{}, 2, 4, &checkpoint::Always::lower, no_wait},
    };
    for (auto const& of : cases) {
        std::string const name(of.schedule.name());
        CAPTURE(name);
        Planned planned(of.schedule, of.devices, of.micro_batches, of.lower);
        MemoryPlan const without = planned.with(no_wait);
        MemoryPlan const chosen = planned.with(chosen_slack);
        CHECK(chosen.total() == planned.with(of.expected).total());
        CHECK(late_draws(chosen, without) <= 1);
        if (of.expected != no_wait) CHECK(chosen.total() < without.total());
        if (of.expected == 0) continue;
        MemoryPlan const waits = planned.with(0);
        CHECK(waits.total() < chosen.total());
        CHECK(late_draws(waits, without) > 1);
    }
}

namespace {

struct Range {
    double least = 1e9, most = 0;

    void add(double number) {
        least = std::min(least, number);
        most = std::max(most, number);
    }
    // Hardly less than from there to there.
    bool is(double from, double to) const {
        return from <= least && least < 1.1 * from && 0.9 * to < most && most < 1.0001 * to;
    }
};

} // namespace

TEST_CASE("the costs by which a slack is chosen: by draw and cell, for copies, and by action") {
    Planned planned(gpipe::schedule::OneForwardOneBackward{}, 3, 40,
                    &gpipe::checkpoint::Always::lower);
    planned.request.links = toy::same_links(planned.programs, gpipe::Link::copied);
    MemoryPlan const plan = planned.with(no_wait);
    Programs const& programs = plan.lowered.programs;
    Range all[4]; // by cell, and of copies
    Range first;  // of the first cell to the others, by draw
    for (std::uint32_t draw = 0; draw < gpipe::detail::cost_draws; ++draw) {
        CAPTURE(draw);
        auto const costs = gpipe::detail::drawn_costs(programs, draw);
        Range own[4];
        for (std::size_t i = 0; i < costs.size(); ++i) {
            gpipe::Action const& a = programs[i];
            std::size_t const of = is_copy(a.kind) ? 3 : a.cell;
            double const units = double(costs[i]) * 1e-6 / double(gpipe::unit_cost(a));
            own[of].add(units);
            all[of].add(units);
        }
        for (Range const& range : own) CHECK(Range{1, range.most / range.least}.is(1, 1.5));
        for (std::size_t c : {1u, 2u}) first.add(own[0].most / own[c].most);
    }
    for (std::size_t c : {0u, 1u, 2u}) CHECK(all[c].is(0.8, 2.4));
    CHECK(all[3].is(0.2, 1.2));
    CHECK(first.least < 0.6);
    CHECK(first.most > 1.6);
}

TEST_CASE("a budget is met by what a plan takes without waits, and a chosen slack takes no more") {
    Planned planned(gpipe::schedule::VHalf{}, 4, 8, &gpipe::checkpoint::Never::lower);
    gpipe::BudgetProblem problem{planned.request, planned.programs, false, 1};
    gpipe::BudgetEffort effort;
    effort.simulations = 4;
    std::size_t saves = 0;
    for (std::size_t bytes = 16'000; bytes <= 32'000; bytes += 2'000) {
        CAPTURE(bytes);
        problem.slack = no_wait;
        gpipe::BudgetFit const without = fit_budget(problem, bytes, effort);
        problem.slack = chosen_slack;
        gpipe::BudgetFit const chosen = fit_budget(problem, bytes, effort);
        REQUIRE(chosen.fits == without.fits);
        if (!chosen.fits) continue;
        CHECK(chosen.makespan == without.makespan);
        MemoryPlan const plan = plan_memory(problem, chosen.programs, chosen.reversals);
        for (gpipe::DeviceBytes const& device : plan.devices) CHECK(device.total() <= bytes);
        problem.slack = no_wait;
        saves += plan.total() < plan_memory(problem, chosen.programs, chosen.reversals).total();
    }
    CHECK(saves > 0);
}
