// Slots that values take in turns: who takes which, how many there are, and that nobody waits for
// room but where patience allows it; and what that rests on, order and vector clocks.
#include <support/links.hpp>
#include <support/long_tests.hpp>

#include <gpipe/plan/happens_before.hpp>
#include <gpipe/plan/pools.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
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
using gpipe::Programs;
using gpipe::schedule::GPipe;

namespace {

// What reads the tensors of all edges, and whether recomputes leave outputs that nobody reads.
struct Uses {
    bool gradient = true;
    bool taker_reverses = true;
    bool taker_weighs = false;
    bool giver_reverses = false;
    bool giver_weighs = false;
    bool discards = false;
};
template <class F> void each_uses(F f) {
    for (unsigned flags = 0; flags < 64; ++flags) {
        auto const flag = [&](unsigned bit) { return (flags >> bit & 1) != 0; };
        Uses const uses{flag(0), flag(1), flag(2), flag(3), flag(4), flag(5)};
        if (uses.taker_weighs && !uses.taker_reverses) continue;
        if (!uses.gradient && (uses.giver_reverses || uses.giver_weighs || uses.discards)) continue;
        CAPTURE(flags);
        f(uses);
    }
}

// The slots of programs; `patient`: two on the sending side are enough, as in plans.
struct Slots {
    gpipe::Lowered lowered;
    gpipe::Operands operands;
    gpipe::Walk walk;
    gpipe::Pools pools;

    Slots(Programs const& programs, Link link, Uses const& uses, bool patient = false) {
        std::size_t const cells = programs.cells();
        gpipe::Edges edges = toy::neighbours(cells);
        auto const links = toy::same_links(programs, link);
        for (std::size_t e = 0; e < edges.size(); ++e) {
            edges[e].link = links[e + 1];
            edges[e].gradient = uses.gradient;
            using enum gpipe::Stage;
            gpipe::CallReads taker, giver, takes;
            toy::read_in(taker, recompute);
            toy::read_in(takes, backward);
            if (uses.taker_reverses) toy::read_in(taker, backward);
            if (uses.taker_weighs) toy::read_in(taker, weight_gradient);
            if (uses.giver_reverses) toy::read_in(giver, backward);
            if (uses.giver_weighs) toy::read_in(takes, weight_gradient);
            if (uses.giver_reverses && uses.giver_weighs) toy::read_in(giver, weight_gradient);
            edges[e].taker_reads = taker;
            edges[e].giver_reads = giver;
            edges[e].gradient_reads = takes;
        }
        lowered = toy::lower(programs, edges);
        auto values = toy::any_cells(cells);
        for (std::size_t c = 1; c < cells; ++c) values[c].discards = uses.discards;
        operands = find_operands(lowered, values);
        lowered.order = order_of(lowered, operands);
        walk = walk_of(lowered);
        pools = gpipe::Pools(edges.size(), cells, 0);
        Array<gpipe::Patience> patience(pools.size());
        for (std::size_t e = 0; e < edges.size() && patient; ++e)
            for (Holds const holds : {Holds::output, Holds::staged_output, Holds::staged_gradient})
                patience[pools.number(holds, e)].enough =
                    std::min<std::size_t>(2, programs.micro_batches());
        pools = assign_slots(walk, lowered, operands, patience);
    }
    std::size_t count(Holds holds, std::size_t owner) const {
        return pools.pool(holds, owner).slots;
    }
};

// What has a slot, and from which action to which in the linear order.
struct Stay {
    std::size_t slot, from, to;
    std::uint32_t value;
};
std::map<gpipe::Pool const*, std::vector<Stay>> stays_in(Slots const& slots) {
    std::map<std::uint32_t, Stay> by_value;
    for (std::size_t rank = 0; rank < slots.walk.order.size(); ++rank)
        for (gpipe::Operand const& operand : slots.operands[slots.walk.order[rank]]) {
            auto const [at, is_new] = by_value.insert(
                {operand.value, {slots.pools.of(operand.value), rank, rank, operand.value}});
            at->second.to = rank;
        }
    std::map<gpipe::Pool const*, std::vector<Stay>> result;
    for (auto const& [v, stay] : by_value) {
        gpipe::Value const& value = slots.operands.values[v];
        bool const turn =
            value.holds == Holds::turn ||
            (value.holds == Holds::gradient && !slots.lowered.edges[value.owner].gradient);
        if (!turn) result[&slots.pools.pool_of(value, slots.lowered.edges)].push_back(stay);
    }
    return result;
}
std::size_t most_at_once(std::vector<Stay> const& stays) {
    std::size_t most = 0;
    for (Stay const& begins : stays) {
        std::size_t now = 0;
        for (Stay const& stay : stays) now += stay.from <= begins.from && begins.from <= stay.to;
        most = std::max(most, now);
    }
    return most;
}

// Calls f(programs) for every schedule there is and for some by chance, whole backwards among
// halves, under every checkpointing policy.
template <class F> void each_program(std::size_t most_devices, std::size_t most_cells, F f) {
    std::size_t point = 0;
    for (std::size_t m : {1u, 2u, 3u, 6u})
        toy::each_of_catalogue(most_devices, most_cells, m,
                               [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
                                   if (point++ % (toy::one_of(1) > 1 ? 5 : 1) != 0) return;
                                   std::string const name(schedule.name());
                                   CAPTURE(name);
                                   CAPTURE(k);
                                   CAPTURE(m);
                                   for (auto const lower : toy::lowerings)
                                       f(lower(schedule.programs(k, m)));
                               });
    std::mt19937_64 random(1);
    for (int round = 0; round < (toy::long_tests() ? 1000 : 30); ++round) {
        CAPTURE(round);
        int const percent_whole[] = {0, 30, 80};
        auto const schedule = toy::mixed_by_chance(1 + random() % most_cells, 1 + random() % 5,
                                                   percent_whole[random() % 3], random);
        for (auto const lower : toy::lowerings) f(lower(schedule));
    }
}

} // namespace

