// Slots of boundaries and blocks of cells: nothing is overwritten that anybody may still read.
#include <support/executor.hpp>
#include <support/schedules.hpp>

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/memory/blocks.hpp>
#include <gpipe/memory/boundary_slots.hpp>
#include <gpipe/schedule/gpipe.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

using gpipe::Action;
using gpipe::BoundarySlots;
using gpipe::BoundaryUse;
using gpipe::Kind;
using gpipe::no_action;
using gpipe::no_slot;
using gpipe::Programs;
using gpipe::schedule::GPipe;
using gpipe::schedule::GPipeAscending;
using toy::OneForwardOneBackward;

namespace {

BoundarySlots slots_of(Programs const& programs, BoundaryUse use) {
    return gpipe::assign_boundary_slots(programs, gpipe::linear_order(programs),
                                        gpipe::HappensBefore(programs), use);
}

// What a slot holds for a while: written by one action, then used by others.
struct Tenant {
    std::size_t slot;
    std::size_t writer;
    std::vector<std::size_t> users;
};

std::vector<Tenant> tenants_of(Programs const& programs, BoundarySlots const& slots,
                               BoundaryUse use) {
    std::vector<Tenant> tenants;
    for (std::size_t m = 0; m < programs.micro_batches(); ++m) {
        Tenant input{slots.input[m], no_action, {}};
        Tenant gradient{slots.gradient[m], no_action, {}};
        for (std::size_t i = 0; i < programs.size(); ++i) {
            Action const& a = programs[i];
            if (a.micro_batch != m) continue;
            bool const before = a.cell + 1 == use.cell;
            bool const behind = a.cell == use.cell;
            if (before && a.kind == Kind::forward) input.writer = i;
            if (behind && (a.kind != Kind::backward || use.read_backward)) input.users.push_back(i);
            if (before && a.kind == Kind::backward && use.kept_by_producer)
                input.users.push_back(i);
            if (behind && a.kind == Kind::backward) gradient.writer = i;
            if (before && a.kind == Kind::backward) gradient.users.push_back(i);
        }
        tenants.push_back(input);
        if (use.gradient) tenants.push_back(gradient);
    }
    return tenants;
}

// How often, over all states of all executions, a writer could overwrite what is still to be used;
// a backward that reads the input and writes its gradient in one step must not do so either.
std::size_t clobbers(Programs const& programs, std::vector<Tenant> const& tenants) {
    std::vector<std::size_t> device(programs.size());
    for (std::size_t i = 0; i < programs.size(); ++i) device[i] = programs.device_at(i);
    std::size_t found = 0;
    toy::each_step(programs, [&](std::vector<std::size_t> const& positions, std::size_t d) {
        auto const has_run = [&](std::size_t i) {
            return i - programs.begin(device[i]) < positions[device[i]];
        };
        std::size_t const next = programs.begin(d) + positions[d];
        for (Tenant const& incoming : tenants) {
            if (incoming.writer != next) continue;
            for (Tenant const& tenant : tenants) {
                if (&tenant == &incoming || tenant.slot != incoming.slot) continue;
                if (!has_run(tenant.writer)) continue;
                for (std::size_t user : tenant.users) found += !has_run(user);
            }
        }
    });
    return found;
}

} // namespace

