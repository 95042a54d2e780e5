// What pictures and traces in files hold, read back by readers that know nothing of their writers.
#include <support/json_reader.hpp>
#include <support/schedules.hpp>
#include <support/xml_reader.hpp>

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/trace/chrome.hpp>
#include <gpipe/trace/compare.hpp>
#include <gpipe/trace/svg.hpp>
#include <gpipe/trace/text.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

using gpipe::Kind;
using gpipe::Programs;
using gpipe::Timeline;
using gpipe::TimelineEntry;
using gpipe::schedule::GPipe;
using toy::Json;
using toy::Xml;

namespace {

std::string const strange = "a<b>&\"c' \\ \x01\n \xc3\xa4 100 %";

Timeline drawn(Programs const& programs, std::string_view title = {}) {
    return gpipe::timeline(programs, gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost),
                           title);
}
// A run with costs by chance, some of them next to nothing, others nothing at all.
Timeline by_chance(Programs const& programs, unsigned seed) {
    std::mt19937 random(seed);
    std::exponential_distribution<double> duration(100);
    auto const cost = [&](gpipe::Action const&) {
        return random() % 9 == 0 ? 0 : random() % 5 == 0 ? 1e-9 : duration(random);
    };
    return gpipe::timeline(programs, gpipe::simulate<double>(programs, cost), "by chance");
}
// Devices, micro-batches, cells of a device under schedules in loops.
struct Size {
    std::size_t k, m, v;
};
std::vector<Timeline> figure(Size const& size) {
    auto const [k, m, v] = size;
    std::vector<Timeline> timelines;
    for (auto const& schedule : gpipe::schedule::catalogue(v))
        if (schedule.least_micro_batches(k) <= m)
            timelines.push_back(drawn(schedule.programs(k, m), schedule.name()));
    timelines.push_back(drawn(gpipe::checkpoint::Always::lower(GPipe::programs(k, m)), strange));
    timelines.push_back(
        gpipe::trace::compare(timelines[0], by_chance(toy::Dealt::programs(2 * k, m), 1))[1]);
    return timelines;
}

long hundredths(double pixels) { return std::lround(100 * pixels); }
std::string hex(gpipe::trace::Colour colour) {
    char text[8];
    std::snprintf(text, sizeof text, "#%02x%02x%02x", colour.red, colour.green, colour.blue);
    return text;
}

// The boxes of actions in a figure, in its order: they are the rectangles that have a tooltip.
std::vector<Xml const*> boxes_of(Xml const& svg) {
    std::vector<Xml const*> boxes;
    for (Xml const* rectangle : svg.all("rect"))
        if (!rectangle->all("title").empty()) boxes.push_back(rectangle);
    return boxes;
}
// Lengths of time in pixels: x = left + scale * time.
struct Scale {
    double left, scale;
    double operator()(double time) const { return left + scale * time; }
};
Scale scale_of(std::vector<Timeline> const& timelines, std::vector<Xml const*> const& boxes) {
    std::size_t n = 0;
    std::pair<double, Xml const*> first{1e300, nullptr}, last{-1, nullptr};
    for (Timeline const& timeline : timelines)
        for (TimelineEntry const& entry : timeline) {
            if (entry.duration() <= 0) continue;
            Xml const* const box = boxes.at(n++);
            first = std::min(first, {entry.start, box});
            if (entry.end > last.first) last = {entry.end, box};
        }
    double const begin = first.second->number("x");
    double const end = last.second->number("x") + last.second->number("width");
    double const scale = (end - begin) / (last.first - first.first);
    return {begin - scale * first.first, scale};
}

} // namespace

