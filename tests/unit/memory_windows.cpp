// Few slots for what is sent and what arrives: who takes which, and how many there are.
#include <support/links.hpp>
#include <support/long_tests.hpp>

#include <gpipe/memory/window.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

using gpipe::Kind;
using gpipe::Link;
using gpipe::Lowered;
using gpipe::no_action;
using gpipe::Programs;

TEST_CASE("a writer takes room that it need not wait for, else what has been free for longest") {
    // Device 0: forwards 0 to 3, then backwards; the sends of its outputs are on another stream.
    auto const programs = gpipe::schedule::GPipe::programs(2, 4);
    auto const lowered =
        toy::lower(programs, toy::same_links(programs, Link::copied), toy::crossing_from(1, 2));
    gpipe::HappensBefore const happens_before(lowered);
    std::size_t const sends = lowered.programs.begin(2);
    REQUIRE(lowered.programs[sends] == gpipe::Action{Kind::send_output, 0, 0});
    gpipe::detail::Window window(happens_before, 2, 8);
    auto const frees = [&](std::size_t slot, std::size_t reader, std::size_t rank) {
        window.use(slot, reader);
        window.give_back(slot, rank);
    };
    CHECK(window.take(0, 0) == 0);
    CHECK(window.take(1, 1) == 1);
    frees(0, sends, 2);
    frees(1, sends + 1, 3);
    CHECK(window.take(2, 4) == 0); // neither is sure: the first
    CHECK(window.take(3, 5) == 1);
    frees(0, 2, 6);
    frees(1, 3, 7);
    CHECK(window.take(4, 8) == 1); // both are: the last
    CHECK(window.take(5, 9) == 0);
    CHECK(window.take(6, 10) == 2); // none is free
    frees(2, sends + 2, 11);
    frees(0, 5, 12);
    CHECK(window.take(7, 13) == 0); // sure before old
    CHECK(window.count() == 3);
}

namespace {

// The most slots at any boundary, of a schedule under a policy, over K and M.
struct Most {
    std::size_t outbox = 0;
    std::size_t staging = 0;
};
struct Uses {
    bool crosses = true;
    bool kept = false;  // whether the backward before the boundary reads its output
    bool holds = false; // whether its weight gradient, apart, reads that and the gradient
};
// Programs with their transfers.
struct Planned {
    Lowered lowered;
    gpipe::Array<std::uint32_t> order;
    gpipe::Array<gpipe::Outbox> outboxes; // by cell behind the boundary
    gpipe::Array<gpipe::StagingSlots> outputs, gradients;
};
Planned plan_windows(Programs const& programs, Link link, Uses uses) {
    std::size_t const cells = programs.cells();
    auto const links = toy::same_links(programs, link);
    Planned plan;
    plan.lowered = toy::lower(programs, links, toy::crossing_from(uses.crosses ? 1 : cells, cells));
    plan.order = toy::order_of(plan.lowered);
    gpipe::HappensBefore const happens_before(plan.lowered);
    plan.outboxes = gpipe::Array<gpipe::Outbox>(cells);
    plan.outputs = plan.gradients = gpipe::Array<gpipe::StagingSlots>(cells);
    for (std::size_t c = 1; c < cells; ++c) {
        if (links[c] == Link::shared) continue;
        plan.outboxes[c] = gpipe::assign_outbox(plan.lowered, plan.order, happens_before, c, link,
                                                uses.kept, uses.holds);
        if (link != Link::staged) continue;
        auto const stage = [&](std::size_t cell, bool gradients) {
            return gpipe::assign_staging(plan.lowered, plan.order, happens_before, cell, gradients);
        };
        plan.outputs[c] = stage(c - 1, false);
        if (uses.crosses) plan.gradients[c] = stage(c, true);
    }
    return plan;
}
Most most_slots(Programs const& programs, Link link, Uses uses) {
    auto const plan = plan_windows(programs, link, uses);
    Most most;
    for (std::size_t c = 1; c < programs.cells(); ++c) {
        most.outbox = std::max(most.outbox, plan.outboxes[c].slots);
        most.staging = std::max({most.staging, plan.outputs[c].slots, plan.gradients[c].slots});
    }
    return most;
}
template <class F> void each_size(F f) {
    for (std::size_t k = 2; k <= 6; ++k)
        for (std::size_t m = 1; m <= 9; ++m)
            for (Link const link : {Link::copied, Link::staged}) {
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(static_cast<int>(link));
                f(k, m, link);
            }
}

} // namespace

