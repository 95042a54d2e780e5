// The family of schedules: every one is sound, for every number of devices and micro-batches, and
// keeps to the order, the place and the memory that it says.
#include <support/long_tests.hpp>

#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/schedule/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
using gpipe::Programs;
using namespace gpipe::schedule;

namespace {

std::string name_of(Dynamic const& schedule) { return std::string(schedule.name()); }

// Every schedule once: those with one cell per device, the V ones, and the loops of 2 to most_v.
std::vector<Dynamic> all_schedules(std::size_t most_v) {
    std::vector<Dynamic> result;
    std::size_t const others = catalogue(0).size();
    for (std::size_t v = 1; v <= most_v; ++v)
        for (std::size_t s = v == 1 ? 0 : others; s < schedules().entries().size(); ++s)
            result.push_back(catalogue(v)[s]);
    return result;
}

// Calls f(schedule, programs, K, M) for all cases of all schedules that M is enough for.
template <class F> void each_case(std::size_t most_k, std::size_t most_m, std::size_t most_v, F f) {
    for (Dynamic const& schedule : all_schedules(most_v)) {
        std::string const name = name_of(schedule);
        CAPTURE(name);
        CAPTURE(schedule.cells_per_device());
        for (std::size_t k = 1; k <= most_k; ++k)
            for (std::size_t m = schedule.least_micro_batches(k); m <= most_m; ++m) {
                CAPTURE(k);
                CAPTURE(m);
                f(schedule, schedule.programs(k, m), k, m);
            }
    }
}
// The same for few and many devices.
template <class F> void each_large_case(F f) {
    for (Dynamic const& schedule : all_schedules(3)) {
        std::string const name = name_of(schedule);
        CAPTURE(name);
        for (std::size_t k : {7u, 8u, 13u, 16u, 24u, 31u, 48u, 64u})
            for (std::size_t m : {std::size_t(1), k / 2, k - 1, k, k + 1, 2 * k, 3 * k - 1}) {
                if (m < schedule.least_micro_batches(k)) continue;
                CAPTURE(k);
                CAPTURE(m);
                f(schedule, schedule.programs(k, m), k, m);
            }
    }
}

bool in_v(std::string const& name) {
    return name == "ZeroBubbleV" || name == "VHalf" || name == "VMin" || name == "DualPipeV";
}

} // namespace

TEST_CASE("every schedule is sound for every number of devices and micro-batches") {
    std::size_t cases = 0;
    auto const check = [&](Dynamic const& schedule, Programs const& programs, std::size_t k,
                           std::size_t m) {
        ++cases;
        auto const verdict = gpipe::verify(programs);
        CHECK_MESSAGE(verdict, gpipe::sentence(verdict.problem));
        CHECK(programs.devices() == k);
        CHECK(programs.cells() == k * schedule.cells_per_device());
        CHECK(programs.micro_batches() == m);
    };
    each_case(6, 12, 3, check);
    each_case(3, 6, 8, check);
    each_large_case(check);
    MESSAGE(cases << " programs");
}

TEST_CASE("a schedule holds each action once, and a backward whole or in its two halves") {
    each_case(5, 11, 3, [](Dynamic const&, Programs const& programs, std::size_t, std::size_t m) {
        std::map<std::tuple<Kind, std::size_t, std::size_t>, int> count;
        for (std::size_t i = 0; i < programs.size(); ++i)
            ++count[{programs[i].kind, programs[i].cell, programs[i].micro_batch}];
        std::size_t wrong = 0;
        for (std::size_t c = 0; c < programs.cells(); ++c)
            for (std::size_t b = 0; b < m; ++b) {
                int const whole = count[{Kind::backward, c, b}];
                wrong += count[{Kind::forward, c, b}] != 1;
                wrong += whole > 1;
                wrong += count[{Kind::input_gradient, c, b}] != 1 - whole;
                wrong += count[{Kind::weight_gradient, c, b}] != 1 - whole;
            }
        CHECK(wrong == 0);
        for (auto const& [action, times] : count)
            if (std::get<Kind>(action) == Kind::recompute) CHECK(times == 0);
    });
}