TEST_CASE("a figure is XML of a few known elements, and the same every time") {
    for (Size const& size : {Size{1, 1, 1}, {3, 4, 2}, {4, 33, 8}}) {
        std::vector<Timeline> const timelines = figure(size);
        std::string const text = gpipe::trace::svg(timelines);
        Xml const svg = Xml::parse(text);
        CHECK(svg.name == "svg");
        CHECK(svg.attributes.at("xmlns") == "http://www.w3.org/2000/svg");
        std::set<std::string> const known = {"svg",  "defs",  "pattern", "rect", "path",
                                             "text", "tspan", "g",       "title"};
        std::size_t elements = 0;
        for (std::string const& name : known) elements += svg.all(name).size();
        std::size_t const tags =
            static_cast<std::size_t>(std::count(text.begin(), text.end(), '<'));
        std::size_t ends = 0;
        for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; ++at) ++ends;
        CHECK(elements == tags - ends); // so there are no others
        CHECK(text.find("href") == std::string::npos);
        std::vector<Timeline> const again = figure(size);
        CHECK(gpipe::trace::svg(again) == text);
    }
}

TEST_CASE("every action has its box, at its time, in the row of its device") {
    for (Size const& size : {Size{1, 1, 1}, {2, 7, 1}, {3, 4, 2}, {4, 33, 8}}) {
        CAPTURE(size.k);
        CAPTURE(size.m);
        std::vector<Timeline> const timelines = figure(size);
        gpipe::trace::SvgOptions options;
        options.width = 1234.5;
        options.row = 19;
        Xml const svg = Xml::parse(gpipe::trace::svg(timelines, options));
        auto const boxes = boxes_of(svg);
        Scale const at = scale_of(timelines, boxes);
        CHECK(svg.number("width") == 1234.5);
        std::size_t n = 0;
        long bottom = 0; // of all that came before
        for (Timeline const& timeline : timelines) {
            std::map<std::size_t, long> row;
            std::map<std::size_t, std::vector<std::pair<long, long>>> taken;
            for (TimelineEntry const& entry : timeline) {
                if (entry.duration() <= 0) continue;
                REQUIRE(n < boxes.size());
                Xml const& box = *boxes[n++];
                REQUIRE(std::abs(box.number("x") - at(entry.start)) < 0.011);
                REQUIRE(std::abs(box.number("x") + box.number("width") - at(entry.end)) < 0.011);
                REQUIRE(box.number("height") == 19);
                REQUIRE(box.attributes.at("fill") ==
                        hex(gpipe::trace::colour_of(entry.action.kind, entry.action.micro_batch)));
                std::string const expected = std::string(name(entry.action.kind)) + " cell " +
                                             std::to_string(entry.action.cell) + " micro-batch " +
                                             std::to_string(entry.action.micro_batch) + ", ";
                REQUIRE(box.all("title")[0]->text.find(expected) == 0);
                long const y = hundredths(box.number("y"));
                REQUIRE(row.emplace(entry.device, y).first->second == y);
                long const x = hundredths(box.number("x"));
                taken[entry.device].push_back({x, x + hundredths(box.number("width"))});
            }
            long const above = bottom;
            for (auto const& [device, y] : row) { // by device
                CHECK(y >= bottom);
                bottom = y + 1900;
            }
            CHECK(bottom > above);
            for (auto& [device, spans] : taken) {
                std::sort(spans.begin(), spans.end());
                for (std::size_t i = 1; i < spans.size(); ++i)
                    REQUIRE(spans[i - 1].second <= spans[i].first);
                CHECK(spans.front().first >= 0);
                CHECK(spans.back().second <= hundredths(svg.number("width")));
            }
        }
        CHECK(n == boxes.size());
        CHECK(bottom <= hundredths(svg.number("height")));
    }
}

