#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/search/reversal_choices.hpp>

#include <algorithm>
#include <cstddef>

namespace gpipe {

/// Bytes of one device.
struct LeastBudget {
    std::size_t device = 0; ///< the first that needs the most
    std::size_t bytes = 0;  ///< at least so many of each
};

/// What no budget can do with less, however often layers run again and wherever bytes lie: cheap
/// enough for a constant, a lower bound of what BudgetSearch finds, not more. A device needs room
/// for its parameters, gradients and optimizer states, and in one of its cells for all that the
/// backward of a layer reads and writes, while of every other micro-batch in flight there is what
/// its layers could be run again from. What may lie on a neighbour's device, what skips carry, what
/// is staged and library handles are left out.
[[gnu::cold]] GPIPE_INLINE constexpr LeastBudget least_budget(BudgetProblem const& problem) {
    LayerInfo const* const layers = problem.chain.layers;
    std::size_t const learner = problem.chain.lowest_learner;
    Programs const& schedule = problem.schedule;
    // With backwards whole: nothing then waits for a second half.
    Array<std::size_t> const in_flight =
        detail::in_flight_by_cell(join_halves(schedule, Array<bool>(schedule.cells())));
    TieHolders const holders = tie_holders(problem.chain.ties, problem.first, schedule);
    Array<std::size_t> const held = held_slots(problem.chain, holders, true);
    Array<std::size_t> const frozen_held = held_slots(problem.chain, holders, false);
    Array<std::size_t> states(schedule.devices()), activations(schedule.devices());
    for (std::size_t c = 0; c < schedule.cells(); ++c) {
        std::size_t const first = problem.first[c];
        std::size_t const last = problem.first[c + 1];
        std::size_t const device = schedule.device_of(c);
        std::size_t whole = 0; // what is kept of the layers so far if none of them runs again
        std::size_t again = static_cast<std::size_t>(-1); // if this or one of them does
        std::size_t reversing = 0;                        // the most of a layer's backward
        for (std::size_t l = first; l < last; ++l) {
            LayerInfo const& layer = layers[l];
            auto const slots = [&](GroupSizes const& group, bool has) {
                return has ? group.slots(problem.capacity) : 0;
            };
            states[device] += layer.frozen_slots() + (2 + problem.states) * layer.learned_slots();
            states[device] -= frozen_held[l] + (1 + problem.states) * held[l];
            std::size_t const input = slots(layer.input, l > 0); // the first may be the caller's
            again = std::min(again, whole + input);
            if (l < learner) continue;
            std::size_t const saved = slots(layer.saved, true);
            bool const inner = l + 1 < last;
            whole += saved + slots(layer.output,
                                   inner && (layer.reads_output || layers[l + 1].reads_input));
            reversing = std::max(
                reversing, saved + slots(layer.scratch, true) + (layer.reads_input ? input : 0) +
                               slots(layer.output, inner && layer.reads_output) +
                               slots(layer.output_gradient, inner) +
                               slots(layer.input_gradient, l > first && l > learner));
        }
        // The last cell may run forwards as late as it likes, see ExceptLast; what is offloaded
        // may all be away.
        bool const keeps = c + 1 < schedule.cells() && last > learner && !problem.offloads;
        std::size_t const others = keeps ? in_flight[c] - 1 : 0;
        activations[device] =
            std::max(activations[device], others * std::min(again, whole) + reversing);
    }
    LeastBudget result;
    for (std::size_t d = 0; d < states.size(); ++d) {
        if (d > 0 && states[d] + activations[d] <= result.bytes) continue;
        result = {d, states[d] + activations[d]};
    }
    return result;
}

} // namespace gpipe
