#pragma once

#include <gpipe/balance/partition.hpp>
#include <gpipe/checkpoint/reversed_costs.hpp>
#include <gpipe/layer/info.hpp>
#include <gpipe/runtime/lanes.hpp>

#include <cstddef>

namespace gpipe {

/// What an action takes by the declared costs of its layers, [first[c], first[c + 1]) being those
/// of cell c, where these are reversed so: a forward the costs, a backward twice; see
/// reversed_costs() for what runs again. Of a backward a layer that has halves has half in each; of
/// others all is in the first. A transfer counts as its cell's forward.
class DeclaredCost {
  public:
    DeclaredCost(Array<double> const& costs, Array<LayerInfo> const& layers,
                 Array<std::size_t> const& first, Array<Reversal> const& reversals) {
        LayerTimes times{costs, costs, Array<double>(costs.size())};
        for (std::size_t i = 0; i < costs.size(); ++i) {
            times.backward[i] = 2 * costs[i];
            if (layers[i].splits) times.weight_gradient[i] = costs[i];
        }
        costs_ = reversed_costs(times, {layers.data(), layers.size(), first.data()}, reversals);
    }
    double operator()(Action const& action) const {
        return is_transfer(action.kind) ? costs_.cells[action.cell].forward : costs_(action);
    }

  private:
    ChainCosts<double> costs_;
};

/// Puts programs on lanes. A device that enqueues has one walker and a stream per program; else
/// there are no transfers, and every lane is a stream and walks neighbouring devices, cut by cost
/// as layers are into cells.
template <class Cost>
Placement place_programs(Lowered const& lowered, std::size_t lanes, bool enqueues,
                         Cost const& cost) {
    Programs const& programs = lowered.programs;
    std::size_t const devices = programs.devices();
    Placement result{lanes, enqueues ? devices : lanes, Array<std::size_t>(devices),
                     Array<std::size_t>(devices)};
    if (enqueues) {
        for (std::size_t d = 0; d < devices; ++d) result.stream[d] = d;
        return result;
    }
    Array<double> work(devices);
    for (std::size_t i = 0; i < programs.size(); ++i)
        work[programs.device_of(programs[i].cell)] += cost(programs[i]);
    Array<std::size_t> begin(lanes + 1);
    cut_by_bottleneck(work.data(), devices, lanes, begin.data());
    for (std::size_t lane = 0; lane < lanes; ++lane)
        for (std::size_t d = begin[lane]; d < begin[lane + 1]; ++d)
            result.lane[d] = result.stream[d] = lane;
    return result;
}

} // namespace gpipe
