// The plan of an arena: every byte has one purpose, and every purpose its bytes.
#include <support/live_bytes.hpp>
#include <support/long_tests.hpp>
#include <support/random_plan.hpp>

#include <gpipe/plan/evaluation.hpp>
#include <gpipe/plan/simulate_lowered.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

using gpipe::Array;
using gpipe::Holds;
using gpipe::LayerInfo;
using gpipe::Link;
using gpipe::MemoryPlan;
using gpipe::Programs;

namespace {

using Interval = std::pair<std::size_t, std::size_t>; // offset, bytes

// The parts of a device's arena, or of the host's memory.
std::vector<Interval> parts_of(MemoryPlan const& plan, gpipe::ChainShape const& chain,
                               Programs const& programs, std::size_t device, std::size_t states) {
    std::vector<Interval> parts;
    for (std::size_t i = 0; i < chain.size; ++i) {
        std::size_t c = 0;
        while (plan.first[c + 1] <= i) ++c;
        if (programs.device_of(c) != device) continue;
        std::size_t const bytes = chain.layers[i].parameters.slots(1);
        parts.push_back({plan.parameters[i], bytes});
        parts.push_back({plan.gradients[i], bytes});
        parts.push_back({plan.optimizer[i], states * bytes});
    }
    std::size_t inside = 0; // of cells: with what of that moves, and behind it the rest
    for (std::size_t p = 0; p < plan.pools.size(); ++p) {
        if (plan.pools[p].space != device) continue;
        parts.push_back({plan.pools[p].at, plan.pools[p].total()});
        if (device < plan.devices.size() && plan.pools[p].at >= plan.begin[device].evaluation)
            inside += plan.pools[p].total();
    }
    if (device == plan.devices.size()) return parts;
    if (plan.has_room(device)) {
        parts.push_back({plan.begin[device].evaluation, plan.room.height[device]});
        inside += plan.room.height[device];
    }
    REQUIRE(plan.begin[device].parts == plan.begin[device].evaluation + inside);
    parts.push_back({plan.begin[device].parts, plan.devices[device].activations - inside});
    return parts;
}

// Where the last ends, if there is neither overlap nor gap.
std::size_t filled(std::vector<Interval> parts) {
    std::sort(parts.begin(), parts.end());
    std::size_t end = 0;
    for (auto const& [offset, bytes] : parts) {
        if (bytes == 0) continue;
        REQUIRE(offset == end);
        REQUIRE(offset % gpipe::slot_alignment == 0);
        end = offset + bytes;
    }
    return end;
}

void check_plan(gpipe::ChainShape const& chain, Array<std::size_t> const& first,
                Programs const& programs, std::size_t states, std::size_t capacity,
                Array<Link> const& links) {
    MemoryPlan const plan =
        gpipe::plan_memory({chain, first, states, capacity, {}, links}, programs);
    std::size_t total = 0;
    for (std::size_t d = 0; d < programs.devices(); ++d) {
        std::size_t const end = filled(parts_of(plan, chain, programs, d, states));
        REQUIRE(end == plan.devices[d].total());
        REQUIRE(plan.devices[d].gradients == plan.devices[d].parameters);
        REQUIRE(plan.devices[d].optimizer == states * plan.devices[d].parameters);
        total += end;
    }
    REQUIRE(plan.total() == total);
    // A slot holds the boundary's tensors and, where one crosses, their gradient.
    for (std::size_t c = 1; c < programs.cells(); ++c) {
        gpipe::LayerInfo const& layer = chain.layers[first[c]];
        gpipe::Pool const& inputs = plan.pools.pool(Holds::input, c - 1);
        gpipe::Pool const& outbox = plan.pools.pool(Holds::output, c - 1);
        bool const learns = chain.lowest_learner < first[c];
        REQUIRE(inputs.bytes >= layer.input.slots(capacity));
        if (learns) REQUIRE(inputs.bytes >= layer.input_gradient.slots(capacity));
        REQUIRE((outbox.slots == 0) == (links.empty() || links[c] == Link::shared));
        REQUIRE(outbox.bytes >= layer.input.slots(capacity));
        if (learns) REQUIRE(outbox.bytes >= layer.input_gradient.slots(capacity));
    }
    REQUIRE(filled(parts_of(plan, chain, programs, programs.devices(), states)) == plan.host);
    // Who computes finds all in the memory of its own device, but what is shared; copies reach to
    // the host, or write where the link goes.
    gpipe::Located const located(plan);
    for (std::size_t i = 0; i < plan.lowered.programs.size(); ++i)
        for (gpipe::Operand const& operand : plan.operands[i]) {
            gpipe::Action const& a = plan.lowered.programs[i];
            gpipe::Value const& value = plan.operands.values[operand.value];
            gpipe::Span const& at = located[operand.value];
            if (at.begin == at.end || at.space == programs.device_of(a.cell)) continue;
            if (is_copy(a.kind) && at.space == programs.devices()) continue;
            REQUIRE(is_of_edge(value.holds));
            gpipe::Edge const& edge = plan.lowered.edges[value.owner];
            REQUIRE((edge.shared() || (edge.link == Link::copied && is_transfer(a.kind) &&
                                       operand.use != gpipe::Use::read)));
        }
}

} // namespace