TEST_CASE(
    "G4 no slot is taken while what it held may still be used, whatever the timing; in patience "
    "there are no more than hold something at once, but two") {
    std::size_t values = 0;
    std::size_t point = 0;
    each_program(3, 6, [&](Programs const& programs) {
        each_uses([&](Uses const& uses) {
            if (point++ % toy::one_of(5) != 0) return;
            for (Link const link : {Link::shared, Link::copied, Link::staged})
                for (bool const patient : {false, true}) {
                    CAPTURE(static_cast<int>(link));
                    CAPTURE(patient);
                    Slots const slots(programs, link, uses, patient);
                    auto const happens_before = toy::happens_before(slots.lowered);
                    std::size_t const two = std::min<std::size_t>(2, programs.micro_batches());
                    for (auto const& [pool, stays] : stays_in(slots)) {
                        std::size_t const least = most_at_once(stays);
                        REQUIRE(pool->slots >= least);
                        bool waits = false;
                        for (Stay const& a : stays) {
                            REQUIRE(a.slot < pool->slots);
                            std::uint32_t const writer = slots.operands.values[a.value].writer;
                            for (Stay const& b : stays) {
                                if (a.slot != b.slot || b.from >= a.from) continue;
                                REQUIRE(b.to < a.from);
                                for (std::size_t r = b.from; r <= b.to; ++r)
                                    for (auto const& operand : slots.operands[slots.walk.order[r]])
                                        waits =
                                            waits || (operand.value == b.value &&
                                                      !happens_before(slots.walk.order[r], writer));
                            }
                        }
                        if (!patient) REQUIRE_FALSE(waits);
                        if (waits) REQUIRE(pool->slots <= std::max(least, two));
                        values += stays.size();
                    }
                }
        });
    });
    MESSAGE(values << " values");
}

namespace {

// The most micro-batches of a cell that are between an action that `begins` and one that `ends`.
template <class Begins, class Ends>
std::size_t most_between(Programs const& programs, std::size_t cell, Begins begins, Ends ends) {
    std::size_t now = 0;
    std::size_t most = 0;
    for (std::size_t i = 0; i < programs.size(); ++i) {
        if (programs[i].cell != cell) continue;
        if (begins(programs[i].kind)) most = std::max(most, ++now);
        if (ends(programs[i].kind)) --now;
    }
    return most;
}
bool is_forward(Kind kind) { return kind == Kind::forward; }
// Those whose weight gradient has been put off.
std::size_t most_put_off(Programs const& programs, std::size_t cell) {
    return most_between(
        programs, cell, [](Kind kind) { return kind == Kind::input_gradient; },
        [](Kind kind) { return kind == Kind::weight_gradient; });
}

} // namespace