TEST_CASE("outputs alone need two slots on either side of the host, whatever the schedule") {
    each_size([](std::size_t k, std::size_t m, Link link) {
        toy::each_lowering(k, m, [&](Programs const& programs) {
            Most const most = most_slots(programs, link, {false});
            CHECK(most.outbox <= std::min<std::size_t>(2, m));
        });
        for (Programs const& programs :
             {gpipe::schedule::GPipe::programs(k, m), toy::OneForwardOneBackward::programs(k, m),
              toy::OneByOne::programs(k, m), toy::Dealt::programs(k, m)})
            for (bool const crosses : {false, true})
                CHECK(most_slots(programs, link, {crosses}).staging <=
                      (link == Link::staged ? std::min<std::size_t>(2, m) : 0));
    });
}

TEST_CASE("two slots of an outbox serve outputs and gradients of GPipe and 1F1B") {
    using gpipe::checkpoint::Always;
    using gpipe::checkpoint::ExceptLast;
    using gpipe::schedule::GPipe;
    using gpipe::schedule::GPipeAscending;
    using toy::OneForwardOneBackward;
    each_size([](std::size_t k, std::size_t m, Link link) {
        std::size_t const two = std::min<std::size_t>(2, m);
        for (auto const lower :
             {&gpipe::checkpoint::Never::lower, &ExceptLast::lower, &Always::lower}) {
            CHECK(most_slots(lower(GPipe::programs(k, m)), link, {}).outbox == two);
            CHECK(most_slots(lower(OneForwardOneBackward::programs(k, m)), link, {}).outbox == two);
            CHECK(most_slots(lower(GPipeAscending::programs(k, m)), link, {}).outbox <= two + 1);
        }
        // With what a recompute writes again.
        Uses const kept{true, true};
        CHECK(most_slots(Always::lower(GPipe::programs(k, m)), link, kept).outbox == 2);
        CHECK(most_slots(ExceptLast::lower(GPipe::programs(k, m)), link, kept).outbox == 2);
        CHECK(most_slots(Always::lower(OneForwardOneBackward::programs(k, m)), link, kept).outbox ==
              2);
        CHECK(most_slots(ExceptLast::lower(OneForwardOneBackward::programs(k, m)), link, kept)
                  .outbox <= 3);
        // Without, one slot more than micro-batches in flight.
        for (Programs const& programs :
             {GPipe::programs(k, m), GPipeAscending::programs(k, m),
              OneForwardOneBackward::programs(k, m), toy::OneByOne::programs(k, m)})
            CHECK(most_slots(programs, link, kept).outbox ==
                  gpipe::peak_micro_batches(programs, 0) + 1);
    });
}

namespace {

constexpr gpipe::Programs (*policies[])(Programs const&) = {&gpipe::checkpoint::Never::lower,
                                                            &gpipe::checkpoint::ExceptLast::lower,
                                                            &gpipe::checkpoint::Always::lower};
constexpr Uses all_uses[] = {{true, false, false},
                             {true, false, true},
                             {true, true, false},
                             {true, true, true},
                             {false, false, false}};

// What has a slot from one action to another, by rank in the linear order.
struct Stay {
    std::size_t from, to, slot;
};
std::size_t most_at_once(std::vector<Stay> const& stays) {
    std::size_t most = 0;
    for (Stay const& begins : stays) {
        std::size_t now = 0;
        for (Stay const& stay : stays) now += stay.from <= begins.from && begins.from <= stay.to;
        most = std::max(most, now);
    }
    return most;
}

// The stays in an outbox, from who writes and who reads: an output until it has been sent, or
// backward has read it; what a recompute writes and a gradient until backward has.
std::vector<Stay> stays_in_outbox(Planned const& plan, std::size_t cell, Link link, Uses uses) {
    Programs const& programs = plan.lowered.programs;
    gpipe::Outbox const& outbox = plan.outboxes[cell];
    std::vector<Stay> stays;
    for (std::size_t m = 0; m < programs.micro_batches(); ++m) {
        std::size_t forward = no_action, recompute = no_action, sent = no_action;
        std::size_t arrives = no_action, last = no_action;
        for (std::size_t rank = 0; rank < plan.order.size(); ++rank) {
            gpipe::Action const& a = programs[plan.order[rank]];
            if (a.micro_batch != m) continue;
            bool const before = a.cell + 1 == cell;
            if (before && a.kind == Kind::forward) forward = rank;
            if (before && a.kind == Kind::recompute) recompute = rank;
            if (before && a.kind == Kind::send_output) sent = rank;
            if (link == Link::copied ? a.cell == cell && a.kind == Kind::send_gradient
                                     : before && a.kind == Kind::receive_gradient)
                arrives = rank;
            if (before &&
                (gives_gradient(a.kind) || (uses.holds && a.kind == Kind::weight_gradient)))
                last = rank;
        }
        bool const again = uses.kept && recompute != no_action;
        stays.push_back({forward, uses.kept && !again ? last : sent, outbox.output[m]});
        if (again) stays.push_back({recompute, last, outbox.recomputed[m]});
        if (arrives != no_action) stays.push_back({arrives, last, outbox.gradient[m]});
    }
    return stays;
}
std::vector<Stay> stays_on_host(Planned const& plan, std::size_t cell, bool gradients) {
    Programs const& programs = plan.lowered.programs;
    gpipe::StagingSlots const& slots = gradients ? plan.gradients[cell] : plan.outputs[cell];
    std::vector<Stay> stays(slots.slot.size());
    for (std::size_t rank = 0; rank < plan.order.size(); ++rank) {
        gpipe::Action const& a = programs[plan.order[rank]];
        if (a.kind == (gradients ? Kind::send_gradient : Kind::send_output) &&
            a.cell + !gradients == cell)
            stays[a.micro_batch].from = rank, stays[a.micro_batch].slot = slots.slot[a.micro_batch];
        if (a.kind == (gradients ? Kind::receive_gradient : Kind::receive_input) &&
            a.cell + gradients == cell)
            stays[a.micro_batch].to = rank;
    }
    return stays;
}

} // namespace

