#pragma once

#include <gpipe/schedule/programs.hpp>

#include <cstddef>

namespace gpipe {

/// Which block of a cell each action works in. A block holds the kept tensors of one micro-batch:
/// from its last forward or recompute to its backward; a forward whose result will be recomputed
/// uses one only while it runs. One block per cell under re-materialisation, one per micro-batch in
/// flight without.
struct Blocks {
    Array<std::size_t> of_action; ///< by index among all actions
    Array<std::size_t> count;     ///< by cell
    Array<bool> keeps;            ///< by action: whether a backward reads what it leaves
};

[[gnu::cold]] constexpr Blocks assign_blocks(Programs const& programs) {
    std::size_t const micro_batches = programs.micro_batches();
    Blocks blocks{Array<std::size_t>(programs.size()), Array<std::size_t>(programs.cells()),
                  Array<bool>(programs.size())};
    // Backwards, the next action on each (cell, micro-batch): a backward right behind keeps.
    Array<bool> backward_next(programs.cells() * micro_batches);
    for (std::size_t i = programs.size(); i-- > 0;) {
        Action const& a = programs[i];
        std::size_t const pair = a.cell * micro_batches + a.micro_batch;
        if (a.kind == Kind::forward || a.kind == Kind::recompute)
            blocks.keeps[i] = backward_next[pair];
        backward_next[pair] = a.kind == Kind::backward;
    }
    Array<std::size_t> holds(programs.cells() * micro_batches);
    Array<bool> taken(programs.cells() * micro_batches);
    for (std::size_t i = 0; i < programs.size(); ++i) {
        Action const& a = programs[i];
        std::size_t const pair = a.cell * micro_batches + a.micro_batch;
        bool* const of_cell = taken.data() + a.cell * micro_batches;
        if (a.kind == Kind::backward) {
            blocks.of_action[i] = holds[pair];
            of_cell[holds[pair]] = false;
        } else {
            std::size_t b = 0;
            while (of_cell[b]) ++b;
            blocks.of_action[i] = b;
            if (b + 1 > blocks.count[a.cell]) blocks.count[a.cell] = b + 1;
            if (blocks.keeps[i]) {
                holds[pair] = b;
                of_cell[b] = true;
            }
        }
    }
    return blocks;
}

} // namespace gpipe