TEST_CASE("the number in a box is that of its micro-batch, wherever there is room") {
    for (Size const& size : {Size{3, 4, 2}, {4, 40, 2}, {2, 12, 3}}) {
        std::vector<Timeline> const timelines = figure(size);
        Xml const svg = Xml::parse(gpipe::trace::svg(timelines));
        auto const boxes = boxes_of(svg);
        std::map<Xml const*, std::string> inside;
        std::size_t numbers = 0;
        for (Xml const* group : svg.all("g"))
            for (Xml const* text : group->all("text")) {
                REQUIRE(group->attributes.at("text-anchor") == "middle");
                ++numbers;
                double const x = text->number("x");
                double const y = text->number("y") - 0.36 * group->number("font-size");
                for (Xml const* box : boxes) // its middle is in one box
                    if (x > box->number("x") && x < box->number("x") + box->number("width") &&
                        y > box->number("y") && y < box->number("y") + box->number("height"))
                        REQUIRE(inside.emplace(box, text->text).second);
            }
        CHECK(inside.size() == numbers);
        double narrowest_with = 1e9;
        double widest_without = 0;
        for (Xml const* box : boxes) {
            auto const found = inside.find(box);
            if (found == inside.end()) {
                widest_without = std::max(widest_without, box->number("width"));
            } else {
                narrowest_with = std::min(narrowest_with, box->number("width"));
                std::string const title = box->all("title")[0]->text;
                CHECK(title.find("micro-batch " + found->second + ",") != std::string::npos);
            }
        }
        CHECK(widest_without <= 2 * 0.6 * 6.5 + 1.6); // two of the smallest digits
        CHECK(narrowest_with >= 3);
        CHECK(numbers > 0);
    }
}

TEST_CASE("recomputations are hatched, further cells of a device have a foot") {
    Timeline const timeline = drawn(
        gpipe::checkpoint::Always::lower(gpipe::schedule::Interleaved1F1B<4>::programs(1, 2)));
    Xml const svg = Xml::parse(gpipe::trace::svg(timeline));
    auto const boxes = boxes_of(svg);
    std::string hatched, feet;
    for (Xml const* path : svg.all("path")) {
        if (!path->attributes.count("fill")) continue;
        if (path->attributes.at("fill") == "url(#gpipe-again)") hatched = path->attributes.at("d");
        if (path->attributes.at("fill") == "#222") feet += path->attributes.at("d");
    }
    // Parts of a path by the box that they are part of: their height, if they reach its foot.
    auto const height_in = [](std::string const& outlines, Xml const& box) {
        auto const at = outlines.find('M' + box.attributes.at("x") + ' ');
        double y = -1, width = -1, height = -1;
        REQUIRE(at != std::string::npos);
        REQUIRE(std::sscanf(outlines.c_str() + outlines.find(' ', at), "%lfh%lfv%lf", &y, &width,
                            &height) == 3);
        CHECK(width == box.number("width"));
        CHECK(hundredths(y + height) == hundredths(box.number("y") + box.number("height")));
        return height;
    };
    std::size_t again = 0;
    std::size_t further = 0;
    std::set<long> heights;
    for (std::size_t i = 0; i < timeline.size(); ++i) {
        std::size_t const ordinal = timeline[i].action.cell;
        if (timeline[i].action.kind == Kind::recompute) {
            ++again;
            CHECK(height_in(hatched, *boxes[i]) == boxes[i]->number("height"));
        }
        if (ordinal > 0) {
            ++further;
            double const height = height_in(feet, *boxes[i]);
            CHECK(height < boxes[i]->number("height") / 2);
            heights.insert(hundredths(height / double(ordinal)));
        }
    }
    CHECK(heights.size() == 1);
    CHECK(std::count(hatched.begin(), hatched.end(), 'M') == std::ptrdiff_t(again));
    CHECK(std::count(feet.begin(), feet.end(), 'M') == std::ptrdiff_t(further));
}