TEST_CASE(
    "there are as many slots as hold something at once in the linear order, but two at least") {
    std::size_t boundaries = 0;
    // By schedule: the most slots of an outbox if outputs and gradients stay until they are sent
    // and read, and of staged tensors.
    std::map<std::string, Most> figures;
    std::size_t point = 0;
    auto const check = [&](Programs const& programs, std::string const& name) {
        if (point++ % toy::one_of(1) != 0) return;
        for (Link const link : {Link::copied, Link::staged})
            for (Uses const& uses : all_uses) {
                auto const plan = plan_windows(programs, link, uses);
                std::size_t const two = std::min<std::size_t>(2, programs.micro_batches());
                auto const check_stays = [&](std::vector<Stay> const& stays, std::size_t slots) {
                    std::size_t const least = most_at_once(stays);
                    REQUIRE(slots >= least);
                    REQUIRE(slots <= std::max(least, two));
                    for (Stay const& a : stays) {
                        REQUIRE(a.slot < slots);
                        for (Stay const& b : stays)
                            REQUIRE(
                                (&a == &b || a.slot != b.slot || a.to < b.from || b.to < a.from));
                    }
                };
                Most& most = figures[name];
                for (std::size_t c = 1; c < programs.cells(); ++c) {
                    if (programs.device_of(c - 1) == programs.device_of(c)) continue;
                    check_stays(stays_in_outbox(plan, c, link, uses), plan.outboxes[c].slots);
                    if (!uses.kept && !uses.holds)
                        most.outbox = std::max(most.outbox, plan.outboxes[c].slots);
                    ++boundaries;
                    if (link != Link::staged) continue;
                    check_stays(stays_on_host(plan, c, false), plan.outputs[c].slots);
                    if (uses.crosses)
                        check_stays(stays_on_host(plan, c, true), plan.gradients[c].slots);
                    most.staging =
                        std::max({most.staging, plan.outputs[c].slots, plan.gradients[c].slots});
                }
            }
    };
    for (std::size_t m : {1u, 2u, 3u, 6u, 10u})
        toy::each_of_catalogue(5, 10, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            std::string const name = std::string(schedule.name()) + ", " +
                                     std::to_string(schedule.cells_per_device()) + " per device";
            CAPTURE(name);
            CAPTURE(k);
            CAPTURE(m);
            Programs const programs = schedule.programs(k, m);
            check(programs, name);
            check(gpipe::checkpoint::ExceptLast::lower(programs), name + ", recomputing");
            check(gpipe::checkpoint::Always::lower(programs), name + ", recomputing");
        });
    std::mt19937_64 random(1);
    for (int round = 0; round < 100; ++round) {
        CAPTURE(round);
        auto const schedule = toy::mixed_by_chance(1 + random() % 6, 1 + random() % 6, 40, random);
        for (auto const lower : policies) check(lower(schedule), "by chance");
    }
    MESSAGE(boundaries << " boundaries");
    // Two each, but where many micro-batches have gone forward before the first comes back: all of
    // a cell's in breadth-first order, and some where recomputes leave gradients waiting.
    for (auto const& [name, most] : figures) {
        if (most.outbox > 2) MESSAGE(name << ": up to " << most.outbox << " slots in an outbox");
        if (name == "by chance") continue;
        CHECK((most.staging == 2 || toy::one_of(1) > 1));
        bool const breadth_first =
            name.starts_with("BreadthFirst") && !name.starts_with("BreadthFirst, 1");
        bool const recomputes = name.ends_with("recomputing");
        CHECK((breadth_first || most.outbox <= (recomputes ? 4 : 2)));
    }
}
