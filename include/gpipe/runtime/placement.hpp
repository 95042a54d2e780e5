#pragma once

#include <gpipe/balance/partition.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/lanes.hpp>

#include <cstddef>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Puts programs on lanes, `lanes` on each rank, or as many as it has. A device that enqueues has
/// one walker and a stream per program; else every lane is a stream and walks neighbouring devices,
/// with all that copies for them, cut by cost as layers are into cells.
template <class Cost>
Placement place_programs(Lowered const& lowered, Ranks const& ranks, std::size_t lanes,
                         bool enqueues, Cost const& cost) {
    Programs const& programs = lowered.programs;
    std::size_t const streams = lowered.streams();
    std::size_t all = 0;
    for (std::size_t r = 0; r < ranks.count; ++r) all += ranks.lanes(r, lanes);
    Placement result{all, enqueues ? streams : all, Array<std::size_t>(streams),
                     Array<std::size_t>(streams)};
    if (enqueues) {
        for (std::size_t s = 0; s < streams; ++s) {
            result.stream[s] = s;
            result.lane[s] = ranks.of(lowered.device[s]);
        }
        return result;
    }
    Array<double> work(lowered.devices());
    for (Action const& a : programs)
        if (computes(a.kind)) work[programs.device_of(a.cell)] += cost(a);
    Array<std::size_t> begin(all + 1);
    Array<std::size_t> lane_of(work.size());
    std::size_t first = 0; // of the rank
    for (std::size_t r = 0; r < ranks.count; first += ranks.lanes(r++, lanes)) {
        std::size_t const own = ranks.lanes(r, lanes), here = ranks.begin(r);
        cut_by_bottleneck(work.data() + here, ranks.end(r) - here, own, begin.data());
        for (std::size_t lane = 0; lane < own; ++lane)
            for (std::size_t d = begin[lane]; d < begin[lane + 1]; ++d)
                lane_of[here + d] = first + lane;
    }
    for (std::size_t s = 0; s < streams; ++s)
        result.lane[s] = result.stream[s] = lane_of[lowered.device[s]];
    return result;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
