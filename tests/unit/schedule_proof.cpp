// verify() is a proof: it accepts programs exactly when no execution of them goes wrong, whether
// they hold recomputes or not.
#include <support/executor.hpp>
#include <support/long_tests.hpp>
#include <support/schedules.hpp>

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/runtime/choices.hpp>
#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/schedule/verify.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using gpipe::Action;
using gpipe::Kind;
using gpipe::Problem;
using gpipe::Programs;
using gpipe::verify;

namespace {

// Programs that can be changed at any place.
struct Draft {
    explicit Draft(Programs const& programs) : shape(programs), device(toy::actions_of(programs)) {}

    Programs programs() const { return toy::with_actions(shape, device); }
    gpipe::Verdict verdict() const { return verify(programs()); }
    toy::Outcome execute() const {
        Programs const plain = programs();
        return toy::Executor(plain).run();
    }
    // The same with the action at `from` of device d moved to `to`.
    Draft moved(std::size_t d, std::size_t from, std::size_t to) const {
        Draft result = *this;
        auto& actions = result.device[d];
        Action const action = actions[from];
        actions.erase(actions.begin() + std::ptrdiff_t(from));
        actions.insert(actions.begin() + std::ptrdiff_t(to), action);
        return result;
    }

    Programs shape; // without its actions
    std::vector<std::vector<Action>> device;
};

// The forms that a schedule's programs take.
std::string const forms[] = {"as they are", "with recomputes"};

// Calls f(form, draft) for all schedules and forms up to a number of (cell, micro-batch) pairs, so
// few that every execution can be looked at.
template <class F> void each_small_draft(std::size_t most_pairs, F f) {
    if (toy::long_tests()) most_pairs = 2 * most_pairs;
    if (toy::one_of(1) > 1) most_pairs = most_pairs * 2 / 3; // sanitizers take their time
    for (std::size_t m = 1; m <= 6; ++m)
        toy::each_of_catalogue(4, most_pairs / m, m,
                               [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
                                   std::string const name(schedule.name());
                                   CAPTURE(name);
                                   CAPTURE(k);
                                   CAPTURE(m);
                                   Programs const programs = schedule.programs(k, m);
                                   f(0, Draft(programs));
                                   f(1, Draft(gpipe::checkpoint::ExceptLast::lower(programs)));
                               });
}

// What verify() and the executor say of mutants, by form.
struct Tally {
    std::size_t rejected[2] = {};
    std::size_t accepted[2] = {};
    std::size_t wrong = 0;

    gpipe::Verdict add(int form, Draft const& mutant) {
        auto const verdict = mutant.verdict();
        wrong += static_cast<bool>(verdict) != mutant.execute().sound;
        ++(verdict ? accepted : rejected)[form];
        return verdict;
    }
    void print() const {
        for (int form = 0; form < 2; ++form)
            MESSAGE(forms[form] << ": " << rejected[form] << " rejected, " << accepted[form]
                                << " accepted");
        CHECK(wrong == 0);
    }
    void print_all_rejected() const {
        print();
        for (int form = 0; form < 2; ++form) {
            CHECK(rejected[form] > 0);
            CHECK(accepted[form] == 0);
        }
    }
    void print_some_rejected() const {
        print();
        for (int form = 0; form < 2; ++form) {
            CHECK(rejected[form] > 0);
            CHECK(accepted[form] > 0);
        }
    }
};

} // namespace

TEST_CASE("what a schedule yields is sound in every form, and so says the executor") {
    std::size_t programs = 0;
    std::size_t states = 0;
    each_small_draft(18, [&](int form, Draft const& draft) {
        INFO(forms[form]);
        auto const verdict = draft.verdict();
        CHECK_MESSAGE(verdict, sentence(verdict.problem));
        toy::Outcome const outcome = draft.execute();
        CHECK(outcome.sound);
        ++programs;
        states += outcome.states;
    });
    MESSAGE(programs << " programs, " << states << " states of executions");
}

