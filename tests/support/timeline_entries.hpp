#pragma once

#include <gpipe/trace/timeline.hpp>

#include <cstddef>
#include <vector>

namespace toy {

// Those of one kind, as they were added.
inline std::vector<gpipe::TimelineEntry> entries_of(gpipe::Timeline const& timeline,
                                                    gpipe::Kind kind) {
    std::vector<gpipe::TimelineEntry> found;
    for (gpipe::TimelineEntry const& entry : timeline)
        if (entry.action.kind == kind) found.push_back(entry);
    return found;
}

// How many do not end a step.
inline std::size_t entries_of_cells(gpipe::Timeline const& timeline) {
    std::size_t count = 0;
    for (gpipe::TimelineEntry const& entry : timeline) count += !ends_step(entry.action.kind);
    return count;
}

} // namespace toy
