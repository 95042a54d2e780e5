// best_schedule(): what a search finds that times every schedule of the catalogue by going round
// until nothing changes, and counts bytes moment by moment.
#include "support/long_tests.hpp"

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/schedule/verify.hpp>
#include <gpipe/search/best_schedule.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using gpipe::Action;
using gpipe::CellCosts;
using gpipe::Kind;
using gpipe::Programs;
using gpipe::checkpoint::Always;
using gpipe::checkpoint::ExceptLast;
using gpipe::checkpoint::Never;
using namespace gpipe::schedule;

namespace {

bool gives_gradient(Action const& a) {
    return a.kind == Kind::backward || a.kind == Kind::input_gradient;
}

// The end of every action: all are moved back again and again until nothing is too early.
double makespan_of(Programs const& programs, ScheduleProblem const& problem, std::size_t v) {
    auto const cost = [&](Action const& a) {
        double const i = problem.share.input_gradient;
        double const w = problem.share.weight_gradient;
        double const share = a.kind == Kind::forward           ? problem.share.forward
                             : a.kind == Kind::recompute       ? problem.share.recompute
                             : a.kind == Kind::input_gradient  ? i
                             : a.kind == Kind::weight_gradient ? w
                                                               : i + w;
        return share / static_cast<double>(v);
    };
    std::vector<double> end(programs.size());
    for (bool changed = true; changed;) {
        changed = false;
        // When tensors have left their device, by pair of devices in the order of the sender.
        std::map<std::tuple<bool, std::size_t, std::size_t>, double> arrival; // the last
        for (std::size_t d = 0; d < programs.devices(); ++d) {
            std::map<std::size_t, double> way;
            for (std::size_t i = programs.begin(d); i < programs.end(d); ++i) {
                Action const& a = programs[i];
                bool const back = gives_gradient(a);
                if (!back && a.kind != Kind::forward) continue;
                if (a.cell == (back ? 0 : programs.cells() - 1)) continue;
                auto const send = [&](std::size_t to, double bytes) {
                    double at = end[i];
                    if (programs.device_of(to) != d) {
                        double& free = way[programs.device_of(to)];
                        free = std::max(free, at) + bytes / problem.bandwidth;
                        at = free + problem.latency;
                    }
                    double& last = arrival[{back, to, a.micro_batch}];
                    last = std::max(last, at);
                };
                send(back ? a.cell - 1 : a.cell + 1,
                     back ? problem.share.gradient_bytes : problem.share.output_bytes);
                for (auto const& skip : problem.skips) {
                    std::size_t const from = v * skip.from + v - 1;
                    std::size_t const to = v * skip.to;
                    if (back ? to == a.cell : from == a.cell)
                        send(back ? from : to, back ? skip.gradient_bytes : skip.output_bytes);
                }
            }
        }
        for (std::size_t d = 0; d < programs.devices(); ++d)
            for (std::size_t i = programs.begin(d); i < programs.end(d); ++i) {
                Action const& a = programs[i];
                double start = i > programs.begin(d) ? end[i - 1] : 0;
                if (a.kind == Kind::forward || gives_gradient(a)) {
                    auto const found = arrival.find({gives_gradient(a), a.cell, a.micro_batch});
                    if (found != arrival.end()) start = std::max(start, found->second);
                }
                if (end[i] != start + cost(a)) {
                    end[i] = start + cost(a);
                    changed = true;
                }
            }
    }
    return *std::max_element(end.begin(), end.end());
}

// Bytes alive on a device while its action i runs.
double bytes_at(Programs const& programs, ScheduleProblem const& problem, std::size_t v,
                std::size_t device, std::size_t i) {
    auto const program = programs.program(device);
    double bytes = 0;
    for (std::size_t c = 0; c < programs.cells(); ++c) {
        if (programs.device_of(c) != device) continue;
        for (std::size_t m = 0; m < programs.micro_batches(); ++m) {
            std::size_t forward = 0, recompute = 0, gradient = 0, last = 0;
            bool again = false;
            for (std::size_t j = 0; j < program.size(); ++j) {
                if (program[j].cell != c || program[j].micro_batch != m) continue;
                if (program[j].kind == Kind::forward) forward = j;
                if (program[j].kind == Kind::recompute) recompute = j, again = true;
                if (gives_gradient(program[j])) gradient = j;
                last = std::max(last, j);
            }
            if (i > last) continue;
            if (i >= forward) bytes += problem.boundary_bytes;
            if (i >= gradient) bytes += problem.boundary_bytes;
            bool const activations = again ? i >= recompute || i == forward : i >= forward;
            if (activations) bytes += problem.activation_bytes / static_cast<double>(v);
        }
    }
    return bytes;
}

struct Candidate {
    std::string name;
    std::size_t v;
    std::string checkpointing;
    Programs programs;
};

// Those of the catalogue that have programs there.
std::vector<Dynamic> schedules_for(ScheduleProblem const& problem) {
    std::vector<Dynamic> result;
    for (std::size_t v = 1; v <= problem.most_cells_per_device; ++v)
        for (Dynamic const& schedule : catalogue(v))
            if (schedule.cells_per_device() == v &&
                schedule.least_micro_batches(problem.devices) <= problem.micro_batches)
                result.push_back(schedule);
    return result;
}

std::vector<Candidate> candidates(ScheduleProblem const& problem) {
    std::vector<Candidate> result;
    for (Dynamic const& schedule : schedules_for(problem)) {
        std::string const name(schedule.name());
        std::size_t const v = schedule.cells_per_device();
        Programs const programs = schedule.programs(problem.devices, problem.micro_batches);
        result.push_back({name, v, "never", programs});
        result.push_back({name, v, "except-last", ExceptLast::lower(programs)});
    }
    return result;
}

// Whole numbers that 6 divides, so that a third of a half is exact.
ScheduleProblem any_problem(std::mt19937_64& random) {
    auto const up_to = [&](std::uint64_t most) { return 6 * static_cast<double>(random() % most); };
    ScheduleProblem problem{.devices = 1 + random() % 4,
                            .micro_batches = 1 + random() % 9,
                            .most_cells_per_device = 1 + random() % 3};
    problem.share = {.forward = 6 + up_to(5),
                     .recompute = 6 + up_to(5),
                     .input_gradient = 6 + up_to(5),
                     .weight_gradient = up_to(5),
                     .output_bytes = up_to(8),
                     .gradient_bytes = up_to(8)};
    problem.activation_bytes = up_to(40);
    problem.boundary_bytes = up_to(10);
    problem.latency = up_to(3);
    if (random() % 2) problem.bandwidth = static_cast<double>(1 + random() % 3);
    if (problem.devices > 2 && random() % 2)
        problem.skips = {1, {0, problem.devices - 1, 6 + up_to(8), 6 + up_to(8)}};
    return problem;
}

BestSchedule best_of(ScheduleProblem const& problem) {
    return best_schedule(problem, Never{}, ExceptLast{});
}

} // namespace

