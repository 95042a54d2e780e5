// The bytes in use, in pictures and traces: read back by readers that know nothing of their
// writers.
#include <support/json_reader.hpp>
#include <support/xml_reader.hpp>

#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/trace/chrome.hpp>
#include <gpipe/trace/compare.hpp>
#include <gpipe/trace/svg.hpp>
#include <gpipe/trace/text.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

using gpipe::Array;
using gpipe::MemoryCurve;
using gpipe::Timeline;
using toy::Json;
using toy::Xml;

namespace {

// A curve by chance, that steps at whole times and reaches what is planned.
MemoryCurve some_curve(std::mt19937_64& random, std::size_t makespan) {
    MemoryCurve curve;
    curve.fixed = random() % 3 ? 100 * (random() % 50) : 0;
    curve.planned = curve.fixed + 1000 + random() % 5000;
    std::vector<MemoryCurve::Point> points{{0, curve.fixed}};
    for (std::size_t time = 1; time < makespan; ++time)
        if (random() % 2)
            points.push_back(
                {double(time), time == makespan / 2
                                   ? curve.planned
                                   : curve.fixed + random() % (curve.planned - curve.fixed)});
    points.push_back({double(makespan), curve.fixed});
    curve.points = Array<MemoryCurve::Point>(points.size());
    std::copy(points.begin(), points.end(), curve.points.begin());
    return curve;
}
Timeline with_memory(std::mt19937_64& random, std::size_t devices, std::size_t micro_batches,
                     std::string const& title = {}) {
    auto const programs = gpipe::schedule::GPipe::programs(devices, micro_batches);
    auto const times = gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost);
    Timeline timeline = gpipe::timeline(programs, times, title);
    Array<MemoryCurve> curves(devices);
    for (MemoryCurve& curve : curves)
        curve = some_curve(random, static_cast<std::size_t>(times.makespan));
    timeline.memory(curves);
    return timeline;
}

// A path of M, H, V and z in absolute numbers: its corners.
struct Corner {
    double x, y;
};
std::vector<Corner> corners_of(std::string const& d) {
    std::vector<Corner> corners;
    Corner at{};
    for (char const* c = d.c_str(); *c;) {
        char* end = nullptr;
        char const letter = *c++;
        if (letter == 'z') continue;
        double const number = std::strtod(c, &end);
        REQUIRE(end != c);
        if (letter == 'M') {
            at.x = number;
            c = end;
            at.y = std::strtod(c, &end);
        } else {
            REQUIRE((letter == 'H' || letter == 'V'));
            (letter == 'H' ? at.x : at.y) = number;
        }
        c = end;
        corners.push_back(at);
    }
    return corners;
}
// The level of a path that runs from left to right in steps.
double level_at(std::vector<Corner> const& corners, double x) {
    double y = corners.front().y;
    for (Corner const& corner : corners)
        if (corner.x <= x) y = corner.y;
    return y;
}

std::vector<std::string> lines_of(std::string const& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}
// Characters of UTF-8.
std::vector<std::string> letters_of(std::string const& text) {
    std::vector<std::string> letters;
    for (char const c : text)
        if ((static_cast<unsigned char>(c) & 0xC0) == 0x80)
            letters.back() += c;
        else
            letters.emplace_back(1, c);
    return letters;
}

} // namespace

TEST_CASE("a curve's value is that of its last point") {
    MemoryCurve curve{Array<MemoryCurve::Point>(3), 1, 9};
    curve.points[0] = {0, 1};
    curve.points[1] = {2, 9};
    curve.points[2] = {2.5, 4};
    CHECK(curve.at(-1) == 0);
    CHECK(curve.at(0) == 1);
    CHECK(curve.at(1.9) == 1);
    CHECK(curve.at(2) == 9);
    CHECK(curve.at(100) == 4);
    CHECK(curve.peak() == 9);
    CHECK(MemoryCurve{}.at(0) == 0);
}

