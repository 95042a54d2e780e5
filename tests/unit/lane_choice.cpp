// Whether a step runs on all lanes or on one, by times that are fed: no choice lasts that a
// disturbed trial has made.
#include <gpipe/runtime/lane_choice.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

using gpipe::LaneChoice;

namespace {

constexpr std::size_t actions = 256;

struct Taken {
    std::size_t alone = 0; // steps on one lane
    std::size_t all = 0;   // on all
    std::size_t asked = 0; // of both: whose time was wanted
    double seconds = 0;
};

// So many steps, of which number n takes seconds(n, alone).
Taken take(LaneChoice& choice, std::size_t steps,
           std::function<double(std::size_t, bool)> const& seconds) {
    Taken taken;
    for (std::size_t n = 0; n < steps; ++n) {
        bool const alone = choice.alone(), asks = choice.asks();
        double const took = seconds(n, alone);
        ++(alone ? taken.alone : taken.all);
        taken.asked += asks;
        taken.seconds += took;
        choice.note(asks ? took : 0);
    }
    return taken;
}
// Undisturbed: near-empty steps, for which one lane is ten times as fast.
double near_empty(std::size_t, bool alone) { return alone ? 5e-6 : 50e-6; }
// Long ones, for which two lanes are.
double long_ones(std::size_t, bool alone) { return alone ? 20e-3 : 10e-3; }

} // namespace

TEST_CASE("short steps run on the lanes that are faster, and are seldom tried on the others") {
    LaneChoice one(true, actions), all(true, actions);
    take(one, LaneChoice::fewest + LaneChoice::trial, near_empty);
    CHECK(one.alone());
    Taken const taken = take(one, 100'000, near_empty);
    CHECK(taken.all < 12 * LaneChoice::trial);
    CHECK(taken.asked < 24 * LaneChoice::trial);
    CHECK(take(all, 100'000, [](std::size_t, bool alone) { return alone ? 8e-6 : 5e-6; }).alone <
          12 * LaneChoice::trial);
}

TEST_CASE("of long steps a trial takes one on a single lane") {
    LaneChoice choice(true, actions);
    CHECK(take(choice, LaneChoice::fewest / 2 + LaneChoice::run, long_ones).alone == 0);
    CHECK(take(choice, 10'000, long_ones).alone <= 8);
    CHECK(take(choice, 100'000, long_ones).alone <= 12);
}

TEST_CASE("a choice of lanes that a disturbed trial has made lasts for the fewest steps, whatever "
          "was disturbed and however often trials agreed before") {
    constexpr std::size_t before = LaneChoice::fewest / 2;
    std::size_t const lengths[] = {1, 2, 4, LaneChoice::trial};
    for (std::size_t const settled : {before, 2 * before + LaneChoice::trial, std::size_t{50'000}})
        for (bool const one : {false, true})     // lane that is faster
            for (bool const hit : {false, true}) // which the other process disturbs
                for (std::size_t const length : lengths)
                    for (std::size_t begin = 0; begin < LaneChoice::trial; ++begin) {
                        LaneChoice choice(true, actions);
                        auto const fair = [&](std::size_t, bool alone) {
                            return alone == one ? 5e-6 : 50e-6;
                        };
                        take(choice, settled, fair);
                        while (!choice.trying()) take(choice, 1, fair);
                        take(choice, LaneChoice::trial, [&](std::size_t n, bool alone) {
                            bool const slow = alone == hit && begin <= n && n < begin + length;
                            return fair(n, alone) + (slow ? 4e-3 : 0);
                        });
                        Taken const taken =
                            take(choice, LaneChoice::fewest + 2 * LaneChoice::trial, fair);
                        CHECK((one ? taken.all : taken.alone) <=
                              LaneChoice::fewest + LaneChoice::trial);
                        while (choice.trying()) take(choice, 1, fair);
                        CHECK(choice.alone() == one);
                    }
}

TEST_CASE(
    "long steps on a disturbed machine are not taken for short ones, nor short ones that take "
    "long on all lanes for long") {
    LaneChoice disturbed(true, actions), starved(true, actions);
    // Every third is hit.
    auto const hit = [](std::size_t n) { return n % 3 == 0 ? 4e-3 : 0.; };
    Taken const taken = take(
        disturbed, 20'000, [&](std::size_t n, bool alone) { return long_ones(n, alone) + hit(n); });
    CHECK(taken.alone < 200);
    // The other lanes have no core for as long as they are looked at.
    take(starved, 1000,
         [](std::size_t n, bool alone) { return alone ? near_empty(n, true) : 4e-3; });
    CHECK(starved.alone());
}

TEST_CASE("where a core is taken away now and then, all lanes run for as long as they gain more") {
    // Of all lanes; every so many seconds on these one of them has no core for 3 ms.
    auto const taken = [](double step, double every, std::size_t steps) {
        LaneChoice choice(true, actions);
        double left = every;
        auto const seconds = [&](std::size_t, bool alone) {
            if (alone) return 50e-6;
            left -= step;
            if (left > 0) return step;
            left += every;
            return step + 3e-3;
        };
        take(choice, 10'000, seconds);
        return take(choice, steps, seconds).seconds / static_cast<double>(steps);
    };
    for (double const every : {0.3e-3, 1e-3, 3e-3, 6e-3, 20e-3, 100e-3, 1.})
        for (double const step : {10e-6, 35e-6, 45e-6, 60e-6}) {
            INFO(step, " s, every ", every, " s");
            double const all = step * (1 + 3e-3 / every), better = std::min(all, 50e-6);
            CHECK(taken(step, every, 100'000) < 1.1 * better);
        }
}

TEST_CASE("where steps are not all alike, as well, the lanes run that are faster") {
    // Of so many steps one takes longer, on one lane and on all.
    for (std::size_t const every : {2, 4, 8, 16})
        for (std::size_t which = 0; which < every; ++which)
            for (double const times : {0.1, 3., 10.})
                for (double const all : {0.5, 0.7, 1.5, 3.}) {
                    INFO("number ", which, " of ", every, " takes ", times, " times as long, ", all,
                         " of that on all lanes");
                    LaneChoice choice(true, actions);
                    auto const seconds = [&](std::size_t n, bool alone) {
                        return 40e-6 * (n % every == which ? times : 1) * (alone ? 1 : all);
                    };
                    take(choice, 9'600, seconds);
                    Taken const taken = take(choice, 96'000, seconds);
                    CHECK((all < 1 ? taken.alone : taken.all) < 5'000);
                }
}

TEST_CASE(
    "a clock is looked at in trials, and around steps on all lanes for as long as these earn") {
    LaneChoice one(true, actions), all(true, actions);
    take(one, 10'000, near_empty);
    take(all, 10'000, [](std::size_t, bool alone) { return alone ? 8e-6 : 5e-6; });
    for (LaneChoice* const choice : {&one, &all})
        while (choice->trying()) choice->note(choice->alone() == (choice == &one) ? 5e-6 : 8e-6);
    CHECK(one.begin() == 0);
    REQUIRE(!all.alone());
    double const begun = all.begin();
    CHECK(begun > 0);
    all.end(begun - 60); // a step of a minute
    CHECK(all.alone());
}

TEST_CASE("where there is no choice all lanes run, and nobody asks for the time") {
    LaneChoice closed(false, actions);
    Taken const taken = take(closed, 1000, near_empty);
    CHECK(taken.alone == 0);
    CHECK(taken.asked == 0);
}
