#pragma once

#include <gpipe/balance/partition.hpp>
#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/layer/info.hpp>
#include <gpipe/runtime/lanes.hpp>

#include <cstddef>

namespace gpipe {

/// What an action takes by the declared costs of its layers, [first[c], first[c + 1]) being those
/// of cell c: a recompute as much as a forward, a backward twice. Of that a layer whose backward
/// comes in halves has half in each; of others all is in the first. A cell with a reversal of its
/// own recomputes what that has before its first backward, and runs the others' forwards in its
/// backward.
class DeclaredCost {
  public:
    DeclaredCost(Array<double> const& costs, Array<LayerInfo> const& layers,
                 Array<std::size_t> const& first, Array<Reversal> const& reversals)
        : forward_(first.size() - 1), weights_(first.size() - 1), recompute_(first.size() - 1),
          again_(first.size() - 1) {
        for (std::size_t c = 0; c < forward_.size(); ++c) {
            for (std::size_t i = first[c]; i < first[c + 1]; ++i) {
                forward_[c] += costs[i];
                if (layers[i].splits) weights_[c] += costs[i];
            }
            recompute_[c] = reversals.empty() ? forward_[c] : 0;
            if (reversals.empty()) continue;
            bool begun = false; // the backwards
            for (ReversalStep const& step : reversals[c].steps) {
                begun = begun || step.backward;
                if (!step.backward)
                    (begun ? again_ : recompute_)[c] += costs[first[c] + step.layer];
            }
        }
    }
    double operator()(Action const& action) const {
        double const forward = forward_[action.cell];
        double const weights = weights_[action.cell];
        return action.kind == Kind::backward          ? 2 * forward + again_[action.cell]
               : action.kind == Kind::recompute       ? recompute_[action.cell]
               : action.kind == Kind::input_gradient  ? 2 * forward - weights
               : action.kind == Kind::weight_gradient ? weights
                                                      : forward;
    }

  private:
    Array<double> forward_;
    Array<double> weights_;
    Array<double> recompute_;
    Array<double> again_; // in backward
};

/// Puts programs on lanes. A device that enqueues has one walker and a stream per program; else
/// every lane is a stream and walks neighbouring devices, with all that copies for them, cut by
/// cost as layers are into cells.
template <class Cost>
Placement place_programs(Lowered const& lowered, std::size_t lanes, bool enqueues,
                         Cost const& cost) {
    Programs const& programs = lowered.programs;
    std::size_t const streams = lowered.streams();
    Placement result{lanes, enqueues ? streams : lanes, Array<std::size_t>(streams),
                     Array<std::size_t>(streams)};
    if (enqueues) {
        for (std::size_t s = 0; s < streams; ++s) result.stream[s] = s;
        return result;
    }
    Array<double> work(lowered.devices());
    for (std::size_t i = 0; i < programs.size(); ++i)
        if (!is_copy(programs[i].kind))
            work[programs.device_of(programs[i].cell)] += cost(programs[i]);
    Array<std::size_t> begin(lanes + 1);
    cut_by_bottleneck(work.data(), work.size(), lanes, begin.data());
    Array<std::size_t> lane_of(work.size());
    for (std::size_t lane = 0; lane < lanes; ++lane)
        for (std::size_t d = begin[lane]; d < begin[lane + 1]; ++d) lane_of[d] = lane;
    for (std::size_t s = 0; s < streams; ++s)
        result.lane[s] = result.stream[s] = lane_of[lowered.device[s]];
    return result;
}

} // namespace gpipe
