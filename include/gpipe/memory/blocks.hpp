#pragma once

#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>

namespace gpipe {

/// Which block of a cell each action works in, of one kind of block.
struct BlockUse {
    Array<std::size_t> of_action; ///< by index among all actions
    Array<std::size_t> count;     ///< by cell
};

/// The blocks that a micro-batch has in a cell, by Region. The retained tensors have one from the
/// forward to the backward, the kept ones from their last forward or recompute to the backward, or
/// its first half; the held ones until the second half. A forward whose result will be recomputed
/// uses these only while it runs: one block per cell under re-materialisation, one per micro-batch
/// in flight without. The deferred tensors have one from the first half to the second; a whole
/// backward in a cell where others are not has one while it runs.
struct Blocks {
    BlockUse retained; ///< of what the forward keeps for a reversal
    BlockUse kept;     ///< of what backward reads
    BlockUse held;     ///< of what the weight gradient reads
    BlockUse deferred; ///< of what the input gradient leaves
    Array<bool> keeps; ///< by action: whether a backward reads what it leaves
    /// By cell: whether the kept tensors have their block only while the backward runs, where
    /// nothing runs again before that.
    Array<bool> in_backward;
    Array<bool> splits; ///< by cell: whether the halves of its backwards run apart
    Array<bool> mixes;  ///< by cell: whether only those of some do, and other backwards run whole
};

namespace detail {

// Gives the lowest free block to each (cell, micro-batch) from where it begins(action) to where it
// ends(action). An action that passes() has one only while it runs.
template <class Begins, class Ends, class Passes>
[[gnu::cold]] constexpr BlockUse assign_block_use(Programs const& programs, Begins begins,
                                                  Ends ends, Passes passes) {
    std::size_t const micro_batches = programs.micro_batches();
    BlockUse use{Array<std::size_t>(programs.size()), Array<std::size_t>(programs.cells())};
    Array<std::size_t> holds(programs.cells() * micro_batches);
    Array<bool> taken(programs.cells() * micro_batches);
    for (std::size_t i = 0; i < programs.size(); ++i) {
        Action const& a = programs[i];
        std::size_t const pair = a.cell * micro_batches + a.micro_batch;
        bool* const of_cell = taken.data() + a.cell * micro_batches;
        bool const begin = begins(i);
        if (begin || passes(i)) {
            std::size_t b = 0;
            while (of_cell[b]) ++b;
            use.of_action[i] = b;
            if (b + 1 > use.count[a.cell]) use.count[a.cell] = b + 1;
            if (!begin) continue;
            holds[pair] = b;
            of_cell[b] = true;
        } else {
            use.of_action[i] = holds[pair];
            if (ends(i)) of_cell[holds[pair]] = false;
        }
    }
    return use;
}

} // namespace detail

/// `reversals`: by cell, or none.
[[gnu::cold]] GPIPE_INLINE constexpr Blocks assign_blocks(Programs const& programs,
                                                          Array<Reversal> const& reversals = {}) {
    std::size_t const micro_batches = programs.micro_batches();
    Blocks blocks{{},
                  {},
                  {},
                  {},
                  Array<bool>(programs.size()),
                  Array<bool>(programs.cells()),
                  Array<bool>(programs.cells()),
                  Array<bool>(programs.cells())};
    for (std::size_t c = 0; c < reversals.size(); ++c)
        blocks.in_backward[c] = !is_whole(reversals[c]) && !begins_again(reversals[c]);
    // The next action on each (cell, micro-batch): what a backward comes right behind keeps.
    Array<bool> backward_next(programs.cells() * micro_batches);
    for (std::size_t i = programs.size(); i-- > 0;) {
        Action const& a = programs[i];
        std::size_t const pair = a.cell * micro_batches + a.micro_batch;
        if (a.kind == Kind::forward || a.kind == Kind::recompute)
            blocks.keeps[i] = backward_next[pair];
        backward_next[pair] = gives_gradient(a.kind);
        if (a.kind == Kind::weight_gradient) blocks.splits[a.cell] = true;
    }
    for (std::size_t i = 0; i < programs.size(); ++i)
        if (programs[i].kind == Kind::backward && blocks.splits[programs[i].cell])
            blocks.mixes[programs[i].cell] = true;
    auto const kind = [&](std::size_t i) { return programs[i].kind; };
    auto const keeps = [&](std::size_t i) { return blocks.keeps[i]; };
    auto const passes = [&](std::size_t i) {
        return kind(i) == Kind::forward || kind(i) == Kind::recompute;
    };
    auto const first_half = [&](std::size_t i) { return kind(i) == Kind::input_gradient; };
    auto const second_half = [&](std::size_t i) { return kind(i) == Kind::weight_gradient; };
    auto const both = [&](std::size_t i) {
        return kind(i) == Kind::backward && blocks.splits[programs[i].cell];
    };
    auto const gradient = [&](std::size_t i) { return gives_gradient(kind(i)); };
    auto const last_half = [&](std::size_t i) { return ends_backward(kind(i)); };
    auto const forward = [&](std::size_t i) { return kind(i) == Kind::forward; };
    auto const never = [](std::size_t) { return false; };
    blocks.retained = detail::assign_block_use(programs, forward, last_half, never);
    auto const at_once = [&](std::size_t i) { return blocks.in_backward[programs[i].cell]; };
    blocks.kept = detail::assign_block_use(
        programs, [&](std::size_t i) { return keeps(i) && !at_once(i); }, gradient,
        [&](std::size_t i) { return passes(i) || at_once(i); });
    blocks.held = detail::assign_block_use(programs, keeps, last_half, passes);
    blocks.deferred = detail::assign_block_use(programs, first_half, second_half, both);
    return blocks;
}

} // namespace gpipe
