// The command line of examples/schedules, where the build has it (SCHEDULES_PATH).
#include <support/command_line.hpp>
#include <support/xml_reader.hpp>

#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <doctest/doctest.h>

#ifdef SCHEDULES_PATH

#include <algorithm>
#include <string>
#include <vector>

using toy::Json;

namespace {

toy::CommandLine const program(SCHEDULES_PATH);

Json const& find(std::vector<Json> const& objects, std::string const& name) {
    for (Json const& object : objects)
        if (object.at("schedule").string == name) return object;
    FAIL("no object of " << name);
    return objects.front();
}
std::string sized(std::size_t cells, std::size_t micro_batches) {
    return "--cells " + std::to_string(cells) + " --micro-batches " + std::to_string(micro_batches);
}

} // namespace

TEST_CASE(
    "with --json it prints an object for each schedule that is defined, as the library says") {
    std::vector<std::string> const keys = {"schedule", "cells",  "micro_batches", "per_device",
                                           "makespan", "bubble", "peak"};
    for (auto const& [k, m, v] :
         {std::array<std::size_t, 3>{1, 1, 1}, {2, 3, 4}, {4, 8, 2}, {4, 7, 3}, {8, 12, 8}}) {
        auto const found = program.objects(sized(k, m) + " --per-device " + std::to_string(v));
        std::size_t n = 0;
        for (auto const& schedule : gpipe::schedule::catalogue(v)) {
            if (schedule.least_micro_batches(k) > m) continue;
            REQUIRE(n < found.size());
            Json const& object = found[n++];
            auto const programs = schedule.programs(k, m);
            CHECK(object.keys == keys);
            CHECK(object.at("schedule").string == schedule.name());
            CHECK(object.at("cells").number == double(k));
            CHECK(object.at("micro_batches").number == double(m));
            CHECK(object.at("per_device").number == double(programs.cells() / k));
            CHECK(object.at("makespan").number ==
                  double(gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost).makespan));
            CHECK(object.at("bubble").number ==
                  doctest::Approx(double(gpipe::bubble(programs))).epsilon(1e-8));
            REQUIRE(object.at("peak").array.size() == k);
            for (std::size_t d = 0; d < k; ++d)
                CHECK(object.at("peak").array[d].number ==
                      double(gpipe::peak_micro_batches(programs, d)));
        }
        CHECK(n == found.size());
    }
}

TEST_CASE("its numbers are those of the literature") {
    auto const found = program.objects(sized(4, 8));
    CHECK(find(found, "GPipe").at("makespan").number == 3 * (8 + 4 - 1));
    CHECK(find(found, "GPipe").at("bubble").number == doctest::Approx(3 / 11.0));
    for (double const k : {0, 1, 2, 3}) {
        CHECK(find(found, "GPipe").at("peak").array[std::size_t(k)].number == 8);
        CHECK(find(found, "OneForwardOneBackward").at("peak").array[std::size_t(k)].number ==
              4 - k);
    }
    CHECK(find(found, "ZeroBubbleH1").at("makespan").number == 3 * 8 + 4 - 1);
    CHECK(find(found, "Interleaved1F1B").at("makespan").number == 3 * (8 * 2 + 4 - 1));
}

TEST_CASE("costs, latency and checkpointing count") {
    // Fill and drain at any costs: M + K - 1 forwards and as many backwards, one after the other.
    auto const gpipe = [](std::string const& arguments) {
        auto const found = program.objects(sized(4, 8) + " --schedule GPipe " + arguments);
        REQUIRE(found.size() == 1);
        return found[0].at("makespan").number;
    };
    CHECK(gpipe("--forward 2") == 11 * 4);
    CHECK(gpipe("--input-gradient 0.25 --weight-gradient=3") == 11 * 4.25);
    CHECK(gpipe("--latency 0.5") == 33 + 2 * 0.5 * 3);  // there and back
    CHECK(gpipe("--bandwidth 4") == 33 + 2 * 0.25 * 3); // of 1 byte
    CHECK(gpipe("--bandwidth 8 --bytes 2") == 33 + 2 * 0.25 * 3);
    // A way of 4 is slower than a cell: eight of them in a row there and eight back, and behind the
    // last of each the cells and ways that are left.
    CHECK(gpipe("--bandwidth 0.25") ==
          (1 + 8 * 4) + 2 * (1 + 4) + 1 + (2 + 8 * 4) + 2 * (2 + 4) + 2);
    CHECK(gpipe("--checkpointing always") == 4 * 8 + 3 * 3);
    CHECK(gpipe("--checkpointing except-last") == 4 * 8 + 3 * 3 - 1);
    CHECK(gpipe("--checkpointing always --recompute 0") == 33);
}