TEST_CASE("a timeline takes a curve for each device or none, and scaling scales their times") {
    std::mt19937_64 random{1};
    Timeline timeline = with_memory(random, 3, 2);
    CHECK_THROWS_AS(timeline.memory(Array<MemoryCurve>(2)), std::invalid_argument);
    CHECK(timeline.memory().size() == 3);
    Timeline const twice = gpipe::trace::scaled(timeline, 2.5);
    REQUIRE(twice.memory().size() == 3);
    for (std::size_t d = 0; d < 3; ++d) {
        MemoryCurve const& one = timeline.memory()[d];
        MemoryCurve const& two = twice.memory()[d];
        CHECK(two.fixed == one.fixed);
        CHECK(two.planned == one.planned);
        REQUIRE(two.points.size() == one.points.size());
        for (std::size_t i = 0; i < one.points.size(); ++i)
            CHECK(two.points[i] ==
                  MemoryCurve::Point{2.5 * one.points[i].time, one.points[i].bytes});
    }
    timeline.memory({});
    CHECK(timeline.memory().empty());
}

TEST_CASE("a figure has each curve below the row of its device, all in one scale of bytes") {
    std::mt19937_64 random{2};
    for (std::size_t n = 0; n < 20; ++n) {
        std::vector<Timeline> const timelines = {
            with_memory(random, 1 + n % 4, 1 + n % 5, "first"),
            with_memory(random, 1 + n % 3, 1 + n % 5, "second")};
        Xml const svg = Xml::parse(gpipe::trace::svg(timelines));
        std::vector<Xml const*> areas; // with tooltips, by device
        std::vector<std::string> planned, edges;
        for (Xml const* path : svg.all("path")) {
            if (!path->all("title").empty()) areas.push_back(path);
            if (path->attributes.count("stroke-dasharray"))
                planned.push_back(path->attributes.at("d"));
            if (path->attributes.count("stroke-width") &&
                path->attributes.at("stroke-width") == ".8" &&
                path->attributes.at("stroke") == "#56616f")
                edges.push_back(path->attributes.at("d"));
        }
        REQUIRE(planned.size() == 2);
        REQUIRE(edges.size() == 2);
        std::vector<Xml const*> boxes;
        for (Xml const* rectangle : svg.all("rect"))
            if (!rectangle->all("title").empty()) boxes.push_back(rectangle);
        double scale = 0; // pixels per byte
        std::size_t area = 0;
        std::size_t box = 0;
        for (Timeline const& timeline : timelines) {
            double low = 1e9, high = 0; // of the rows by their boxes, in the order of the devices
            std::vector<double> row(timeline.devices());
            for (auto const& entry : timeline) {
                row[entry.device] = boxes.at(box)->number("y") + boxes[box]->number("height");
                low = std::min(low, boxes[box]->number("x"));
                high = std::max(high, boxes[box]->number("x") + boxes[box]->number("width"));
                ++box;
            }
            double const pixels = (high - low) / timeline.makespan();
            auto const panel = static_cast<std::size_t>(&timeline - timelines.data());
            auto const plans = corners_of(planned[panel]);
            for (std::size_t d = 0; d < timeline.devices(); ++d, ++area) {
                MemoryCurve const& curve = timeline.memory()[d];
                REQUIRE(area < areas.size());
                auto const corners = corners_of(areas[area]->attributes.at("d"));
                double const bottom = corners.front().y;
                double const top = plans.at(2 * d).y;
                CHECK(corners.back().y == bottom);
                CHECK(std::abs(corners.front().x - low) < 0.011);
                CHECK(std::abs(corners.back().x - high) < 0.011);
                CHECK(top >= row[d]);
                if (d + 1 < timeline.devices()) CHECK(bottom < row[d + 1] - 20);
                double const height = (bottom - top) / double(curve.planned - curve.fixed);
                if (scale == 0) scale = height;
                CHECK(std::abs(height / scale - 1) < 0.01);
                for (double time = 0.5; time < timeline.makespan(); ++time) {
                    double const y = bottom - scale * double(curve.at(time) - curve.fixed);
                    CHECK(std::abs(level_at(corners, low + pixels * time) - y) < 0.1);
                    CHECK(level_at(corners, low + pixels * time) >= top - 0.011);
                }
                std::string const outline = areas[area]->attributes.at("d");
                std::string const steps = outline.substr(outline.find('H'));
                CHECK(edges[panel].find(steps.substr(0, steps.rfind('V'))) != std::string::npos);
            }
        }
        CHECK(area == areas.size());
        bool explained = false;
        for (Xml const* text : svg.all("text"))
            explained = explained || text->text == "room planned for them";
        CHECK(explained);
    }
}

