// Programs with messages: what with_messages() puts where, and in which slots.
#include <support/executor.hpp>
#include <support/long_tests.hpp>
#include <support/mutants.hpp>
#include <support/schedules.hpp>

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/schedule/catalogue.hpp>
#include <gpipe/schedule/verify_messages.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using gpipe::Action;
using gpipe::Array;
using gpipe::Kind;
using gpipe::MessagePrograms;
using gpipe::Programs;
using gpipe::with_messages;

namespace {

bool is_message(Action const& a) {
    return a.kind == Kind::send_output || a.kind == Kind::receive_input ||
           a.kind == Kind::send_gradient || a.kind == Kind::receive_gradient;
}
bool is_receive(Action const& a) {
    return a.kind == Kind::receive_input || a.kind == Kind::receive_gradient;
}
std::vector<Programs> lowerings(Programs const& programs) {
    return {programs, gpipe::checkpoint::ExceptLast::lower(programs),
            gpipe::checkpoint::Always::lower(programs)};
}

// Calls f(programs) for all schedules, as they are and with recomputes.
template <class F>
void each_program(std::size_t most_k, std::size_t most_m, std::size_t most_v, F f) {
    toy::each_schedule(most_k, most_m, most_v,
                       [&](auto const& schedule, std::size_t k, std::size_t m) {
                           std::string const name(schedule.name());
                           CAPTURE(name);
                           CAPTURE(k);
                           CAPTURE(m);
                           for (Programs const& programs : lowerings(schedule.programs(k, m)))
                               f(programs);
                       });
}

// When everything starts if a send takes no time and waits for nobody, at unit costs; by device.
// A receive waits for its send; without messages an action for what it needs.
std::vector<std::vector<long>> starts(Programs const& programs) {
    std::map<std::tuple<bool, std::size_t, std::size_t>, long> there; // gradient, boundary, m
    std::vector<std::vector<long>> result(programs.devices());
    std::vector<long> clock(programs.devices());
    bool messages = false;
    for (std::size_t i = 0; i < programs.size(); ++i) messages |= is_message(programs[i]);
    for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t d = 0; d < programs.devices(); ++d)
            while (result[d].size() < programs.size(d)) {
                Action const& a = programs.program(d)[result[d].size()];
                bool const gradient = a.kind == Kind::backward || a.kind == Kind::input_gradient ||
                                      a.kind == Kind::receive_gradient;
                std::size_t const from = gradient ? a.cell + 1u : a.cell;
                bool const inside = from > 0 && from < programs.cells() &&
                                    programs.device_of(from - 1) == programs.device_of(from);
                bool const waits = is_receive(a) || ((!messages || inside) &&
                                                     (gradient || a.kind == Kind::forward) &&
                                                     from > 0 && from < programs.cells());
                if (waits) {
                    auto const found = there.find({gradient, from, a.micro_batch});
                    if (found == there.end()) break;
                    clock[d] = std::max(clock[d], found->second);
                }
                result[d].push_back(clock[d]);
                moved = true;
                if (!is_message(a)) clock[d] += a.kind == Kind::backward ? 2 : 1;
                bool const by_message = messages && !is_message(a);
                if (a.kind == Kind::forward || a.kind == Kind::send_output) {
                    std::size_t const to = a.cell + 1u;
                    bool const here = to < programs.cells() && programs.device_of(to) == d;
                    if (!by_message || here) there[{false, to, a.micro_batch}] = clock[d];
                }
                if (a.kind == Kind::backward || a.kind == Kind::input_gradient ||
                    a.kind == Kind::send_gradient) {
                    bool const here = a.cell > 0 && programs.device_of(a.cell - 1u) == d;
                    if (!by_message || here) there[{true, a.cell, a.micro_batch}] = clock[d];
                }
            }
    }
    return result;
}

