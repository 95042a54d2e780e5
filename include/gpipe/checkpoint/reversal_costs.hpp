#pragma once

#include <gpipe/balance/validate.hpp>
#include <gpipe/checkpoint/kept.hpp>
#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <limits>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// What the layers of a cell take, by layer, all arrays of one length.
struct ReversalCosts {
    Array<double> forward;  ///< time of one micro-batch
    Array<double> backward; ///< no reversal changes it: for whoever adds up a step
    /// Bytes of the layer's input where it is stored. That of layer 0 is the boundary's and never
    /// counted.
    Array<std::size_t> input;
    /// Bytes that stay when the layer is kept whole: with its output, if its own backward or the
    /// next layer's reads it; without its input, which is there or stored beside it.
    Array<std::size_t> all;
    /// Bytes beside those while the layer's forward runs: what passes by, gradients, scratch.
    Array<std::size_t> forward_temporary;
    /// As much while its backward runs.
    Array<std::size_t> backward_temporary;

    /// In the cell.
    constexpr std::size_t layers() const { return forward.size(); }
};

/// Throws std::invalid_argument unless there is a layer, the arrays are of one length, every time
/// is finite and not negative, and the sizes can be added up.
GPIPE_INLINE constexpr void check_reversal_costs(ReversalCosts const& costs) {
    std::size_t const layers = costs.layers();
    detail::check_layers(layers);
    if (costs.backward.size() != layers || costs.input.size() != layers ||
        costs.all.size() != layers || costs.forward_temporary.size() != layers ||
        costs.backward_temporary.size() != layers)
        throw std::invalid_argument("gpipe: the costs of a reversal are not of one length");
    check_costs(costs.forward.data(), layers);
    check_costs(costs.backward.data(), layers);
    std::size_t room = std::numeric_limits<std::size_t>::max();
    for (std::size_t l = 0; l < layers; ++l) {
        for (std::size_t const bytes : {costs.input[l], costs.all[l], costs.forward_temporary[l],
                                        costs.backward_temporary[l]}) {
            if (bytes > room)
                throw std::invalid_argument("gpipe: the sizes of a reversal are too large to add");
            room -= bytes;
        }
    }
}

/// The time of the layers that a reversal runs again.
GPIPE_INLINE constexpr double extra_time(Reversal const& reversal, ReversalCosts const& costs) {
    double time = 0.0;
    for (ReversalStep const& step : reversal.steps)
        if (!step.backward) time += costs.forward[step.layer];
    return time;
}

/// The bytes of a cell: `retained` of every micro-batch in flight, `working` of the one that is
/// being reversed.
struct ReversalBytes {
    std::size_t retained = 0; ///< what the cell's forward keeps
    std::size_t working = 0;  ///< the most that the steps keep beyond that, with temporaries

    /// Of the cell with so many micro-batches in flight.
    constexpr std::size_t total(std::size_t in_flight) const {
        return in_flight * retained + working;
    }
};

/// The bytes that a sound reversal takes. Keep::all of a layer counts all[l], and input[l] too if
/// the layer's input is not there. A forward needs what is kept after it and its
/// temporaries, a backward what is kept before it and its temporaries. What the cell's own forward
/// has beside the retained bytes, forward_temporary, is not counted: it is the same in any
/// reversal.
GPIPE_INLINE constexpr ReversalBytes reversal_bytes(Reversal const& reversal,
                                                    ReversalCosts const& costs) {
    std::size_t const layers = reversal.layers();
    detail::Kept kept(layers);
    ReversalBytes bytes;
    for (std::size_t l = 0; l < layers; ++l) {
        if (kept.adds_input(l, reversal.forward[l])) bytes.retained += costs.input[l];
        if (reversal.forward[l] == Keep::all) bytes.retained += costs.all[l];
        kept.keep(l, reversal.forward[l]);
    }
    Array<std::size_t> added(layers); // by layer, what the steps keep of it
    std::size_t held = 0;
    for (ReversalStep const& step : reversal.steps) {
        std::size_t const l = step.layer;
        std::size_t need = held;
        if (step.backward) {
            need += costs.backward_temporary[l];
            held -= added[l];
            added[l] = 0;
            kept.release(l);
        } else {
            std::size_t more = 0;
            if (kept.adds_input(l, step.keep)) more += costs.input[l];
            if (kept.adds_all(l, step.keep)) more += costs.all[l];
            kept.keep(l, step.keep);
            added[l] += more;
            held += more;
            need += more + costs.forward_temporary[l];
        }
        if (need > bytes.working) bytes.working = need;
    }
    return bytes;
}

/// Segments by the square root rule (Chen et al. 2016), for so many micro-batches in flight: s
/// segments take about in_flight * s * a + n / s * A bytes, where a is the mean of `input` (but the
/// boundary's) and A of `all`. Least at s = sqrt(n A / (in_flight * a)); this takes the better of
/// the whole numbers beside it, at least 1 and at most n. Throws as check_reversal_costs.
GPIPE_INLINE constexpr Reversal square_root(ReversalCosts const& costs, std::size_t in_flight) {
    check_reversal_costs(costs);
    std::size_t const layers = costs.layers();
    double inputs = 0.0;
    double all = 0.0; // n A
    for (std::size_t l = 0; l < layers; ++l) {
        if (l > 0) inputs += static_cast<double>(costs.input[l]);
        all += static_cast<double>(costs.all[l]);
    }
    double const input = layers > 1 ? inputs / static_cast<double>(layers - 1) : 0.0;
    double const per_segment = static_cast<double>(in_flight) * input;
    // s + 1 segments take less than s as long as s (s + 1) is below the square of the best.
    std::size_t number = 1;
    while (number < layers && per_segment * static_cast<double>(number * (number + 1)) < all)
        ++number;
    return equal_segments(layers, number);
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
