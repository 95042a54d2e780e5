#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/happens_before.hpp>

#include <cstddef>

namespace gpipe::detail {

// What becomes of a micro-batch in a cell: indices of actions, no_action where there is none.
struct Move {
    std::size_t forward = no_action;
    std::size_t offload = no_action;
    std::size_t fetch = no_action;
    std::size_t reversal = no_action; // its first action: a recompute, or the backward
    std::size_t end = no_action;      // of the backward
};

// By cell and micro-batch.
[[gnu::cold]] GPIPE_INLINE constexpr Array<Move> find_moves(Programs const& programs) {
    Array<Move> moves(programs.cells() * programs.micro_batches());
    for (std::size_t i = 0; i < programs.size(); ++i) {
        Action const& a = programs[i];
        Move& move = moves[a.cell * programs.micro_batches() + a.micro_batch];
        if (a.kind == Kind::forward) move.forward = i;
        if (a.kind == Kind::offload) move.offload = i;
        if (a.kind == Kind::fetch) move.fetch = i;
        bool const begins = a.kind == Kind::recompute || gives_gradient(a.kind);
        if (begins && move.reversal == no_action) move.reversal = i;
        if (ends_backward(a.kind)) move.end = i;
    }
    return moves;
}

} // namespace gpipe::detail
