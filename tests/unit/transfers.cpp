// Transfers as actions: every tensor crosses once, in an order that everybody respects.
#include <support/links.hpp>
#include <support/long_tests.hpp>
#include <support/random_chain.hpp>

#include <gpipe/memory/plan.hpp>
#include <gpipe/plan/happens_before.hpp>
#include <gpipe/plan/simulate_lowered.hpp>
#include <gpipe/schedule/walk.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using gpipe::Action;
using gpipe::Array;
using gpipe::HappensBefore;
using gpipe::Kind;
using gpipe::Link;
using gpipe::Lowered;
using gpipe::no_action;
using gpipe::Programs;

namespace {

using Name = std::tuple<Kind, std::size_t, std::size_t>; // kind, cell, micro-batch
Name name_of(Action const& a) { return {a.kind, a.cell, a.micro_batch}; }

// The way of a micro-batch's tensor over the boundary before a cell, hop by hop.
std::vector<Name> way_of_output(Link link, std::size_t cell, std::size_t m) {
    std::vector<Name> way{{Kind::forward, cell - 1, m}};
    if (link != Link::shared) way.push_back({Kind::send_output, cell - 1, m});
    if (link == Link::staged) way.push_back({Kind::receive_input, cell, m});
    way.push_back({Kind::forward, cell, m});
    return way;
}
std::vector<Name> way_of_gradient(Link link, bool crosses, std::size_t cell, std::size_t m) {
    std::vector<Name> way{{Kind::backward, cell, m}};
    if (crosses && link != Link::shared) way.push_back({Kind::send_gradient, cell, m});
    if (crosses && link == Link::staged) way.push_back({Kind::receive_gradient, cell - 1, m});
    way.push_back({Kind::backward, cell - 1, m});
    return way;
}

// What is wrong with programs that were lowered, or nothing.
std::string wrong_with(Lowered const& lowered, Programs const& programs, Array<Link> const& links,
                       Array<bool> const& crosses, bool trains) {
    std::set<std::pair<Name, Name>> needs; // later, earlier
    std::set<Name> transfers;
    for (std::size_t c = 1; c < programs.cells(); ++c)
        for (std::size_t m = 0; m < programs.micro_batches(); ++m) {
            auto const add = [&](std::vector<Name> const& way) {
                for (std::size_t hop = 1; hop < way.size(); ++hop) {
                    needs.insert({way[hop], way[hop - 1]});
                    if (hop + 1 < way.size()) transfers.insert(way[hop]);
                }
            };
            add(way_of_output(links[c], c, m));
            if (trains) add(way_of_gradient(links[c], crosses[c], c, m));
        }

    Programs const& all = lowered.programs;
    if (all.size() != programs.size() + transfers.size()) return "number of actions";
    if (all.cells() != programs.cells() || all.micro_batches() != programs.micro_batches())
        return "shape";
    for (std::size_t c = 0; c < programs.cells(); ++c)
        if (all.device_of(c) != programs.device_of(c)) return "place of a cell";
    if (lowered.device.size() != lowered.streams() || lowered.needs.size() != all.size())
        return "sizes";
    for (std::size_t d = 0; d < programs.devices(); ++d) {
        if (lowered.device[d] != d) return "device of a program";
        if (all.begin(d) != programs.begin(d) || all.end(d) != programs.end(d))
            return "indices of a device's actions";
        for (std::size_t i = all.begin(d); i < all.end(d); ++i)
            if (all[i] != programs[i]) return "actions of a device";
    }

    // Every stream that copies is one device's, of one kind, and in the order of what it brings.
    std::map<Name, std::size_t> rank;
    auto const order = gpipe::linear_order(programs);
    for (std::size_t r = 0; r < order.size(); ++r) rank[name_of(programs[order[r]])] = r;
    for (std::size_t s = programs.devices(); s < lowered.streams(); ++s) {
        std::size_t last = 0;
        for (std::size_t i = all.begin(s); i < all.end(s); ++i) {
            auto const [kind, cell, m] = name_of(all[i]);
            if (!transfers.erase({kind, cell, m})) return "a transfer too many";
            if (kind != all[all.begin(s)].kind) return "a stream with two kinds";
            if (lowered.device[s] != programs.device_of(cell)) return "device of a stream";
            Name const brings = kind == Kind::send_output     ? Name{Kind::forward, cell, m}
                                : kind == Kind::receive_input ? Name{Kind::forward, cell - 1, m}
                                : kind == Kind::send_gradient ? Name{Kind::backward, cell, m}
                                                              : Name{Kind::backward, cell + 1, m};
            if (i > all.begin(s) && rank[brings] <= last) return "order of a stream";
            last = rank[brings];
        }
    }
    if (!transfers.empty()) return "a transfer is missing";

    std::map<Name, std::size_t> number;
    for (std::size_t i = 0; i < all.size(); ++i) {
        number[name_of(all[i])] = i;
        for (std::size_t const needed : lowered.needs[i])
            if (!needs.count({name_of(all[i]), name_of(all[needed])})) return "a need too many";
    }
    HappensBefore const happens_before(lowered);
    for (auto const& [later, earlier] : needs)
        if (!happens_before(number.at(earlier), number.at(later))) return "a need is missing";
    return "";
}

// Device and kind of every stream that a boundary calls for, whether or not anything crosses now.
std::multiset<std::pair<std::size_t, Kind>>
streams_for(Programs const& programs, Array<Link> const& links, Array<bool> const& crosses) {
    std::set<std::pair<std::size_t, Kind>> streams;
    for (std::size_t c = 1; c < programs.cells(); ++c) {
        auto const add = [&](std::vector<Name> const& way) {
            for (std::size_t hop = 1; hop + 1 < way.size(); ++hop)
                streams.insert({programs.device_of(std::get<1>(way[hop])), std::get<0>(way[hop])});
        };
        add(way_of_output(links[c], c, 0));
        add(way_of_gradient(links[c], crosses[c], c, 0));
    }
    return {streams.begin(), streams.end()};
}

template <class F> void each_links(Programs const& programs, std::mt19937_64& random, F f) {
    std::size_t const cells = programs.cells();
    for (std::size_t const lowest : {std::size_t{0}, cells, 1 + random() % cells}) {
        auto const crosses = toy::crossing_from(lowest, cells);
        for (Link const link : {Link::shared, Link::copied, Link::staged})
            f(toy::same_links(programs, link), crosses);
        for (int more = 0; more < 2; ++more) f(toy::mixed_links(programs, random), crosses);
    }
}

std::string wrong_with_order(Lowered const& lowered) {
    Array<std::uint32_t> const& order = lowered.order;
    Programs const& programs = lowered.programs;
    std::vector<std::size_t> rank(programs.size(), no_action);
    if (order.size() != programs.size()) return "length";
    for (std::size_t r = 0; r < order.size(); ++r) {
        if (order[r] >= rank.size() || rank[order[r]] != no_action) return "no permutation";
        rank[order[r]] = r;
    }
    for (std::size_t s = 0; s < lowered.streams(); ++s)
        for (std::size_t i = programs.begin(s); i < programs.end(s); ++i) {
            if (i > programs.begin(s) && rank[i - 1] > rank[i]) return "a program's order";
            for (std::size_t const needed : lowered.needs[i])
                if (rank[needed] > rank[i]) return "a need";
        }
    return "";
}

std::string wrong_with_clocks(HappensBefore const& happens_before, toy::Closure const& closure,
                              std::size_t size) {
    for (std::size_t i = 0; i < size; ++i)
        for (std::size_t j = 0; j < size; ++j)
            if (happens_before(i, j) != closure(i, j))
                return std::to_string(i) + " before " + std::to_string(j);
    return "";
}

} // namespace

