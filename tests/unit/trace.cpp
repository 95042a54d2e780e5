// Laws of timelines and of their pictures in text.
#include <support/schedules.hpp>

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/trace/compare.hpp>
#include <gpipe/trace/svg.hpp>
#include <gpipe/trace/text.hpp>
#include <gpipe/trace/text_table.hpp>
#include <gpipe/trace/unsplit.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

using gpipe::Action;
using gpipe::Kind;
using gpipe::Programs;
using gpipe::Timeline;
using gpipe::schedule::GPipe;

namespace {

Timeline drawn(Programs const& programs, std::string_view title = {}) {
    return gpipe::timeline(programs, gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost),
                           title);
}

// Calls f(programs, times) for every schedule of the library, as it is and with recomputation, and
// for schedules of a user.
template <class F> void each_case(F f) {
    for (std::size_t const k : {1u, 2u, 3u, 4u})
        for (std::size_t const m : {1u, 3u, 8u, 11u})
            for (std::size_t const v : {1u, 2u, 3u}) {
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(v);
                std::vector<Programs> all{toy::OneByOne::programs(k, m),
                                          toy::Dealt::programs(3 * k, m)};
                for (auto const& schedule : gpipe::schedule::catalogue(v))
                    if (schedule.least_micro_batches(k) <= m) {
                        all.push_back(schedule.programs(k, m));
                        all.push_back(gpipe::checkpoint::Always::lower(all.back()));
                    }
                for (Programs const& programs : all)
                    f(programs, gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost));
            }
}

// Which of its device's cells a cell is, by looking at those before it.
std::size_t ordinal(Programs const& programs, std::size_t cell) {
    std::size_t result = 0;
    for (std::size_t c = 0; c < cell; ++c)
        if (programs.device_of(c) == programs.device_of(cell)) ++result;
    return result;
}
std::size_t most_cells(Programs const& programs) {
    std::size_t most = 0;
    for (std::size_t c = 0; c < programs.cells(); ++c)
        most = std::max(most, ordinal(programs, c) + 1);
    return most;
}

std::vector<std::string> lines_of(std::string const& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

} // namespace

TEST_CASE("a timeline of programs holds every action once, where and when it ran") {
    each_case([](Programs const& programs, auto const& times) {
        Timeline const timeline = gpipe::timeline(programs, times, "a title");
        REQUIRE(timeline.size() == programs.size());
        CHECK(timeline.devices() == programs.devices());
        CHECK(timeline.cells() == programs.cells());
        CHECK(timeline.micro_batches() == programs.micro_batches());
        CHECK(timeline.lanes() == programs.devices());
        CHECK(timeline.title() == "a title");
        std::int64_t latest = 0;
        double idle = 0;
        for (std::size_t i = 0; i < programs.size(); ++i) {
            gpipe::TimelineEntry const& entry = timeline[i];
            REQUIRE(entry.action == programs[i]);
            REQUIRE(entry.device == programs.device_of(programs[i].cell));
            REQUIRE(entry.lane == entry.device);
            REQUIRE(entry.start == static_cast<double>(times.start[i]));
            REQUIRE(entry.end == static_cast<double>(times.end[i]));
            latest = std::max(latest, times.end[i]);
        }
        CHECK(timeline.makespan() == static_cast<double>(latest));
        for (std::size_t d = 0; d < programs.devices(); ++d) {
            double device = static_cast<double>(latest);
            for (auto const& entry : timeline)
                if (entry.device == d) device -= entry.duration();
            idle += device;
        }
        CHECK(timeline.bubble() ==
              doctest::Approx(idle / (timeline.makespan() * double(programs.devices()))));
        CHECK(timeline.bubble() == doctest::Approx(static_cast<double>(gpipe::bubble(programs))));
        CHECK(timeline.cells_per_device() == most_cells(programs));
        for (std::size_t c = 0; c < programs.cells(); ++c) {
            CHECK(timeline.device_of(c) == programs.device_of(c));
            CHECK(timeline.ordinal(c) == ordinal(programs, c));
        }
    });
}