TEST_CASE("titles, makespan and bubble stand above, the kinds that occur below") {
    Timeline const timelines[] = {drawn(GPipe::programs(3, 4), strange),
                                  drawn(gpipe::schedule::ZeroBubbleH1::programs(3, 4))};
    Xml const svg = Xml::parse(gpipe::trace::svg(timelines, {.axis = "time & more"}));
    std::vector<std::string> words;
    for (char const* element : {"text", "tspan"})
        for (Xml const* text : svg.all(element)) words.push_back(text->text);
    auto const has = [&](std::string const& wanted) {
        return std::count(words.begin(), words.end(), wanted);
    };
    std::string readable = strange;
    for (char& c : readable)
        if (c == '\x01' || c == '\n') c = ' ';
    CHECK(has(readable) == 1);
    CHECK(has("makespan 18, bubble 33.3 %") == 1);
    CHECK(has("makespan 14, bubble 14.3 %") == 1);
    CHECK(has("time & more") == 1);
    for (char const* kind : {"forward", "backward", "input gradient", "weight gradient", "idle"})
        CHECK(has(kind) == 1);
    CHECK(has("recompute") == 0);
    CHECK(has("device 2") == 2);
    CHECK(has("device 3") == 0);
    Xml const full = Xml::parse(gpipe::trace::svg(drawn(GPipe::programs(1, 2))));
    for (Xml const* text : full.all("text")) CHECK(text->text != "idle");
}

TEST_CASE("bytes of a title that are no UTF-8 are question marks, and all others stay") {
    std::string const sound = "\xc3\xa4 \xe2\x82\xac \xef\xbf\xbf \xf0\x9f\x98\x80";
    std::string const title = "a\xff|\xc0\xaf|\xe0\x80\x80|\xed\xa0\x80|\xf0\x80\x80\x80|"
                              "\xf4\x90\x80\x80|\xf8|\x80|\xc3|\xe2\x82|" +
                              sound + "\xf0\x9f\x98";
    std::string const shown = "a?|??|???|???|????|????|?|?|?|??|" + sound + "???";
    std::vector<Timeline> const timelines{drawn(GPipe::programs(2, 2), title)};
    CHECK(gpipe::trace::chrome(timelines).find(shown) != std::string::npos);
    std::string in_xml = shown;
    in_xml.replace(in_xml.find("\xef\xbf\xbf"), 3, "?"); // which XML has not
    CHECK(gpipe::trace::svg(timelines).find(in_xml) != std::string::npos);
}

TEST_CASE("ticks stand where their numbers say, not too few and not too many") {
    for (double const unit : {1e-7, 3e-4, 0.02, 0.5, 1.0, 7.0, 1234.0, 1e8}) {
        CAPTURE(unit);
        std::vector<Timeline> const timelines = {
            gpipe::trace::scaled(drawn(GPipe::programs(3, 4)), unit)};
        Xml const svg = Xml::parse(gpipe::trace::svg(timelines));
        Scale const at = scale_of(timelines, boxes_of(svg));
        double const bottom = boxes_of(svg).back()->number("y") + 22;
        std::vector<double> ticks;
        for (Xml const* text : svg.all("text")) {
            char* end = nullptr;
            double const number = std::strtod(text->text.c_str(), &end);
            if (*end != '\0' || text->number("y") < bottom) continue;
            CHECK(text->number("x") == doctest::Approx(at(number)).epsilon(0.0001));
            ticks.push_back(number);
        }
        CHECK(ticks.size() >= 4);
        CHECK(ticks.size() <= 11);
        CHECK(std::is_sorted(ticks.begin(), ticks.end()));
        REQUIRE(!ticks.empty());
        CHECK(ticks.front() == 0);
        CHECK(ticks.back() <= 18 * unit * 1.0001);
    }
}

TEST_CASE("figures of nothing are figures") {
    for (Timeline const& timeline : {Timeline(), Timeline(2, 2, 1, 0)})
        CHECK(Xml::parse(gpipe::trace::svg(timeline)).name == "svg");
    CHECK(Xml::parse(gpipe::trace::svg(std::span<Timeline const>())).name == "svg");
    // Of next to nothing, too.
    for (double const length : {1e-300, 1e-310, std::numeric_limits<double>::denorm_min()}) {
        Timeline timeline(1, 1, 1, 1);
        timeline.add({gpipe::forward(0, 0), 0, 0, 0, length});
        CHECK(Xml::parse(gpipe::trace::svg(timeline)).name == "svg");
        CHECK(gpipe::trace::text(timeline).substr(0, 8) == "device 0");
    }
}

