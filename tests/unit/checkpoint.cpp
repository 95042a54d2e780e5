// Passes of checkpointing: P9's one rule, and what torchgpipe's modes amount to.
#include <support/schedules.hpp>

#include <gpipe/checkpoint/dynamic_policy.hpp>
#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

using gpipe::Action;
using gpipe::Kind;
using gpipe::Programs;
using gpipe::schedule::GPipe;
using gpipe::schedule::GPipeAscending;

namespace {

std::size_t recomputes(Programs const& programs, std::size_t cell) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < programs.size(); ++i)
        count += programs[i].kind == Kind::recompute && programs[i].cell == cell;
    return count;
}
std::vector<Action> without_recomputes(Programs const& programs, std::size_t device) {
    std::vector<Action> actions;
    for (Action const& a : programs.program(device))
        if (a.kind != Kind::recompute) actions.push_back(a);
    return actions;
}
std::vector<Action> actions(Programs const& programs, std::size_t device) {
    auto const program = programs.program(device);
    return {program.begin(), program.end()};
}

} // namespace

#define SCHEDULES GPipe, GPipeAscending, toy::OneForwardOneBackward, toy::OneByOne

TEST_CASE_TEMPLATE("never leaves the schedule as it is", Schedule, SCHEDULES) {
    Programs const schedule = Schedule::programs(3, 5);
    Programs const lowered = gpipe::checkpoint::Never::lower(schedule);
    for (std::size_t d = 0; d < 3; ++d) CHECK(actions(lowered, d) == actions(schedule, d));
}

TEST_CASE_TEMPLATE("always puts a recompute right in front of every backward", Schedule,
                   SCHEDULES) {
    Programs const schedule = Schedule::programs(3, 5);
    Programs const lowered = gpipe::checkpoint::Always::lower(schedule);
    for (std::size_t d = 0; d < 3; ++d) {
        CHECK(without_recomputes(lowered, d) == actions(schedule, d));
        auto const program = lowered.program(d);
        for (std::size_t i = 0; i < program.size(); ++i)
            if (program[i].kind == Kind::backward)
                CHECK(program[i - 1] == gpipe::recompute(program[i].cell, program[i].micro_batch));
        CHECK(recomputes(lowered, d) == 5);
    }
}

TEST_CASE_TEMPLATE("except-last recomputes exactly where another micro-batch holds the cell",
                   Schedule, SCHEDULES) {
    for (std::size_t k = 1; k <= 5; ++k)
        for (std::size_t m = 1; m <= 7; ++m) {
            CAPTURE(k);
            CAPTURE(m);
            Programs const lowered = gpipe::checkpoint::ExceptLast::lower(Schedule::programs(k, m));
            for (std::size_t c = 0; c < k; ++c) {
                std::size_t holder = m; // of the cell's one working set
                auto const program = lowered.program(c);
                for (std::size_t i = 0; i < program.size(); ++i) {
                    if (program[i].kind == Kind::backward)
                        CHECK(holder == program[i].micro_batch);
                    else if (program[i].kind == Kind::recompute)
                        CHECK(holder != program[i].micro_batch); // none in vain
                    if (program[i].kind != Kind::backward) holder = program[i].micro_batch;
                }
            }
        }
}

TEST_CASE("in the paper's order except-last spares the last micro-batch, as torchgpipe does") {
    for (std::size_t k = 2; k <= 5; ++k)
        for (std::size_t m = 1; m <= 7; ++m) {
            Programs const lowered = gpipe::checkpoint::ExceptLast::lower(GPipe::programs(k, m));
            for (std::size_t c = 0; c + 1 < k; ++c) {
                CHECK(recomputes(lowered, c) == m - 1);
                for (Action const& a : lowered.program(c))
                    if (a.kind == Kind::recompute) CHECK(a.micro_batch != m - 1);
            }
        }
}

TEST_CASE("under 1F1B the last cell recomputes nothing") {
    for (std::size_t k = 1; k <= 5; ++k)
        for (std::size_t m = 1; m <= 7; ++m)
            CHECK(recomputes(gpipe::checkpoint::ExceptLast::lower(
                                 toy::OneForwardOneBackward::programs(k, m)),
                             k - 1) == 0);
}

TEST_CASE_TEMPLATE("the last cell runs each forward once: late, in place of its recomputation",
                   Schedule, SCHEDULES) {
    for (std::size_t k = 1; k <= 4; ++k)
        for (std::size_t m = 1; m <= 6; ++m) {
            Programs const lowered = gpipe::checkpoint::ExceptLast::lower(Schedule::programs(k, m));
            auto const program = lowered.program(k - 1);
            CHECK(program.size() == 2 * m);
            for (std::size_t i = 0; i < program.size(); ++i)
                if (program[i].kind == Kind::backward)
                    CHECK(program[i - 1] == gpipe::forward(k - 1, program[i].micro_batch));
        }
}

TEST_CASE("a policy chosen at construction lowers as the policy itself") {
    Programs const schedule = GPipe::programs(3, 4);
    CHECK_FALSE(gpipe::checkpoint::Dynamic());
    gpipe::checkpoint::Dynamic const choice = gpipe::checkpoint::Always{};
    CHECK(choice);
    Programs const lowered = choice.lower(schedule);
    for (std::size_t d = 0; d < 3; ++d)
        CHECK(actions(lowered, d) == actions(gpipe::checkpoint::Always::lower(schedule), d));
    gpipe::schedule::Dynamic const order = GPipeAscending{};
    CHECK(order);
    CHECK_FALSE(gpipe::schedule::Dynamic());
    for (std::size_t d = 0; d < 3; ++d)
        CHECK(actions(order.programs(3, 4), d) == actions(GPipeAscending::programs(3, 4), d));
}