TEST_CASE("a timeline refuses what is not there, and times that are none") {
    Timeline timeline(2, 3, 4, 2);
    double const nan = std::numeric_limits<double>::quiet_NaN();
    double const infinity = std::numeric_limits<double>::infinity();
    auto const not_there = [&](Action action, std::size_t device) {
        CHECK_THROWS_WITH_AS(timeline.add({action, device, 0, 0, 1}),
                             "gpipe: an entry of a timeline names a device, cell or micro-batch "
                             "that it has not",
                             std::invalid_argument);
    };
    not_there(gpipe::forward(0, 0), 2);
    not_there(gpipe::forward(3, 0), 0);
    not_there(gpipe::forward(0, 4), 0);
    auto const refused = [&](double start, double end) {
        CHECK_THROWS_WITH_AS(timeline.add({gpipe::forward(0, 0), 0, 0, start, end}),
                             "gpipe: an entry of a timeline ends before it starts, or its times "
                             "are not within 0 and 1e15",
                             std::invalid_argument);
    };
    refused(1, 0.5);
    refused(-1, 0.5);
    refused(nan, 1);
    refused(0, nan);
    refused(0, infinity);
    refused(0, 1.001e15);
    CHECK(timeline.size() == 0);
    CHECK(timeline.makespan() == 0);
    timeline.add({gpipe::forward(2, 3), 1, 5, 1, 2});
    timeline.add({gpipe::forward(0, 3), 0, 0, 1, 1});
    CHECK_THROWS_WITH_AS(timeline.add({gpipe::forward(1, 3), 0, 0, 1, 1}),
                         "gpipe: a timeline holds more entries than its capacity",
                         std::length_error);
    CHECK(timeline.size() == 2);
    CHECK(timeline.device_of(1) == 2); // nobody has run it
}

TEST_CASE("lanes that several devices share are what a run was on") {
    Timeline timeline(3, 3, 1, 3);
    for (std::size_t d = 0; d < 3; ++d)
        timeline.add({gpipe::forward(d, 0), d, d / 2, double(d), double(d) + 1});
    CHECK(timeline.lanes() == 2);
    CHECK(timeline.makespan() == 3);
    CHECK(timeline.bubble() == doctest::Approx(0.5)); // 3 of 2 x 3
}

TEST_CASE("transfers run beside the work and are none themselves") {
    Timeline timeline(1, 1, 1, 2);
    timeline.add({gpipe::forward(0, 0), 0, 0, 0, 2});
    timeline.add({{Kind::send_output, 0, 0}, 0, 0, 1, 4});
    CHECK(timeline.busy() == 2);
    CHECK(timeline.makespan() == 4);
    CHECK(gpipe::trace::text(timeline) == "device 0   F0 .\n"
                                          "");
}

TEST_CASE("figure 2c of the GPipe paper") {
    CHECK(gpipe::trace::text(drawn(GPipe::programs(3, 4))) ==
          "device 0   F0 F1 F2 F3 .  .  .  .  .  .  B3 .. B2 .. B1 .. B0 ..\n"
          "device 1   .  F0 F1 F2 F3 .  .  .  B3 .. B2 .. B1 .. B0 ..\n"
          "device 2   .  .  F0 F1 F2 F3 B3 .. B2 .. B1 .. B0 ..\n");
}

TEST_CASE("figure 2b of the GPipe paper") {
    Timeline timeline = gpipe::trace::unsplit(3, 2, gpipe::unit_cost);
    timeline.title("not split");
    CHECK(gpipe::trace::text(timeline, {.unit = 1}) ==
          "not split: makespan 18, bubble 66.7 %\n"
          "device 0   F0 .. .  .  .  .  .  .  .  .  .  .  .  .  B0 .. .. ..\n"
          "device 1   .  .  F0 .. .  .  .  .  .  .  B0 .. .. ..\n"
          "device 2   .  .  .  .  F0 .. B0 .. .. ..\n");
}

