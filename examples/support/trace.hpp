#pragma once

#include "support/options.hpp"
#include "support/output.hpp"

#include <gpipe/trace/chrome.hpp>
#include <gpipe/trace/compare.hpp>
#include <gpipe/trace/svg.hpp>
#include <gpipe/trace/text.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

namespace support {

/// A file that shows the last step of a training. Its ending says how: a figure (.svg), for the
/// viewers of Perfetto and Chrome (.json), in letters (.txt). It is opened before the training,
/// which may take hours.
class TraceFile {
  public:
    /// Throws UsageError for another ending, std::runtime_error where there can be no such file.
    explicit TraceFile(std::string const& path) : ending_(checked_ending(path)), file_(path) {}

    /// Writes the last step of a Training that timed its actions, a mini-batch of `samples`, below
    /// what its programs would take by simulation if each kind of action took in each cell what it
    /// took in the mean, and devices did not share threads. Throws std::runtime_error.
    template <class Train>
    void write(Train const& train, std::size_t samples, std::string const& name) {
        gpipe::Timeline timelines[2];
        gpipe::Timeline& measured = timelines[1];
        measured = gpipe::trace::scaled(train.timeline(name + ", as its last step ran"), 1e3);
        gpipe::trace::MeanDurations const durations(measured);
        auto const cost = [&](gpipe::Action const& action) {
            return runs(action, samples) ? durations(action) : 0;
        };
        timelines[0] = train.predicted_timeline(cost, name + ", simulated with its mean durations");
        file_.write(ending_ == ".svg"    ? gpipe::trace::svg(timelines, {.axis = "milliseconds"})
                    : ending_ == ".json" ? gpipe::trace::chrome(timelines, 1e3)
                                         : gpipe::trace::text(timelines, {.width = 160}));
    }

  private:
    // Of fewer samples than micro-batches the last micro-batches have none.
    static bool runs(gpipe::Action const& action, std::size_t samples) {
        return action.micro_batch < samples;
    }

    static std::string checked_ending(std::string const& path) {
        std::string const ending = path.substr(std::min(path.rfind('.'), path.size()));
        if (ending != ".svg" && ending != ".json" && ending != ".txt")
            throw UsageError("--trace takes a file that ends in .svg, .json or .txt, not '" + path +
                             "'");
        return ending;
    }

    std::string ending_;
    OutputFile file_;
};

} // namespace support
