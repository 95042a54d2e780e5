// Slots of boundaries and blocks of cells: nothing is overwritten that anybody may still read.
#include <support/links.hpp>
#include <support/long_tests.hpp>
#include <support/schedules.hpp>

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/memory/blocks.hpp>
#include <gpipe/memory/boundary_slots.hpp>
#include <gpipe/schedule/gpipe.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <string>
#include <vector>

using gpipe::Action;
using gpipe::BoundarySlots;
using gpipe::BoundaryUse;
using gpipe::Kind;
using gpipe::Link;
using gpipe::no_action;
using gpipe::no_slot;
using gpipe::Programs;
using gpipe::schedule::GPipe;
using gpipe::schedule::GPipeAscending;
using toy::OneForwardOneBackward;

namespace {

BoundarySlots slots_of(Programs const& programs, BoundaryUse use) {
    return gpipe::assign_boundary_slots(programs, toy::order_of(gpipe::lower(programs)),
                                        gpipe::HappensBefore(programs), use);
}

// What a slot holds for a while: written by one action, then used by others.
struct Tenant {
    std::size_t slot;
    std::size_t writer;
    std::vector<std::size_t> users;
};

// Those of the boundary before a cell. Where it is no shared one, transfers write the inputs and
// read the gradients.
std::vector<Tenant> tenants_of(Programs const& programs, BoundarySlots const& slots,
                               BoundaryUse use) {
    bool const shared = use.link == Link::shared;
    std::vector<Tenant> tenants;
    for (std::size_t m = 0; m < programs.micro_batches(); ++m) {
        Tenant input{slots.input[m], no_action, {}};
        Tenant gradient{slots.gradient[m], no_action, {}};
        for (std::size_t i = 0; i < programs.size(); ++i) {
            Action const& a = programs[i];
            if (a.micro_batch != m) continue;
            bool const before = a.cell + 1 == use.cell;
            bool const behind = a.cell == use.cell;
            bool const forward = a.kind == Kind::forward || a.kind == Kind::recompute;
            // What a second half of a backward reads it reads where the first does.
            auto const backward = [&](bool held) {
                return gives_gradient(a.kind) || (held && a.kind == Kind::weight_gradient);
            };
            if (use.link == Link::staged
                    ? behind && a.kind == Kind::receive_input
                    : before && a.kind == (shared ? Kind::forward : Kind::send_output))
                input.writer = i;
            if (behind && (forward || (use.read_backward && backward(use.held_by_consumer))))
                input.users.push_back(i);
            if (before && use.kept_by_producer && backward(use.held_by_producer))
                input.users.push_back(i);
            if (behind && gives_gradient(a.kind)) gradient.writer = i;
            if (shared ? before && backward(use.held_by_producer)
                       : behind && a.kind == Kind::send_gradient)
                gradient.users.push_back(i);
            if (behind && a.kind == Kind::recompute && use.discards_output)
                tenants.push_back({slots.discarded_output[m], i, {}});
        }
        tenants.push_back(input);
        if (use.gradient) tenants.push_back(gradient);
    }
    return tenants;
}

// A tenant that may come while another's are still to use the slot, by the definition of what
// happens before what; empty if there is none.
std::string clobbers(toy::Closure const& happens_before, std::vector<Tenant> const& tenants) {
    for (Tenant const& a : tenants)
        for (Tenant const& b : tenants) {
            if (&a == &b || a.slot != b.slot) continue;
            auto const leaves_before = [&](Tenant const& first, Tenant const& then) {
                return happens_before(first.writer, then.writer) &&
                       std::all_of(first.users.begin(), first.users.end(), [&](std::size_t user) {
                           return happens_before(user, then.writer);
                       });
            };
            if (!leaves_before(a, b) && !leaves_before(b, a))
                return "slot " + std::to_string(a.slot) + ": writers " + std::to_string(a.writer) +
                       " and " + std::to_string(b.writer);
        }
    return {};
}

constexpr gpipe::Programs (*policies[])(Programs const&) = {&gpipe::checkpoint::Never::lower,
                                                            &gpipe::checkpoint::ExceptLast::lower,
                                                            &gpipe::checkpoint::Always::lower};

// Calls f(programs) for every schedule there is and for some by chance, whole backwards among
// halves, under every checkpointing policy.
template <class F> void each_program(std::size_t most_devices, std::size_t most_cells, F f) {
    for (std::size_t m : {1u, 2u, 3u, 6u})
        toy::each_of_catalogue(most_devices, most_cells, m,
                               [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
                                   std::string const name(schedule.name());
                                   CAPTURE(name);
                                   CAPTURE(k);
                                   CAPTURE(m);
                                   for (auto const lower : policies)
                                       f(lower(schedule.programs(k, m)));
                               });
    std::mt19937_64 random(1);
    for (int round = 0; round < (toy::long_tests() ? 3000 : 100); ++round) {
        CAPTURE(round);
        int const percent_whole[] = {0, 30, 80};
        auto const schedule = toy::mixed_by_chance(1 + random() % most_cells, 1 + random() % 5,
                                                   percent_whole[random() % 3], random);
        for (auto const lower : policies) f(lower(schedule));
    }
}

BoundaryUse use_of(std::size_t cell, Link link, unsigned flags) {
    BoundaryUse use{cell};
    use.link = link;
    use.gradient = (flags & 1) != 0;
    use.read_backward = (flags & 2) != 0;
    use.kept_by_producer = (flags & 4) != 0;
    use.discards_output = (flags & 8) != 0;
    use.held_by_consumer = (flags & 16) != 0;
    use.held_by_producer = (flags & 32) != 0;
    return use;
}

// Calls f(lowered, use, slots) for every boundary, link and use of it that there can be;
// begin(lowered) first for each link.
template <class Begin, class F> void each_use(Programs const& programs, Begin begin, F f) {
    for (Link const link : {Link::shared, Link::copied, Link::staged}) {
        auto const links = toy::same_links(programs, link);
        auto const lowered = toy::lower(programs, links, toy::crossing_from(1, programs.cells()));
        if (link != Link::shared && lowered.streams() == programs.devices()) continue;
        auto const order = toy::order_of(lowered);
        gpipe::HappensBefore const happens_before(lowered);
        begin(lowered);
        for (std::size_t cell = 1; cell < programs.cells(); ++cell)
            for (unsigned flags = 0; flags < 64; ++flags) {
                BoundaryUse const use = use_of(cell, links[cell], flags);
                bool const shared = use.link == Link::shared;
                if (!shared && (use.kept_by_producer || use.held_by_producer)) continue; // outbox
                if (use.held_by_consumer && !use.read_backward) continue;
                if (use.discards_output && !use.gradient) continue;
                CAPTURE(static_cast<int>(link));
                CAPTURE(cell);
                CAPTURE(flags);
                f(lowered, use,
                  gpipe::assign_boundary_slots(lowered.programs, order, happens_before, use));
            }
    }
}

} // namespace

