// What cells move to the host's memory and back: which micro-batches, that whoever reads finds what
// was written for it in whatever order streams and waits allow, what it saves and what it costs.
#include <support/links.hpp>
#include <support/long_tests.hpp>
#include <support/random_chain.hpp>
#include <support/walker.hpp>

#include <gpipe/checkpoint/offload.hpp>
#include <gpipe/memory/offload_times.hpp>
#include <gpipe/schedule/halves.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
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
using gpipe::Region;
using gpipe::Reversal;

namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();

double cost(Action const& a) { return a.kind == Kind::backward ? 2 : 1; }

// What is followed on its way: all that a micro-batch leaves for its reversal, the input of a cell,
// and the gradient of that.
enum class What : std::uint32_t { retained = 1, input, gradient };
std::uint32_t tag(What what, std::size_t cell, std::size_t m) {
    return static_cast<std::uint32_t>(what) + 4 * static_cast<std::uint32_t>(cell + 64 * m);
}
using Piece = toy::Effect::Tensor;

struct Case {
    gpipe::ChainShape chain;
    MemoryPlan const& plan;
    Array<Reversal> const& reversals;

    std::size_t input_bytes(std::size_t c) const {
        return chain.layers[plan.first[c]].input.slots(plan.capacity);
    }
    std::size_t gradient_bytes(std::size_t c) const {
        return chain.layers[plan.first[c]].input_gradient.slots(plan.capacity);
    }

    static Piece piece(std::byte const* at, std::size_t bytes, std::uint32_t what) {
        return {at, bytes, what, {}};
    }
    // What a whole action does to what is followed, by the definition of its kind.
    toy::Effect effect(gpipe::Step const& step) const {
        toy::Effect e;
        std::size_t const c = step.cell;
        std::size_t const m = step.micro_batch;
        bool const with_input = plan.cells[c].input_moves;
        std::size_t const retained = plan.reversals[c].retained;
        auto const input = [&](std::byte const* at, std::size_t cell) {
            return piece(at, input_bytes(cell), tag(What::input, cell, m));
        };
        auto const gradient = [&](std::byte const* at, std::size_t cell) {
            return piece(at, gradient_bytes(cell), tag(What::gradient, cell, m));
        };
        Piece const kept = piece(step[Region::retained], retained, tag(What::retained, c, m));
        bool const last = c + 1 == reversals.size();
        switch (step.kind) {
        case Kind::send_output:
            e.reads = {input(step[Region::input], c + 1)};
            e.writes = {input(step[Region::output], c + 1)};
            break;
        case Kind::receive_input:
            e.reads = {input(step[Region::input], c)};
            e.writes = {input(step[Region::output], c)};
            break;
        case Kind::send_gradient:
            e.reads = {gradient(step[Region::input], c)};
            e.writes = {gradient(step[Region::output], c)};
            break;
        case Kind::receive_gradient:
            e.reads = {gradient(step[Region::input], c + 1)};
            e.writes = {gradient(step[Region::output], c + 1)};
            break;
        case Kind::offload:
            e.reads = {kept};
            e.writes = {piece(step[Region::output], retained, kept.tag)};
            if (with_input) {
                e.reads.push_back(input(step[Region::input], c));
                e.writes.push_back(input(step[Region::output] + retained, c));
            }
            break;
        case Kind::fetch:
            e.reads = {piece(step[Region::input], retained, kept.tag)};
            e.writes = {kept};
            if (with_input) {
                e.reads.push_back(input(step[Region::input] + retained, c));
                e.writes.push_back(input(step[Region::output], c));
            }
            break;
        default: {
            bool const forward = step.kind == Kind::forward;
            bool const gives = gives_gradient(step.kind);
            bool const learns = chain.lowest_learner < plan.first[c + 1];
            bool const reads_input =
                !gives || (learns && (gpipe::first_layer_again(reversals[c]).in_backward ||
                                      (chain.lowest_learner <= plan.first[c] &&
                                       chain.layers[plan.first[c]].reads_input)));
            if (c > 0 && reads_input) e.reads.push_back(input(step[Region::input], c));
            (forward ? e.writes : e.reads).push_back(kept);
            if (forward && !last) e.writes.push_back(input(step[Region::output], c + 1));
            if (gives && !last && plan.lowered.edges[c].gradient) {
                e.reads.push_back(gradient(step[Region::output_gradient], c + 1));
                if (chain.layers[plan.first[c + 1] - 1].reads_output)
                    e.reads.push_back(input(step[Region::output], c + 1));
            }
            if (step.kind == Kind::recompute && !last) {
                if (plan.rewrites_output(c)) e.writes.push_back(input(step[Region::output], c + 1));
            }
            if (gives && c > 0 && plan.lowered.edges[c - 1].gradient)
                e.writes.push_back(gradient(step[Region::input_gradient], c));
            // Beside it all that the action works in, where that does not hold the gradient.
            if (plan.cells[c].gradient_inside) break;
            e.writes.push_back(
                piece(step[Region::kept], plan.layouts[c].adjacent ? 0 : plan.layouts[c].kept, 0));
            e.writes.push_back(piece(step[Region::temporary], plan.layouts[c].temporary, 0));
        }
        }
        std::erase_if(e.reads, [](Piece const& p) { return p.bytes == 0; });
        std::erase_if(e.writes, [](Piece const& p) { return p.bytes == 0; });
        return e;
    }
};

