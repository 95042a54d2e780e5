// What crosses between devices that share no memory, in few slots: whoever reads finds what was
// written for it, and nobody waits for ever, in whatever order streams and waits allow.
#include <support/links.hpp>
#include <support/long_tests.hpp>
#include <support/random_chain.hpp>
#include <support/walker.hpp>

#include <gpipe/schedule/halves.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using gpipe::Array;
using gpipe::Kind;
using gpipe::Link;
using gpipe::MemoryPlan;
using gpipe::Programs;

namespace {

double cost(gpipe::Action const& a) { return a.kind == Kind::backward ? 2 : 1; }

toy::RandomChain some_chain(std::mt19937_64& random, std::size_t length) {
    toy::Sizes sizes;
    sizes.most_bytes = 700;
    int const percents[] = {100, 100, 60, 20, 0}; // gradients everywhere ... nowhere
    sizes.percent_parameters = percents[random() % 5];
    return toy::random_chain(random, length, sizes);
}
Array<std::size_t> some_cut(std::mt19937_64& random, std::size_t cells, std::size_t length) {
    std::vector<std::size_t> cuts;
    for (std::size_t i = 1; i < length; ++i) cuts.push_back(i);
    std::shuffle(cuts.begin(), cuts.end(), random);
    cuts.resize(cells - 1);
    std::sort(cuts.begin(), cuts.end());
    Array<std::size_t> first(cells + 1);
    std::copy(cuts.begin(), cuts.end(), first.begin() + 1);
    first[cells] = length;
    return first;
}

// The cells in which anything comes in halves: in the others a training joins them.
Array<bool> splitting_cells(gpipe::ChainShape const& chain, Array<std::size_t> const& first) {
    Array<bool> splits(first.size() - 1);
    for (std::size_t c = 0; c < splits.size(); ++c)
        for (std::size_t i = first[c]; i < first[c + 1]; ++i)
            if (toy::learns(chain, i) && chain.layers[i].splits) splits[c] = true;
    return splits;
}

constexpr gpipe::Programs (*policies[])(Programs const&) = {&gpipe::checkpoint::Never::lower,
                                                            &gpipe::checkpoint::ExceptLast::lower,
                                                            &gpipe::checkpoint::Always::lower};

// Calls f(chain, programs, plan) for every schedule there is and some by chance, with whole
// backwards among halves; where nothing comes in halves these are joined, in every other program.
template <class F> void each_plan_in_halves(std::size_t seed, F f) {
    std::mt19937_64 random(seed);
    std::size_t point = 0;
    auto const plan = [&](Programs const& schedule) {
        if (point++ % toy::one_of(1) != 0) return;
        std::size_t const cells = schedule.cells();
        std::size_t const length = cells + random() % 4;
        auto const chain = some_chain(random, length);
        auto const first = some_cut(random, cells, length);
        bool const joins = random() % 2 != 0;
        Programs const joined =
            joins ? gpipe::join_halves(schedule, splitting_cells(chain.shape(), first)) : schedule;
        for (auto const lower : policies) {
            Programs const programs = lower(joined);
            for (auto const& links :
                 {toy::same_links(programs, Link::shared), toy::mixed_links(programs, random),
                  toy::same_links(programs, random() % 2 ? Link::copied : Link::staged)})
                f(chain.shape(), programs,
                  gpipe::plan_memory(chain.shape(), first, programs, 1, 1 + random() % 2, {},
                                     links));
        }
    };
    for (std::size_t m : {1u, 3u, 8u})
        toy::each_of_catalogue(4, 9, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            std::string const name(schedule.name());
            CAPTURE(name);
            CAPTURE(k);
            CAPTURE(m);
            plan(schedule.programs(k, m));
        });
    for (int round = 0; round < 60; ++round) {
        CAPTURE(round);
        int const percent_whole[] = {0, 30, 80};
        plan(toy::mixed_by_chance(1 + random() % 6, 1 + random() % 5, percent_whole[round % 3],
                                  random));
    }
}