TEST_CASE("no slot is written while what it held may still be used, by either half of a backward, "
          "whatever the schedule and the link") {
    std::size_t assignments = 0;
    std::size_t most = 0;
    std::size_t point = 0;
    each_program(3, 6, [&](Programs const& programs) {
        if (point++ % toy::one_of(1) != 0) return;
        toy::Closure happens_before{gpipe::Lowered{}};
        auto const begin = [&](gpipe::Lowered const& lowered) {
            happens_before = toy::Closure(lowered);
        };
        each_use(
            programs, begin,
            [&](gpipe::Lowered const& lowered, BoundaryUse const& use, BoundarySlots const& slots) {
                REQUIRE(slots.slots <= 2 * programs.micro_batches());
                REQUIRE(clobbers(happens_before, tenants_of(lowered.programs, slots, use)) == "");
                for (auto const* which : {&slots.input, &slots.gradient})
                    for (std::size_t const slot : *which)
                        REQUIRE((slot < slots.slots) == (which == &slots.input || use.gradient));
                most = std::max(most, slots.slots);
                ++assignments;
            });
    });
    MESSAGE(assignments << " assignments, at most " << most << " slots");
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
// Those whose weight gradient has been put off.
std::size_t most_put_off(Programs const& programs, std::size_t cell) {
    return most_between(
        programs, cell, [](Kind kind) { return kind == Kind::input_gradient; },
        [](Kind kind) { return kind == Kind::weight_gradient; });
}
// Those in flight in the cell before a boundary: until the last that reads there has run, which is
// its weight gradient where that reads what its backward does.
std::size_t in_flight(Programs const& programs, BoundaryUse use) {
    return most_between(
        programs, use.cell - 1, [](Kind kind) { return kind == Kind::forward; },
        [&](Kind kind) {
            return use.held_by_producer ? ends_backward(kind) : gives_gradient(kind);
        });
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
            for (auto const lower : policies) {
                Programs const programs = lower(schedule.programs(k, m));
                auto const nothing = [](gpipe::Lowered const&) {};
                each_use(
                    programs, nothing,
                    [&](gpipe::Lowered const&, BoundaryUse const& use, BoundarySlots const& slots) {
                        if (!use.gradient) return;
                        std::size_t const put_off =
                            use.held_by_consumer ? most_put_off(programs, use.cell) : 0;
                        std::size_t const there = in_flight(programs, use);
                        std::size_t const bound = std::min(
                            (use.kept_by_producer ? 2 * there : there + 1) + put_off, 2 * m);
                        REQUIRE(slots.slots <= bound);
                        reached += slots.slots == bound;
                        ++boundaries;
                        if (!use.kept_by_producer && slots.slots > there + 1)
                            beyond[name] = std::max(beyond[name], slots.slots - there - 1);
                    });
            }
        });
    MESSAGE(boundaries << " boundaries, " << reached << " with as many slots as the bound");
    for (auto const& [name, more] : beyond)
        MESSAGE(name << ": up to " << more << " slots for weight gradients that are put off");
    for (std::size_t k = 2; k <= 6; ++k)
        for (std::size_t m = 1; m <= 9; ++m)
            for (std::size_t cell = 1; cell < k; ++cell) {
                CHECK(slots_of(GPipe::programs(k, m), {cell}).slots == m + 1);
                CHECK(slots_of(GPipe::programs(k, m), {cell, false}).slots == m);
            }
}