// When the last device is done at unit costs if messages take no time, and nothing is buffered.
long makespan_of_meetings(Programs const& programs) {
    std::vector<long> clock(programs.devices());
    std::vector<std::size_t> at(programs.devices());
    for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t d = 0; d < programs.devices(); ++d)
            while (at[d] < programs.size(d)) {
                Action const& a = programs.program(d)[at[d]];
                if (is_message(a)) {
                    std::size_t const e = programs.device_of(gpipe::other_cell(a));
                    if (at[e] == programs.size(e)) break;
                    Action const& b = programs.program(e)[at[e]];
                    if (!is_message(b) || programs.device_of(gpipe::other_cell(b)) != d) break;
                    clock[d] = clock[e] = std::max(clock[d], clock[e]);
                    ++at[e];
                } else {
                    clock[d] += a.kind == Kind::backward ? 2 : 1;
                }
                ++at[d];
                moved = true;
            }
    }
    return *std::max_element(clock.begin(), clock.end());
}

// The most tensors of each pool that are between their receive and their last use.
std::vector<std::size_t> most_live(Programs const& programs, Kind receive) {
    std::vector<std::size_t> most(programs.cells());
    for (std::size_t c = 0; c < programs.cells(); ++c) {
        std::set<std::size_t> live;
        for (Action const& a : programs.program(programs.device_of(c))) {
            if (a.cell != c) continue;
            if (a.kind == receive) live.insert(a.micro_batch);
            most[c] = std::max(most[c], live.size());
            if (a.kind == Kind::backward || a.kind == Kind::weight_gradient)
                live.erase(a.micro_batch);
        }
    }
    return most;
}
std::size_t in_flight(Programs const& programs, std::size_t cell) {
    std::size_t now = 0;
    std::size_t most = 0;
    for (Action const& a : programs.program(programs.device_of(cell))) {
        if (a.cell != cell) continue;
        if (a.kind == Kind::forward) most = std::max(most, ++now);
        if (a.kind == Kind::backward || a.kind == Kind::weight_gradient) --now;
    }
    return most;
}

} // namespace

TEST_CASE("every schedule is sound with and without recomputes and messages: all K <= 6, M <= 12, "
          "v <= 3") {
    std::size_t proofs = 0;
    each_program(6, 12, 3, [&](Programs const& programs) {
        CHECK(gpipe::verify(programs));
        auto const verdict = gpipe::verify(with_messages(programs));
        CHECK_MESSAGE(verdict, sentence(verdict.problem));
        proofs += 2;
    });
    MESSAGE(proofs << " proofs");
}

TEST_CASE("every schedule is sound up to 64 devices") {
    std::size_t proofs = 0;
    std::size_t actions = 0;
    std::size_t point = 0;
    for (std::size_t v : {1u, 2u, 3u, 8u}) {
        auto const all = gpipe::schedule::catalogue(v);
        for (std::size_t s = v > 1 ? all.size() - 2 : 0; s < all.size(); ++s)
            for (std::size_t k : {7u, 8u, 12u, 16u, 31u, 33u, 64u})
                for (std::size_t m : {k - 1, k, 2 * k + 1}) {
                    if (m < all[s].least_micro_batches(k) || (v == 8 && k > 16)) continue;
                    if (point++ % toy::one_of(1) != 0) continue;
                    std::string const name(all[s].name());
                    CAPTURE(name);
                    CAPTURE(k);
                    CAPTURE(m);
                    Programs const programs = all[s].programs(k, m);
                    CHECK(gpipe::verify(programs));
                    auto const lowered =
                        with_messages(gpipe::checkpoint::ExceptLast::lower(programs));
                    CHECK(gpipe::verify(lowered));
                    ++proofs;
                    actions += lowered.programs.size();
                }
    }
    MESSAGE(proofs << " proofs, " << actions << " actions");
}