// Calls f(chain, programs, plan) for the sweep over all programs and links.
template <class F> void each_plan(std::size_t seed, F f) {
    std::mt19937_64 random(seed);
    std::size_t point = 0;
    for (std::size_t k = 2; k <= 6; ++k)
        for (std::size_t m = 1; m <= 7; ++m)
            toy::each_lowering(k, m, [&](Programs const& programs) {
                if (point++ % toy::one_of(1) != 0) return;
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(toy::chance);
                std::size_t const length = k + random() % 3;
                auto const chain = some_chain(random, length);
                auto const first = some_cut(random, k, length);
                for (auto const& links :
                     {toy::same_links(programs, Link::copied),
                      toy::same_links(programs, Link::staged), toy::mixed_links(programs, random)})
                    f(chain.shape(), programs,
                      gpipe::plan_memory(chain.shape(), first, programs, 1, 1 + random() % 2, {},
                                         links));
            });
}

// One walker puts everything on streams: nothing is waited for that it has not put there before,
// and marks are set where somebody waits. A transfer has the rank of the action whose result it
// brings.
std::string wrong_with_table(gpipe::StepTable const& table, Programs const& actions) {
    std::map<std::pair<std::size_t, std::size_t>, gpipe::Step const*> at; // stream, position
    std::map<std::tuple<Kind, std::size_t, std::size_t>, std::uint32_t> rank;
    std::map<std::pair<std::size_t, std::size_t>, std::uint32_t> gradient_rank;
    std::set<gpipe::Step const*> marks;
    std::vector<std::uint32_t> position(table.streams);
    auto const order = gpipe::linear_order(actions);
    for (std::size_t r = 0; r < order.size(); ++r) {
        gpipe::Action const& a = actions[order[r]];
        rank[{a.kind, a.cell, a.micro_batch}] = static_cast<std::uint32_t>(r);
        if (gives_gradient(a.kind))
            gradient_rank[{a.cell, a.micro_batch}] = static_cast<std::uint32_t>(r);
    }
    for (gpipe::Step const& step : table.steps) {
        if (step.position != ++position[step.stream]) return "position";
        if (step.position > table.longest) return "longest";
        at[{step.stream, step.position}] = &step;
        for (gpipe::Wait const& wait : table.waits_of(step)) {
            if (wait.stream == step.stream) return "waits for its own stream";
            auto const found = at.find({wait.stream, wait.position});
            if (found == at.end()) return "waits for what comes later";
            marks.insert(found->second);
        }
        std::size_t const c = step.cell;
        std::size_t const m = step.micro_batch;
        if (step.rank != (step.kind == Kind::send_output        ? rank.at({Kind::forward, c, m})
                          : step.kind == Kind::receive_input    ? rank.at({Kind::forward, c - 1, m})
                          : step.kind == Kind::send_gradient    ? gradient_rank.at({c, m})
                          : step.kind == Kind::receive_gradient ? gradient_rank.at({c + 1, m})
                                                                : rank.at({step.kind, c, m})))
            return "rank";
    }
    for (gpipe::Step const& step : table.steps)
        if (step.publishes != (marks.count(&step) > 0)) return "marks";
    return "";
}

// Walks a plan in training and in evaluation.
std::size_t check_walks(gpipe::ChainShape const& chain, Programs const& programs,
                        MemoryPlan const& plan, std::mt19937_64& random) {
    std::size_t walks = 0;
    toy::Places const places(plan);
    toy::Walker const walker(chain, plan);
    for (bool const evaluates : {false, true}) {
        toy::Tabled const tabled(plan, places, evaluates);
        auto const effects = [&](gpipe::Step const& step) {
            return walker.effects(step, evaluates);
        };
        REQUIRE(wrong_with_table(tabled.table, tabled.lowered.computing()) == "");
        for (toy::Pace const pace : {toy::Pace::any, toy::paces[1 + random() % 4]}) {
            CAPTURE(static_cast<int>(pace));
            REQUIRE(toy::walk(tabled.table, places, programs.devices(), pace, random, effects) ==
                    "");
            ++walks;
        }
    }
    return walks;
}

} // namespace