namespace {

// The actions, by index, between which a micro-batch has a block; one alone may be both.
struct Span {
    std::size_t first, last;
    std::size_t block;
};

// Whether another block is needed for each span, and why not fewer.
void check_spans(std::vector<Span> const& spans, std::size_t count) {
    std::size_t most = 0;
    for (Span const& a : spans) {
        std::size_t at_once = 0;
        for (Span const& b : spans) {
            if (b.first <= a.first && a.first <= b.last) ++at_once;
            bool const apart = a.last < b.first || b.last < a.first || &a == &b;
            REQUIRE((apart || a.block != b.block));
        }
        REQUIRE(a.block < count);
        most = std::max(most, at_once);
    }
    REQUIRE(most == count); // none is planned in vain
}

gpipe::Blocks check_blocks(Programs const& programs) {
    auto const blocks = gpipe::assign_blocks(programs);
    for (std::size_t c = 0; c < programs.cells(); ++c) {
        CAPTURE(c);
        std::vector<Span> kept, held, deferred;
        bool splits = false;
        bool whole = false;
        for (std::size_t i = 0; i < programs.size(); ++i) {
            splits = splits || (programs[i].cell == c && programs[i].kind == Kind::weight_gradient);
            whole = whole || (programs[i].cell == c && programs[i].kind == Kind::backward);
        }
        for (std::size_t m = 0; m < programs.micro_batches(); ++m) {
            std::vector<std::size_t> way; // of the micro-batch through the cell
            for (std::size_t i = 0; i < programs.size(); ++i)
                if (programs[i].cell == c && programs[i].micro_batch == m) way.push_back(i);
            for (std::size_t w = 0; w < way.size(); ++w) {
                std::size_t const i = way[w];
                Kind const kind = programs[i].kind;
                std::size_t const last = way.back();
                auto const same = [&](gpipe::BlockUse const& use, std::size_t end) {
                    REQUIRE(use.of_action[i] == use.of_action[end]);
                    return Span{i, end, use.of_action[i]};
                };
                if (kind == Kind::forward || kind == Kind::recompute) {
                    // It keeps if what comes next for the micro-batch is its backward.
                    std::size_t const next = way[w + 1];
                    bool const keeps = gives_gradient(programs[next].kind);
                    REQUIRE(blocks.keeps[i] == keeps);
                    kept.push_back(same(blocks.kept, keeps ? next : i));
                    held.push_back(same(blocks.held, keeps ? last : i));
                    if (keeps) same(blocks.held, next);
                }
                if (kind == Kind::input_gradient || (kind == Kind::backward && splits))
                    deferred.push_back(same(blocks.deferred, last));
            }
        }
        check_spans(kept, blocks.kept.count[c]);
        check_spans(held, blocks.held.count[c]);
        check_spans(deferred, blocks.deferred.count[c]);
        REQUIRE(blocks.splits[c] == splits);
        REQUIRE(blocks.mixes[c] == (splits && whole));
    }
    return blocks;
}

} // namespace