TEST_CASE("every cell runs forwards, gradients and weight gradients ascending, GPipe alone not") {
    auto const check = [](Dynamic const& schedule, Programs const& programs, std::size_t,
                          std::size_t m) {
        bool const down = schedule.name() == "GPipe";
        std::size_t wrong = 0;
        for (std::size_t c = 0; c < programs.cells(); ++c) {
            // What adds to a cell's parameters is in the order of a plain loop as well.
            std::vector<std::size_t> forwards, gradients, weights;
            for (Action const& a : programs.program(programs.device_of(c))) {
                if (a.cell != c) continue;
                if (a.kind == Kind::forward) forwards.push_back(a.micro_batch);
                if (a.kind == Kind::backward || a.kind == Kind::input_gradient)
                    gradients.push_back(a.micro_batch);
                if (a.kind == Kind::backward || a.kind == Kind::weight_gradient)
                    weights.push_back(a.micro_batch);
            }
            std::vector<std::size_t> up(m);
            for (std::size_t b = 0; b < m; ++b) up[b] = b;
            wrong += forwards != up;
            if (down) std::reverse(up.begin(), up.end());
            wrong += gradients != up;
            wrong += weights != up;
        }
        CHECK(wrong == 0);
    };
    each_case(6, 12, 4, check);
    each_large_case(check);
}

TEST_CASE("cells are placed one after the other, in loops or in a V") {
    each_case(5, 10, 4,
              [](Dynamic const& schedule, Programs const& programs, std::size_t k, std::size_t) {
                  for (std::size_t c = 0; c < programs.cells(); ++c) {
                      bool const second = in_v(name_of(schedule)) && c >= k;
                      CHECK(programs.device_of(c) == (second ? 2 * k - 1 - c : c % k));
                  }
              });
}

TEST_CASE("a device of VHalf holds (K + 2) / 2 micro-batches at most, of VMin (K + 4) / 3") {
    for (bool const half : {true, false}) {
        CAPTURE(half);
        Dynamic const schedule = half ? Dynamic(VHalf{}) : Dynamic(VMin{});
        for (std::size_t k = 1; k <= 64; ++k)
            for (std::size_t m : {std::size_t(1), std::size_t(2), std::size_t(3), k / 2, k - 1, k,
                                  k + 1, 2 * k, 3 * k}) {
                if (m == 0) continue;
                CAPTURE(k);
                CAPTURE(m);
                Programs const programs = schedule.programs(k, m);
                std::size_t const most = half ? (k + 2) / 2 : (k + 4) / 3;
                std::size_t peak = 0;
                for (std::size_t d = 0; d < k; ++d)
                    peak = std::max(peak, gpipe::peak_micro_batches(programs, d));
                CHECK(peak <= 2 * most);
                if (m >= k) CHECK(peak == 2 * most);
            }
    }
}

TEST_CASE("VHalf loses at most half of the time that 1F1B loses, VMin at most two thirds") {
    auto const lost = [](Dynamic const& schedule, std::size_t k, std::size_t m) {
        // 1F1B's cells are twice as long.
        auto const scale = static_cast<std::int64_t>(2 / schedule.cells_per_device());
        auto const times = gpipe::simulate<std::int64_t>(
            schedule.programs(k, m), [&](Action const& a) { return scale * gpipe::unit_cost(a); });
        return std::pair(times.makespan - 6 * static_cast<std::int64_t>(m), times.makespan);
    };
    for (std::size_t k = 2; k <= 64; k += toy::sanitized && k > 8 ? 11 : 1) {
        // Shares of device time are a little more, for the device time is less. From these M on
        // they are below one half and two thirds, too; for K = 2 VHalf's is above by 1 / (4 M + 2).
        std::size_t const half_from =
            k % 2 ? ((3 * k - 4) * (k - 1) + 1) / 2 : ((3 * k - 5) * (k - 1) + 3) / 4;
        std::size_t const third_from = ((4 * k - 5) * (k - 1) + 2) / 3;
        for (std::size_t m : {k, k + 1, 2 * k, 5 * k, half_from, third_from}) {
            if (m < k || k * m > 50000) continue;
            CAPTURE(k);
            CAPTURE(m);
            auto const [one, whole] = lost(OneForwardOneBackward{}, k, m);
            auto const [half, half_whole] = lost(VHalf{}, k, m);
            auto const [third, third_whole] = lost(VMin{}, k, m);
            CHECK(2 * half <= one);
            CHECK(3 * third <= 2 * one);
            if (k > 2) CHECK((2 * half * whole <= one * half_whole) == (m >= half_from));
            CHECK((3 * third * whole <= 2 * one * third_whole) == (m >= third_from));
        }
    }
}

TEST_CASE("with cheap weight gradients VMin loses with every micro-batch, VHalf does not") {
    auto const lost = [](auto schedule, std::size_t k, std::size_t m, std::int64_t w) {
        gpipe::CellCosts<std::int64_t> const cost{
            .forward = 2, .input_gradient = 2, .weight_gradient = w};
        return gpipe::simulate<std::int64_t>(schedule.programs(k, m), cost).makespan -
               2 * static_cast<std::int64_t>(m) * (4 + w);
    };
    for (std::size_t k = 2; k <= 9; ++k) {
        CAPTURE(k);
        CHECK(lost(VHalf{}, k, 6 * k, 1) == lost(VHalf{}, k, 2 * k, 1));
        CHECK(lost(VMin{}, k, 6 * k, 1) > lost(VMin{}, k, 2 * k, 1));
        CHECK(lost(VMin{}, k, 6 * k, 2) == lost(VMin{}, k, 2 * k, 2));
        CHECK(lost(VMin{}, k, 6 * k, 3) == lost(VMin{}, k, 2 * k, 3));
    }
}