TEST_CASE(
    "a mini-batch that is not split keeps one device at work, for as long as all of it takes") {
    auto const cost = [](Action const& action) {
        return action.kind == Kind::forward ? 1.0 + action.cell : 5.0;
    };
    for (std::size_t const k : {1u, 2u, 5u})
        for (std::size_t const m : {1u, 3u, 8u}) {
            Timeline const timeline = gpipe::trace::unsplit(k, m, cost);
            CHECK(timeline.makespan() == timeline.busy());
            CHECK(timeline.busy() == double(m) * (double(k * (k + 1)) / 2 + 5 * double(k)));
            CHECK(timeline.bubble() == doctest::Approx(1 - 1 / double(k)));
        }
    // What is sent takes its time, too: 3 ways there and back.
    gpipe::CellCosts<double> costs{1, 1, 1, 1};
    costs.output_bytes = 10;
    costs.gradient_bytes = 20;
    CHECK(gpipe::trace::unsplit(4, 8, costs).makespan() == 4 * 8 * 3);
    CHECK(gpipe::trace::unsplit(4, 8, costs, 0.5, 5).makespan() ==
          4 * 8 * 3 + 6 * 0.5 + 3 * 8 * (2 + 4));
    gpipe::ChainCosts<double> chain{gpipe::Array<gpipe::CellCosts<double>>(4, costs)};
    chain.skips = {1, {0, 3, 1000, 0}};
    CHECK(gpipe::trace::unsplit(4, 8, chain, 0.5, 5).makespan() ==
          8 + (8 * 200 + 0.5) + 8 * (1 + 2) + 3 * (8 * 4 + 0.5 + 8 * 2));
}

TEST_CASE("halves of a backward, recomputation and a second cell have letters of their own") {
    Programs programs(2, 4, 1, 14);
    programs.place_in_v();
    for (std::size_t const d : {0u, 1u}) {
        for (std::size_t const c : {d, 3 - d}) programs.add(gpipe::forward(c, 0));
        for (std::size_t const c : {3 - d, d}) {
            if (c == 3 || c == 1) programs.add(gpipe::recompute(c, 0));
            if (c == 0) {
                programs.add(gpipe::backward(c, 0));
                continue;
            }
            programs.add(gpipe::input_gradient(c, 0));
            programs.add(gpipe::weight_gradient(c, 0));
        }
        programs.next_device();
    }
    CHECK(gpipe::trace::text(drawn(programs)) == "device 0   F0 .  .  f0 r0 i0 w0 .  .  .  B0 ..\n"
                                                 "device 1   .  F0 f0 .  .  .  i0 w0 R0 I0 W0\n");
}

TEST_CASE("what ends a step has letters of its own, and is in no bubble") {
    Timeline step(2, 2, 2, 20, "a step");
    auto const add = [&](Kind kind, std::uint32_t cell, std::uint32_t m, double start, double end) {
        step.add({{kind, cell, m}, cell, cell, start, end});
    };
    for (std::uint32_t const m : {0u, 1u}) {
        add(Kind::forward, 0, m, m, m + 1);
        add(Kind::forward, 1, m, 1 + 2 * m, 2 + 2 * m);
        add(Kind::backward, 1, m, 2 + 2 * m, 3 + 2 * m);
        add(Kind::backward, 0, m, 3 + 2 * m, 4 + 2 * m);
    }
    std::string const without = gpipe::trace::text(step);
    CHECK(step.length() == step.makespan());
    double const busy = step.busy(), bubble = step.bubble();
    add(Kind::all_reduce, 1, 0, 5, 6.5);
    add(Kind::sum_squares, 1, 0, 6.5, 7);
    add(Kind::sum_squares, 0, 0, 6, 7);
    add(Kind::commit, 1, 0, 7, 7.125); // is not what a column is as long as
    add(Kind::update, 0, 0, 7.5, 8.5);
    add(Kind::update, 1, 0, 7.5, 8);
    add(Kind::all_gather, 1, 0, 8, 9);
    CHECK(step.makespan() == 6);
    CHECK(step.length() == 9);
    CHECK(step.busy() == busy);
    CHECK(step.bubble() == bubble);
    CHECK(step.lanes() == 2);
    CHECK(without == "a step: makespan 6, bubble 33.3 %\n"
                     "device 0   F0 F1 .  B0 .  B1\n"
                     "device 1   .  F0 B0 F1 B1\n");
    CHECK(gpipe::trace::text(step) ==
          "a step: makespan 6, bubble 33.3 %, the end of the step at 9\n"
          "device 0   F0 F1 .  B0 .  B1 QQQ UUU\n"
          "device 1   .  F0 B0 F1 B1 AAAAQQ UUGGG\n");
    // In its second cell, too; a tie, buffers, what a device is told, and what is taken back.
    Timeline one(1, 2, 1, 10);
    one.add({gpipe::forward(0, 0), 0, 0, 0, 1});
    one.add({gpipe::forward(1, 0), 0, 0, 1, 2});
    double time = 2;
    for (Kind const kind :
         {Kind::bring_gradient, Kind::reduce, Kind::reduce_scatter, Kind::next_buffers,
          Kind::take_state, Kind::revoke, Kind::commit, Kind::send_commit}) {
        one.add({{kind, 1, 0}, 0, 0, time, time + 1});
        time += 1;
    }
    CHECK(gpipe::trace::text(one) == "device 0   F0 f0 tttTTTAAANNNKKKVVVCCCsss\n");
}