TEST_CASE(
    "programs with any one action left out are rejected; without a recompute they are others") {
    Tally tally;
    std::size_t named = 0;
    std::size_t recomputes = 0;
    each_small_draft(12, [&](int form, Draft const& draft) {
        for (std::size_t d = 0; d < draft.device.size(); ++d)
            for (std::size_t i = 0; i < draft.device[d].size(); ++i) {
                Draft mutant = draft;
                Action const dropped = draft.device[d][i];
                mutant.device[d].erase(mutant.device[d].begin() + std::ptrdiff_t(i));
                if (dropped.kind == Kind::recompute) {
                    CHECK(mutant.verdict());
                    CHECK(mutant.execute().sound);
                    ++recomputes;
                    continue;
                }
                auto const verdict = tally.add(form, mutant);
                if (verdict.problem == Problem::missing)
                    named += verdict.action == dropped && verdict.device == d;
                else // what needs it is too early, on its own device
                    named += verdict.problem == Problem::too_early && verdict.device == d;
            }
    });
    tally.print_all_rejected();
    MESSAGE(recomputes << " without a recompute, all accepted");
    std::size_t all = 0;
    for (std::size_t const each : tally.rejected) all += each;
    CHECK(named == all);
}

TEST_CASE("programs with any one action twice are rejected, wherever it stands again") {
    Tally tally;
    std::size_t named = 0;
    each_small_draft(8, [&](int form, Draft const& draft) {
        for (std::size_t d = 0; d < draft.device.size(); ++d)
            for (std::size_t i = 0; i < draft.device[d].size(); ++i)
                for (std::size_t at = 0; at <= draft.device[d].size(); ++at) {
                    Draft mutant = draft;
                    auto const again = draft.device[d][i];
                    mutant.device[d].insert(mutant.device[d].begin() + std::ptrdiff_t(at), again);
                    auto const verdict = tally.add(form, mutant);
                    // Again too early, or the recompute of what stands again is then too late.
                    named += verdict.device == d && (verdict.problem == Problem::twice ||
                                                             verdict.problem == Problem::too_early
                                                         ? verdict.action == again
                                                         : verdict.problem == Problem::too_late);
                }
    });
    tally.print_all_rejected();
    std::size_t all = 0;
    for (std::size_t const each : tally.rejected) all += each;
    CHECK(named == all);
}

TEST_CASE("neighbours swapped are rejected exactly when an execution goes wrong") {
    Tally tally;
    std::size_t by_problem[gpipe::problem_count] = {};
    each_small_draft(toy::sanitized ? 12 : 18, [&](int form, Draft const& draft) {
        for (std::size_t d = 0; d < draft.device.size(); ++d)
            for (std::size_t i = 0; i + 1 < draft.device[d].size(); ++i) {
                auto const verdict = tally.add(form, draft.moved(d, i, i + 1));
                ++by_problem[static_cast<std::size_t>(verdict.problem)];
            }
    });
    tally.print_some_rejected();
    for (Problem const problem : {Problem::too_early, Problem::too_late, Problem::deadlock}) {
        MESSAGE(sentence(problem) << ": " << by_problem[static_cast<std::size_t>(problem)]);
        CHECK(by_problem[static_cast<std::size_t>(problem)] > 0);
    }
}

TEST_CASE("an action anywhere else in its program is rejected exactly when an execution goes "
          "wrong") {
    Tally tally;
    each_small_draft(8, [&](int form, Draft const& draft) {
        for (std::size_t d = 0; d < draft.device.size(); ++d)
            for (std::size_t i = 0; i < draft.device[d].size(); ++i)
                for (std::size_t at = 0; at < draft.device[d].size(); ++at)
                    if (at != i) tally.add(form, draft.moved(d, i, at));
    });
    tally.print_some_rejected();
}

TEST_CASE("programs with several mistakes are rejected exactly when an execution goes wrong") {
    Tally tally;
    std::mt19937 random(7);
    std::size_t const trials = toy::long_tests() ? 500 : 20;
    each_small_draft(10, [&](int form, Draft const& draft) {
        for (std::size_t trial = 0; trial < trials; ++trial) {
            Draft mutant = draft;
            for (std::size_t n = random() % 4 + 1; n > 0; --n) {
                std::size_t const d = random() % mutant.device.size();
                std::size_t const size = mutant.device[d].size();
                // Short moves mostly: long ones break everything at once.
                std::size_t const from = random() % size;
                std::size_t const to = from + random() % 4;
                if (to < size) mutant = mutant.moved(d, from, to);
            }
            tally.add(form, mutant);
        }
    });
    tally.print_some_rejected();
}

TEST_CASE("an action on a device that does not own its cell is rejected") {
    Tally tally;
    each_small_draft(6, [&](int form, Draft const& draft) {
        for (std::size_t d = 0; d < draft.device.size(); ++d)
            for (std::size_t i = 0; i < draft.device[d].size(); ++i)
                for (std::size_t to = 0; to < draft.device.size(); ++to) {
                    if (to == d) continue;
                    Draft mutant = draft;
                    auto const step = mutant.device[d][i];
                    mutant.device[d].erase(mutant.device[d].begin() + std::ptrdiff_t(i));
                    mutant.device[to].push_back(step);
                    tally.add(form, mutant);
                }
    });
    tally.print_all_rejected();
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
}