TEST_CASE("interleaved 1F1B is sound for groups of any size, which have K micro-batches or more") {
    auto const check = [](auto schedule, auto whole, std::size_t group) {
        for (std::size_t k = 1; k <= 6; ++k)
            for (std::size_t m = 1; m <= 14; ++m) {
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(group);
                Programs const programs = schedule.programs(k, m);
                CHECK(gpipe::verify(programs));
                if (group > k) continue;
                Programs const of_k = whole.programs(k, m);
                CHECK(std::equal(programs.actions(), programs.actions() + programs.size(),
                                 of_k.actions()));
            }
    };
    check(Interleaved1F1B<2, 1>{}, Interleaved1F1B<2>{}, 1);
    check(Interleaved1F1B<2, 3>{}, Interleaved1F1B<2>{}, 3);
    check(Interleaved1F1B<3, 4>{}, Interleaved1F1B<3>{}, 4);
    check(Interleaved1F1B<3, 9>{}, Interleaved1F1B<3>{}, 9);
    // All of a group through the first cell, then through the second.
    Programs const programs = Interleaved1F1B<2, 3>::programs(2, 6);
    std::vector<std::pair<std::size_t, std::size_t>> forwards;
    for (Action const& a : programs.program(0))
        if (a.kind == Kind::forward) forwards.emplace_back(a.cell, a.micro_batch);
    std::vector<std::pair<std::size_t, std::size_t>> const expected{{0, 0}, {0, 1}, {0, 2}, {2, 0},
                                                                    {2, 1}, {2, 2}, {0, 3}, {0, 4},
                                                                    {0, 5}, {2, 3}, {2, 4}, {2, 5}};
    CHECK(forwards == expected);
}

TEST_CASE("a warm-up of 0 is one micro-batch after the other, of 3 holds 3 (K - 1 - k) + 1") {
    for (std::size_t k = 1; k <= 6; ++k)
        for (std::size_t m = 1; m <= 20; ++m)
            for (std::size_t d = 0; d < k; ++d) {
                CHECK(gpipe::peak_micro_batches(OneForwardOneBackwardAhead<0>::programs(k, m), d) ==
                      1);
                CHECK(gpipe::peak_micro_batches(OneForwardOneBackwardAhead<3>::programs(k, m), d) ==
                      std::min(m, 3 * (k - 1 - d) + 1));
            }
}

TEST_CASE("of the schedules in loops breadth-first loses least to latency") {
    for (std::size_t v = 1; v <= 4; ++v)
        for (std::size_t k = 2; k <= 8; ++k)
            for (std::int64_t latency : {1, 2, 4}) {
                auto const extra = [&](char const* name) {
                    Programs const programs = find_schedule(name, v).programs(k, 3 * k);
                    auto const four = [](Action const& a) { return 4 * gpipe::unit_cost(a); };
                    return gpipe::simulate<std::int64_t>(programs, four, latency).makespan -
                           gpipe::simulate<std::int64_t>(programs, four).makespan;
                };
                CHECK(extra("BreadthFirst") <= extra("Interleaved1F1B"));
            }
}

TEST_CASE("DualPipeV needs 2 K micro-batches, no other schedule more than one") {
    for (std::size_t k = 1; k <= 9; ++k) {
        CHECK(Dynamic(DualPipeV{}).least_micro_batches(k) == 2 * k);
        CHECK(gpipe::verify(DualPipeV::programs(k, 2 * k)));
    }
    for (Dynamic const& schedule : all_schedules(8))
        if (schedule.name() != "DualPipeV") CHECK(schedule.least_micro_batches(9) == 1);
}

