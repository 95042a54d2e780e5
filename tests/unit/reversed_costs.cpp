// What actions take where layers run again: against the calls that a plan has for them.
#include <support/lowered.hpp>
#include <support/random_chain.hpp>
#include <support/schedules.hpp>

#include <gpipe/checkpoint/optimal.hpp>
#include <gpipe/checkpoint/reversed_costs.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/runtime/lanes.hpp>
#include <gpipe/schedule/halves.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

namespace {

using gpipe::Array;
using gpipe::CallKind;
using gpipe::ChainCosts;
using gpipe::Kind;
using gpipe::LayerTimes;
using gpipe::Programs;
using gpipe::Reversal;

// A chain, cut, and a schedule over it, with recomputes where layers run again.
struct Case {
    toy::RandomChain chain;
    Array<std::size_t> first;
    Array<Reversal> reversals;
    Programs programs;

    gpipe::CutChain cut() const { return {chain.layers.data(), chain.layers.size(), first.data()}; }
};

Reversal some_reversal(std::mt19937_64& random, std::size_t layers) {
    switch (random() % 6) {
    case 0:
        return {}; // as without
    case 1:
        return gpipe::keep_everything(layers);
    case 2: {
        Array<bool> dear(layers);
        for (bool& each : dear) each = random() % 2 == 0;
        return gpipe::selective(dear);
    }
    case 3:
        return gpipe::equal_segments(layers, 1 + random() % layers);
    case 4:
        return gpipe::every_segment(layers, 1 + random() % layers);
    default:
        return gpipe::revolve(layers, random() % layers);
    }
}

Case some_case(std::mt19937_64& random, bool reversed) {
    Case result;
    std::size_t const cells = 1 + random() % 4;
    result.chain = toy::random_chain(random, cells + random() % 9, {});
    std::size_t const layers = result.chain.layers.size();
    result.first = Array<std::size_t>(cells + 1, layers);
    std::size_t at = 0;
    for (std::size_t c = 0; c < cells; ++c) {
        result.first[c] = at;
        at += 1 + random() % (layers - at - (cells - 1 - c));
    }
    if (reversed) {
        result.reversals = Array<Reversal>(cells);
        for (std::size_t c = 0; c < cells; ++c)
            result.reversals[c] = some_reversal(random, result.first[c + 1] - result.first[c]);
    }
    Programs const schedule =
        random() % 2 ? gpipe::schedule::GPipe::programs(cells, 1 + random() % 4)
                     : gpipe::schedule::OneForwardOneBackward::programs(cells, 1 + random() % 4);
    Array<bool> recomputes(cells, true);
    for (std::size_t c = 0; c < cells; ++c)
        if (reversed && result.reversals[c].layers() > 0)
            recomputes[c] = !result.reversals[c].steps[0].backward;
    result.programs = random() % 2 && !reversed ? gpipe::checkpoint::Always::lower(schedule)
                                                : recompute_if_not_held(schedule, recomputes);
    return result;
}

LayerTimes some_times(std::mt19937_64& random, std::size_t layers) {
    LayerTimes times{Array<double>(layers), Array<double>(layers), Array<double>(layers),
                     double(random() % 50)};
    for (std::size_t i = 0; i < layers; ++i) {
        times.forward[i] = double(1 + random() % 100);
        times.weight_gradient[i] = double(random() % 100);
        times.backward[i] = times.weight_gradient[i] + double(random() % 100);
    }
    return times;
}

// What an action takes by its calls: in a cell that is reversed those of the plan, else by the
// definition of the layers' functions. `again`: counts the forwards that are not the first.
double by_calls(Case const& now, gpipe::MemoryPlan const& plan, LayerTimes const& times,
                gpipe::Action const& a, std::vector<std::size_t>& again) {
    gpipe::ChainShape const shape = now.chain.shape();
    std::size_t const first = now.first[a.cell];
    std::size_t const last = now.first[a.cell + 1];
    double time = 0;
    auto const run = [&](CallKind kind, std::size_t layer) {
        time += kind == CallKind::loss      ? times.loss
                : kind == CallKind::forward ? times.forward[layer]
                                            : times.backward[layer];
        again[layer < last ? layer : first] += kind == CallKind::forward && a.kind != Kind::forward;
    };
    gpipe::CellCalls const& all =
        plan.parts.of(a.cell, plan.parts.way(a.cell, a.micro_batch)).calls;
    auto const stage = static_cast<std::size_t>(gpipe::stage_of(a.kind));
    if (now.reversals.empty() || is_whole(now.reversals[a.cell])) {
        std::size_t const calls = toy::calls_of(shape, first, last, a.kind).size();
        std::size_t const loss = last == shape.size && a.kind == Kind::backward;
        if (loss) run(CallKind::loss, last);
        for (std::size_t n = 0; n + loss < calls; ++n)
            if (a.kind == Kind::backward)
                run(CallKind::backward, last - 1 - n);
            else
                run(CallKind::forward, first + n);
        return time;
    }
    for (std::size_t i = all.begin[stage]; i < all.begin[stage + 1]; ++i)
        run(all.calls[i].kind, first + all.calls[i].layer);
    return time;
}

TEST_CASE("an action takes the sum of its calls, whatever runs again in it") {
    std::mt19937_64 random{3};
    std::size_t reversals = 0;
    std::size_t recomputes = 0;
    std::size_t within = 0; // backwards that run layers again
    for (std::size_t n = 0; n < 3000; ++n) {
        CAPTURE(n);
        Case now = some_case(random, n % 3 > 0);
        for (auto& layer : now.chain.layers) layer.splits = false, layer.has_whole = true;
        gpipe::MemoryPlan const plan =
            gpipe::plan_bytes({now.chain.shape(), now.first, 0, 1}, now.programs, now.reversals);
        LayerTimes const times = some_times(random, now.chain.layers.size());
        ChainCosts<double> const costs = reversed_costs(times, now.cut(), now.reversals);
        REQUIRE(costs.cells.size() == now.programs.cells());
        std::vector<std::size_t> again(now.chain.layers.size());
        for (std::size_t i = 0; i < now.programs.size(); ++i) {
            gpipe::Action const& a = now.programs[i];
            auto const before = again;
            REQUIRE(costs(a) == by_calls(now, plan, times, a, again));
            recomputes += a.kind == Kind::recompute;
            within += a.kind == Kind::backward && again != before;
            reversals += !now.reversals.empty() && !is_whole(now.reversals[a.cell]);
        }
        auto const counted = gpipe::extra_forwards(now.programs, now.cut(), now.reversals);
        for (std::size_t i = 0; i < again.size(); ++i) REQUIRE(counted[i] == again[i]);
    }
    CHECK(reversals > 5000);
    CHECK(recomputes > 1500);
    CHECK(within > 500);
}

TEST_CASE("so does each half of a backward, whenever the halves of its layers come") {
    std::mt19937_64 random{4};
    std::size_t again = 0, later = 0, mixed = 0; // layers
    for (std::size_t n = 0; n < 2000; ++n) {
        CAPTURE(n);
        Case now = some_case(random, true);
        std::size_t const cells = now.first.size() - 1;
        for (std::size_t c = 0; c < cells; ++c) {
            std::size_t const layers = now.first[c + 1] - now.first[c];
            Reversal& reversal = now.reversals[c];
            if (reversal.layers() == 0) reversal = gpipe::equal_segments(layers, 1);
            reversal.weights = Array<gpipe::WeightHalf>(random() % 4 ? layers : 0);
            for (auto& half : reversal.weights) half = static_cast<gpipe::WeightHalf>(random() % 3);
        }
        now.programs = lower_reversed(
            now.cut(), gpipe::schedule::ZeroBubbleH1::programs(cells, cells + random() % 4),
            now.reversals);
        gpipe::MemoryPlan const plan =
            gpipe::plan_bytes({now.chain.shape(), now.first, 0, 1}, now.programs, now.reversals);
        LayerTimes times = some_times(random, now.chain.layers.size());
        // The first half of the lowest layer is not called if nobody wants anything of it.
        times.backward[now.chain.shape().lowest_learner % now.chain.layers.size()] =
            times.weight_gradient[now.chain.shape().lowest_learner % now.chain.layers.size()];
        ChainCosts<double> const costs = reversed_costs(times, now.cut(), now.reversals);
        std::vector<std::size_t> runs(now.chain.layers.size());
        for (std::size_t i = 0; i < now.programs.size(); ++i) {
            gpipe::Action const& a = now.programs[i];
            gpipe::CellCalls const& all =
                plan.parts.of(a.cell, plan.parts.way(a.cell, a.micro_batch)).calls;
            auto const stage = static_cast<std::size_t>(gpipe::stage_of(a.kind));
            double time = 0;
            bool whole = false;
            for (std::size_t j = all.begin[stage]; j < all.begin[stage + 1]; ++j) {
                std::size_t const layer = now.first[a.cell] + all.calls[j].layer;
                switch (all.calls[j].kind) {
                case CallKind::forward:
                    time += times.forward[layer];
                    runs[layer] += a.kind != Kind::forward;
                    again += a.kind == Kind::weight_gradient;
                    break;
                case CallKind::backward:
                    time += times.backward[layer];
                    whole = true;
                    break;
                case CallKind::input_gradient:
                    time += times.backward[layer] - times.weight_gradient[layer];
                    break;
                case CallKind::weight_gradient:
                    time += times.weight_gradient[layer];
                    ++later;
                    break;
                case CallKind::loss:
                    time += times.loss;
                }
            }
            mixed += whole && a.kind == Kind::input_gradient;
            REQUIRE(costs(a) == time);
        }
        auto const counted = gpipe::extra_forwards(now.programs, now.cut(), now.reversals);
        for (std::size_t i = 0; i < runs.size(); ++i) REQUIRE(counted[i] == runs[i]);
    }
    CHECK(again > 1000);
    CHECK(later > 1000);
    CHECK(mixed > 1000);
}

TEST_CASE("halves take the whole backward together, the loss is in the first of the last cell") {
    std::mt19937_64 random{5};
    for (std::size_t n = 0; n < 500; ++n) {
        Case const now = some_case(random, false);
        LayerTimes times = some_times(random, now.chain.layers.size());
        ChainCosts<double> const costs = reversed_costs(times, now.cut(), {});
        std::size_t const learner = now.chain.shape().lowest_learner;
        for (std::size_t c = 0; c + 1 < now.first.size(); ++c) {
            double whole = c + 2 == now.first.size() ? times.loss : 0;
            double second = 0;
            for (std::size_t i = std::max(learner, now.first[c]); i < now.first[c + 1]; ++i) {
                whole += times.backward[i];
                if (now.chain.layers[i].splits) second += times.weight_gradient[i];
            }
            CHECK(costs(gpipe::backward(c, 0)) == whole);
            CHECK(costs(gpipe::weight_gradient(c, 0)) == second);
            CHECK(costs(gpipe::input_gradient(c, 0)) == whole - second);
        }
        times.weight_gradient = {};
        ChainCosts<double> const whole = reversed_costs(times, now.cut(), {});
        CHECK(whole(gpipe::weight_gradient(0, 0)) == 0);
        CHECK(whole(gpipe::input_gradient(0, 0)) == costs(gpipe::backward(0, 0)));
    }
}

TEST_CASE("declared costs are those: a backward twice the forward, a half of it in each half") {
    std::mt19937_64 random{9};
    for (std::size_t n = 0; n < 1000; ++n) {
        Case const now = some_case(random, n % 2 > 0);
        std::size_t const layers = now.chain.layers.size();
        Array<gpipe::LayerInfo> infos(layers);
        LayerTimes times{Array<double>(layers), Array<double>(layers), Array<double>(layers)};
        for (std::size_t i = 0; i < layers; ++i) {
            infos[i] = now.chain.layers[i];
            infos[i].cost = times.forward[i] = double(1 + random() % 100);
            times.backward[i] = 2 * times.forward[i];
            if (infos[i].splits) times.weight_gradient[i] = times.forward[i];
        }
        auto const declared =
            gpipe::declared_costs({infos.data(), infos.size(), now.first.data()}, now.reversals);
        ChainCosts<double> const costs = reversed_costs(times, now.cut(), now.reversals);
        for (std::size_t c = 0; c + 1 < now.first.size(); ++c) {
            for (Kind const kind : {Kind::forward, Kind::recompute, Kind::backward,
                                    Kind::input_gradient, Kind::weight_gradient})
                CHECK(declared({kind, static_cast<std::uint32_t>(c)}) ==
                      costs({kind, static_cast<std::uint32_t>(c)}));
        }
    }
}

TEST_CASE("declared costs place a chain on lanes by what its cells run again") {
    // Cells of 2, 2 and 4 layers; the last keeps nothing and runs its layers again and again.
    std::mt19937_64 random{1};
    Case now = some_case(random, false);
    while (now.chain.layers.size() < 8) now = some_case(random, false);
    now.first = Array<std::size_t>(4);
    for (std::size_t c = 0; c < 4; ++c) now.first[c] = c == 3 ? 8 : 2 * c;
    Array<gpipe::LayerInfo> infos(8);
    for (std::size_t i = 0; i < 8; ++i) {
        infos[i] = now.chain.layers[i];
        infos[i].cost = 1;
        infos[i].saved = now.chain.group({4}); // so that no forward is left out
        infos[i].parameters = now.chain.group({4});
        infos[i].output_carries_gradient = true;
        infos[i].splits = false;
    }
    Array<Reversal> reversals(3);
    for (std::size_t c = 0; c < 3; ++c)
        reversals[c] = c < 2 ? gpipe::keep_everything(2) : gpipe::revolve(4, 0);
    auto const cost =
        gpipe::declared_costs({infos.data(), infos.size(), now.first.data()}, reversals);
    CHECK(cost(gpipe::backward(0, 0)) == 4);
    CHECK(cost(gpipe::recompute(2, 0)) == 4);
    CHECK(cost(gpipe::backward(2, 0)) == 8 + 3 + 2 + 1);
    // A micro-batch takes 6, 6 and 18 of them; by forwards and backwards alone it would be 6,
    // 6, 12.
    CHECK(cost(gpipe::forward(2, 0)) + cost(gpipe::backward(2, 0)) == 18);
    Programs const programs = gpipe::schedule::GPipe::programs(3, 2);
    gpipe::Placement const placed =
        gpipe::place_programs(toy::lower(programs), {3}, 2, false, cost);
    CHECK(placed.lane[0] == 0);
    CHECK(placed.lane[1] == 0);
    CHECK(placed.lane[2] == 1);
}

TEST_CASE(
    "frozen layers take half of a backward, and none below the lowest that learns, in the cut "
    "and in simulated time") {
    auto const simulated = [](std::size_t from, std::size_t to) {
        std::size_t const bytes[] = {4};
        Array<gpipe::LayerInfo> infos(8);
        for (std::size_t i = 0; i < 8; ++i) {
            infos[i].cost = 1;
            infos[i].parameters = {bytes, 1};
            infos[i].output_carries_gradient = true;
            infos[i].accepts_none = true;
            if (i >= from && i < to) infos[i].freeze();
        }
        Array<double> const costs = gpipe::cut_costs(infos.data(), 8);
        Array<std::size_t> first(3);
        gpipe::cut_by_bottleneck(costs.data(), 8, 2, first.data());
        auto const cost = gpipe::declared_costs({infos.data(), 8, first.data()}, {});
        return gpipe::simulate<double>(gpipe::schedule::GPipe::programs(2, 8), cost).makespan;
    };
    CHECK(simulated(0, 0) == 9 * 12);                // cells of 4 layers
    CHECK(simulated(0, 4) == 8 * 5 + 3 + 8 * 6 + 2); // of 5, one of which learns, and 3
    CHECK(simulated(4, 8) == 3 + 8 * 5 + 8 * 6 + 6); // of 3 and 5, four of which are frozen
}

TEST_CASE("times of other layers are refused") {
    std::mt19937_64 random{2};
    Case const now = some_case(random, false);
    std::size_t const size = now.chain.layers.size();
    // Any one of them is enough.
    for (Array<double> LayerTimes::*const of :
         {&LayerTimes::forward, &LayerTimes::backward, &LayerTimes::weight_gradient})
        for (std::size_t const other : {size - 1, size + 1}) {
            LayerTimes times = some_times(random, size);
            CHECK_NOTHROW(reversed_costs(times, now.cut(), {}));
            times.*of = Array<double>(other);
            CHECK_THROWS_WITH_AS(reversed_costs(times, now.cut(), {}),
                                 "gpipe: the times of layers are not of this chain",
                                 std::invalid_argument);
        }
    LayerTimes times = some_times(random, size);
    for (double const loss : {-1.0, std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::quiet_NaN()}) {
        times.loss = loss;
        CHECK_THROWS_WITH_AS(reversed_costs(times, now.cut(), {}),
                             "gpipe: what a loss takes is finite and not negative",
                             std::invalid_argument);
    }
}

} // namespace
