// verify() is a proof: it accepts programs exactly when no execution of them goes wrong.
#include <support/executor.hpp>
#include <support/schedules.hpp>

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/schedule/gpipe.hpp>
#include <gpipe/schedule/verify.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

using gpipe::Action;
using gpipe::Kind;
using gpipe::Problem;
using gpipe::Programs;
using gpipe::verify;

namespace {

bool runs(Programs const& programs) { return toy::Executor(programs).run().sound; }

// Calls f(programs) for the schedule itself and both of its lowerings, all K <= 4, M <= 5.
template <class Schedule, class F> void each_small_case(F f) {
    for (std::size_t k = 1; k <= 4; ++k)
        for (std::size_t m = 1; m <= 5; ++m) {
            CAPTURE(k);
            CAPTURE(m);
            f(Schedule::programs(k, m));
        }
}

} // namespace

#define SCHEDULES                                                                                  \
    gpipe::schedule::GPipe, gpipe::schedule::GPipeAscending, toy::OneForwardOneBackward

TEST_CASE_TEMPLATE("what a schedule yields is sound, lowered or not, and so says the executor",
                   Schedule, SCHEDULES) {
    std::size_t states = 0;
    each_small_case<Schedule>([&](Programs const& programs) {
        for (Programs const& p : {programs, gpipe::checkpoint::ExceptLast::lower(programs),
                                  gpipe::checkpoint::Always::lower(programs)}) {
            CHECK(verify(p).problem == Problem::sound);
            toy::Outcome const outcome = toy::Executor(p).run();
            CHECK(outcome.sound);
            states += outcome.states;
        }
    });
    MESSAGE(states << " states of executions");
}

TEST_CASE_TEMPLATE("programs with any one action left out are rejected", Schedule, SCHEDULES) {
    std::size_t mutants = 0;
    std::size_t named = 0;
    each_small_case<Schedule>([&](Programs const& programs) {
        for (std::size_t d = 0; d < programs.devices(); ++d)
            for (std::size_t i = 0; i < programs.size(d); ++i) {
                auto actions = toy::actions_of(programs);
                Action const dropped = actions[d][i];
                actions[d].erase(actions[d].begin() + static_cast<std::ptrdiff_t>(i));
                Programs const mutant = toy::with_actions(programs, actions);
                auto const verdict = verify(mutant);
                CHECK_FALSE(verdict);
                CHECK_FALSE(runs(mutant));
                ++mutants;
                if (verdict.problem == Problem::missing)
                    named += verdict.action == dropped && verdict.device == d;
                else // a forward that is missing makes its backward too early
                    named += verdict.problem == Problem::too_early &&
                             dropped.kind == Kind::forward &&
                             verdict.action == gpipe::backward(dropped.cell, dropped.micro_batch);
            }
    });
    MESSAGE(mutants << " programs, all rejected");
    CHECK(named == mutants);
}

TEST_CASE_TEMPLATE("programs with any one action twice are rejected, wherever it stands again",
                   Schedule, SCHEDULES) {
    std::size_t mutants = 0;
    std::size_t named = 0;
    for (std::size_t k = 1; k <= 3; ++k)
        for (std::size_t m = 1; m <= 4; ++m) {
            Programs const programs = Schedule::programs(k, m);
            for (std::size_t d = 0; d < k; ++d)
                for (std::size_t i = 0; i < programs.size(d); ++i)
                    for (std::size_t at = 0; at <= programs.size(d); ++at) {
                        auto actions = toy::actions_of(programs);
                        Action const again = actions[d][i];
                        actions[d].insert(actions[d].begin() + static_cast<std::ptrdiff_t>(at),
                                          again);
                        Programs const mutant = toy::with_actions(programs, actions);
                        auto const verdict = verify(mutant);
                        CHECK_FALSE(verdict);
                        CHECK_FALSE(runs(mutant));
                        ++mutants;
                        named += (verdict.problem == Problem::twice ||
                                  verdict.problem == Problem::too_early) &&
                                 verdict.device == d && verdict.action == again;
                    }
        }
    MESSAGE(mutants << " programs, all rejected");
    CHECK(named == mutants);
}

TEST_CASE_TEMPLATE("neighbours swapped are rejected exactly when an execution goes wrong", Schedule,
                   SCHEDULES) {
    std::size_t rejected = 0;
    std::size_t accepted = 0;
    std::size_t wrong = 0;
    each_small_case<Schedule>([&](Programs const& schedule) {
        for (Programs const& programs : {schedule, gpipe::checkpoint::ExceptLast::lower(schedule)})
            for (std::size_t d = 0; d < programs.devices(); ++d)
                for (std::size_t i = 0; i + 1 < programs.size(d); ++i) {
                    auto actions = toy::actions_of(programs);
                    std::swap(actions[d][i], actions[d][i + 1]);
                    Programs const mutant = toy::with_actions(programs, actions);
                    bool const sound = static_cast<bool>(verify(mutant));
                    wrong += sound != runs(mutant);
                    ++(sound ? accepted : rejected);
                }
    });
    MESSAGE(rejected << " rejected, " << accepted << " accepted");
    CHECK(wrong == 0);
    CHECK(rejected > 0);
    CHECK(accepted > 0);
}

