#pragma once

#include <gpipe/runtime/mini_batch.hpp>
#include <gpipe/runtime/tables.hpp>

namespace gpipe::detail {

// Calls the layers of a forward or recompute. `at` follows the layer that runs, for whoever
// catches.
[[gnu::always_inline]] inline void run_forward(CellRow const& cell, Step const& step,
                                               Frame const& frame, GroupAddress input,
                                               LayerRow const*& at) {
    bool const again = step.kind == Kind::recompute;
    LayerRow const* const end = again ? cell.recompute_last : cell.last;
    GroupAddress x = input;
    for (at = cell.first; at != end; ++at) {
        std::byte* const y =
            at + 1 == cell.last && step.output ? step.output : at->output.in(frame);
        at->forward(*at, frame, x, y);
        x = {y};
    }
}

// Calls the layers of a backward, or of one half of it: the functions at `which`. `dy` is the
// gradient of the cell's output.
template <BackwardFunction LayerRow::*which>
[[gnu::always_inline]] inline void run_backward(CellRow const& cell, Step const& step,
                                                Frame const& frame, GroupAddress input,
                                                std::byte* dy, LayerRow const*& at) {
    constexpr bool whole = which == &LayerRow::backward; // then every layer has one
    for (LayerRow const* layer = cell.last; layer != cell.learner;) {
        --layer;
        at = layer;
        bool const lowest = layer == cell.first;
        GroupAddress const x = lowest ? input : GroupAddress{(layer - 1)->output.in(frame)};
        std::byte* const y =
            layer + 1 == cell.last && !cell.is_last ? step.output : layer->output.in(frame);
        std::byte* const dx = layer == cell.learner && cell.discards ? cell.discarded.in(frame)
                              : lowest                               ? step.input_gradient
                                       : (layer - 1)->output_gradient.in(frame);
        if (whole || layer->*which) (layer->*which)(*layer, frame, x, y, dy, dx);
        dy = dx;
    }
}

inline void call_loss(LossFunction function, Tables const& tables, MiniBatch const& batch,
                      Step const& step, Frame const& frame, std::byte* dy) {
    LayerRow const& top = *(tables.cells[step.cell].last - 1);
    function(tables.loss.loss, frame, top.output.in(frame), batch.others(step.micro_batch), dy,
             tables.loss.scratch.in(frame), tables.loss_sums + step.micro_batch * tables.sums);
}

// Calls everything that an action consists of. `measures`: whether an evaluation calls the loss.
// Where something throws, `at` is the layer, null for the loss.
[[gnu::always_inline]] inline void run_action(Tables const& tables, MiniBatch const& batch,
                                              Step const& step, Frame const& frame, bool measures,
                                              LayerRow const*& at) {
    CellRow const& cell = tables.cells[step.cell];
    GroupAddress const input =
        cell.is_first ? batch.inputs(step.micro_batch) : GroupAddress{step.input};
    if (gives_gradient(step.kind)) {
        std::byte* dy = step.output_gradient;
        if (cell.is_last) {
            dy = (cell.last - 1)->output_gradient.in(frame);
            call_loss(tables.loss.train, tables, batch, step, frame, dy);
        }
        if (step.kind == Kind::backward)
            run_backward<&LayerRow::backward>(cell, step, frame, input, dy, at);
        else
            run_backward<&LayerRow::input_gradient>(cell, step, frame, input, dy, at);
    } else if (step.kind == Kind::weight_gradient) {
        std::byte* const dy =
            cell.is_last ? (cell.last - 1)->output_gradient.in(frame) : step.output_gradient;
        run_backward<&LayerRow::weight_gradient>(cell, step, frame, input, dy, at);
    } else {
        run_forward(cell, step, frame, input, at);
        if (!cell.is_last || !measures || frame.phase != Phase::evaluate) return;
        at = nullptr;
        call_loss(tables.loss.evaluate, tables, batch, step, frame,
                  (cell.last - 1)->output_gradient.in(frame));
    }
}

} // namespace gpipe::detail