TEST_CASE("with more cells on a device, each has a letter behind the kind's") {
    Programs const programs = toy::Dealt::programs(6, 1); // cells 0, 3 on device 0, and so on
    CHECK(gpipe::trace::text(drawn(programs)) ==
          "device 0   F0 .  .  f0 .  .  .  .  .  .  b0 .. .  .  .  .  B0 ..\n"
          "device 1   .  F0 .  .  f0 .  .  .  b0 .. .  .  .  .  B0 ..\n"
          "device 2   .  .  F0 .  .  f0 b0 .. .  .  .  .  B0 ..\n");
    CHECK(gpipe::trace::text(drawn(gpipe::schedule::BreadthFirst<3>::programs(1, 2))) ==
          "device 0   Fa0 Fa1 Fb0 Fb1 Fc0 Fc1 Bc0 ... Bc1 ... Bb0 ... Bb1 ... Ba0 ... Ba1 ...\n");
}

TEST_CASE("in every picture each unit of time says what the device does in it") {
    each_case([](Programs const& programs, auto const& times) {
        std::size_t const cells = most_cells(programs);
        std::size_t const label = 1 + (cells > 2) + (programs.micro_batches() > 10 ? 2u : 1u);
        auto const lines = lines_of(gpipe::trace::text(gpipe::timeline(programs, times)));
        REQUIRE(lines.size() == programs.devices());
        for (std::size_t d = 0; d < programs.devices(); ++d) {
            std::string expected;
            std::int64_t now = 0;
            auto const put = [&](std::string const& word) {
                expected += word + std::string(label + 1 - word.size(), ' ');
                ++now;
            };
            for (std::size_t i = programs.begin(d); i < programs.end(d); ++i) {
                Action const& a = programs[i];
                while (now < times.start[i]) put(".");
                std::string word(1, "FRBIW"[static_cast<std::size_t>(a.kind)]);
                std::size_t const o = ordinal(programs, a.cell);
                if (cells == 2 && o == 1) word[0] = "frbiw"[static_cast<std::size_t>(a.kind)];
                if (cells > 2) word += "abcdefgh"[o];
                put(word + std::to_string(a.micro_batch));
                while (now < times.end[i]) put(std::string(label, '.'));
            }
            while (expected.back() == ' ') expected.pop_back();
            CHECK(lines[d] == "device " + std::to_string(d) + "   " + expected);
        }
    });
}

TEST_CASE("a compressed picture fits, and says what runs in the middle of each character") {
    each_case([](Programs const& programs, auto const& times) {
        for (std::size_t const width : {12u, 30u, 47u}) {
            auto const lines =
                lines_of(gpipe::trace::text(gpipe::timeline(programs, times), {.width = width}));
            REQUIRE(lines.size() == programs.devices());
            std::size_t const label =
                1 + (most_cells(programs) > 2) + (programs.micro_batches() > 10 ? 2u : 1u);
            if (11 + static_cast<std::size_t>(times.makespan) * (label + 1) <= width) continue;
            std::size_t const room = width - 11;
            for (std::size_t d = 0; d < programs.devices(); ++d) {
                std::string const row = lines[d].size() > 11 ? lines[d].substr(11) : "";
                REQUIRE(row.size() <= room);
                for (std::size_t c = 0; c < room; ++c) {
                    // In units of which a character has 2 makespan, a unit of time 2 room.
                    auto const units = static_cast<std::int64_t>(2 * room);
                    auto const middle = static_cast<std::int64_t>(2 * c + 1) * times.makespan;
                    char expected = '.';
                    bool begins = false;
                    bool tie = false;
                    for (std::size_t i = programs.begin(d); i < programs.end(d); ++i) {
                        std::int64_t const start = times.start[i] * units;
                        std::int64_t const end = times.end[i] * units;
                        tie = tie || start == middle || end == middle;
                        if (start > middle || end <= middle) continue;
                        begins = start > middle - 2 * times.makespan;
                        expected = "FRBIW"[static_cast<std::size_t>(programs[i].kind)];
                    }
                    if (tie) continue; // rounding may go either way
                    if (c >= row.size()) {
                        REQUIRE(expected == '.');
                    } else if (expected == '.') {
                        REQUIRE(row[c] == '.');
                    } else {
                        REQUIRE(row[c] != '.');
                        if (begins) REQUIRE(std::toupper(row[c]) == expected);
                    }
                }
            }
        }
    });
}