TEST_CASE("without its messages a program is what it was; each tensor between devices has one") {
    each_program(4, 9, 3, [](Programs const& programs) {
        MessagePrograms const lowered = with_messages(programs);
        std::map<std::tuple<Kind, std::size_t, std::size_t>, std::size_t> messages;
        for (std::size_t d = 0; d < programs.devices(); ++d) {
            std::vector<Action> rest;
            for (Action const& a : lowered.programs.program(d)) {
                if (!is_message(a))
                    rest.push_back(a);
                else
                    ++messages[{a.kind, a.cell, a.micro_batch}];
            }
            auto const before = programs.program(d);
            CHECK(rest == std::vector<Action>(before.begin(), before.end()));
        }
        std::size_t expected = 0;
        for (std::size_t c = 1; c < programs.cells(); ++c)
            for (std::size_t m = 0; m < programs.micro_batches(); ++m) {
                if (programs.device_of(c - 1) == programs.device_of(c)) continue;
                expected += 4;
                CHECK(messages[{Kind::send_output, c - 1, m}] == 1);
                CHECK(messages[{Kind::receive_input, c, m}] == 1);
                CHECK(messages[{Kind::send_gradient, c, m}] == 1);
                CHECK(messages[{Kind::receive_gradient, c - 1, m}] == 1);
            }
        CHECK(messages.size() == expected);
    });
}

TEST_CASE("a send comes right behind what makes it, but for receives") {
    each_program(4, 9, 3, [](Programs const& programs) {
        MessagePrograms const lowered = with_messages(programs);
        for (std::size_t d = 0; d < programs.devices(); ++d) {
            Action made{};
            for (Action const& a : lowered.programs.program(d)) {
                if (!is_message(a)) made = a;
                if (!is_message(a) || is_receive(a)) continue;
                CHECK(made.cell == a.cell);
                CHECK(made.micro_batch == a.micro_batch);
                CHECK((made.kind == Kind::forward) == (a.kind == Kind::send_output));
            }
        }
    });
}

TEST_CASE("were sends to wait for nobody, receives would make no action late") {
    std::size_t point = 0;
    each_program(5, 9, 3, [&](Programs const& programs) {
        if (point++ % toy::one_of(1) != 0) return;
        MessagePrograms const lowered = with_messages(programs);
        auto const before = starts(programs);
        auto const all = starts(lowered.programs);
        for (std::size_t d = 0; d < programs.devices(); ++d) {
            REQUIRE(all[d].size() == lowered.programs.size(d));
            std::vector<long> computing;
            for (std::size_t i = 0; i < all[d].size(); ++i)
                if (!is_message(lowered.programs.program(d)[i])) computing.push_back(all[d][i]);
            CHECK(computing == before[d]);
        }
    });
}

TEST_CASE("with nothing buffered one cell per device takes as long as with everything buffered") {
    std::size_t slower = 0;
    std::size_t point = 0;
    toy::each_schedule(8, 24, 2, [&](auto const& schedule, std::size_t k, std::size_t m) {
        if (point++ % toy::one_of(1) != 0) return;
        std::string const name(schedule.name());
        CAPTURE(name);
        CAPTURE(k);
        CAPTURE(m);
        Programs const programs = schedule.programs(k, m);
        long buffered = 0;
        auto const all = starts(programs);
        for (std::size_t d = 0; d < k; ++d)
            buffered = std::max(
                buffered, all[d].back() + (programs.program(d).back().kind == Kind::backward) + 1);
        long const met = makespan_of_meetings(with_messages(programs).programs);
        CHECK(met >= buffered);
        if (schedule.cells_per_device() == 1) CHECK(met == buffered);
        slower += met > buffered;
    });
    MESSAGE(slower << " of several cells per device take longer");
}