TEST_CASE("whoever reads finds what was written for it, in whatever order, and nobody waits on") {
    std::mt19937_64 random(1);
    std::size_t walks = 0;
    for (std::uint64_t seed = 1; seed <= (toy::long_tests() ? 40 : 1); ++seed)
        each_plan(seed, [&](gpipe::ChainShape const& chain, Programs const& programs,
                            MemoryPlan const& plan) {
            walks += check_walks(chain, programs, plan, random);
        });
    MESSAGE(walks << " walks");
}

TEST_CASE("so it is under every schedule there is, several cells to a device and backwards in "
          "halves, among them whole ones") {
    std::mt19937_64 random(2);
    std::size_t walks = 0;
    std::size_t mixed = 0;
    for (std::uint64_t seed = 1; seed <= (toy::long_tests() ? 40 : 1); ++seed)
        each_plan_in_halves(seed, [&](gpipe::ChainShape const& chain, Programs const& programs,
                                      MemoryPlan const& plan) {
            walks += check_walks(chain, programs, plan, random);
            for (gpipe::CellUse const& use : plan.uses) mixed += use.mixes;
        });
    MESSAGE(walks << " walks, " << mixed << " cells with backwards of both kinds");
}

TEST_CASE("inputs staged for two cells of a device do not block its evaluation") {
    // Cells on devices 0 1 2 1: the third input for cell 1 needs the room of the first, which is
    // read after cell 3 had its own.
    std::size_t const cells = 4;
    std::size_t const micro_batches = 6;
    Programs programs(3, cells, micro_batches, 2 * cells * micro_batches);
    programs.place(0, 0), programs.place(1, 1), programs.place(2, 2), programs.place(3, 1);
    for (std::size_t d = 0; d < 3; ++d) {
        for (std::size_t c = 0; c < cells; ++c)
            for (std::size_t m = 0; m < micro_batches && programs.device_of(c) == d; ++m)
                programs.add(gpipe::forward(c, m));
        for (std::size_t c = cells; c-- > 0;)
            for (std::size_t m = 0; m < micro_batches && programs.device_of(c) == d; ++m)
                programs.add(gpipe::backward(c, m));
        programs.next_device();
    }
    std::mt19937_64 random(2);
    auto const chain = toy::random_chain(random, cells, {});
    auto const plan = gpipe::plan_memory(chain.shape(), some_cut(random, cells, cells), programs, 0,
                                         1, {}, toy::same_links(programs, Link::staged));
    CHECK_NOTHROW(toy::Tabled(plan, toy::Places(plan), true));
}

TEST_CASE("lanes cannot be merged from programs that wait for each other") {
    auto const programs = gpipe::schedule::GPipe::programs(2, 2);
    auto lowered = gpipe::lower(programs);
    lowered.needs = toy::with_need(lowered.needs, 0, 1);
    CHECK_THROWS_WITH_AS(
        gpipe::merge_lanes(lowered, gpipe::place_programs(lowered, 1, true, cost), cost),
        "gpipe: the programs wait for each other", std::logic_error);
}

TEST_CASE("transfers take no lane's time") {
    auto const programs = gpipe::schedule::GPipe::programs(3, 4);
    auto const lowered =
        toy::lower(programs, toy::same_links(programs, Link::staged), toy::crossing_from(1, 3));
    auto const placement = gpipe::place_programs(lowered, 1, true, cost);
    auto const lanes = gpipe::merge_lanes(lowered, placement, cost);
    auto const times = gpipe::simulate<double>(programs, cost);
    CHECK(lanes.busy == times.busy);
    CHECK(lanes.makespan == times.makespan);
    // And are told first: an output is on its way before the walker goes on to the next forward.
    std::vector<Kind> told;
    for (std::size_t s = 0; s < 3; ++s)
        told.push_back(lowered.programs[lanes.steps[s].action].kind);
    CHECK(told == std::vector<Kind>{Kind::forward, Kind::send_output, Kind::receive_input});
}
