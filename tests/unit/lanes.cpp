// The time of programs merged onto lanes (unit/plan_law.cpp has their waits and marks); and how a
// mini-batch is split.
#include <support/links.hpp>

#include <gpipe/core/split.hpp>
#include <gpipe/plan/simulate_lowered.hpp>
#include <gpipe/runtime/lanes.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

using gpipe::Action;
using gpipe::Array;
using gpipe::Kind;
using gpipe::Link;
using gpipe::Placement;

namespace {

// Neighbouring devices on a lane, whose work is a stream.
Placement place(std::size_t devices, std::size_t lanes) {
    Placement result{lanes, lanes, Array<std::size_t>(devices), Array<std::size_t>(devices)};
    for (std::size_t d = 0; d < devices; ++d)
        result.lane[d] = result.stream[d] = d * lanes / devices;
    return result;
}

double cost(Action const& a) {
    return 1 + double((a.cell * 7 + a.micro_batch * 3 + unsigned(a.kind)) % 5);
}

} // namespace

TEST_CASE("merged lanes take no longer than one, no less than their share, and one for each device "
          "as long as the simulation says") {
    for (std::size_t k = 1; k <= 5; ++k)
        for (std::size_t m = 1; m <= 6; ++m)
            for (std::size_t lanes = 1; lanes <= k; ++lanes) {
                auto const programs =
                    gpipe::checkpoint::Always::lower(toy::OneForwardOneBackward::programs(k, m));
                auto const merged = gpipe::merge_lanes(toy::lower(programs), place(k, lanes), cost);
                double busy = 0;
                for (std::size_t i = 0; i < programs.size(); ++i) busy += cost(programs[i]);
                CHECK(merged.busy == busy);
                CHECK(merged.makespan <= busy);
                CHECK(merged.makespan * double(lanes) >= busy);
                if (lanes == k)
                    CHECK(merged.makespan == gpipe::simulate<double>(programs, cost).makespan);
            }
}

TEST_CASE("lanes cannot be merged from programs that wait for each other") {
    auto const programs = gpipe::schedule::GPipe::programs(2, 2);
    auto lowered = toy::lower(programs);
    lowered.needs = toy::with_need(lowered.needs, 0, 1);
    CHECK_THROWS_WITH_AS(
        gpipe::merge_lanes(lowered, gpipe::place_programs(lowered, {2}, 1, true, cost), cost),
        "gpipe: the programs wait for each other", std::logic_error);
}

TEST_CASE("transfers take no lane's time") {
    auto const programs = gpipe::schedule::GPipe::programs(3, 4);
    auto const lowered =
        toy::lower(programs, toy::same_links(programs, Link::staged), toy::crossing_from(1, 3));
    auto const placement = gpipe::place_programs(lowered, {3}, 1, true, cost);
    auto const lanes = gpipe::merge_lanes(lowered, placement, cost);
    auto const times = gpipe::simulate<double>(programs, cost);
    CHECK(lanes.busy == times.busy);
    CHECK(lanes.makespan == times.makespan);
    // And are told first: an output is on its way before the walker goes on to the next forward.
    std::vector<Kind> told;
    for (std::size_t s = 0; s < 3; ++s)
        told.push_back(lowered.programs[lanes.steps[s].action].kind);
    CHECK(told == std::vector<Kind>{Kind::forward, Kind::send_output, Kind::receive_input});
}

TEST_CASE("micro-batches cover a mini-batch in order, differ by one sample, the larger first") {
    for (std::size_t n = 0; n <= 70; ++n)
        for (std::size_t m = 1; m <= 20; ++m) {
            CAPTURE(n);
            CAPTURE(m);
            std::size_t next = 0;
            std::size_t before = n;
            for (std::size_t i = 0; i < m; ++i) {
                auto const range = gpipe::Split(n, m)[i];
                CHECK(range.first == next);
                CHECK(range.count <= before);
                CHECK((range.count == n / m || range.count == n / m + 1));
                before = range.count;
                next += range.count;
            }
            CHECK(next == n);
        }
}
