// Programs: their linear order, and what recomputes and unequal cells do to their time.
#include <support/schedules.hpp>

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/schedule/order.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

using gpipe::Action;
using gpipe::Kind;
using gpipe::no_action;
using gpipe::Programs;
using gpipe::schedule::GPipe;
using gpipe::schedule::GPipeAscending;
using toy::OneForwardOneBackward;

namespace {

// Calls f(programs, K, M) for all small cases of a schedule, as it is and lowered.
template <class Schedule, class F> void each_case(std::size_t most_k, std::size_t most_m, F f) {
    for (std::size_t k = 1; k <= most_k; ++k)
        for (std::size_t m = 1; m <= most_m; ++m) {
            CAPTURE(k);
            CAPTURE(m);
            Programs const programs = Schedule::programs(k, m);
            f(programs, k, m);
            f(gpipe::checkpoint::ExceptLast::lower(programs), k, m);
            f(gpipe::checkpoint::Always::lower(programs), k, m);
        }
}

// Which action each action waits for, by looking for it.
std::vector<std::size_t> needs_of(Programs const& programs) {
    std::vector<std::size_t> needs(programs.size(), no_action);
    for (std::size_t i = 0; i < programs.size(); ++i)
        for (std::size_t j = 0; j < programs.size(); ++j) {
            Action const& a = programs[i];
            Action const& b = programs[j];
            if (a.micro_batch == b.micro_batch && a.kind == b.kind && a.kind != Kind::recompute &&
                (a.kind == Kind::forward ? b.cell + 1 == a.cell : b.cell == a.cell + 1))
                needs[i] = j;
        }
    return needs;
}

} // namespace

TEST_CASE("the paper's order runs backward in descending micro-batches, the other in ascending") {
    for (std::size_t k = 1; k <= 5; ++k)
        for (std::size_t m = 1; m <= 6; ++m)
            for (std::size_t d = 0; d < k; ++d)
                for (std::size_t i = 0; i < m; ++i) {
                    auto const down = GPipe::programs(k, m);
                    auto const up = GPipeAscending::programs(k, m);
                    CHECK(down.program(d)[i] == gpipe::forward(d, i));
                    CHECK(up.program(d)[i] == gpipe::forward(d, i));
                    CHECK(down.program(d)[m + i] == gpipe::backward(d, m - 1 - i));
                    CHECK(up.program(d)[m + i] == gpipe::backward(d, i));
                }
}

TEST_CASE_TEMPLATE("the linear order holds every action once, behind what it needs", Schedule,
                   GPipe, GPipeAscending, OneForwardOneBackward) {
    each_case<Schedule>(6, 8, [](Programs const& programs, std::size_t, std::size_t) {
        auto const order = gpipe::linear_order(programs);
        REQUIRE(order.size() == programs.size());
        std::vector<std::size_t> rank(programs.size(), no_action);
        for (std::size_t r = 0; r < order.size(); ++r) {
            REQUIRE(rank[order[r]] == no_action);
            rank[order[r]] = r;
        }
        auto const needs = needs_of(programs);
        bool in_order = true;
        for (std::size_t d = 0; d < programs.devices(); ++d)
            for (std::size_t i = programs.begin(d); i < programs.end(d); ++i) {
                if (i > programs.begin(d)) in_order = in_order && rank[i - 1] < rank[i];
                if (needs[i] != no_action) in_order = in_order && rank[needs[i]] < rank[i];
            }
        CHECK(in_order);
        // Ties go to the lower device, so the order is one and the same everywhere.
        auto const times = gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost);
        auto const device_of = [&](std::size_t i) { return programs.device_of(programs[i].cell); };
        bool sorted = true;
        for (std::size_t r = 1; r < order.size(); ++r) {
            std::size_t const a = order[r - 1];
            std::size_t const b = order[r];
            sorted = sorted && (times.start[a] < times.start[b] ||
                                (times.start[a] == times.start[b] && device_of(a) <= device_of(b)));
        }
        CHECK(sorted);
    });
}

TEST_CASE(
    "with a recompute before every backward GPipe takes 4 M + 3 (K - 1): it hides in the bubble") {
    for (std::int64_t k = 1; k <= 8; ++k)
        for (std::int64_t m = 1; m <= 12; ++m) {
            CAPTURE(k);
            CAPTURE(m);
            auto const programs =
                GPipe::programs(static_cast<std::size_t>(k), static_cast<std::size_t>(m));
            auto const time = [](Programs const& p) {
                return gpipe::simulate<std::int64_t>(p, gpipe::unit_cost).makespan;
            };
            CHECK(time(gpipe::checkpoint::Always::lower(programs)) == 4 * m + 3 * (k - 1));
            std::int64_t const spared = time(gpipe::checkpoint::ExceptLast::lower(programs));
            CHECK(spared < time(gpipe::checkpoint::Always::lower(programs)));
            CHECK(spared >= time(programs));
            CHECK(time(gpipe::checkpoint::Never::lower(programs)) == time(programs));
        }
}

TEST_CASE("with unequal cells GPipe takes sum F + (M - 1) max F, and the same for B") {
    std::int64_t const costs[] = {3, 7, 1, 12, 5, 5, 2, 9, 4, 8};
    for (std::size_t k = 1; k <= 7; ++k)
        for (std::size_t m = 1; m <= 9; ++m)
            for (std::size_t shift = 0; shift < 10; ++shift) {
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(shift);
                auto const f = [&](std::size_t c) { return costs[(c + shift) % 10]; };
                auto const b = [&](std::size_t c) { return 2 * costs[(3 * c + shift) % 10] + 1; };
                std::int64_t sum_f = 0, most_f = 0, sum_b = 0, most_b = 0;
                for (std::size_t c = 0; c < k; ++c) {
                    sum_f += f(c), most_f = std::max(most_f, f(c));
                    sum_b += b(c), most_b = std::max(most_b, b(c));
                }
                auto const steps = static_cast<std::int64_t>(m - 1);
                auto const time =
                    gpipe::simulate<std::int64_t>(GPipe::programs(k, m), [&](Action const& a) {
                        return a.kind == Kind::forward ? f(a.cell) : b(a.cell);
                    });
                // The last cell turns round at once; a cell before it may still be busy with
                // forwards when its first gradient arrives, but never later than this.
                CHECK(time.makespan == sum_f + steps * most_f + sum_b + steps * most_b);
            }
}

TEST_CASE("programs know the actions of every device, and cells are dealt one after the other") {
    Programs programs(2, 4, 1, 8);
    for (std::size_t c = 0; c < 4; ++c) CHECK(programs.device_of(c) == c / 2);
    programs.place(1, 1);
    CHECK(programs.device_of(1) == 1);
    programs.add(gpipe::forward(0, 0));
    programs.next_device();
    programs.add(gpipe::forward(1, 0));
    programs.add(gpipe::forward(3, 0));
    programs.next_device();
    CHECK(programs.size() == 3);
    CHECK(programs.size(0) == 1);
    CHECK(programs.size(1) == 2);
    CHECK(programs.program(1)[1] == gpipe::forward(3, 0));
}

TEST_CASE("programs refuse more devices than they were made for") {
    Programs programs(1, 1, 1, 1);
    programs.add(gpipe::forward(0, 0));
    programs.next_device();
    CHECK_THROWS_AS(programs.next_device(), std::invalid_argument);
    CHECK(programs.size() == 1);
}