TEST_CASE_TEMPLATE("any two actions of a device swapped are rejected exactly when one goes wrong",
                   Schedule, SCHEDULES) {
    std::size_t rejected = 0;
    std::size_t deadlocks = 0;
    std::size_t accepted = 0;
    std::size_t wrong = 0;
    for (std::size_t k = 1; k <= 3; ++k)
        for (std::size_t m = 1; m <= 4; ++m) {
            Programs const programs = Schedule::programs(k, m);
            for (std::size_t d = 0; d < k; ++d)
                for (std::size_t i = 0; i < programs.size(d); ++i)
                    for (std::size_t j = i + 1; j < programs.size(d); ++j) {
                        auto actions = toy::actions_of(programs);
                        std::swap(actions[d][i], actions[d][j]);
                        Programs const mutant = toy::with_actions(programs, actions);
                        auto const verdict = verify(mutant);
                        wrong += static_cast<bool>(verdict) != runs(mutant);
                        deadlocks += verdict.problem == Problem::deadlock;
                        ++(verdict ? accepted : rejected);
                    }
        }
    MESSAGE(rejected << " rejected, " << deadlocks << " of them deadlocks, " << accepted
                     << " accepted");
    CHECK(wrong == 0);
    // In the paper's order nobody waits for a device that waits: all forwards come first.
    CHECK((deadlocks > 0) == !std::is_same_v<Schedule, gpipe::schedule::GPipe>);
    CHECK(accepted > 0);
}

TEST_CASE_TEMPLATE("an action on a device that does not own its cell is rejected", Schedule,
                   SCHEDULES) {
    for (std::size_t k = 2; k <= 3; ++k) {
        Programs const programs = Schedule::programs(k, 2);
        for (std::size_t d = 0; d < k; ++d)
            for (std::size_t i = 0; i < programs.size(d); ++i)
                for (std::size_t to = 0; to < k; ++to) {
                    if (to == d) continue;
                    auto actions = toy::actions_of(programs);
                    Action const moved = actions[d][i];
                    actions[d].erase(actions[d].begin() + static_cast<std::ptrdiff_t>(i));
                    actions[to].push_back(moved);
                    Programs const mutant = toy::with_actions(programs, actions);
                    CHECK_FALSE(verify(mutant));
                    CHECK_FALSE(runs(mutant));
                }
    }
}

TEST_CASE("an action of nothing that exists, or without a place in a schedule, is rejected") {
    auto const with_first = [](Action first) {
        auto const programs = gpipe::schedule::GPipe::programs(2, 2);
        auto actions = toy::actions_of(programs);
        actions[1].insert(actions[1].begin(), first);
        return verify(toy::with_actions(programs, actions));
    };
    CHECK(with_first(gpipe::forward(2, 0)).problem == Problem::no_such_cell);
    CHECK(with_first(gpipe::forward(1, 2)).problem == Problem::no_such_cell);
    CHECK(with_first(gpipe::forward(0, 0)).problem == Problem::wrong_device);
    CHECK(with_first(gpipe::recompute(1, 0)).problem == Problem::too_early);
    CHECK(with_first(gpipe::input_gradient(1, 0)).problem == Problem::too_early);
    CHECK(with_first(gpipe::weight_gradient(1, 0)).problem == Problem::too_early);
    for (Kind kind :
         {Kind::send_output, Kind::receive_input, Kind::send_gradient, Kind::receive_gradient,
          Kind::offload, Kind::fetch, Kind::reduce, Kind::update}) {
        auto const verdict = with_first({kind, 1, 0});
        CHECK(verdict.problem == Problem::unsupported);
        CHECK(verdict.device == 1);
        CHECK(verdict.position == 0);
        CHECK(verdict.action.kind == kind);
    }
    CHECK(verify(Programs()).problem == Problem::shape);
    CHECK(verify(Programs(2, 1, 1, 0)).problem == Problem::shape);
    CHECK(verify(Programs(1, 1, 0, 0)).problem == Problem::shape);
}

TEST_CASE("a recompute behind its backward is rejected") {
    auto const programs = gpipe::schedule::GPipe::programs(1, 1);
    auto actions = toy::actions_of(programs);
    actions[0].push_back(gpipe::recompute(0, 0));
    Programs const mutant = toy::with_actions(programs, actions);
    CHECK(verify(mutant).problem == Problem::too_early);
    CHECK_FALSE(runs(mutant));
}

TEST_CASE("every problem has a sentence of its own") {
    for (unsigned a = 0; a <= static_cast<unsigned>(Problem::deadlock); ++a)
        for (unsigned b = 0; b < a; ++b)
            CHECK(sentence(static_cast<Problem>(a)) != sentence(static_cast<Problem>(b)));
    for (unsigned a = 0; a <= static_cast<unsigned>(Kind::update); ++a)
        for (unsigned b = 0; b < a; ++b)
            CHECK(name(static_cast<Kind>(a)) != name(static_cast<Kind>(b)));
}