TEST_CASE("the catalogue holds every schedule by its name, in loops of 1 to 8 cells per device") {
    std::size_t const every = schedules().entries().size();
    Array<Dynamic> const first = catalogue(0); // whatever v is
    std::size_t const others = first.size();
    for (std::size_t v = 0; v <= 9; ++v) {
        CAPTURE(v);
        bool const has_loops = v >= 1 && v <= 8;
        Array<Dynamic> const all = catalogue(v);
        CHECK(all.size() == (has_loops ? every : others));
        std::set<std::string> names;
        for (std::size_t s = 0; s < all.size(); ++s) {
            Dynamic const& schedule = all[s];
            std::string const name = name_of(schedule);
            CAPTURE(name);
            REQUIRE(schedule);
            if (s < others) CHECK(name == first[s].name());
            CHECK(names.insert(name).second);
            CHECK(schedule.cells_per_device() ==
                  (s < others ? find_schedule(name).cells_per_device() : v));
            Dynamic const found = find_schedule(name, v);
            CHECK(found.name() == name);
            CHECK(found.cells_per_device() == schedule.cells_per_device());
            Programs const programs = schedule.programs(2, 4), same = found.programs(2, 4);
            CHECK(programs.cells() == 2 * schedule.cells_per_device());
            REQUIRE(same.size() == programs.size());
            CHECK(std::equal(programs.actions(), programs.actions() + programs.size(),
                             same.actions()));
            if (s >= others)
                CHECK(find_schedule(name + '-' + std::to_string(v)).cells_per_device() == v);
        }
        if (!has_loops) CHECK_THROWS_AS(find_schedule("BreadthFirst", v), std::invalid_argument);
        CHECK(static_cast<bool>(find_schedule("VHalf", v)));
        if (!has_loops)
            CHECK_THROWS_WITH_AS(
                find_schedule("Interleaved1F1B", v),
                doctest::Contains("Interleaved1F1B is for 1 to 8 cells per device, not "),
                std::invalid_argument);
        CHECK_THROWS_AS(find_schedule("", v), std::invalid_argument);
        CHECK_THROWS_AS(find_schedule("DualPipeV", v).programs(4, 7), std::invalid_argument);
        CHECK_THROWS_AS(find_schedule("gpipe", v), std::invalid_argument);
    }
}

TEST_CASE("names of schedules stay, and so do their cells per device") {
    for (std::string const name : {"GPipe", "GPipeAscending", "OneForwardOneBackward",
                                   "EagerOneForwardOneBackward", "ZeroBubbleH1", "ZeroBubbleH2"})
        CHECK(find_schedule(name, 3).cells_per_device() == 1);
    for (std::string const name : {"ZeroBubbleV", "VHalf", "VMin", "DualPipeV"})
        CHECK(find_schedule(name, 3).cells_per_device() == 2);
    for (std::string const name : {"Interleaved1F1B", "BreadthFirst"}) {
        CHECK(find_schedule(name, 3).cells_per_device() == 3);
        CHECK(find_schedule(name + "-5", 3).cells_per_device() == 5);
    }
}

TEST_CASE("a number of cells per device that is given at run time makes what the constant makes") {
    auto const check = [](auto constant, Dynamic const& object) {
        CHECK(object.name() == constant.name);
        REQUIRE(object.cells_per_device() == constant.cells_per_device);
        for (std::size_t k = 1; k <= 4; ++k)
            for (std::size_t m = 1; m <= 9; ++m) {
                Programs const a = constant.programs(k, m);
                Programs const b = object.programs(k, m);
                CHECK(std::equal(a.actions(), a.actions() + a.size(), b.actions(),
                                 b.actions() + b.size()));
            }
    };
    check(Interleaved1F1B<1>{}, Interleaved1F1B<gpipe::dynamic>{1});
    check(Interleaved1F1B<3>{}, Interleaved1F1B<gpipe::dynamic>{3});
    check(Interleaved1F1B<2, 3>{}, Interleaved1F1B<gpipe::dynamic, 3>{2});
    check(BreadthFirst<1>{}, BreadthFirst<gpipe::dynamic>{1});
    check(BreadthFirst<4>{}, BreadthFirst<gpipe::dynamic>{4});
}

TEST_CASE("actions appended at once stand where added ones would, beyond the capacity, too") {
    Programs programs(2, 2, 2, 3);
    programs.add(gpipe::forward(0, 0));
    Action* const next = programs.append(1);
    *next = gpipe::backward(0, 0);
    programs.next_device();
    CHECK(programs.program(0).size() == 2);
    CHECK(programs.program(0)[1] == gpipe::backward(0, 0));
    *programs.append(1) = gpipe::forward(1, 0);
    programs.next_device();
    CHECK(programs.actions()[2] == gpipe::forward(1, 0));
    CHECK(programs.size(1) == 1);
    Action* const more = programs.append(2);
    more[0] = more[1] = gpipe::backward(1, 1);
    programs.add(gpipe::forward(1, 1));
    CHECK(programs.size() == 6);
    CHECK(programs.actions()[0] == gpipe::forward(0, 0));
    CHECK(programs.actions()[4] == gpipe::backward(1, 1));
    CHECK(programs.actions()[5] == gpipe::forward(1, 1));
}