TEST_CASE("what is whole is written so") {
    CHECK(program.out("--json --schedule GPipe").text.find("\"makespan\":33,") !=
          std::string::npos);
    CHECK(program.out("--json --schedule GPipe --forward 1e6 --micro-batches 1024")
              .text.find("\"makespan\":1027002054,") != std::string::npos);
    CHECK(program.out("--json --schedule GPipe --cells 1").text.find("\"bubble\":0,") !=
          std::string::npos);
    CHECK(program.out("--json --schedule GPipe --forward 0.5").text.find("\"makespan\":27.5,") !=
          std::string::npos);
}

TEST_CASE("its text begins with figures 2b and 2c of the GPipe paper and ends with a table") {
    auto const ran = program.out(sized(2, 2));
    CHECK(ran.status == 0);
    CHECK(ran.text.find("Figure 2b, the mini-batch not split: makespan 12, bubble 50 %\n"
                        "device 0   F0 .. .  .  .  .  .  .  B0 .. .. ..\n"
                        "device 1   .  .  F0 .. B0 .. .. ..\n"
                        "Figure 2c, GPipe: makespan 9, bubble 33.3 %\n"
                        "device 0   F0 F1 .  .  .  B1 .. B0 ..\n"
                        "device 1   .  F0 F1 B1 .. B0 ..\n") == 0);
    CHECK(ran.text.find("\nGPipe: ") == std::string::npos); // not once more
    for (auto const& schedule : gpipe::schedule::catalogue(2))
        if (schedule.least_micro_batches(2) <= 2)
            CHECK(ran.text.find('\n' + std::string(schedule.name()) + ' ') != std::string::npos);
    CHECK(program.out(sized(16, 64)).text.find("\ndevice 0 ") == std::string::npos);
    CHECK(program.out(sized(16, 64) + " --text --schedule VMin").text.find("device 15") !=
          std::string::npos);
    // As prose it goes to stderr beside JSON.
    CHECK(program.errors("--json --text --schedule GPipe").text.find("Figure 2b") == 0);
}

TEST_CASE("a schedule that needs more micro-batches is left out, which is said") {
    for (Json const& object : program.objects(sized(4, 3)))
        CHECK(object.at("schedule").string != "DualPipeV");
    auto const ran = program.errors("--json " + sized(4, 3));
    CHECK(ran.status == 0);
    CHECK(ran.text.find("DualPipeV is left out: it needs at least 8 micro-batches\n") !=
          std::string::npos);
}

TEST_CASE("figures and traces hold every schedule, in one unit of time") {
    toy::Xml const svg = toy::Xml::parse(program.file("--svg", sized(2, 4)));
    std::string const trace = program.file("--trace", sized(2, 4));
    std::vector<std::string> processes;
    double forwards = 0;
    Json const events = Json::parse(trace);
    for (Json const& event : events.at("traceEvents").array) {
        if (event.at("name").string == "process_name")
            processes.push_back(event.at("args").at("name").string);
        if (event.at("ph").string == "X" && event.at("args").at("kind").string == "forward")
            forwards += event.at("dur").number;
    }
    std::vector<std::string> expected;
    for (auto const& schedule : gpipe::schedule::catalogue(2))
        if (schedule.least_micro_batches(2) <= 4) {
            expected.emplace_back(schedule.name());
            if (schedule.cells_per_device() > 1) expected.back() += ", 2 cells on a device";
        }
    CHECK(processes == expected);
    // Each holds the same work: M forwards of a device's share on each of K devices.
    CHECK(forwards == doctest::Approx(1000.0 * 4 * 2 * double(expected.size())));
    std::vector<std::string> titles;
    for (toy::Xml const* span : svg.all("tspan"))
        if (span->attributes.count("font-weight")) titles.push_back(span->text);
    CHECK(titles == expected);
}

TEST_CASE("what it cannot do it refuses with one line") {
    for (std::string const arguments : {"--cells 0",
                                        "--cells 65",
                                        "--cells x",
                                        "--micro-batches 0",
                                        "--micro-batches 1.5",
                                        "--per-device 9",
                                        "--per-device 0",
                                        "--forward -1",
                                        "--forward nan",
                                        "--forward inf",
                                        "--latency x",
                                        "--bandwidth -1",
                                        "--bandwidth 1e-300",
                                        "--bandwidth 1 --bytes 1e15",
                                        "--bytes many",
                                        "--checkpointing sometimes",
                                        "--checkpointing square-root",
                                        "--checkpointing never,never",
                                        "--schedule Gpipe",
                                        "--schedule ''",
                                        "--schedule DualPipeV --cells 4 --micro-batches 7",
                                        "--width 1",
                                        "--svg",
                                        "--trace figure.svg",
                                        "--json=yes",
                                        "surplus"})
        program.check_refused(arguments);
    for (std::string const option : {"--svg", "--trace"}) {
        auto const failed = program.errors("--schedule GPipe " + option + " /nonexistent/file");
        CHECK(failed.status == 1);
        CHECK(failed.text ==
              "schedules: cannot write '/nonexistent/file': No such file or directory\n");
    }
}

#endif
