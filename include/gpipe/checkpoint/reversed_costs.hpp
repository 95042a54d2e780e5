#pragma once

#include <gpipe/balance/validate.hpp>
#include <gpipe/checkpoint/reversing.hpp>
#include <gpipe/checkpoint/weight_halves.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/costs.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// What the layers of a chain take for one micro-batch, in any unit of time, by layer.
struct LayerTimes {
    Array<double> forward;           ///< of all of it
    Array<double> backward;          ///< of all of it; not used of layers that have none
    Array<double> weight_gradient{}; ///< of that, what its second half takes; empty: nothing
    double loss = 0;                 ///< behind the last layer, in the backward of the last cell
};

/// By the costs that layers declare, of one sample's forward: a backward takes twice as long, that
/// of a frozen layer once; of one that has halves half in each, of others all in the first.
GPIPE_INLINE constexpr LayerTimes declared_times(LayerInfo const* layers, std::size_t count) {
    LayerTimes times{Array<double>(count), Array<double>(count), Array<double>(count)};
    for (std::size_t l = 0; l < count; ++l) {
        times.forward[l] = layers[l].cost;
        times.backward[l] = (layers[l].frozen ? 1 : 2) * layers[l].cost;
        if (layers[l].splits) times.weight_gradient[l] = layers[l].cost;
    }
    return times;
}

namespace detail {

// How often a cell's actions run each of its layers again.
struct RunsAgain {
    Array<std::size_t> recompute;
    Array<std::size_t> backward;        // whole, or its first half
    Array<std::size_t> weight_gradient; // its second half
    Array<WeightHalf> halves{};         // if it comes in halves
};

// Adds the forwards of steps [begin, end) to `runs`. `reads`: whether anything of what a layer
// writes is read in the backward right behind it.
template <class Reads>
constexpr void add_forwards(Array<ReversalStep> const& steps, std::size_t begin, std::size_t end,
                            Reads reads, Array<std::size_t>& runs) {
    for (std::size_t s = begin; s < end; ++s)
        if (!steps[s].backward && (!steps[s + 1].backward || reads(steps[s].layer)))
            ++runs[steps[s].layer];
}

// `learner`: of the chain, see lowest_learner(). What nobody would read is left out: see
// cell_calls().
GPIPE_INLINE constexpr RunsAgain runs_again(CutChain const& chain, std::size_t learner,
                                            std::size_t cell, Reversal const& reversal) {
    std::size_t const first = chain.first[cell];
    std::size_t const count = chain.first[cell + 1] - first;
    LayerInfo const* const layers = chain.layers + first;
    bool const last_cell = first + count == chain.size;
    std::size_t const lowest = learner;
    learner = lowest > first ? std::min(lowest - first, count) : 0;
    auto const reads = [&](std::size_t i) {
        bool const gives = i >= learner && layers[i].reads_output && (i + 1 < count || last_cell);
        return layers[i].saved.count > 0 || gives;
    };
    RunsAgain result{Array<std::size_t>(count), Array<std::size_t>(count),
                     Array<std::size_t>(count)};
    auto const& steps = reversal.steps;
    std::size_t begin = 0; // of the backwards
    for (; begin < steps.size() && !steps[begin].backward; ++begin)
        ++result.recompute[steps[begin].layer];
    std::size_t end = begin;
    while (end < steps.size() && !(steps[end].backward && steps[end].layer <= learner)) ++end;
    add_forwards(steps, begin, end, reads, result.backward);
    result.halves = weight_halves(reversal, chain.layers, lowest, first);
    Array<ReversalStep> const weights = weight_steps(reversal, result.halves);
    add_forwards(weights, 0, weights.size(), reads, result.weight_gradient);
    if (last_cell || begin == 0) return result;
    if (learner == count)
        for (std::size_t& runs : result.recompute) runs = 0;
    else if (layers[count - 1].saved.count == 0)
        --result.recompute[count - 1];
    return result;
}

GPIPE_INLINE constexpr std::size_t cell_count(CutChain const& chain) {
    std::size_t cells = 0;
    while (chain.first[cells] < chain.size) ++cells;
    return cells;
}

} // namespace detail