namespace {

// OKLab (Ottosson, 2020) of an sRGB colour as seen by someone with a deficiency, by the matrices of
// Machado, Oliveira and Fernandes (2009) at their strongest.
using Vector = std::array<double, 3>;
using Matrix = std::array<Vector, 3>;
Vector times(Matrix const& matrix, Vector const& v) {
    Vector result{};
    for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t j = 0; j < 3; ++j) result[i] += matrix[i][j] * v[j];
    return result;
}
Vector seen(gpipe::trace::Colour colour, Matrix const& vision) {
    Vector linear{};
    std::uint8_t const parts[] = {colour.red, colour.green, colour.blue};
    for (std::size_t i = 0; i < 3; ++i) {
        double const part = parts[i] / 255.0;
        linear[i] = part <= 0.04045 ? part / 12.92 : std::pow((part + 0.055) / 1.055, 2.4);
    }
    Vector lms = times({{{0.4122214708, 0.5363325363, 0.0514459929},
                         {0.2119034982, 0.6806995451, 0.1073969566},
                         {0.0883024619, 0.2817188376, 0.6299787005}}},
                       times(vision, linear));
    for (double& part : lms) part = std::cbrt(std::max(part, 0.0));
    return times({{{0.2104542553, 0.7936177850, -0.0040720468},
                   {1.9779984951, -2.4285922050, 0.4505937099},
                   {0.0259040371, 0.7827717662, -0.8086757660}}},
                 lms);
}
double distance(Vector const& a, Vector const& b) {
    return std::sqrt((a[0] - b[0]) * (a[0] - b[0]) + (a[1] - b[1]) * (a[1] - b[1]) +
                     (a[2] - b[2]) * (a[2] - b[2]));
}
Matrix const visions[] = {
    {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}},
    {{{0.152286, 1.052583, -0.204868},
      {0.114503, 0.786281, 0.099216},
      {-0.003882, -0.048116, 1.051998}}},
    {{{0.367322, 0.860646, -0.227968},
      {0.280085, 0.672501, 0.047413},
      {-0.011820, 0.042940, 0.968881}}},
    {{{1.255528, -0.076749, -0.178779},
      {-0.078411, 0.930809, 0.147602},
      {0.004733, 0.691367, 0.303900}}},
};

} // namespace

TEST_CASE("64 micro-batches have colours of their own, and everyone can tell neighbours apart") {
    for (Kind const kind :
         {Kind::forward, Kind::backward, Kind::input_gradient, Kind::weight_gradient}) {
        std::set<std::string> colours;
        for (std::size_t m = 0; m < 64; ++m) {
            colours.insert(hex(gpipe::trace::colour_of(kind, m)));
            for (Matrix const& vision : visions)
                CHECK(distance(seen(gpipe::trace::colour_of(kind, m), vision),
                               seen(gpipe::trace::colour_of(kind, m + 1), vision)) > 0.018);
        }
        CHECK(colours.size() == 64);
    }
}

TEST_CASE("in print without colour the kinds of a micro-batch's actions are shades apart") {
    for (std::size_t m = 0; m < 64; ++m) {
        int last = 256;
        for (Kind const kind :
             {Kind::forward, Kind::input_gradient, Kind::backward, Kind::weight_gradient}) {
            int const grey = gpipe::trace::colour_of(kind, m).grey();
            CHECK(grey <= last - 25);
            last = grey;
        }
    }
}

