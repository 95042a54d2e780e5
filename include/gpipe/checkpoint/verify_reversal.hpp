#pragma once

#include <gpipe/checkpoint/kept.hpp>
#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe {

/// What is wrong with a reversal.
enum class ReversalProblem : unsigned char {
    sound,
    empty,         ///< no layer, not those of the cell, or not as many weight halves
    no_such_layer, ///< a step of a layer beyond the last
    reversed,      ///< a forward of a layer whose backward has run
    no_input,      ///< a forward whose input is neither the current activation nor kept
    twice,         ///< a layer kept whole that is so already
    in_vain,       ///< a step that does not take up what the forward before it has computed
    order,         ///< something kept below what is kept of a later layer
    out_of_turn,   ///< a backward that is not the next
    not_whole,     ///< a backward of a layer that is not kept whole
    missing,       ///< backwards that no step runs
};
/// How many there are.
inline constexpr std::size_t reversal_problem_count = 11;

/// It in words.
GPIPE_INLINE constexpr std::string_view sentence(ReversalProblem problem) {
    constexpr std::string_view sentences[reversal_problem_count] = {
        "the reversal is sound",
        "it is not for the layers of the cell",
        "a step names a layer that does not exist",
        "a layer runs again behind its backward",
        "a layer runs again without its input",
        "a layer is kept whole that is so already",
        "it does not take up what the forward before it has computed",
        "something is kept of a layer before what is kept of a later one is released",
        "a backward is not that of the last layer left",
        "a backward runs without its layer being kept whole",
        "a backward is missing",
    };
    return sentences[static_cast<std::size_t>(problem)];
}

/// The result of a proof: `problem` sound, or the first step at which it fails.
struct ReversalVerdict {
    ReversalProblem problem = ReversalProblem::sound; ///< the first that was met
    std::size_t position = 0;                         ///< in the steps

    /// Whether the reversal is sound.
    constexpr explicit operator bool() const { return problem == ReversalProblem::sound; }
};

/// Proves that the steps can run behind the cell's forward: every forward finds its input, every
/// backward its layer kept whole; the backwards are those of all layers, the last first; forwards
/// lead from layer to layer to the next backward; and what is kept last is released first, so it
/// may lie on a stack. Linear in the number of steps.
GPIPE_INLINE constexpr ReversalVerdict verify(Reversal const& reversal) {
    std::size_t const layers = reversal.layers();
    if (layers == 0 || (!reversal.weights.empty() && reversal.weights.size() != layers))
        return {ReversalProblem::empty, 0};
    detail::Kept kept(layers);
    std::size_t top = 0; // one behind the last layer of which something is kept
    for (std::size_t l = 0; l < layers; ++l) {
        kept.keep(l, reversal.forward[l]);
        if (kept.has_any(l)) top = l + 1;
    }
    std::size_t left = layers;    // whose backward has not run
    std::size_t current = layers; // the layer whose input was computed last, if any
    std::size_t const size = reversal.steps.size();
    for (std::size_t i = 0; i < size; ++i) {
        ReversalStep const& step = reversal.steps[i];
        std::size_t const l = step.layer;
        if (l >= layers) return {ReversalProblem::no_such_layer, i};
        if (step.backward) {
            if (l + 1 != left) return {ReversalProblem::out_of_turn, i};
            if (!kept.has_all(l)) return {ReversalProblem::not_whole, i};
            if (current != layers && current != l + 1) return {ReversalProblem::in_vain, i};
            kept.release(l);
            left = l;
            current = layers;
            while (top > 0 && !kept.has_any(top - 1)) --top;
            continue;
        }
        if (l >= left) return {ReversalProblem::reversed, i};
        if (l != current && !kept.has_input(l)) return {ReversalProblem::no_input, i};
        if (step.keep == Keep::all && kept.has_all(l)) return {ReversalProblem::twice, i};
        if (kept.adds_input(l, step.keep) || kept.adds_all(l, step.keep)) {
            if (top > l + 1) return {ReversalProblem::order, i};
            top = l + 1;
        }
        if (i > 0 && !reversal.steps[i - 1].backward && l != current)
            return {ReversalProblem::in_vain, i};
        kept.keep(l, step.keep);
        current = l + 1;
    }
    if (left != 0) return {ReversalProblem::missing, size};
    return {};
}

} // namespace gpipe
