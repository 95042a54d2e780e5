#pragma once

#include <gpipe/chain/info.hpp>
#include <gpipe/checkpoint/reversal_costs.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/programs.hpp>

#include <algorithm>
#include <cstddef>

namespace gpipe {

/// The layers of a training, cut into cells, as a checkpointing policy sees them.
struct CutChain {
    LayerInfo const* layers = nullptr;  ///< of the chain, `size` of them
    std::size_t size = 0;               ///< L
    std::size_t const* first = nullptr; ///< layer that each cell begins with, and `size`
};

/// A cell that a checkpointing policy is to reverse.
struct CellToReverse {
    ReversalCosts costs;       ///< for micro-batches of one sample
    std::size_t in_flight = 1; ///< the most micro-batches between forward and backward at a time
    std::size_t cell = 0;      ///< its number in the chain
    std::size_t cells = 1;     ///< of the chain
    Array<bool> cheap;         ///< by layer: recompute_is_cheap
};

namespace detail {

/// What the layers [first, last) cost, for micro-batches of so many samples.
GPIPE_INLINE constexpr ReversalCosts reversal_costs(CutChain const& chain, std::size_t first,
                                                    std::size_t last, std::size_t samples = 1) {
    std::size_t const count = last - first;
    LayerInfo const* const layers = chain.layers + first;
    ReversalCosts costs{Array<double>(count),      Array<double>(count),
                        Array<std::size_t>(count), Array<std::size_t>(count),
                        Array<std::size_t>(count), Array<std::size_t>(count)};
    for (std::size_t i = 0; i < count; ++i) {
        LayerInfo const& layer = layers[i];
        bool const top = i + 1 == count;
        std::size_t const output = layer.output.slots(samples);
        bool const keeps =
            layer.reads_output || (top ? last == chain.size : layers[i + 1].reads_input);
        costs.forward[i] = layer.cost;
        costs.backward[i] = 2 * layer.cost;
        costs.input[i] = layer.input.slots(samples);
        costs.all[i] = layer.saved.slots(samples) + (keeps ? output : 0);
        costs.forward_temporary[i] = layer.scratch.slots(samples) + (keeps || top ? 0 : output);
        costs.backward_temporary[i] = layer.scratch.slots(samples) +
                                      layer.input_gradient.slots(samples) +
                                      (top ? 0 : layer.output_gradient.slots(samples));
    }
    return costs;
}

// By cell: the most micro-batches that are between an action that begins(action) and the end of
// their backward.
template <class Begins>
constexpr Array<std::size_t> most_between(Programs const& schedule, Begins const& begins) {
    Array<std::size_t> now(schedule.cells()), most(schedule.cells());
    for (Action const& a : schedule) {
        if (begins(a)) most[a.cell] = std::max(most[a.cell], ++now[a.cell]);
        if (ends_backward(a.kind)) --now[a.cell];
    }
    return most;
}
// Likewise: from their forward on.
GPIPE_INLINE constexpr Array<std::size_t> in_flight_by_cell(Programs const& schedule) {
    return most_between(schedule, [](Action const& a) { return a.kind == Kind::forward; });
}

} // namespace detail

/// The cells of a chain under a schedule.
GPIPE_INLINE constexpr Array<CellToReverse> cells_to_reverse(CutChain const& chain,
                                                             Programs const& schedule) {
    Array<std::size_t> const in_flight = detail::in_flight_by_cell(schedule);
    Array<CellToReverse> cells(schedule.cells());
    for (std::size_t c = 0; c < cells.size(); ++c) {
        std::size_t const first = chain.first[c];
        std::size_t const last = chain.first[c + 1];
        cells[c] = {detail::reversal_costs(chain, first, last), in_flight[c], c, cells.size(),
                    Array<bool>(last - first)};
        for (std::size_t i = first; i < last; ++i)
            cells[c].cheap[i - first] = chain.layers[i].recompute_is_cheap;
    }
    return cells;
}

} // namespace gpipe