/// The cost function of a chain whose cells are reversed so, see each_reversal(): a recompute takes
/// what it has in front of its first backward, a backward its backwards and the forwards between
/// them, its second half what waits for that. Without those forwards that nobody would read the
/// result of: a recompute's last layer, unless it saves something, and a forward right before its
/// backward, if that reads nothing of it. (A last layer that has to write again what was sent to
/// another device counts as left out.) Nothing is sent: output_bytes and gradient_bytes are the
/// caller's to add. Throws std::invalid_argument unless `times` are of the chain's layers, finite
/// and not negative.
GPIPE_INLINE constexpr ChainCosts<double>
reversed_costs(LayerTimes const& times, CutChain const& chain, Array<Reversal> const& reversals) {
    if (times.forward.size() != chain.size || times.backward.size() != chain.size ||
        (!times.weight_gradient.empty() && times.weight_gradient.size() != chain.size))
        throw std::invalid_argument("gpipe: the times of layers are not of this chain");
    check_costs(times.forward.data(), times.forward.size());
    check_costs(times.backward.data(), times.backward.size());
    check_costs(times.weight_gradient.data(), times.weight_gradient.size());
    if (first_invalid_cost(&times.loss, 1) == 0)
        throw std::invalid_argument("gpipe: what a loss takes is finite and not negative");
    std::size_t const learner = lowest_learner(chain.layers, chain.size);
    ChainCosts<double> costs{Array<CellCosts<double>>(detail::cell_count(chain))};
    Array<Reversal> const each = each_reversal(reversals, chain.first, costs.cells.size());
    for (std::size_t c = 0; c < costs.cells.size(); ++c) {
        CellCosts<double>& cell = costs.cells[c];
        detail::RunsAgain const again = detail::runs_again(chain, learner, c, each[c]);
        std::size_t const first = chain.first[c];
        double backward = chain.first[c + 1] == chain.size ? times.loss : 0;
        double apart = 0, weights = 0; // second halves, and what runs again for them
        for (std::size_t i = first; i < chain.first[c + 1]; ++i) {
            double const forward = times.forward[i];
            cell.forward += forward;
            cell.recompute += static_cast<double>(again.recompute[i - first]) * forward;
            backward += static_cast<double>(again.backward[i - first]) * forward;
            weights += static_cast<double>(again.weight_gradient[i - first]) * forward;
            if (i < learner) continue;
            backward += times.backward[i];
            if (!times.weight_gradient.empty() && again.halves[i - first] != WeightHalf::at_once)
                apart += times.weight_gradient[i];
        }
        cell.backward = backward;
        cell.input_gradient = backward - apart;
        cell.weight_gradient = weights + apart;
    }
    return costs;
}

/// The same by the costs that layers declare.
GPIPE_INLINE constexpr ChainCosts<double> declared_costs(CutChain const& chain,
                                                         Array<Reversal> const& reversals) {
    return reversed_costs(declared_times(chain.layers, chain.size), chain, reversals);
}

/// How often a step runs each layer again, by layer, all micro-batches together: `programs` with
/// recomputes, over cells that are reversed so. See reversed_costs() for what is left out.
GPIPE_INLINE constexpr Array<std::size_t>
extra_forwards(Programs const& programs, CutChain const& chain, Array<Reversal> const& reversals) {
    Array<std::size_t> recomputes(programs.cells());
    Array<std::size_t> backwards(programs.cells()), halves(programs.cells());
    for (Action const& a : programs) {
        recomputes[a.cell] += a.kind == Kind::recompute;
        backwards[a.cell] += gives_gradient(a.kind);
        halves[a.cell] += a.kind == Kind::weight_gradient;
    }
    std::size_t const learner = lowest_learner(chain.layers, chain.size);
    Array<std::size_t> result(chain.size);
    Array<Reversal> const each = each_reversal(reversals, chain.first, programs.cells());
    for (std::size_t c = 0; c < programs.cells(); ++c) {
        detail::RunsAgain const again = detail::runs_again(chain, learner, c, each[c]);
        for (std::size_t i = 0; i < again.recompute.size(); ++i)
            result[chain.first[c] + i] = recomputes[c] * again.recompute[i] +
                                         backwards[c] * again.backward[i] +
                                         halves[c] * again.weight_gradient[i];
    }
    return result;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
