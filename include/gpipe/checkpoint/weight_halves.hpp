#pragma once

#include <gpipe/checkpoint/cell_to_reverse.hpp>
#include <gpipe/checkpoint/verify_reversal.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/programs.hpp>

#include <algorithm>
#include <cstddef>

namespace gpipe {

/// When the parameters of each layer of a cell get their gradient, if its backward runs in halves:
/// as the reversal says, but at once where a layer has no halves or no backward. `layers`,
/// `lowest`: of the chain, see lowest_learner(); `first`: the cell's first. The reversal is sound.
GPIPE_INLINE constexpr Array<WeightHalf> weight_halves(Reversal const& reversal,
                                                       LayerInfo const* layers, std::size_t lowest,
                                                       std::size_t first) {
    Array<WeightHalf> result = reversal.weights;
    if (result.empty()) {
        result = Array<WeightHalf>(reversal.layers());
        bool last = true; // whether nothing runs again behind
        for (std::size_t s = reversal.steps.size(); s-- > 0;) {
            ReversalStep const& step = reversal.steps[s];
            last = last && step.backward;
            if (step.backward && (last || reversal.forward[step.layer] == Keep::all))
                result[step.layer] = WeightHalf::later;
        }
    }
    for (std::size_t l = 0; l < result.size(); ++l) {
        LayerInfo const& layer = layers[first + l];
        if (first + l < lowest || !layer.splits) result[l] = WeightHalf::at_once;
        // Nothing of it was dropped, or its second half is the only one that anybody wants.
        bool const once =
            reversal.forward[l] == Keep::all || (first + l == lowest && layer.deferred.count == 0);
        if (result[l] == WeightHalf::again && once) result[l] = WeightHalf::later;
    }
    return result;
}

/// What the second half of a backward runs: the weight halves as backwards, down from the highest
/// layer; in front of one whose layer runs again all layers from the last input below it that the
/// forward keeps.
GPIPE_INLINE constexpr Array<ReversalStep> weight_steps(Reversal const& reversal,
                                                        Array<WeightHalf> const& halves) {
    detail::StepList steps;
    std::size_t made = halves.size(); // from there on up what runs again has done so
    for (std::size_t l = halves.size(); l-- > 0;) {
        if (halves[l] == WeightHalf::again && l < made) {
            made = l;
            while (made > 0 && reversal.forward[made] != Keep::input &&
                   reversal.forward[made - 1] != Keep::all)
                --made;
            for (std::size_t i = made; i <= l; ++i)
                steps.forward(i, halves[i] == WeightHalf::again ? Keep::all : Keep::nothing);
        }
        if (halves[l] != WeightHalf::at_once) steps.backward(l);
    }
    return steps.steps();
}

/// Whether anything of a cell's backward runs apart, by cell. `reversals`: by cell, or none; what
/// is not sound is left to verify().
GPIPE_INLINE constexpr Array<bool> split_cells(CutChain const& chain, std::size_t cells,
                                               Array<Reversal> const& reversals = {}) {
    Array<bool> result(cells);
    std::size_t const lowest = lowest_learner(chain.layers, chain.size);
    for (std::size_t c = 0; c < cells; ++c) {
        std::size_t const first = chain.first[c];
        if (reversals.empty() || reversals[c].layers() == 0) {
            for (std::size_t l = std::max(first, lowest); l < chain.first[c + 1]; ++l)
                result[c] = result[c] || chain.layers[l].splits;
        } else if (verify(reversals[c]) && reversals[c].layers() == chain.first[c + 1] - first) {
            for (WeightHalf const half : weight_halves(reversals[c], chain.layers, lowest, first))
                result[c] = result[c] || half != WeightHalf::at_once;
        }
    }
    return result;
}

} // namespace gpipe
