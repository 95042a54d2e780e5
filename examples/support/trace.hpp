#pragma once

#include "support/options.hpp"
#include "support/output.hpp"

#include <gpipe/trace/chrome.hpp>
#include <gpipe/trace/compare.hpp>
#include <gpipe/trace/svg.hpp>
#include <gpipe/trace/text.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

namespace support {

/// How timelines in milliseconds are written to a file whose name ends so.
struct TraceFormat {
    std::string_view ending;
    std::string_view viewer; ///< what it is for, where the ending does not say
    std::string (*text)(std::span<gpipe::Timeline const>);
};
inline constexpr TraceFormat trace_formats[] = {
    {".svg", "", [](auto all) { return gpipe::trace::svg(all, {.axis = "milliseconds"}); }},
    {".txt", "", [](auto all) { return gpipe::trace::text(all, {.width = 160}); }},
    {".json", " (Perfetto)", [](auto all) { return gpipe::trace::chrome(all, 1e3); }}};

/// ".svg, .txt or .json (Perfetto)"
inline std::string trace_endings() {
    std::string result;
    for (TraceFormat const& format : trace_formats) {
        if (!result.empty()) result += &format + 1 == std::end(trace_formats) ? " or " : ", ";
        result.append(format.ending).append(format.viewer);
    }
    return result;
}

/// A file that shows the last step of a training. Its ending says how: see trace_formats. It is
/// opened before the training, which may take hours.
class TraceFile {
  public:
    /// Throws UsageError for another ending.
    static void check(std::string const& path) { (void)format_of(path); }
    /// The same, and std::runtime_error where there can be no such file.
    explicit TraceFile(std::string const& path) : format_(format_of(path)), file_(path) {}

    /// Writes what the last step of a Training has shown, a mini-batch of `samples`, below what its
    /// programs would take by simulation if each kind of action took in each cell what it took in
    /// the mean, and devices did not share threads. Throws std::runtime_error.
    template <class Train>
    void write(Train const& train, gpipe::Timeline const& step, std::size_t samples,
               std::string const& name) {
        gpipe::Timeline timelines[2];
        gpipe::Timeline& measured = timelines[1];
        measured = gpipe::trace::scaled(step, 1e3);
        gpipe::trace::MeanDurations const durations(measured);
        auto const cost = [&](gpipe::Action const& action) {
            return runs(action, samples) ? durations(action) : 0;
        };
        timelines[0] = train.predicted_timeline(cost, name + ", simulated with its mean durations");
        file_.write(format_.text(std::span<gpipe::Timeline const>(timelines)));
    }

  private:
    // Of fewer samples than micro-batches the last micro-batches have none.
    static bool runs(gpipe::Action const& action, std::size_t samples) {
        return action.micro_batch < samples;
    }

    static TraceFormat const& format_of(std::string const& path) {
        std::string const ending = path.substr(std::min(path.rfind('.'), path.size()));
        for (TraceFormat const& format : trace_formats)
            if (format.ending == ending) return format;
        throw UsageError("--trace takes a file that ends in " + trace_endings() + ", not '" + path +
                         "'");
    }

    TraceFormat const& format_;
    OutputFile file_;
};

} // namespace support