TEST_CASE("the best schedule is the one that a search finds by definitions of its own") {
    std::mt19937_64 random(11);
    std::size_t fitting = 0, none = 0, weighed = 0;
    std::map<std::string, int> winners;
    for (std::size_t repeat = 0; repeat < toy::cases(150); ++repeat) {
        ScheduleProblem problem = any_problem(random);
        CAPTURE(repeat);
        CAPTURE(problem.devices);
        CAPTURE(problem.micro_batches);
        CAPTURE(problem.most_cells_per_device);
        struct Weight {
            double makespan, bytes;
            std::vector<double> of_device;
        };
        std::map<std::tuple<std::string, std::size_t, std::string>, Weight> all;
        std::vector<double> sizes;
        for (Candidate const& c : candidates(problem)) {
            REQUIRE(gpipe::verify(c.programs));
            Weight weight{makespan_of(c.programs, problem, c.v), 0, {}};
            for (std::size_t d = 0; d < problem.devices; ++d) {
                double most = 0;
                for (std::size_t i = 0; i < c.programs.size(d); ++i)
                    most = std::max(most, bytes_at(c.programs, problem, c.v, d, i));
                weight.of_device.push_back(most);
                weight.bytes = std::max(weight.bytes, most);
            }
            sizes.push_back(weight.bytes);
            all[{c.name, c.v, c.checkpointing}] = weight;
        }
        // A cap below all, at one of them, or above.
        std::sort(sizes.begin(), sizes.end());
        problem.bytes = repeat % 5 == 0 ? sizes.front() - 1 : sizes[random() % sizes.size()];

        BestSchedule const found = best_of(problem);
        REQUIRE(found.ranked.size() == all.size());
        auto const key = [&](Weight const& w) {
            bool const fits = w.bytes <= problem.bytes;
            return std::tuple(!fits, fits ? w.makespan : w.bytes, fits ? w.bytes : w.makespan);
        };
        auto least = key(all.begin()->second);
        for (auto const& [name, weight] : all) least = std::min(least, key(weight));
        auto before = least;
        for (ScheduleChoice const& choice : found.ranked) {
            ++weighed;
            auto const at =
                all.find({std::string(choice.schedule.name()), choice.schedule.cells_per_device(),
                          std::string(choice.checkpointing)});
            REQUIRE(at != all.end());
            Weight const weight = at->second;
            CHECK(choice.makespan == weight.makespan);
            CHECK(std::equal(choice.bytes.begin(), choice.bytes.end(), weight.of_device.begin()));
            CHECK(choice.most_bytes() == weight.bytes);
            CHECK(choice.bytes[choice.worst_device] == weight.bytes);
            CHECK(choice.short_by == std::max(0.0, weight.bytes - problem.bytes));
            CHECK(before <= key(weight)); // the first is the least, the others follow in order
            before = key(weight);
            all.erase(at);
        }
        CHECK(all.empty());
        ScheduleChoice const& best = found.best();
        CHECK(key({best.makespan, best.most_bytes(), {}}) == least);
        ++(found ? fitting : none);
        if (found) ++winners[std::string(best.schedule.name())];
    }
    std::string names;
    for (auto const& [name, times] : winners) names += " " + name + " " + std::to_string(times);
    MESSAGE(weighed << " choices, " << none
                    << " problems without a schedule that fits; best:" << names);
    CHECK(fitting > toy::cases(50));
    CHECK(none >= toy::cases(30));
    CHECK((winners.size() >= 4 || toy::sanitized));
}