// P4. A gradient takes the place of an input that nobody reads any more. Not so of an input that
// the backward of the cell before reads as its output, nor, until the weight gradient has run, of
// one that a layer with such a half reads: these have a slot beside their gradient's.
TEST_CASE("one slot more than micro-batches in flight serves inputs and their gradients, one more "
          "for each weight gradient that is put off and reads the input (P4)") {
    std::map<std::string, std::size_t> beyond; // in flight and one
    std::size_t boundaries = 0;
    std::size_t reached = 0;
    std::size_t point = 0;
    for (std::size_t m = 1; m <= 12; ++m)
        toy::each_of_catalogue(6, 12, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            if (point++ % toy::one_of(1) != 0) return;
            std::string const name(schedule.name());
            CAPTURE(name);
            CAPTURE(k);
            CAPTURE(m);
            for (auto const lower : toy::lowerings) {
                Programs const programs = lower(schedule.programs(k, m));
                for (Uses const& uses :
                     {Uses{}, Uses{.taker_weighs = true}, Uses{.giver_reverses = true},
                      Uses{.taker_weighs = true, .giver_reverses = true, .giver_weighs = true},
                      Uses{.discards = true}}) {
                    Slots const slots(programs, Link::shared, uses);
                    for (std::size_t e = 0; e + 1 < programs.cells(); ++e) {
                        // In the cell before: until the last that reads there has run.
                        std::size_t const there =
                            most_between(programs, e, is_forward, [&](Kind kind) {
                                return uses.giver_weighs ? ends_backward(kind)
                                                         : gives_gradient(kind);
                            });
                        std::size_t const put_off =
                            uses.taker_weighs ? most_put_off(programs, e + 1) : 0;
                        std::size_t const bound = std::min(
                            (uses.giver_reverses ? 2 * there : there + 1) + put_off, 2 * m);
                        std::size_t const count = slots.count(Holds::input, e);
                        REQUIRE(count <= bound);
                        reached += count == bound;
                        ++boundaries;
                        if (!uses.giver_reverses && count > there + 1)
                            beyond[name] = std::max(beyond[name], count - there - 1);
                    }
                }
            }
        });
    MESSAGE(boundaries << " boundaries, " << reached << " with as many slots as the bound");
    for (auto const& [name, more] : beyond)
        MESSAGE(name << ": up to " << more << " slots for weight gradients that are put off");
    for (std::size_t k = 2; k <= 6; ++k)
        for (std::size_t m = 1; m <= 9; ++m)
            for (std::size_t e = 0; e + 1 < k; ++e) {
                Programs const programs = GPipe::programs(k, m);
                CHECK(Slots(programs, Link::shared, {}).count(Holds::input, e) == m + 1);
                CHECK(Slots(programs, Link::shared, {.gradient = false}).count(Holds::input, e) ==
                      m);
            }
}

TEST_CASE("two slots of an outbox serve outputs and gradients of GPipe and 1F1B") {
    for (std::size_t k = 2; k <= 6; ++k)
        for (std::size_t m = 1; m <= 9; ++m)
            for (Link const link : {Link::copied, Link::staged}) {
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(static_cast<int>(link));
                auto const most = [&](Programs const& programs, Uses const& uses) {
                    Slots const slots(programs, link, uses, true);
                    std::size_t result = 0;
                    for (std::size_t e = 0; e + 1 < k; ++e) {
                        result = std::max(result, slots.count(Holds::output, e));
                        if (link != Link::staged) continue;
                        CHECK(slots.count(Holds::staged_output, e) <= 2);
                        CHECK(slots.count(Holds::staged_gradient, e) <= 2);
                    }
                    return result;
                };
                std::size_t const two = std::min<std::size_t>(2, m);
                Programs const in_flight = toy::OneForwardOneBackward::programs(k, m);
                for (auto const lower : toy::lowerings) {
                    CHECK(most(lower(GPipe::programs(k, m)), {}) == two);
                    CHECK(most(lower(in_flight), {}) == two);
                    CHECK(most(lower(GPipe::programs(k, m)), {.gradient = false}) <= two);
                }
                // With what a recompute writes again; without, one more than are in flight.
                Uses const kept{.giver_reverses = true};
                CHECK(most(gpipe::checkpoint::Always::lower(GPipe::programs(k, m)), kept) == 2);
                CHECK(most(gpipe::checkpoint::Always::lower(in_flight), kept) == 2);
                for (Programs const& programs : {GPipe::programs(k, m), in_flight})
                    CHECK(most(programs, kept) == gpipe::peak_micro_batches(programs, 0) + 1);
            }
}