TEST_CASE("a receive comes as late as its sender's next action and its use allow") {
    each_program(4, 7, 2, [](Programs const& programs) {
        MessagePrograms const lowered = with_messages(programs);
        auto const before = starts(programs);
        // By action of the programs before: when it starts.
        std::map<std::tuple<Kind, std::size_t, std::size_t>, long> start;
        long end = 0;
        for (std::size_t d = 0; d < programs.devices(); ++d)
            for (std::size_t i = 0; i < programs.size(d); ++i) {
                Action const& a = programs.program(d)[i];
                start[{a.kind, a.cell, a.micro_batch}] = before[d][i];
                end = std::max(end, before[d][i] + 1);
            }
        auto const started = [&](Action const& a) {
            return start.at({a.kind, a.cell, a.micro_batch});
        };
        // Receives by what they are of: when the action in front of them starts, and the next.
        std::map<std::tuple<bool, std::size_t, std::size_t>, std::pair<long, long>> around;
        for (std::size_t d = 0; d < programs.devices(); ++d) {
            auto const program = lowered.programs.program(d);
            for (std::size_t i = 0; i < program.size(); ++i) {
                if (!is_receive(program[i])) continue;
                long in_front = -1;
                long behind = end;
                for (std::size_t j = i; j-- > 0 && in_front < 0;)
                    if (!is_message(program[j])) in_front = started(program[j]);
                for (std::size_t j = i; j < program.size() && behind == end; ++j)
                    if (!is_message(program[j])) behind = started(program[j]);
                bool const gradient = program[i].kind == Kind::receive_gradient;
                around[{gradient, program[i].cell + gradient, program[i].micro_batch}] = {in_front,
                                                                                          behind};
            }
        }
        for (std::size_t d = 0; d < programs.devices(); ++d)
            for (std::size_t i = 0; i < programs.size(d); ++i) {
                Action const& a = programs.program(d)[i];
                bool const gradient = gpipe::gives_gradient(a.kind);
                std::size_t const boundary = gradient ? a.cell : a.cell + 1u;
                auto const found = around.find({gradient, boundary, a.micro_batch});
                if ((!gradient && a.kind != Kind::forward) || found == around.end()) continue;
                long moment = i + 1 < programs.size(d) ? before[d][i + 1] : end;
                for (auto const& [key, when] : start) {
                    auto const [kind, cell, m] = key;
                    if (m == a.micro_batch && cell == (gradient ? a.cell - 1u : a.cell + 1u) &&
                        (gradient ? gpipe::gives_gradient(kind) : kind == Kind::forward))
                        moment = std::min(moment, when);
                }
                CHECK(found->second.first < moment);
                CHECK(found->second.second >= moment);
            }
    });
}

TEST_CASE("there are as many slots as tensors that are needed at once") {
    each_program(5, 9, 3, [](Programs const& programs) {
        MessagePrograms const lowered = with_messages(programs);
        auto const inputs = most_live(lowered.programs, Kind::receive_input);
        auto const gradients = most_live(lowered.programs, Kind::receive_gradient);
        for (std::size_t c = 0; c < programs.cells(); ++c) {
            CHECK(lowered.input_slots[c] == inputs[c]);
            CHECK(lowered.gradient_slots[c] == gradients[c]);
        }
    });
}

TEST_CASE("a cell needs at most one slot more than it has micro-batches in flight, two with "
          "recomputes") {
    toy::each_schedule(8, 20, 3, [](auto const& schedule, std::size_t k, std::size_t m) {
        std::string const name(schedule.name());
        CAPTURE(name);
        CAPTURE(k);
        CAPTURE(m);
        Programs const plain = schedule.programs(k, m);
        auto const all = lowerings(plain);
        for (std::size_t lowering = 0; lowering < all.size(); ++lowering) {
            MessagePrograms const lowered = with_messages(all[lowering]);
            std::size_t const more = lowering == 0 ? 1 : 2;
            for (std::size_t c = 0; c < plain.cells(); ++c) {
                CHECK(lowered.input_slots[c] <= in_flight(plain, c) + more);
                CHECK(lowered.gradient_slots[c] <= in_flight(plain, c));
            }
        }
    });
}