TEST_CASE("an arena is filled without gap or overlap, whatever chain, cut, schedule and policy") {
    std::mt19937_64 random(1);
    auto const check = [&](Programs const& schedule) {
        std::size_t const length = schedule.cells() + random() % 4;
        toy::RandomChain const chain = toy::random_chain(random, length, {});
        auto const first = toy::some_cut(random, schedule.cells(), length);
        for (auto const& lower : toy::lowerings)
            for (auto const& links : {Array<Link>(), toy::mixed_links(schedule, random)})
                check_plan(chain.shape(), first, lower(schedule), random() % 3, 1 + random() % 3,
                           links);
    };
    for (std::size_t m : {1u, 2u, 5u})
        toy::each_of_catalogue(4, 9, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            std::string const name(schedule.name());
            CAPTURE(name);
            CAPTURE(k);
            CAPTURE(m);
            check(schedule.programs(k, m));
        });
    for (std::size_t round = 0; round < toy::cases(600); ++round) {
        CAPTURE(round);
        std::size_t const cells = 1 + random() % 9, m = 1 + random() % 5;
        check(toy::Dealt::programs(cells, m));
        check(toy::mixed_by_chance(cells, m, 30, random));
    }
}

namespace {

// Layers with equal tensors, as in a network of blocks; `halves`: of all backwards, of every other
// layer's, of none.
enum class Halves { none, some, all };
toy::RandomChain equal_layers(std::size_t length, Halves halves) {
    toy::RandomChain chain;
    for (std::size_t i = 0; i < length; ++i) {
        LayerInfo layer;
        layer.input = layer.input_gradient = chain.group({1024});
        layer.output = layer.output_gradient = chain.group({1024});
        layer.parameters = chain.group({256});
        layer.reads_input = layer.output_carries_gradient = layer.accepts_none = true;
        layer.splits = halves == Halves::all || (halves == Halves::some && i % 2 != 0);
        layer.has_whole = true;
        chain.layers.push_back(layer);
    }
    return chain;
}

// The largest ratio of planned bytes to the largest sum of live bytes, over the devices.
double check_least(toy::RandomChain const& chain, Array<std::size_t> const& first,
                   Programs const& programs) {
    std::size_t const capacity = 2;
    MemoryPlan const plan = gpipe::plan_memory({chain.shape(), first, 1, capacity}, programs);
    auto const least = toy::live_bytes(
        programs, {chain.layers, {first.begin(), first.end()}, chain.loss_scratch, 1, capacity});
    double worst = 0;
    for (std::size_t d = 0; d < least.size(); ++d) {
        REQUIRE(plan.devices[d].total() >= least[d].total);
        if (least[d].total == 0) continue;
        worst = std::max(worst, static_cast<double>(plan.devices[d].total()) /
                                    static_cast<double>(least[d].total));
    }
    return worst;
}

} // namespace