TEST_CASE("a trace for viewers holds every entry, by timeline and device, in microseconds") {
    std::vector<Timeline> timelines = figure({3, 7, 2});
    timelines.push_back(drawn(GPipe::programs(2, 3)));
    std::string const text = gpipe::trace::chrome(timelines, 1000);
    Json const trace = Json::parse(text);
    auto const& events = trace.at("traceEvents").array;
    std::size_t n = 0;
    for (std::size_t process = 0; process < timelines.size(); ++process) {
        Timeline const& timeline = timelines[process];
        auto const names = [&](std::string const& what, std::size_t thread,
                               std::string const& expected) {
            Json const& event = events.at(n++);
            CHECK(event.at("ph").string == "M");
            CHECK(event.at("name").string == what);
            CHECK(event.at("pid").number == double(process));
            CHECK(event.at("tid").number == double(thread));
            CHECK(event.at("args").at("name").string == expected);
        };
        names("process_name", 0,
              timeline.title().empty() ? "gpipe" : std::string(timeline.title()));
        for (std::size_t d = 0; d < timeline.devices(); ++d)
            names("thread_name", d, "device " + std::to_string(d));
        std::map<std::size_t, long long> end;
        for (TimelineEntry const& entry : timeline) {
            Json const& event = events.at(n++);
            CHECK(event.at("ph").string == "X");
            CHECK(event.at("pid").number == double(process));
            CHECK(event.at("tid").number == double(entry.device));
            double const ts = event.at("ts").number;
            CHECK(std::abs(ts - 1000 * entry.start) < 0.0006);
            CHECK(std::abs(ts + event.at("dur").number - 1000 * entry.end) < 0.0006);
            CHECK(std::llround(1000 * ts) >= end[entry.device]); // in nanoseconds
            end[entry.device] = std::llround(1000 * (ts + event.at("dur").number));
            CHECK(event.at("args").at("kind").string == name(entry.action.kind));
            CHECK(event.at("args").at("cell").number == entry.action.cell);
            CHECK(event.at("args").at("micro_batch").number == entry.action.micro_batch);
            CHECK(event.at("args").at("lane").number == double(entry.lane));
        }
    }
    CHECK(n == events.size());
    CHECK(gpipe::trace::chrome(timelines, 1000) == text);
    CHECK(Json::parse(gpipe::trace::chrome(Timeline())).at("traceEvents").array.size() == 1);
}

TEST_CASE("what ends a step is grey and has no number, and in a trace for viewers its name alone") {
    Timeline step(1, 1, 2, 6);
    step.add({gpipe::forward(0, 0), 0, 0, 0, 10});
    step.add({gpipe::forward(0, 1), 0, 0, 10, 20});
    step.add({{Kind::all_reduce, 0, 0}, 0, 0, 20, 30});
    step.add({{Kind::sum_squares, 0, 0}, 0, 0, 30, 40});
    step.add({{Kind::commit, 0, 0}, 0, 0, 40, 40.001}); // narrow, and boxes of cells keep theirs
    step.add({{Kind::update, 0, 0}, 0, 0, 41, 60});
    std::string const text = gpipe::trace::svg(step);
    Xml const svg = Xml::parse(text);
    auto const boxes = boxes_of(svg);
    REQUIRE(boxes.size() == step.size());
    char const* const titles[] = {"forward cell 0 micro-batch 0",
                                  "forward cell 0 micro-batch 1",
                                  "all-reduce cell 0",
                                  "sum of squares",
                                  "commit",
                                  "update"};
    std::vector<std::string> fills;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
        CHECK(boxes[i]->all("title").at(0)->text.starts_with(titles[i] + std::string(", ")));
        fills.push_back(boxes[i]->attributes.at("fill"));
        CHECK((fills[i].substr(1, 2) == fills[i].substr(3, 2)) == (i >= 2)); // grey
    }
    CHECK(fills[2] != fills[3]);
    CHECK(fills[3] == fills[4]);
    CHECK(fills[4] != fills[5]);
    // The axis goes to the end of the step, and only micro-batches are numbered.
    Scale const at = scale_of({step}, boxes);
    CHECK(at(60) == doctest::Approx(960 - 20).epsilon(0.01));
    std::size_t numbers = 0;
    for (Xml const* group : svg.all("g"))
        if (group->attributes.count("text-anchor")) numbers += group->all("text").size();
    CHECK(numbers == 2);
    Json const trace = Json::parse(gpipe::trace::chrome(step, 1));
    auto const& events = trace.at("traceEvents").array;
    CHECK(events.at(2).at("name").string == "forward 0");
    CHECK(events.at(4).at("name").string == "all-reduce");
    CHECK(events.at(7).at("name").string == "update");
}