TEST_CASE("whatever crosses is sent once, received once where staged, and waited for") {
    std::mt19937_64 random(1);
    std::size_t lowered_programs = 0;
    std::size_t point = 0;
    for (std::size_t k = 1; k <= 6; ++k)
        for (std::size_t m = 1; m <= 7; ++m)
            toy::each_lowering(k, m, [&](Programs const& programs) {
                if (point++ % toy::one_of(1) != 0) return;
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(toy::chance);
                auto const forwards = toy::forwards_of(programs);
                each_links(programs, random, [&](auto const& links, auto const& crosses) {
                    auto const training = toy::lower(programs, links, crosses);
                    auto const evaluation = toy::lower(forwards, links, crosses);
                    CHECK(wrong_with(training, programs, links, crosses, true) == "");
                    CHECK(wrong_with(evaluation, forwards, links, crosses, false) == "");

                    // The same streams in both.
                    auto streams = streams_for(programs, links, crosses);
                    CHECK(training.streams() == programs.devices() + streams.size());
                    REQUIRE(evaluation.streams() == training.streams());
                    for (std::size_t s = programs.devices(); s < training.streams(); ++s) {
                        REQUIRE(training.programs.size(s) > 0);
                        Kind const kind = training.programs.program(s)[0].kind;
                        CHECK(streams.erase({training.device[s], kind}) == 1);
                        CHECK(evaluation.device[s] == training.device[s]);
                        bool const forward =
                            kind == Kind::send_output || kind == Kind::receive_input;
                        CHECK((evaluation.programs.size(s) > 0) == forward);
                        for (Action const& a : evaluation.programs.program(s))
                            CHECK(a.kind == kind);
                    }
                    ++lowered_programs;
                });
            });
    MESSAGE(lowered_programs << " lowered programs");
}