TEST_CASE("no plan is smaller than what lives at once, under any schedule there is, and it is near "
          "that where a device has one cell") {
    std::mt19937_64 random(5);
    std::map<std::string, double> worst;
    std::size_t plans = 0;
    std::size_t point = 0;
    for (std::size_t m : {1u, 2u, 4u, 8u})
        toy::each_of_catalogue(4, 8, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            if (point++ % toy::one_of(1) != 0) return;
            std::string const name(schedule.name());
            CAPTURE(name);
            CAPTURE(k);
            CAPTURE(m);
            std::size_t const cells = k * schedule.cells_per_device();
            Programs const plain = schedule.programs(k, m);
            bool const apart = std::any_of(&plain[0], &plain[0] + plain.size(), [](auto& a) {
                return a.kind == gpipe::Kind::weight_gradient;
            });
            std::string const where = (cells == k ? "one cell per device, " : "several, ") +
                                      std::string(apart ? "in halves: " : "whole: ");
            for (auto const& lower : toy::lowerings) {
                Programs const programs = lower(plain);
                auto const chain = toy::random_chain(random, 2 * cells, {});
                check_least(chain, toy::some_cut(random, cells, 2 * cells), programs);
                ++plans;
                Array<std::size_t> first(cells + 1);
                for (std::size_t c = 0; c <= cells; ++c) first[c] = 4 * c;
                for (Halves const halves : {Halves::none, Halves::some, Halves::all}) {
                    char const* const kinds[] = {"no layer splits", "some do", "all do"};
                    auto const layers = equal_layers(4 * cells, halves);
                    double& most = worst[where + kinds[static_cast<int>(halves)]];
                    most = std::max(most, check_least(layers, first, programs));
                    ++plans;
                }
            }
        });
    MESSAGE(plans << " plans; the largest ratio of planned to live bytes");
    for (auto const& [what, most] : worst) {
        MESSAGE(what << ": " << most);
        CHECK(most < (what[0] == 'o' ? 1.1 : 1.2));
    }
}

TEST_CASE("in the plan's order a place is one value's at a time") {
    std::mt19937_64 random(9);
    std::size_t shared = 0; // pairs that have bytes in turns
    auto const check = [&](Programs const& schedule) {
        std::size_t const length = schedule.cells() + 2;
        toy::RandomChain const chain = toy::random_chain(random, length, {});
        MemoryPlan const plan = gpipe::plan_memory({chain.shape(),
                                                    toy::some_cut(random, schedule.cells(), length),
                                                    0,
                                                    2,
                                                    {},
                                                    toy::mixed_links(schedule, random)},
                                                   gpipe::checkpoint::ExceptLast::lower(schedule));
        std::vector<std::size_t> position(plan.lowered.programs.size());
        for (std::size_t n = 0; n < position.size(); ++n) position[plan.lowered.order[n]] = n;
        std::vector<gpipe::Stay> places;
        for (std::size_t v = 0; v < plan.operands.values.size(); ++v)
            if (auto const at = place(plan, v); at.at.begin < at.at.end) {
                std::size_t first = position.size(), last = 0; // in the order
                for (std::size_t i = 0; i < position.size(); ++i)
                    for (gpipe::Operand const& operand : plan.operands[i])
                        if (operand.value == v) {
                            first = std::min(first, position[i]);
                            last = std::max(last, position[i]);
                        }
                CHECK((first == position[at.from] && last == position[at.to]));
                CHECK(at.from == plan.operands.values[v].writer);
                places.push_back(at);
            }
        for (gpipe::Stay const& a : places)
            for (gpipe::Stay const& b : places) {
                if (&a == &b || a.at.space != b.at.space || a.at.begin >= b.at.end ||
                    b.at.begin >= a.at.end)
                    continue;
                ++shared;
                // In one action tensors inside of it take turns.
                CHECK((position[a.to] <= position[b.from] || position[b.to] <= position[a.from]));
            }
    };
    toy::each_of_catalogue(3, 3, 4, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        check(schedule.programs(k, 4));
    });
    CHECK(shared > 1000);
}

TEST_CASE("more samples never take fewer bytes") {
    std::mt19937_64 random(2);
    for (std::size_t round = 0; round < toy::cases(100); ++round) {
        toy::RandomChain const chain = toy::random_chain(random, 6, {});
        Array<std::size_t> first(4);
        first[1] = 2, first[2] = 4, first[3] = 6;
        auto const schedule = gpipe::schedule::GPipe::programs(3, 4);
        auto const bytes = [&](Programs const& programs, std::size_t capacity) {
            return gpipe::plan_memory({chain.shape(), first, 1, capacity}, programs).total();
        };
        for (auto const& lower : toy::lowerings)
            for (std::size_t capacity = 1; capacity < 5; ++capacity)
                CHECK(bytes(lower(schedule), capacity) <= bytes(lower(schedule), capacity + 1));
    }
}

