#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/trace/timeline.hpp>
#include <gpipe/trace/writer.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace gpipe::trace {

namespace detail {

struct JsonString {
    std::string_view text;

    friend Writer& operator<<(Writer& out, JsonString string) {
        out << '"';
        each_character(string.text, [&out](std::string_view character) {
            auto const code = static_cast<unsigned char>(character[0]);
            if (code == '"' || code == '\\')
                out << '\\' << character;
            else if (code < 0x20)
                out << "\\u00"
                    << "01"[code / 16] << "0123456789abcdef"[code % 16];
            else
                out << character;
        });
        return out << '"';
    }
};

// What a viewer is told of a process or thread.
struct ChromeName {
    std::string_view what;
    std::size_t process;
    std::size_t thread;
    std::string_view name;

    friend Writer& operator<<(Writer& out, ChromeName const& n) {
        return out << R"({"ph":"M","name":")" << n.what << R"(","pid":)" << n.process
                   << R"(,"tid":)" << n.thread << R"(,"args":{"name":)" << JsonString{n.name}
                   << "}}";
    }
};

} // namespace detail

/// Timelines for the viewers of Perfetto and Chrome (ui.perfetto.dev, chrome://tracing), in their
/// JSON format: each timeline is a process, each device a thread of it, what it moves to slower
/// memory and back one more each; each entry a complete event with kind, cell, micro-batch and lane
/// as arguments; bytes in use are a counter for each device. `microseconds` is how many of them a
/// unit of the timelines' time has: 10^6 for seconds.
GPIPE_INLINE std::string chrome(std::span<Timeline const> timelines, double microseconds = 1e6) {
    detail::Writer out;
    out << R"({"displayTimeUnit":"ms","traceEvents":[)";
    std::string_view between = "\n";
    for (std::size_t process = 0; process < timelines.size(); ++process) {
        Timeline const& timeline = timelines[process];
        std::string_view const title = timeline.title();
        out << between
            << detail::ChromeName{"process_name", process, 0, title.empty() ? "gpipe" : title};
        between = ",\n";
        for (std::size_t d = 0; d < timeline.devices(); ++d)
            out << between
                << detail::ChromeName{"thread_name", process, d, "device " + std::to_string(d)};
        auto const thread = [&](std::size_t device, Kind kind) {
            return is_offload(kind)
                       ? timeline.devices() + 2 * device + (kind == Kind::fetch ? 1 : 0)
                       : device;
        };
        for (std::size_t d = 0; d < timeline.devices() && timeline.offloads(); ++d)
            for (Kind const kind : {Kind::offload, Kind::fetch})
                out << between
                    << detail::ChromeName{"thread_name", process, thread(d, kind),
                                          "device " + std::to_string(d) + ", " +
                                              std::string(name(kind))};
        for (TimelineEntry const& entry : timeline) {
            Action const& a = entry.action;
            // To the nanosecond, so that no event ends after the next has begun.
            double const start = detail::rounded({entry.start * microseconds, 3});
            double const end = detail::rounded({entry.end * microseconds, 3});
            out << between << R"({"ph":"X","name":")" << name(a.kind);
            if (!ends_step(a.kind)) out << ' ' << a.micro_batch;
            out << R"(","cat":")" << name(a.kind) << R"(","pid":)" << process << R"(,"tid":)"
                << thread(entry.device, a.kind) << R"(,"ts":)" << detail::Decimal{start, 3}
                << R"(,"dur":)" << detail::Decimal{end - start, 3} << R"(,"args":{"kind":")"
                << name(a.kind) << R"(","cell":)" << a.cell << R"(,"micro_batch":)" << a.micro_batch
                << R"(,"lane":)" << entry.lane << "}}";
        }
        for (std::size_t d = 0; d < timeline.memory().size(); ++d)
            for (MemoryCurve::Point const& point : timeline.memory()[d].points)
                out << between << R"({"ph":"C","name":"memory of device )" << d << R"(","pid":)"
                    << process << R"(,"tid":)" << d << R"(,"ts":)"
                    << detail::Decimal{detail::rounded({point.time * microseconds, 3}), 3}
                    << R"(,"args":{"bytes":)" << point.bytes << "}}";
    }
    out << "\n]}\n";
    return out.take();
}
/// The same of one timeline.
GPIPE_INLINE std::string chrome(Timeline const& timeline, double microseconds = 1e6) {
    return chrome(std::span(&timeline, 1), microseconds);
}

} // namespace gpipe::trace
