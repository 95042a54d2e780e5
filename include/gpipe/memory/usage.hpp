#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/curve.hpp>
#include <gpipe/memory/occupation.hpp>

#include <algorithm>
#include <cstddef>

namespace gpipe {

namespace detail {

// The sum of what is in use, as steps.
GPIPE_INLINE constexpr Array<MemoryCurve::Point> steps_of(Array<Occupation> const& occupations,
                                                          std::size_t fixed) {
    struct Change {
        double time;
        std::size_t more, less;
    };
    std::size_t const size = 2 * occupations.size();
    Array<Change> changes(size);
    for (std::size_t i = 0; i < occupations.size(); ++i) {
        changes[2 * i] = {occupations[i].begin, occupations[i].bytes, 0};
        changes[2 * i + 1] = {occupations[i].end, 0, occupations[i].bytes};
    }
    std::sort(changes.begin(), changes.end(),
              [](Change const& a, Change const& b) { return a.time < b.time; });
    Array<MemoryCurve::Point> points(size + 1);
    points[0] = {0, fixed};
    std::size_t count = 1;
    std::size_t bytes = fixed;
    for (std::size_t i = 0; i < size;) {
        double const time = changes[i].time;
        // What ends at an instant makes room for what begins.
        std::size_t more = 0;
        std::size_t less = 0;
        for (; i < size && changes[i].time == time; ++i) {
            more += changes[i].more;
            less += changes[i].less;
        }
        bytes = bytes + more - less;
        if (time <= points[count - 1].time)
            points[count - 1].bytes = bytes;
        else if (bytes != points[count - 1].bytes)
            points[count++] = {time, bytes};
    }
    Array<MemoryCurve::Point> result(count);
    for (std::size_t i = 0; i < count; ++i) result[i] = points[i];
    return result;
}

} // namespace detail

/// The bytes that are in use on each device over time, where the actions of a plan's programs start
/// at times.start and end at times.end, by index: those of simulate(), or of a run. What is
/// always in use are parameters, their gradients, the optimizer's states, what is staged for a
/// step, and handles. A slot of a boundary is in use from the begin of the action that writes it to
/// the end of the last that reads it; a block as long as a micro-batch has it, see Blocks and
/// Offloaded; the temporaries of a cell while an action of the cell runs. All in whole: what a slot
/// or block has room for. So the peak is never above what is planned, and equals it where
/// everything that is planned is in use at once. Actions that take no time count for nothing. A
/// transfer of which there is no time, as of programs without transfers, lasts from the end of what
/// it sends to the start of what reads that, but no longer than until its slot is written again.
template <class Times>
[[gnu::cold]] constexpr Array<MemoryCurve> memory_usage(MemoryPlan const& plan,
                                                        Times const& times) {
    Array<MemoryCurve> curves(plan.devices.size());
    for (std::size_t d = 0; d < curves.size(); ++d) {
        DeviceBytes const& bytes = plan.devices[d];
        MemoryCurve& curve = curves[d];
        curve.fixed = bytes.total() - bytes.boundary - bytes.activations;
        curve.planned = bytes.total();
        curve.points = detail::steps_of(detail::Occupations(plan, times, d).take(), curve.fixed);
    }
    return curves;
}

} // namespace gpipe
