#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/trace/timeline.hpp>

#include <cstddef>

namespace gpipe::trace {

/// The same in another unit: every time multiplied by `factor`.
GPIPE_INLINE constexpr Timeline scaled(Timeline const& timeline, double factor) {
    Timeline result(timeline.devices(), timeline.cells(), timeline.micro_batches(), timeline.size(),
                    timeline.title());
    for (TimelineEntry entry : timeline) {
        entry.start *= factor;
        entry.end *= factor;
        result.add(entry);
    }
    result.preemptions(timeline.preemptions());
    Array<MemoryCurve> curves = timeline.memory();
    for (MemoryCurve& curve : curves)
        for (MemoryCurve::Point& point : curve.points) point.time *= factor;
    result.memory(static_cast<Array<MemoryCurve>&&>(curves));
    return result;
}

/// A simulation and a run of it in one unit of time, to be drawn one above the other: the run is
/// scaled so that both hold as much work (Timeline::busy()). What is longer in the run than in the
/// simulation is then time in which nothing ran, and the quotient of their makespans is how much
/// of the simulated efficiency the run has come to. Where the simulation took the run's
/// MeanDurations as costs, the unit stays that of the run.
GPIPE_INLINE constexpr Array<Timeline> compare(Timeline const& simulated,
                                               Timeline const& measured) {
    Array<Timeline> result(2);
    result[0] = simulated;
    result[1] = measured;
    if (measured.busy() > 0) result[1] = scaled(measured, simulated.busy() / measured.busy());
    return result;
}

/// How long the actions of a timeline took: costs for simulate(), one for each kind and cell, the
/// mean over the micro-batches.
class MeanDurations {
  public:
    /// Of all entries of the timeline.
    constexpr explicit MeanDurations(Timeline const& timeline)
        : sums_(timeline.cells() * kind_count), counts_(timeline.cells() * kind_count) {
        for (TimelineEntry const& entry : timeline) {
            sums_[place(entry.action)] += entry.duration();
            counts_[place(entry.action)] += 1;
        }
    }
    /// 0 for a kind that the cell did not run, and for a cell that was not there.
    constexpr double operator()(Action const& action) const {
        std::size_t const at = place(action);
        return at < counts_.size() && counts_[at] > 0 ? sums_[at] / counts_[at] : 0;
    }

  private:
    static constexpr std::size_t place(Action const& action) {
        return action.cell * kind_count + static_cast<std::size_t>(action.kind);
    }

    Array<double> sums_;
    Array<double> counts_;
};

} // namespace gpipe::trace