TEST_CASE("a micro-batch has a block from what leaves something to the last that reads it, kept, "
          "held or deferred, and there are no more than are used at once") {
    std::size_t cells = 0;
    each_program(5, 10, [&](Programs const& programs) {
        check_blocks(programs);
        cells += programs.cells();
    });
    MESSAGE(cells << " cells");
}

// P4, inside the cells: one set of activations under re-materialisation, and one of what each
// weight gradient that is put off will read.
TEST_CASE("with checkpointing a cell keeps one set, and holds one more than it puts off at most") {
    for (std::size_t m : {1u, 2u, 5u, 9u})
        toy::each_of_catalogue(5, 10, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            std::string const name(schedule.name());
            CAPTURE(name);
            CAPTURE(k);
            CAPTURE(m);
            Programs const programs = schedule.programs(k, m);
            auto const never = gpipe::assign_blocks(programs);
            auto const except_last =
                gpipe::assign_blocks(gpipe::checkpoint::ExceptLast::lower(programs));
            auto const always = gpipe::assign_blocks(gpipe::checkpoint::Always::lower(programs));
            for (std::size_t c = 0; c < programs.cells(); ++c) {
                std::size_t const put_off = most_put_off(programs, c);
                bool const whole = never.mixes[c];
                CHECK(except_last.kept.count[c] == 1);
                CHECK(always.kept.count[c] == 1);
                CHECK(always.held.count[c] <= put_off + 1);
                CHECK(except_last.held.count[c] <= put_off + 1);
                for (auto const* blocks : {&never, &except_last, &always}) {
                    CHECK(blocks->deferred.count[c] >= put_off);
                    CHECK(blocks->deferred.count[c] <= put_off + whole);
                }
                CHECK(never.kept.count[c] == most_between(
                                                 programs, c,
                                                 [](Kind kind) { return kind == Kind::forward; },
                                                 [](Kind kind) { return gives_gradient(kind); }));
                CHECK(never.held.count[c] == most_between(
                                                 programs, c,
                                                 [](Kind kind) { return kind == Kind::forward; },
                                                 [](Kind kind) { return ends_backward(kind); }));
            }
        });
}