TEST_CASE("compressed, all boxes of a kind have a label or none, if they are equally long") {
    each_case([](Programs const& programs, auto const& times) {
        for (std::size_t const width : {40u, 61u, 82u, 103u}) {
            std::string const picture =
                gpipe::trace::text(gpipe::timeline(programs, times), {.width = width});
            for (Kind const kind :
                 {Kind::forward, Kind::recompute, Kind::input_gradient, Kind::weight_gradient}) {
                std::size_t labels = 0;
                std::size_t actions = 0;
                for (std::size_t i = 0; i < programs.size(); ++i)
                    actions += programs[i].kind == kind;
                for (std::size_t i = 0; i + 1 < picture.size(); ++i)
                    labels += std::toupper(picture[i]) == "FRBIW"[static_cast<std::size_t>(kind)] &&
                              (std::isdigit(picture[i + 1]) || std::isalpha(picture[i + 1])) &&
                              picture[i] != picture[i + 1] &&
                              std::isdigit(picture[i + (most_cells(programs) > 2 ? 2 : 1)]);
                CHECK((labels == 0 || labels == actions));
            }
        }
    });
}

TEST_CASE("a run's boxes are labelled where their mean has room, if they have room themselves") {
    Timeline timeline(1, 1, 3, 3);
    for (std::size_t m = 0; m < 3; ++m)
        timeline.add({gpipe::forward(0, m), 0, 0, double(m), double(m) + (m == 1 ? 0.3 : 1)});
    CHECK(gpipe::trace::text(timeline, {.unit = 1, .columns = 3}) == "device 0   F0 F  F2\n");
}

TEST_CASE("options say how wide a unit of time is") {
    Timeline const timeline = drawn(GPipe::programs(2, 1));
    CHECK(gpipe::trace::text(timeline, {.columns = 5}) == "device 0   F0   .    .    .    B0   ..\n"
                                                          "device 1   .    F0   B0   ..\n");
    CHECK(gpipe::trace::text(timeline, {.columns = 1}) == "device 0   F...B0\n"
                                                          "device 1   .FB0\n");
    CHECK(gpipe::trace::text(timeline, {.unit = 2}) == "device 0   F  .  B0\n"
                                                       "device 1    FFB0\n");
}

TEST_CASE("idle time that is no whole unit has no point that touches what comes next") {
    Timeline timeline(1, 1, 2, 2);
    timeline.add({gpipe::forward(0, 0), 0, 0, 2.5, 3.5});
    timeline.add({gpipe::forward(0, 1), 0, 0, 4.4, 5.4});
    CHECK(gpipe::trace::text(timeline) == "device 0   .  .   F0    F1\n");
}

TEST_CASE("timelines below each other have one scale, and their titles") {
    Timeline const timelines[] = {drawn(GPipe::programs(1, 1), "short"),
                                  gpipe::trace::scaled(drawn(GPipe::programs(1, 1), "long"), 2)};
    CHECK(gpipe::trace::text(timelines) == "short: makespan 3, bubble 0 %\n"
                                           "device 0   F0 B0 ..\n"
                                           "long: makespan 6, bubble 0 %\n"
                                           "device 0   F0 .. B0 .. .. ..\n");
}

TEST_CASE("a picture of lanes that lost their cores says so, with a title and without") {
    Programs const programs = GPipe::programs(2, 3);
    for (std::string const title : {"", "a run"}) {
        Timeline timeline = drawn(programs, title);
        auto const text = [&] { return gpipe::trace::text(timeline); };
        auto const svg = [&] { return gpipe::trace::svg(timeline); };
        std::string const words = "lanes lost their core ";
        CHECK(text().find(words) == std::string::npos);
        CHECK(svg().find(words) == std::string::npos);
        timeline.preemptions(1);
        CHECK(text().find(words + "1 time: none was free for each") != std::string::npos);
        timeline.preemptions(23);
        for (std::string const& picture : {text(), svg()})
            CHECK(picture.find(words + "23 times: none was free for each") != std::string::npos);
        timeline = gpipe::trace::scaled(timeline, 1e3); // as a run is for a picture
        CHECK(text().find(words + "23 times: none was free for each") != std::string::npos);
    }
}