TEST_CASE("C2 nobody waits for room, unless slack is given") {
    std::mt19937_64 random(8);
    std::size_t plans = 0, wait = 0; // with slack
    auto const check = [&](Programs const& programs) {
        std::size_t const length = programs.cells() + random() % 4;
        toy::RandomChain const chain = toy::random_chain(random, length, {});
        gpipe::PlanRequest request{chain.shape(), toy::some_cut(random, programs.cells(), length),
                                   1, 1 + random() % 3};
        auto const waits_for_room = [&](std::size_t slack) {
            request.slack = slack;
            MemoryPlan const plan = gpipe::plan_memory(request, programs);
            // Bytes of its own for every value.
            auto const apart = [&](std::size_t, gpipe::Operand const& operand) {
                return gpipe::Span{operand.value, std::uint64_t{operand.value} + 1, 0};
            };
            gpipe::Needs const needs = find_needs(walk_of(plan.lowered), plan.operands, apart);
            for (std::size_t i = 0; i < plan.lowered.programs.size(); ++i)
                if (!std::equal(needs[i].begin(), needs[i].end(), plan.lowered.needs[i].begin(),
                                plan.lowered.needs[i].end()))
                    return true;
            return false;
        };
        CHECK_FALSE(waits_for_room(gpipe::no_wait));
        wait += waits_for_room(0);
        ++plans;
    };
    for (std::size_t m : {1u, 3u, 6u})
        toy::each_of_catalogue(2, 6, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            std::string const name(schedule.name());
            CAPTURE(name);
            CAPTURE(k);
            CAPTURE(m);
            for (auto const& lower : toy::lowerings) check(lower(schedule.programs(k, m)));
        });
    MESSAGE("with slack 0 somebody waits for room in " << wait << " of " << plans << " plans");
    CHECK(wait > plans / 20);
}

TEST_CASE("nobody waits for room in an evaluation of what GPipe trains") {
    std::mt19937_64 random(6);
    for (std::size_t k = 1; k <= 4; ++k)
        for (Link const link : {Link::shared, Link::copied}) {
            std::size_t const m = 6;
            Programs const programs = gpipe::schedule::GPipe::programs(k, m);
            auto const chain = toy::random_chain(random, 2 * k, {});
            MemoryPlan const plan = gpipe::plan_memory({chain.shape(),
                                                        toy::some_cut(random, k, 2 * k),
                                                        0,
                                                        1,
                                                        {},
                                                        toy::same_links(programs, link)},
                                                       programs);
            auto forwards = evaluation_of(plan.lowered);
            auto const operands = find_operands(forwards, plan.cells, plan.part_table(true));
            forwards.needs =
                find_needs(walk_of(forwards), operands, gpipe::Located(plan, operands, true));
            auto const time = gpipe::simulate<std::int64_t>(forwards, [](gpipe::Action const& a) {
                return std::int64_t{a.kind == gpipe::Kind::forward};
            });
            CHECK(time.makespan == std::int64_t(m + k - 1));
        }
}

TEST_CASE("a skip of more bytes than there are addresses is refused as any tensor") {
    std::mt19937_64 random(7);
    auto chain = toy::random_chain(random, 2, {.most_bytes = 4});
    chain.skips = {{0, 1, 0, 0, 0, 0}};
    chain.layers[0].skips.stashes = chain.layers[1].skips.pops = 1;
    auto const first = toy::some_cut(random, 2, 2);
    auto const plan = [&](std::size_t bytes, std::size_t gradient) {
        chain.skips[0].bytes = bytes;
        chain.skips[0].gradient_bytes = gradient;
        return gpipe::plan_bytes({chain.shape(), first, 1, std::size_t{1} << 46},
                                 gpipe::schedule::GPipe::programs(2, 2));
    };
    CHECK_NOTHROW(plan(4, 4));
    CHECK_THROWS_AS(plan(std::size_t{1} << 18, 4), std::invalid_argument);
    CHECK_THROWS_AS(plan(4, std::size_t{1} << 18), std::invalid_argument);
}

TEST_CASE("more skips of a cell than an operand can tell apart are refused") {
    std::mt19937_64 random(7);
    auto chain = toy::random_chain(random, 2, {});
    chain.skips.resize(0x3FFC, {0, 1, 0, 0, 4, 0});
    auto const plan = [&] {
        return gpipe::plan_bytes({chain.shape(), toy::some_cut(random, 2, 2), 1, 1},
                                 gpipe::schedule::GPipe::programs(2, 1));
    };
    CHECK_NOTHROW(plan());
    chain.skips.push_back(chain.skips[0]);
    CHECK_THROWS_AS(plan(), std::length_error);
}