TEST_CASE("bytes are written with three digits that count") {
    auto const title = [](std::size_t peak, std::size_t fixed, std::size_t planned) {
        Timeline timeline(1, 1, 1, 1);
        timeline.add({gpipe::forward(0, 0), 0, 0, 0, 1});
        MemoryCurve curve{Array<MemoryCurve::Point>(1), fixed, planned};
        curve.points[0] = {0, peak};
        timeline.memory(Array<MemoryCurve>(1, curve));
        Xml const svg = Xml::parse(gpipe::trace::svg(timeline));
        for (Xml const* path : svg.all("path"))
            if (!path->all("title").empty()) return path->all("title")[0]->text;
        return std::string();
    };
    CHECK(title(999, 0, 1000) == "999 B in use at most, 0 B of it always; 0.98 KiB planned");
    CHECK(title(std::size_t{12} << 20, 1 << 20, std::size_t{1536} << 30) ==
          "12 MiB in use at most, 1 MiB of it always; 1.5 TiB planned");
    CHECK(title(1294336, 500 << 10, std::size_t{123} << 30) ==
          "1.23 MiB in use at most, 500 KiB of it always; 123 GiB planned");
}

TEST_CASE("in text a line below each device has the eighths of what is planned, and the peak") {
    std::mt19937_64 random{3};
    std::string const eighths[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    for (std::size_t n = 0; n < 20; ++n) {
        Timeline const timeline = with_memory(random, 1 + n % 4, 1 + n % 3);
        auto const lines = lines_of(gpipe::trace::text(timeline, {.unit = 2, .columns = 3}));
        REQUIRE(lines.size() == 2 * timeline.devices());
        for (std::size_t d = 0; d < timeline.devices(); ++d) {
            MemoryCurve const& curve = timeline.memory()[d];
            CHECK(lines[2 * d].find("device " + std::to_string(d)) == 0);
            auto const letters = letters_of(lines[2 * d + 1]);
            std::string head;
            for (std::size_t i = 0; i < 11; ++i) head += letters.at(i);
            CHECK(head == "memory     ");
            for (std::size_t i = 0; 2 * i < 3 * std::size_t(timeline.makespan()); ++i) {
                double const share = double(curve.at((double(i) + 0.5) / 1.5) - curve.fixed) /
                                     double(curve.planned - curve.fixed);
                std::size_t level = 0;
                while (double(level) < 8 * share) ++level;
                CHECK(letters.at(11 + i) == eighths[level]);
            }
        }
        // With the bytes behind it a line is within the width.
        for (std::size_t const width : {50u, 80u})
            for (auto const& line : lines_of(gpipe::trace::text(timeline, {.width = width})))
                CHECK(letters_of(line).size() <= width);
    }
    Timeline const titled = with_memory(random, 1, 1, "title");
    CHECK(gpipe::trace::text(titled).find("title: makespan 3, bubble 0 %, at most ") == 0);
}

TEST_CASE("viewers get a counter for each device, with every point of its curve") {
    std::mt19937_64 random{4};
    std::vector<Timeline> const timelines = {with_memory(random, 2, 3), with_memory(random, 3, 1)};
    Json const trace = Json::parse(gpipe::trace::chrome(timelines, 1000));
    std::vector<Json const*> counters;
    for (Json const& event : trace.at("traceEvents").array)
        if (event.at("ph").string == "C") counters.push_back(&event);
    std::size_t n = 0;
    for (std::size_t process = 0; process < 2; ++process)
        for (std::size_t d = 0; d < timelines[process].devices(); ++d)
            for (auto const& point : timelines[process].memory()[d].points) {
                REQUIRE(n < counters.size());
                Json const& counter = *counters[n++];
                CHECK(counter.at("name").string == "memory of device " + std::to_string(d));
                CHECK(counter.at("pid").number == double(process));
                CHECK(counter.at("ts").number == 1000 * point.time);
                CHECK(counter.at("args").at("bytes").number == double(point.bytes));
            }
    CHECK(n == counters.size());
}