TEST_CASE_TEMPLATE("no slot is written while what it held may still be used, in any execution",
                   Schedule, GPipe, GPipeAscending, OneForwardOneBackward) {
    std::size_t assignments = 0;
    for (std::size_t k = 2; k <= 3; ++k)
        for (std::size_t m = 1; m <= 4; ++m) {
            Programs const schedule = Schedule::programs(k, m);
            for (Programs const& programs :
                 {schedule, gpipe::checkpoint::ExceptLast::lower(schedule),
                  gpipe::checkpoint::Always::lower(schedule)})
                for (std::size_t cell = 1; cell < k; ++cell)
                    for (unsigned flags = 0; flags < 8; ++flags) {
                        BoundaryUse const use{cell, (flags & 1) != 0, (flags & 2) != 0,
                                              (flags & 4) != 0};
                        CAPTURE(k);
                        CAPTURE(m);
                        CAPTURE(cell);
                        CAPTURE(flags);
                        BoundarySlots const slots = slots_of(programs, use);
                        for (std::size_t i = 0; i < m; ++i) {
                            REQUIRE(slots.input[i] < slots.slots);
                            REQUIRE((slots.gradient[i] < slots.slots) == use.gradient);
                            REQUIRE((slots.gradient[i] == no_slot) == !use.gradient);
                        }
                        CHECK(clobbers(programs, tenants_of(programs, slots, use)) == 0);
                        ++assignments;
                    }
        }
    MESSAGE(assignments << " assignments");
}

TEST_CASE("one slot more than micro-batches in flight serves inputs and their gradients (P4)") {
    for (std::size_t k = 2; k <= 6; ++k)
        for (std::size_t m = 1; m <= 9; ++m)
            for (std::size_t cell = 1; cell < k; ++cell) {
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(cell);
                for (auto const& lower :
                     {&gpipe::checkpoint::Never::lower, &gpipe::checkpoint::ExceptLast::lower,
                      &gpipe::checkpoint::Always::lower}) {
                    CHECK(slots_of(lower(GPipe::programs(k, m)), {cell}).slots <= m + 1);
                    CHECK(slots_of(lower(GPipeAscending::programs(k, m)), {cell}).slots <= m + 1);
                }
                CHECK(slots_of(GPipe::programs(k, m), {cell}).slots == m + 1);
                CHECK(slots_of(GPipe::programs(k, m), {cell, false}).slots == m);
            }
}

TEST_CASE("a block is held from the last forward of a micro-batch to its backward") {
    auto const check = [](Programs const& programs) {
        auto const blocks = gpipe::assign_blocks(programs);
        std::size_t const none = programs.micro_batches();
        std::vector<std::size_t> most(programs.cells());
        for (std::size_t c = 0; c < programs.cells(); ++c) {
            std::vector<std::size_t> holder(blocks.kept.count[c], none); // micro-batch, by block
            for (std::size_t i = 0; i < programs.size(); ++i) {
                Action const& a = programs[i];
                if (a.cell != c) continue;
                std::size_t const block = blocks.kept.of_action[i];
                REQUIRE(block < blocks.kept.count[c]);
                if (a.kind == Kind::backward) {
                    REQUIRE(holder[block] == a.micro_batch);
                    holder[block] = none;
                    continue;
                }
                REQUIRE(holder[block] == none);
                // It keeps if the next that happens to the micro-batch here is its backward.
                std::size_t next = i + 1;
                while (programs[next].cell != c || programs[next].micro_batch != a.micro_batch)
                    ++next;
                REQUIRE(blocks.keeps[i] == (programs[next].kind == Kind::backward));
                if (blocks.keeps[i]) holder[block] = a.micro_batch;
                most[c] = std::max(most[c], block + 1);
            }
            REQUIRE(most[c] == blocks.kept.count[c]); // none is planned in vain
        }
        return blocks;
    };
    for (std::size_t k = 1; k <= 5; ++k)
        for (std::size_t m = 1; m <= 7; ++m) {
            CAPTURE(k);
            CAPTURE(m);
            auto const each = [&](Programs const& programs) {
                auto const never = check(programs);
                auto const except_last = check(gpipe::checkpoint::ExceptLast::lower(programs));
                auto const always = check(gpipe::checkpoint::Always::lower(programs));
                for (std::size_t c = 0; c < k; ++c) {
                    CHECK(never.kept.count[c] == gpipe::peak_micro_batches(programs, c));
                    CHECK(except_last.kept.count[c] == 1);
                    CHECK(always.kept.count[c] == 1);
                }
            };
            each(GPipe::programs(k, m));
            each(GPipeAscending::programs(k, m));
            each(OneForwardOneBackward::programs(k, m));
        }
}