TEST_CASE("with more bytes the best schedule is never slower") {
    std::mt19937_64 random(5);
    std::size_t faster = 0;
    for (int repeat = 0; repeat < 40; ++repeat) {
        ScheduleProblem problem = any_problem(random);
        problem.devices += 2;
        double before = -1;
        bool fitted = false;
        for (double cap = 0; cap < 6000; cap += 97) {
            problem.bytes = cap;
            BestSchedule const found = best_of(problem);
            CHECK((found || !fitted));
            if (!found) continue;
            if (fitted) CHECK(found.best().makespan <= before);
            faster += fitted && found.best().makespan < before;
            before = found.best().makespan;
            fitted = true;
        }
        CHECK(fitted);
    }
    MESSAGE(faster << " times a larger cap was worth something");
    CHECK(faster > 20);
}

TEST_CASE("peaks and bubbles of a choice are those of its programs") {
    ScheduleProblem problem{.devices = 4, .micro_batches = 9, .most_cells_per_device = 4};
    problem.share = {.forward = 12, .recompute = 12, .input_gradient = 12, .weight_gradient = 12};
    for (ScheduleChoice const& choice : best_of(problem).ranked) {
        Programs programs = choice.schedule.programs(4, 9);
        if (choice.checkpointing == "except-last") programs = ExceptLast::lower(programs);
        for (std::size_t d = 0; d < 4; ++d)
            CHECK(choice.peaks[d] == gpipe::peak_micro_batches(programs, d));
        auto const times = gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost);
        CHECK(choice.bubble == doctest::Approx(static_cast<double>(gpipe::bubble(times, 4))));
        CHECK(choice.fits());
        CHECK(choice.bytes[0] == 0);
    }
}