TEST_CASE("pictures of nothing are empty rows") {
    CHECK(gpipe::trace::text(Timeline()) == "");
    CHECK(gpipe::trace::text(Timeline(2, 2, 1, 0)) == "device 0\ndevice 1\n");
}

TEST_CASE("a run under its simulation holds as much work, and its bubble is its own") {
    std::mt19937 random(1);
    std::uniform_real_distribution<double> noise(0.5, 1.5);
    Programs const programs = gpipe::schedule::ZeroBubbleH1::programs(3, 5);
    Timeline const simulated = drawn(programs, "simulated");
    // A run: the same programs at costs that vary, in another unit.
    auto const times = gpipe::simulate<double>(programs, [&](Action const& a) {
        return 1e-3 * noise(random) * double(gpipe::unit_cost(a));
    });
    Timeline const measured = gpipe::timeline(programs, times, "measured");
    gpipe::Array<Timeline> const both = gpipe::trace::compare(simulated, measured);
    REQUIRE(both.size() == 2);
    CHECK(both[0].makespan() == simulated.makespan());
    CHECK(both[0].title() == "simulated");
    CHECK(both[1].title() == "measured");
    CHECK(both[1].busy() == doctest::Approx(simulated.busy()));
    CHECK(both[1].bubble() == doctest::Approx(measured.bubble()));
    CHECK(both[1].size() == measured.size());
    double const factor = both[1].makespan() / measured.makespan();
    for (std::size_t i = 0; i < measured.size(); ++i) {
        CHECK(both[1][i].action == measured[i].action);
        CHECK(both[1][i].start == doctest::Approx(measured[i].start * factor));
        CHECK(both[1][i].end == doctest::Approx(measured[i].end * factor));
    }
    // Simulated at the durations of the run, both are in the run's unit already.
    auto const predicted = gpipe::timeline(
        programs, gpipe::simulate<double>(programs, gpipe::trace::MeanDurations(measured)));
    CHECK(gpipe::trace::compare(predicted, measured)[1].makespan() ==
          doctest::Approx(measured.makespan()));
    // Without work there is nothing to scale by.
    CHECK(gpipe::trace::compare(simulated, Timeline(3, 3, 5, 0))[1].size() == 0);
}

TEST_CASE("mean durations are those of a kind in a cell") {
    auto const cost = [](Action const& a) {
        return 1.0 + a.cell + 10.0 * static_cast<double>(a.kind);
    };
    Programs const programs =
        gpipe::checkpoint::Always::lower(gpipe::schedule::ZeroBubbleH1::programs(3, 4));
    gpipe::trace::MeanDurations const same(
        gpipe::timeline(programs, gpipe::simulate<double>(programs, cost)));
    for (std::size_t i = 0; i < programs.size(); ++i)
        CHECK(same(programs[i]) == doctest::Approx(cost(programs[i])));
    CHECK(same(gpipe::backward(0, 0)) == 0);
    Timeline timeline(1, 1, 2, 2);
    timeline.add({gpipe::forward(0, 0), 0, 0, 0, 1});
    timeline.add({gpipe::forward(0, 1), 0, 0, 1, 4});
    CHECK(gpipe::trace::MeanDurations(timeline)(gpipe::forward(0, 1)) == 2);
}

TEST_CASE("columns, and names that are cut, count characters and not bytes") {
    gpipe::trace::TextTable table("lr", {"type", "n"});
    table.add({"Überlänge", "1"});
    table.add({"Overlong", "10"});
    CHECK(table.text() == "type        n\nÜberlänge   1\nOverlong   10\n");
    CHECK(gpipe::trace::short_name("Überlänge", 9) == "Überlänge");
    CHECK(gpipe::trace::short_name("ÜberlängeÜ", 9) == "Überlä...");
    CHECK(gpipe::trace::short_name("Overlängen", 9) == "Overlä...");
}