// Of a failure all behind it is skipped: an offload with its forward, a fetch with the first action
// that needs it.
std::string wrong_with_ranks(gpipe::StepTable const& table) {
    std::map<std::pair<std::size_t, std::size_t>, std::uint32_t> forward, reversal;
    for (gpipe::Step const& step : table.steps) {
        std::pair<std::size_t, std::size_t> const pair{step.cell, step.micro_batch};
        if (step.kind == Kind::forward) forward[pair] = step.rank;
        if (step.kind != Kind::recompute && !gives_gradient(step.kind)) continue;
        auto const [at, is_new] = reversal.insert({pair, step.rank});
        if (!is_new) at->second = std::min(at->second, step.rank);
    }
    for (gpipe::Step const& step : table.steps) {
        std::pair<std::size_t, std::size_t> const pair{step.cell, step.micro_batch};
        if (step.kind == Kind::offload && step.rank != forward.at(pair)) return "offload";
        if (step.kind == Kind::fetch && step.rank != reversal.at(pair)) return "fetch";
    }
    return "";
}

// A reversal of so many layers by one policy or another, offloaded or not.
Reversal some_reversal(std::mt19937_64& random, std::size_t layers) {
    Reversal result;
    switch (random() % 4) {
    case 0:
        result = gpipe::keep_everything(layers);
        break;
    case 1:
        result = gpipe::every_segment(layers, 1 + random() % 3);
        break;
    case 2:
        result = gpipe::equal_segments(layers, 1);
        break;
    default:
        result = gpipe::revolve(layers, random() % 3);
    }
    result.offload = random() % 4 != 0;
    return result;
}

struct Planned {
    toy::RandomChain chain;
    Array<Reversal> reversals;
    MemoryPlan plan;
};
Planned some_plan(Programs const& schedule, std::mt19937_64& random) {
    std::size_t const cells = schedule.cells();
    toy::Sizes sizes;
    sizes.most_bytes = 700;
    int const percents[] = {100, 100, 60, 20, 0}; // gradients everywhere ... nowhere
    sizes.percent_parameters = percents[random() % 5];
    std::size_t const length = cells + random() % (2 * cells + 1);
    Planned result{toy::random_chain(random, length, sizes), Array<Reversal>(cells), {}};
    Array<std::size_t> first(cells + 1);
    for (std::size_t c = 1; c <= cells; ++c) first[c] = first[c - 1] + 1;
    for (std::size_t more = length - cells; more > 0; --more)
        for (std::size_t c = 1 + random() % cells; c <= cells; ++c) ++first[c];
    for (std::size_t c = 0; c < cells; ++c)
        result.reversals[c] = some_reversal(random, first[c + 1] - first[c]);
    Programs const programs = gpipe::lower_reversed(schedule, result.reversals);
    auto const links = random() % 3 == 0   ? toy::same_links(programs, Link::shared)
                       : random() % 2 == 0 ? toy::mixed_links(programs, random)
                                           : toy::same_links(programs, Link::staged);
    result.plan = gpipe::plan_memory(result.chain.shape(), first, programs, 1, 1 + random() % 2, {},
                                     links, result.reversals);
    return result;
}
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

} // namespace