// Where cells lie in V order a device is not always sure that what it has sent has gone.
TEST_CASE("no boundary needs more slots on the receiving side because of transfers, or one more "
          "under DualPipeV and VHalf") {
    std::map<std::string, std::size_t> more;
    std::size_t point = 0;
    for (std::size_t m = 1; m <= 9; ++m)
        toy::each_of_catalogue(5, 10, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            if (point++ % toy::one_of(1) != 0) return;
            for (auto const lower : toy::lowerings)
                for (Uses const& uses : {Uses{}, Uses{.taker_weighs = true}}) {
                    Programs const programs = lower(schedule.programs(k, m));
                    Slots const shared(programs, Link::shared, uses);
                    for (Link const link : {Link::copied, Link::staged}) {
                        Slots const apart(programs, link, uses, true);
                        for (std::size_t e = 0; e + 1 < programs.cells(); ++e) {
                            std::size_t& most = more[std::string(schedule.name())];
                            if (apart.count(Holds::input, e) > shared.count(Holds::input, e))
                                most = std::max(most, apart.count(Holds::input, e) -
                                                          shared.count(Holds::input, e));
                        }
                    }
                }
        });
    for (auto const& each : more) {
        std::string const& name = each.first;
        CAPTURE(name);
        CHECK(each.second <= (name == "DualPipeV" || name == "VHalf"));
    }
}

namespace {

// What happens before what, from the definition: the transitive closure of the programs' order and
// the needs. By pair [earlier][later].
class Closure {
  public:
    explicit Closure(gpipe::Lowered const& lowered)
        : size_(lowered.programs.size()), before_(size_ * size_) {
        for (std::size_t s = 0; s < lowered.streams(); ++s)
            for (std::size_t i = lowered.programs.begin(s); i < lowered.programs.end(s); ++i) {
                if (i > lowered.programs.begin(s)) before_[(i - 1) * size_ + i] = true;
                for (std::size_t const needed : lowered.needs[i])
                    before_[needed * size_ + i] = true;
            }
        for (std::size_t by = 0; by < size_; ++by)
            for (std::size_t i = 0; i < size_; ++i)
                for (std::size_t j = 0; before_[i * size_ + by] && j < size_; ++j)
                    if (before_[by * size_ + j]) before_[i * size_ + j] = true;
    }
    bool operator()(std::size_t earlier, std::size_t later) const {
        return before_[earlier * size_ + later];
    }

  private:
    std::size_t size_;
    std::vector<char> before_;
};

} // namespace

TEST_CASE("vector clocks know what the transitive closure knows") {
    std::mt19937_64 random(3);
    std::size_t point = 0;
    for (int round = 0; round < 12; ++round)
        for (std::size_t k = 2; k <= 4; ++k)
            toy::each_lowering(k, 1 + random() % 4, [&](Programs const& programs) {
                if (point++ % toy::one_of(1) != 0) return;
                auto const lowered = toy::lower(programs, toy::mixed_links(programs, random),
                                                toy::crossing_from(1, k));
                auto const clocks = toy::happens_before(lowered);
                Closure const closure(lowered);
                for (std::size_t i = 0; i < lowered.order.size(); ++i)
                    for (std::size_t j = 0; j < lowered.order.size(); ++j)
                        REQUIRE(clocks(i, j) == closure(i, j));
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