TEST_CASE(
    "layers that run backward as a whole have no weight gradient: zero bubbles gain nothing") {
    for (std::size_t k = 2; k <= 6; ++k) {
        ScheduleProblem problem{.devices = k, .micro_batches = 3 * k};
        problem.share = {.forward = 1, .recompute = 1, .input_gradient = 2, .weight_gradient = 0};
        double one = 0, zero = 0;
        for (ScheduleChoice const& choice : best_schedule(problem, Never{}).ranked) {
            if (choice.schedule.name() == "OneForwardOneBackward") one = choice.makespan;
            if (choice.schedule.name() == "ZeroBubbleH1") zero = choice.makespan;
        }
        CHECK(one == 3 * (4.0 * static_cast<double>(k) - 1));
        CHECK(zero == one);
        problem.share.input_gradient = problem.share.weight_gradient = 1;
        CHECK(best_schedule(problem, Never{}).best().makespan < one);
    }
}

TEST_CASE("between schedules of the same time the one with fewer bytes is best") {
    ScheduleProblem problem{.devices = 4, .micro_batches = 8};
    problem.share = {.forward = 0.1, .recompute = 0.1, .input_gradient = 0.2};
    problem.activation_bytes = 1000;
    auto const found = best_schedule(problem, Never{});
    CHECK(found.best().schedule.name() == "OneForwardOneBackward");
    CHECK(found.best().most_bytes() == 4000);
    // Recomputation costs time, so it is taken where there is no room otherwise.
    CHECK(best_of(problem).best().checkpointing == "never");
    problem.bytes = 3999;
    auto const with_less = best_of(problem);
    CHECK(with_less.best().checkpointing == "except-last");
    CHECK(with_less.best().makespan > found.best().makespan);
}

TEST_CASE("where nothing fits it is said what is short, where and by how much") {
    ScheduleProblem problem{.devices = 3, .micro_batches = 6};
    problem.share = {.forward = 1, .recompute = 1, .input_gradient = 1, .weight_gradient = 1};
    problem.activation_bytes = 100;
    problem.boundary_bytes = 10;
    // The least: 1F1B's first device keeps three inputs, a gradient and one set of activations.
    problem.bytes = 139;
    auto const found = best_of(problem);
    CHECK_FALSE(found);
    CHECK(shortage(found) == "gpipe: no schedule fits: device 0 needs 140 bytes with "
                             "OneForwardOneBackward and checkpointing except-last, the least of "
                             "all, and is 1 short");
    problem.bytes = 140;
    auto const enough = best_of(problem);
    CHECK(enough);
    CHECK(shortage(enough).empty());
    CHECK(enough.best().checkpointing == "except-last");
}

