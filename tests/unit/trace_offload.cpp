// What goes to slower memory and back, in pictures and traces: read back by readers that know
// nothing of their writers.
#include <support/json_reader.hpp>
#include <support/lowered.hpp>
#include <support/xml_reader.hpp>

#include <gpipe/plan/simulate_lowered.hpp>
#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/trace/chrome.hpp>
#include <gpipe/trace/svg.hpp>
#include <gpipe/trace/text.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

using gpipe::Array;
using gpipe::Kind;
using gpipe::Lowered;
using gpipe::Timeline;
using toy::Json;
using toy::Xml;

namespace {

struct Offloaded {
    Lowered lowered;
    gpipe::SimulatedTimes<std::int64_t> times;
    Timeline timeline;

    Offloaded(std::size_t devices, std::size_t micro_batches) {
        auto const programs = gpipe::schedule::GPipe::programs(devices, micro_batches);
        lowered = toy::lower(programs, toy::neighbours(devices), Array<bool>(devices, true));
        times = gpipe::simulate<std::int64_t>(lowered, gpipe::unit_cost);
        timeline = gpipe::timeline(lowered, times);
    }
};

} // namespace

TEST_CASE("copies are no lanes and no work of a timeline") {
    Offloaded const with(3, 8);
    auto const programs = gpipe::schedule::GPipe::programs(3, 8);
    Timeline const plain =
        gpipe::timeline(programs, gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost));
    CHECK(with.timeline.offloads());
    CHECK_FALSE(plain.offloads());
    CHECK(with.timeline.lanes() == 3);
    CHECK(with.timeline.devices() == 3);
    CHECK(with.timeline.busy() == plain.busy());
    CHECK(with.timeline.bubble() == plain.bubble());
    CHECK(with.timeline.size() == with.lowered.programs.size());
    CHECK(gpipe::trace::text(with.timeline) == gpipe::trace::text(plain));
}

TEST_CASE("a trace has a thread of each device for what goes, and one for what comes back") {
    Offloaded const with(3, 8);
    Json const trace = Json::parse(gpipe::trace::chrome(with.timeline, 1));
    std::map<double, std::string> names;
    std::multiset<std::tuple<double, std::string, double, double>> events; // thread, name, times
    for (Json const& event : trace.at("traceEvents").array) {
        if (event.at("ph").string == "M" && event.at("name").string == "thread_name")
            names[event.at("tid").number] = event.at("args").at("name").string;
        if (event.at("ph").string == "X")
            events.insert({event.at("tid").number, event.at("name").string, event.at("ts").number,
                           event.at("dur").number});
    }
    CHECK(names.size() == 9);
    for (std::size_t d = 0; d < 3; ++d) {
        std::string const device = "device " + std::to_string(d);
        CHECK(names.at(double(d)) == device);
        CHECK(names.at(double(3 + 2 * d)) == device + ", offload");
        CHECK(names.at(double(4 + 2 * d)) == device + ", fetch");
    }
    std::multiset<std::tuple<double, std::string, double, double>> expected;
    for (std::size_t i = 0; i < with.lowered.programs.size(); ++i) {
        gpipe::Action const& a = with.lowered.programs[i];
        std::size_t const thread = a.kind == Kind::offload ? 3 + 2 * a.cell
                                   : a.kind == Kind::fetch ? 4 + 2 * a.cell
                                                           : a.cell;
        expected.insert(
            {double(thread), std::string(name(a.kind)) + " " + std::to_string(a.micro_batch),
             double(with.times.start[i]), double(with.times.end[i] - with.times.start[i])});
    }
    CHECK(events == expected);
}

TEST_CASE("a figure has two lanes below each device, in which boxes stand at their times") {
    Offloaded const with(2, 8);
    Xml const figure = Xml::parse(gpipe::trace::svg(with.timeline));
    std::map<std::string, Xml const*> boxes; // by the begin of their tooltip
    for (Xml const* box : figure.all("rect"))
        if (!box->children.empty())
            boxes[box->children[0].text.substr(0, box->children[0].text.find(", "))] = box;
    auto const title = [](gpipe::Action const& a) {
        return std::string(gpipe::ActionName(a.kind, a.cell, a.micro_batch));
    };
    // The scale, from two forwards.
    double const left = boxes.at(title(gpipe::forward(0, 0)))->number("x");
    double const scale = boxes.at(title(gpipe::forward(0, 1)))->number("x") - left;
    std::map<std::pair<Kind, std::size_t>, std::set<double>> lanes;
    std::size_t copies = 0;
    for (std::size_t i = 0; i < with.lowered.programs.size(); ++i) {
        gpipe::Action const& a = with.lowered.programs[i];
        REQUIRE(boxes.count(title(a)) == 1);
        Xml const& box = *boxes.at(title(a));
        CHECK(std::abs(box.number("x") - (left + scale * double(with.times.start[i]))) < 0.5);
        CHECK(std::abs(box.number("width") -
                       scale * double(with.times.end[i] - with.times.start[i])) < 0.5);
        lanes[{is_offload(a.kind) ? a.kind : Kind::forward, a.cell}].insert(box.number("y"));
        copies += is_offload(a.kind);
    }
    CHECK(copies == 2 * 2 * 6);
    for (std::size_t d = 0; d < 2; ++d) {
        auto const lane = [&](Kind kind) {
            auto const& all = lanes.at({kind, d});
            REQUIRE(all.size() == 1);
            return *all.begin();
        };
        CHECK(lane(Kind::forward) + 22 < lane(Kind::offload));
        CHECK(lane(Kind::offload) + 5 < lane(Kind::fetch));
        if (d > 0) CHECK(*lanes.at({Kind::fetch, d - 1}).begin() + 5 < lane(Kind::forward));
    }
    std::set<std::string> words;
    for (Xml const* text : figure.all("text")) words.insert(text->text);
    CHECK(words.count("offload") == 1);
    CHECK(words.count("fetch") == 1);
    auto const programs = gpipe::schedule::GPipe::programs(2, 8);
    std::string const plain = gpipe::trace::svg(
        gpipe::timeline(programs, gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost)));
    CHECK(plain.find("offload") == std::string::npos);
}
