#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>

namespace gpipe {

/// Bytes that are alive because a micro-batch is under way in a cell.
struct CellBytes {
    double activations = 0; ///< from its forward or recompute to the end of its backward
    double boundary = 0;    ///< of the cell's input, and as many of its output's gradient
};

/// By device, the largest sum of bytes that are alive at once, all cells alike: of every
/// micro-batch in a cell its input from the forward on and its output's gradient from the backward
/// (or input gradient) on, both until the backward (or weight gradient) has ended; its activations
/// just as long as its input, but if they are computed again, only while the forward runs and from
/// the recompute on. Linear in the number of actions. The programs must have passed verify().
GPIPE_INLINE constexpr Array<double> peak_bytes(Programs const& programs, CellBytes const& cell) {
    std::size_t const micro_batches = programs.micro_batches();
    std::size_t const pairs = programs.cells() * micro_batches;
    Array<bool> again(pairs); // whether a recompute comes
    for (Action const& a : programs)
        if (a.kind == Kind::recompute) again[a.cell * micro_batches + a.micro_batch] = true;

    Array<double> result(programs.devices());
    for (std::size_t d = 0; d < programs.devices(); ++d) {
        std::size_t inputs = 0;
        std::size_t gradients = 0;
        std::size_t activations = 0;
        for (Action const& a : programs.program(d)) {
            std::size_t const pair = a.cell * micro_batches + a.micro_batch;
            bool const passing = a.kind == Kind::forward && again[pair];
            if (a.kind == Kind::forward) ++inputs;
            if (gives_gradient(a.kind)) ++gradients;
            if (a.kind == Kind::recompute || (a.kind == Kind::forward && !passing)) ++activations;
            double const bytes = static_cast<double>(inputs + gradients) * cell.boundary +
                                 static_cast<double>(activations + passing) * cell.activations;
            if (result[d] < bytes) result[d] = bytes;
            if (!ends_backward(a.kind)) continue;
            --inputs;
            --gradients;
            --activations;
        }
    }
    return result;
}

} // namespace gpipe