TEST_CASE("programs of no shape are rejected, and devices without a cell are named") {
    CHECK(verify(Programs()).problem == Problem::shape);
    CHECK(verify(Programs(1, 0, 1, 0)).problem == Problem::shape);
    CHECK(verify(Programs(1, 1, 0, 0)).problem == Problem::shape);
    CHECK(verify(Programs(2, 1, 1, 0)).problem == Problem::idle_device);
    Programs programs(3, 3, 1, 6);
    programs.place(1, 0);
    CHECK(verify(programs).problem == Problem::idle_device);
    CHECK(verify(programs).device == 1);
    programs.place(1, 77);
    CHECK(verify(programs).problem == Problem::no_such_device);
    CHECK(verify(programs).device == 77);
    CHECK(verify(programs).action.cell == 1);
    CHECK_THROWS_AS(programs.place(3, 0), std::invalid_argument);
}

TEST_CASE("programs that are not ended, and actions behind all of them, are rejected") {
    for (std::size_t devices : {1, 2, 3}) {
        Programs open(devices, devices, 1, 2 * devices);
        for (std::size_t d = 0; d < devices; ++d) {
            if (d > 0) open.next_device();
            open.add(gpipe::forward(d, 0));
            open.add(gpipe::backward(d, 0));
        }
        CHECK(verify(open).problem == Problem::unended);
        Programs closed = open;
        closed.next_device();
        CHECK(verify(closed).problem == Problem::sound);
        closed.add({Kind::backward, 700000, 900000});
        CHECK(verify(closed).problem == Problem::unended);
        CHECK_THROWS_WITH_AS(gpipe::prove(closed, "schedule", devices, devices, 1),
                             "gpipe: the programs of the schedule are wrong: next_device() has to "
                             "stand behind the program of every device, and nothing behind the "
                             "last",
                             std::invalid_argument);
    }
}

TEST_CASE("a kind that is none has no place, and no name") {
    for (int kind : {static_cast<int>(gpipe::kind_count), 200, 255}) {
        auto actions = toy::actions_of(gpipe::schedule::GPipe::programs(1, 1));
        actions[0][0].kind = static_cast<Kind>(kind);
        auto const verdict =
            verify(toy::with_actions(gpipe::schedule::GPipe::programs(1, 1), actions));
        CHECK(verdict.problem == Problem::unsupported);
        CHECK(name(verdict.action.kind) == "unknown");
    }
}

TEST_CASE("a recompute behind its backward is rejected") {
    auto const programs = gpipe::schedule::GPipe::programs(1, 1);
    auto actions = toy::actions_of(programs);
    actions[0].push_back(gpipe::recompute(0, 0));
    Programs const mutant = toy::with_actions(programs, actions);
    CHECK(verify(mutant).problem == Problem::too_late);
    CHECK(verify(mutant).position == 2);
    CHECK_FALSE(toy::Executor(mutant).run().sound);
}

TEST_CASE("what is in flight on a device is counted") {
    for (std::size_t m = 1; m <= 9; ++m)
        toy::each_of_catalogue(4, 12, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            Programs const programs = schedule.programs(k, m);
            for (std::size_t d = 0; d < k; ++d) {
                std::size_t peak = 0;
                for (std::size_t at = 0; at <= programs.size(d); ++at) {
                    std::size_t begun = 0;
                    std::size_t ended = 0;
                    for (std::size_t i = 0; i < at; ++i) {
                        Kind const kind = programs.program(d)[i].kind;
                        begun += kind == Kind::forward;
                        ended += kind == Kind::backward || kind == Kind::weight_gradient;
                    }
                    peak = begun - ended > peak ? begun - ended : peak;
                }
                CHECK(peak_micro_batches(programs, d) == peak);
            }
        });
}

TEST_CASE("every problem has a sentence of its own") {
    for (unsigned a = 0; a < gpipe::problem_count; ++a)
        for (unsigned b = 0; b < a; ++b)
            CHECK(sentence(static_cast<Problem>(a)) != sentence(static_cast<Problem>(b)));
    for (unsigned a = 0; a < gpipe::kind_count; ++a)
        for (unsigned b = 0; b < a; ++b)
            CHECK(name(static_cast<Kind>(a)) != name(static_cast<Kind>(b)));
}