TEST_CASE("where backwards are whole, never more than the cell before has in flight") {
    toy::each_schedule(6, 14, 3, [](auto const& schedule, std::size_t k, std::size_t m) {
        Programs const programs = schedule.programs(k, m);
        for (std::size_t i = 0; i < programs.size(); ++i)
            if (programs[i].kind == Kind::weight_gradient) return;
        MessagePrograms const lowered = with_messages(programs);
        for (std::size_t c = 1; c < programs.cells(); ++c)
            CHECK(lowered.input_slots[c] <= in_flight(programs, c - 1));
    });
}

TEST_CASE("a gradient that does not cross has no message, and the rest is proven without it") {
    each_program(4, 6, 2, [](Programs const& programs) {
        for (std::size_t first = 1; first < programs.cells(); ++first) {
            // None crosses below the first layer that learns.
            Array<bool> crosses(programs.cells(), true);
            std::vector<bool> crossing(programs.cells(), true);
            for (std::size_t c = 1; c <= first; ++c) crosses[c] = crossing[c] = false;
            MessagePrograms const lowered = with_messages(programs, crosses);
            CHECK(gpipe::verify(lowered, crosses));
            for (std::size_t i = 0; i < lowered.programs.size(); ++i) {
                Action const& a = lowered.programs[i];
                if (a.kind == Kind::send_gradient) CHECK(a.cell > first);
                if (a.kind == Kind::receive_gradient) CHECK(a.cell >= first);
            }
            for (std::size_t c = 0; c < first; ++c) CHECK(lowered.gradient_slots[c] == 0);
            if (programs.size() <= 24) CHECK(toy::Executor(lowered, crossing).run().sound);
        }
    });
}

TEST_CASE("programs of a user's own are sound with messages, in every execution") {
    std::size_t states = 0;
    std::size_t const trials = toy::long_tests() ? 3000 : 100;
    auto const check = [&](Programs const& programs) {
        for (Programs const& lowering : lowerings(programs)) {
            MessagePrograms const lowered = with_messages(lowering);
            CHECK(gpipe::verify(lowered));
            toy::Outcome const outcome = toy::Executor(lowered).run();
            CHECK(outcome.sound);
            states += outcome.states;
        }
    };
    for (std::size_t trial = 0; trial < trials; ++trial) {
        toy::chance = trial;
        CAPTURE(trial);
        check(toy::ByChance::programs(1 + trial % 4, 1 + trial % 5));
    }
    for (std::size_t k = 1; k <= 5; ++k)
        for (std::size_t m = 1; m <= 3; ++m) {
            check(toy::OneByOne::programs(k, m));
            check(toy::Dealt::programs(k, m));
        }
    MESSAGE(states << " states of executions");
}

TEST_CASE("one device has no messages, and both ends of one are cells next to each other") {
    MessagePrograms const alone = with_messages(gpipe::schedule::BreadthFirst<3>::programs(1, 4));
    CHECK(alone.programs.size() == 2 * 3 * 4);
    for (std::size_t c = 0; c < 3; ++c) CHECK(alone.input_slots[c] + alone.gradient_slots[c] == 0);
    CHECK(gpipe::other_cell({Kind::send_output, 3, 0}) == 4);
    CHECK(gpipe::other_cell({Kind::receive_input, 3, 0}) == 2);
    CHECK(gpipe::other_cell({Kind::send_gradient, 3, 0}) == 2);
    CHECK(gpipe::other_cell({Kind::receive_gradient, 3, 0}) == 4);
}

TEST_CASE("programs that wait for each other are refused messages") {
    Programs programs(2, 2, 2, 8);
    for (Action const& a :
         {gpipe::forward(0, 0), gpipe::backward(0, 0), gpipe::forward(0, 1), gpipe::backward(0, 1)})
        programs.add(a);
    programs.next_device();
    for (Action const& a :
         {gpipe::forward(1, 1), gpipe::backward(1, 1), gpipe::forward(1, 0), gpipe::backward(1, 0)})
        programs.add(a);
    programs.next_device();
    CHECK(gpipe::verify(programs).problem == gpipe::Problem::deadlock);
    CHECK_THROWS_AS(with_messages(programs), std::logic_error);
}