TEST_CASE("any checkpointing policies can take part, and a problem without an answer is refused") {
    ScheduleProblem problem{.devices = 2, .micro_batches = 3, .most_cells_per_device = 8};
    problem.share = {.forward = 1, .recompute = 1, .input_gradient = 1, .weight_gradient = 1};
    auto const one = best_schedule(problem, Never{});
    auto const three = best_schedule(problem, Never{}, ExceptLast{}, Always{});
    CHECK(one.ranked.size() == schedules_for(problem).size());
    CHECK(one.ranked.size() >= 8 + 3 + 2 * 7); // one cell, V without DualPipeV, loops of 2 to 8
    CHECK(three.ranked.size() == 3 * one.ranked.size());
    CHECK(three.best().checkpointing == "never");
    problem.micro_batches = 4;
    CHECK(best_schedule(problem, Never{}).ranked.size() == one.ranked.size() + 1);

    auto const refused = [](ScheduleProblem const& wrong, char const* words) {
        CHECK_THROWS_WITH_AS(best_of(wrong), words, std::invalid_argument);
    };
    for (std::size_t const cells : {0, 9}) {
        problem.most_cells_per_device = cells;
        refused(problem, "gpipe: the catalogue has schedules for 1 to 8 cells per device");
    }
    char const* const nothing = "gpipe: a schedule needs a device and a micro-batch";
    refused({.devices = 0, .micro_batches = 1}, nothing);
    refused({.devices = 1, .micro_batches = 0}, nothing);
    refused({.devices = 1 << 20, .micro_batches = std::numeric_limits<std::size_t>::max() / 2},
            "gpipe: 9223372036854775807 micro-batches of 1048576 cells are more than the 134217728 "
            "forwards that programs can hold");
    ScheduleProblem skipping{.devices = 3, .micro_batches = 1};
    skipping.skips = {1, {1, 2}};
    CHECK_NOTHROW(best_of(skipping));
    for (auto const& [from, to] : {std::pair{1, 1}, {1, 0}, {1, 3}}) {
        skipping.skips[0].from = static_cast<std::size_t>(from);
        skipping.skips[0].to = static_cast<std::size_t>(to);
        refused(skipping, "gpipe: a skip leads from a share to a later one");
    }

    double const nan = std::numeric_limits<double>::quiet_NaN();
    double const infinity = std::numeric_limits<double>::infinity();
    char const* const no_number =
        "gpipe: a schedule is chosen by times and bytes that are finite, and not negative";
    for (double const wrong : {-1.0, nan, infinity}) {
        skipping.skips = {1, {1, 2, wrong, 0}};
        refused(skipping, no_number);
        skipping.skips = {1, {1, 2, 0, wrong}};
        refused(skipping, no_number);
        for (double ScheduleProblem::*number :
             {&ScheduleProblem::activation_bytes, &ScheduleProblem::boundary_bytes,
              &ScheduleProblem::latency}) {
            ScheduleProblem worse{.devices = 2, .micro_batches = 2};
            worse.*number = wrong;
            refused(worse, no_number);
            worse.*number = 0;
            worse.share.weight_gradient = wrong;
            refused(worse, no_number);
        }
    }
    char const* const no_room = "gpipe: a bandwidth between devices is positive, and the bytes "
                                "that a device has are not negative";
    for (double const wrong : {-1.0, nan}) {
        refused({.devices = 2, .micro_batches = 2, .bytes = wrong}, no_room);
        refused({.devices = 2, .micro_batches = 2, .bandwidth = wrong}, no_room);
    }
}

TEST_CASE("transfers that take far longer than the work, and all of the time, are weighed, too") {
    ScheduleProblem problem{.devices = 4, .micro_batches = 4, .most_cells_per_device = 2};
    for (double const work : {0.0, 1e-300, 1.0}) {
        problem.share = {
            .forward = work, .recompute = work, .input_gradient = work, .weight_gradient = work};
        for (double const latency : {1e-12, 1.0, 1e11, 1e200}) {
            if (latency < work) continue;
            problem.latency = latency;
            auto const found = best_of(problem);
            double least = found.best().makespan;
            for (auto const& choice : found.ranked) least = std::min(least, choice.makespan);
            CAPTURE(work);
            CAPTURE(latency);
            CHECK(found.best().makespan <= least * (1 + 1e-8));
        }
    }
    // Of nothing but transfers of bytes, recomputes, or whole backwards.
    CellCosts<double> const alone[] = {
        {.output_bytes = 3, .gradient_bytes = 2}, {.recompute = 1}, {.backward = 1}};
    for (CellCosts<double> const& share : alone) {
        problem = {.devices = 4, .micro_batches = 8, .most_cells_per_device = 2};
        problem.share = share;
        problem.activation_bytes = 1; // not the fastest has the fewest
        problem.bandwidth = 1;
        auto const found = best_of(problem);
        double least = found.best().makespan;
        for (auto const& choice : found.ranked) least = std::min(least, choice.makespan);
        CHECK(found.best().makespan <= least * (1 + 1e-8));
    }
    problem.bytes = 1;
    problem.activation_bytes = 6e300;
    auto const said = shortage(best_of(problem));
    CHECK(said.size() > 2 * 300);
    CHECK(said.find(" -") == std::string::npos);
}