TEST_CASE("a linear order respects programs and needs, and without transfers is what it was") {
    std::mt19937_64 random(2);
    for (std::size_t k = 1; k <= 5; ++k)
        for (std::size_t m = 1; m <= 6; ++m)
            toy::each_lowering(k, m, [&](Programs const& programs) {
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(toy::chance);
                auto const order = gpipe::linear_order(programs);
                auto const same = gpipe::lower(programs).order;
                CHECK(std::equal(order.begin(), order.end(), same.begin(), same.end()));
                each_links(programs, random, [&](auto const& links, auto const& crosses) {
                    auto const lowered = toy::lower(programs, links, crosses);
                    CHECK(wrong_with_order(lowered) == "");
                });
            });
}

TEST_CASE("an order is by start, a transfer taking one unit of time") {
    // F00 | F10 B10 | B00, with a send on either way.
    auto const programs = gpipe::schedule::GPipe::programs(2, 1);
    auto const lowered =
        toy::lower(programs, toy::same_links(programs, Link::copied), toy::crossing_from(1, 2));
    std::vector<Kind> kinds;
    for (std::size_t const i : lowered.order) kinds.push_back(lowered.programs[i].kind);
    CHECK(kinds == std::vector<Kind>{Kind::forward, Kind::send_output, Kind::forward,
                                     Kind::backward, Kind::send_gradient, Kind::backward});
    // While a copy runs, the device goes on: the second forward starts with the first send.
    auto const two = gpipe::schedule::GPipe::programs(2, 2);
    auto const both = toy::lower(two, toy::same_links(two, Link::staged), toy::crossing_from(1, 2));
    std::vector<Action> first;
    for (std::size_t const i : both.order) first.push_back(both.programs[i]);
    first.resize(6);
    CHECK(first == std::vector<Action>{{Kind::forward, 0, 0},
                                       {Kind::forward, 0, 1},
                                       {Kind::send_output, 0, 0},
                                       {Kind::send_output, 0, 1},
                                       {Kind::receive_input, 1, 0},
                                       {Kind::forward, 1, 0}});
}

TEST_CASE("programs that wait for each other have no order") {
    auto const programs = gpipe::schedule::GPipe::programs(2, 2);
    auto lowered =
        toy::lower(programs, toy::same_links(programs, Link::copied), toy::crossing_from(1, 2));
    lowered.needs = toy::with_need(lowered.needs, 0, 1);
    CHECK_THROWS_WITH_AS(gpipe::simulate<std::int64_t>(lowered, gpipe::unit_cost),
                         "gpipe: the programs wait for each other", std::logic_error);
}

TEST_CASE(
    "vector clocks know what the transitive closure knows, and no need of a plan is implied") {
    std::mt19937_64 random(3);
    std::size_t needs = 0;
    std::size_t point = 0;
    for (int round = 0; round < 12; ++round)
        for (std::size_t k = 2; k <= 4; ++k) {
            std::size_t const m = 1 + random() % 4;
            toy::each_lowering(k, m, [&](Programs const& programs) {
                if (point++ % toy::one_of(1) != 0) return;
                CAPTURE(round);
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(toy::chance);
                toy::Sizes sizes;
                sizes.percent_parameters = random() % 4 == 0 ? 20 : 100;
                toy::RandomChain const chain = toy::random_chain(random, k, sizes);
                Array<std::size_t> first(k + 1);
                for (std::size_t c = 0; c <= k; ++c) first[c] = c;
                // With the needs that few slots bring.
                auto lowered = gpipe::plan_memory(chain.shape(), first, programs, 0, 1, {},
                                                  toy::mixed_links(programs, random))
                                   .lowered;
                for (std::size_t i = 0; i < lowered.programs.size(); ++i)
                    for (std::size_t const needed : lowered.needs[i]) {
                        auto without = lowered;
                        without.needs = toy::without_need(lowered.needs, i, needed);
                        CHECK_FALSE(toy::Closure(without)(needed, i));
                        ++needs;
                    }
                CHECK(wrong_with_order(lowered) == "");
                // Of the data alone.
                lowered = toy::lower(programs, toy::mixed_links(programs, random),
                                     toy::crossing_from(1, k));
                HappensBefore const clocks(walk_of(lowered),
                                           find_operands(lowered, gpipe::any_cells(k)));
                REQUIRE(wrong_with_clocks(clocks, toy::Closure(lowered), lowered.order.size()) ==
                        "");
            });
        }
    MESSAGE(needs << " needs, none implied");
}