TEST_CASE("whoever reads finds what was written for it, in whatever order, and nobody waits on") {
    std::mt19937_64 random(1);
    std::size_t walks = 0;
    std::size_t moved = 0;
    for (std::uint64_t seed = 1; seed <= (toy::long_tests() ? 40 : 3); ++seed)
        each_schedule(random, [&](Programs const& schedule) {
            Planned const with = some_plan(schedule, random);
            toy::Places const places(with.plan);
            Case const test{with.chain.shape(), with.plan, with.reversals};
            toy::Tabled const tabled(with.plan, places);
            for (toy::Pace const pace : {toy::Pace::any, toy::paces[1 + random() % 4]}) {
                CAPTURE(static_cast<int>(pace));
                REQUIRE(toy::walk(tabled.table, places, with.plan.devices.size(), pace, random,
                                  [&](gpipe::Step const& step) {
                                      return std::vector{test.effect(step)};
                                  }) == "");
                ++walks;
            }
            REQUIRE(wrong_with_ranks(tabled.table) == "");
            for (Action const& a : std::vector<Action>(with.plan.lowered.programs.actions(),
                                                       with.plan.lowered.programs.actions() +
                                                           with.plan.lowered.programs.size()))
                moved += a.kind == Kind::offload;
        });
    MESSAGE(walks << " walks, " << moved << " offloads");
}

namespace {

// The same plan with nothing offloaded.
MemoryPlan kept(Planned const& with) {
    auto reversals = with.reversals;
    for (Reversal& reversal : reversals) reversal.offload = false;
    Array<Link> links(reversals.size());
    for (std::size_t c = 1; c < links.size(); ++c) links[c] = with.plan.lowered.edges[c - 1].link;
    return gpipe::plan_memory(with.chain.shape(), with.plan.first, with.plan.lowered.computing(), 1,
                              with.plan.capacity, {}, links, reversals);
}
double time_of(MemoryPlan const& plan, double bandwidth) {
    return gpipe::simulate<double>(plan.lowered, gpipe::OffloadCosts{plan, cost, bandwidth})
        .makespan;
}

} // namespace

TEST_CASE("no device needs more memory because of it, and copies that take no time take none of a "
          "step's, or one percent under BreadthFirst") {
    std::mt19937_64 random(3);
    std::size_t less = 0;
    std::size_t slower = 0;
    std::size_t plans = 0;
    for (std::size_t m : {1u, 3u, 8u, 13u, 32u})
        toy::each_of_catalogue(4, 9, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            int const rounds = toy::long_tests() ? 40 : toy::sanitized ? 1 : 4;
            for (int round = 0; round < rounds; ++round) {
                std::string const name(schedule.name());
                CAPTURE(name);
                CAPTURE(k);
                CAPTURE(m);
                Planned const with = some_plan(joined(schedule.programs(k, m)), random);
                MemoryPlan const without = kept(with);
                for (std::size_t d = 0; d < without.devices.size(); ++d) {
                    CHECK(with.plan.devices[d].total() <= without.devices[d].total());
                    less += with.plan.devices[d].total() < without.devices[d].total();
                }
                double const time = time_of(with.plan, unlimited);
                double const least = time_of(without, unlimited);
                CHECK(time <= (name == "BreadthFirst" ? 1.01 : 1) * least);
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
                chain.shape(), first,
                gpipe::lower_reversed(gpipe::schedule::GPipe::programs(k, m), reversals), 1, 1, {},
                {}, reversals);
            for (std::size_t c = 0; c < k; ++c) {
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(c);
                CHECK(plan.pools.pool(Holds::retained, c).slots == 2);
                CHECK(plan.cells[c].input_moves == (c > 0 && m > 5));
                if (c > 0) CHECK(plan.pools.pool(Holds::input, c - 1).slots == (m > 5 ? 4 : 6));
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
        for (Reversal& reversal : reversals) reversal = some_reversal(random, 3);
        Programs const programs = gpipe::lower_reversed(schedule, reversals);
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
                if (leaves) CHECK(offloads.trigger(c, m) == triggers[m]);
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
        auto const lowered = gpipe::simulate<double>(gpipe::lower(programs), any_cost);
        CHECK(lowered.makespan == times.makespan);
        CHECK(lowered.busy == times.busy);
        for (std::size_t i = 0; i < programs.size(); ++i) {
            REQUIRE(lowered.start[i] == times.start[i]);
            REQUIRE(lowered.end[i] == times.end[i]);
        }
    });
    auto lowered = gpipe::lower(gpipe::schedule::GPipe::programs(2, 2));
    lowered.needs = toy::with_need(lowered.needs, 0, 1);
    CHECK_THROWS_WITH_AS(gpipe::simulate<double>(lowered, cost),
                         "gpipe: the programs wait for each other", std::logic_error);
}

TEST_CASE("offloading is free from some bandwidth on, and that is found") {
    std::mt19937_64 random(7);
    std::size_t found = 0;
    each_schedule(random, [&](Programs const& schedule) {
        Planned const with = some_plan(schedule, random);
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
