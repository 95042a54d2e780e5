#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/happens_before.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// "No slot".
inline constexpr std::size_t no_slot = static_cast<std::size_t>(-1);

/// The slots of the boundary before one cell: its inputs, one per micro-batch in flight, and the
/// gradients of these inputs, in one pool of equal slots.
struct BoundarySlots {
    std::size_t slots = 0;       ///< how many
    Array<std::size_t> input;    ///< slot by micro-batch
    Array<std::size_t> gradient; ///< no_slot where no gradient crosses
    /// Where a recompute leaves the output that nobody needs again: in the slot that its backward
    /// will write the gradient to. no_slot where it has a place of its own.
    Array<std::size_t> discarded_output;
    /// By slot: who is the first to write there, and who is the last to use it, on either side.
    struct Ends {
        std::size_t first = no_action;                ///< action that writes first
        std::size_t last[2] = {no_action, no_action}; ///< that use it last: [0] of the cell before,
                                                      ///< or a transfer, [1] of the cell
    };
    Array<Ends> ends;          ///< by slot
    Array<Ends> input_ends;    ///< by micro-batch: of its own input
    Array<Ends> gradient_ends; ///< by micro-batch: of its gradient
};

/// What uses the tensors of the boundary before cell `cell`.
struct BoundaryUse {
    std::size_t cell = 1;      ///< behind the boundary
    bool gradient = true;      ///< whether a gradient crosses
    bool read_backward = true; ///< whether the cell's backward (or recompute) reads the input
    bool kept_by_producer =
        false; ///< whether the backward of the cell before reads it, as its output
    bool discards_output = false; ///< whether a recompute of the cell needs room for its output
    /// Whether the weight gradients of the cell read what its backward reads here, and those of the
    /// cell before what its own does: where the halves run apart.
    bool held_by_consumer = false;
    bool held_by_producer = false; ///< likewise, of the cell before
    /// How the tensors cross. Unless it is shared, transfers write the inputs and read the
    /// gradients, and the device before has an Outbox.
    Link link = Link::shared;
    /// By micro-batch: whether the input is moved to slower memory behind the forward, and nothing
    /// of the cell reads it here after that. Empty: none is; else writers rather wait for room than
    /// have ever more slots.
    Array<bool> moved{};
};

/// Gives every tensor of a boundary a slot. A slot is taken again only by a writer that starts
/// after the last use of what it held, whatever the timing (HappensBefore), so no program ever
/// waits for room here, unless inputs are moved to slower memory. One slot more than micro-batches
/// in flight is enough where the gradient of an input may take the place of the input before it
/// (promise P4). `order` is a linear order of `programs`, which hold recomputes and transfers
/// already.
[[gnu::cold]] GPIPE_INLINE constexpr BoundarySlots
assign_boundary_slots(Programs const& programs, Array<std::uint32_t> const& order,
                      HappensBefore const& happens_before, BoundaryUse use) {
    std::size_t const micro_batches = programs.micro_batches();
    BoundarySlots result{0,
                         Array<std::size_t>(micro_batches, no_slot),
                         Array<std::size_t>(micro_batches, no_slot),
                         Array<std::size_t>(micro_batches, no_slot),
                         {},
                         Array<BoundarySlots::Ends>(micro_batches),
                         Array<BoundarySlots::Ends>(micro_batches)};

    bool const shared = use.link == Link::shared;
    auto const reads_backward = [](Action const& a, bool holds) {
        return gives_gradient(a.kind) || (holds && a.kind == Kind::weight_gradient);
    };
    auto const uses_input = [&](Action const& a) {
        if (a.cell == use.cell) {
            bool const moved = !use.moved.empty() && use.moved[a.micro_batch];
            if (moved || a.kind == Kind::forward)
                return a.kind == Kind::forward || a.kind == Kind::offload;
            return a.kind == Kind::recompute ||
                   (use.read_backward && reads_backward(a, use.held_by_consumer));
        }
        return a.cell + 1 == use.cell && use.kept_by_producer &&
               reads_backward(a, use.held_by_producer);
    };
    auto const uses_gradient = [&](Action const& a) {
        if (!use.gradient) return false;
        return shared ? a.cell + 1 == use.cell && reads_backward(a, use.held_by_producer)
                      : a.cell == use.cell && a.kind == Kind::send_gradient;
    };
    // How many uses of each tensor are still to come.
    Array<std::size_t> input_uses(micro_batches);
    Array<std::size_t> gradient_uses(micro_batches);
    for (std::size_t i = 0; i < programs.size(); ++i) {
        input_uses[programs[i].micro_batch] += uses_input(programs[i]);
        gradient_uses[programs[i].micro_batch] += uses_gradient(programs[i]);
    }

    // A slot's last uses: at most one on the producer's device and one on the consumer's.
    struct Slot : BoundarySlots::Ends {
        bool free = true;
        std::size_t freed = 0; // rank of the last use
    };
    Array<Slot> slots(2 * micro_batches);
    // Of the slots that a writer may take, the one that came free last: the devices on either side
    // are sure of the slots that they freed themselves, so each takes its own and leaves the
    // other's.
    auto const take = [&](std::size_t writer) {
        std::size_t best = result.slots;
        for (std::size_t s = 0; s < result.slots; ++s) {
            Slot const& slot = slots[s];
            if (slot.free && (slot.last[0] == no_action || happens_before(slot.last[0], writer)) &&
                (slot.last[1] == no_action || happens_before(slot.last[1], writer)) &&
                (best == result.slots || slots[best].freed < slot.freed))
                best = s;
        }
        if (!use.moved.empty() && best == result.slots) {
            // The slot that has been free for longest, if another has come free since: a writer may
            // be early.
            std::size_t free = 0;
            std::size_t oldest = result.slots;
            for (std::size_t s = 0; s < result.slots; ++s) {
                if (!slots[s].free) continue;
                ++free;
                if (oldest == result.slots || slots[s].freed < slots[oldest].freed) oldest = s;
            }
            if (free >= 2) best = oldest;
        }
        slots[best].free = false;
        if (best == result.slots) slots[result.slots++].first = writer;
        return best;
    };
    auto const touch = [&](std::size_t s, BoundarySlots::Ends& tensor, std::size_t action) {
        Action const& a = programs[action];
        bool const side = a.cell == use.cell && !is_transfer(a.kind);
        slots[s].last[side] = tensor.last[side] = action;
    };
    auto const writes_input = [&](Action const& a) {
        if (use.link == Link::staged) return a.cell == use.cell && a.kind == Kind::receive_input;
        return a.cell + 1 == use.cell && a.kind == (shared ? Kind::forward : Kind::send_output);
    };
    auto const give_back = [&](std::size_t s, std::size_t rank) {
        slots[s].free = true;
        slots[s].freed = rank;
    };

    for (std::size_t rank = 0; rank < order.size(); ++rank) {
        std::size_t const i = order[rank];
        Action const& a = programs[i];
        std::size_t const m = a.micro_batch;
        bool const producer = a.cell + 1 == use.cell;
        if (!producer && a.cell != use.cell) continue;
        BoundarySlots::Ends& input = result.input_ends[m];
        BoundarySlots::Ends& gradient = result.gradient_ends[m];
        if (writes_input(a)) {
            result.input[m] = take(input.first = i);
            touch(result.input[m], input, i);
        }
        if (!producer && gives_gradient(a.kind) && use.gradient) {
            result.gradient[m] = take(gradient.first = i);
            touch(result.gradient[m], gradient, i);
        }
        if (!producer && a.kind == Kind::recompute && use.discards_output) {
            result.discarded_output[m] = take(i);
            BoundarySlots::Ends discarded;
            touch(result.discarded_output[m], discarded, i);
            give_back(result.discarded_output[m], rank);
        }
        if (uses_input(a)) {
            touch(result.input[m], input, i);
            if (--input_uses[m] == 0) give_back(result.input[m], rank);
        }
        if (uses_gradient(a)) {
            touch(result.gradient[m], gradient, i);
            if (--gradient_uses[m] == 0) give_back(result.gradient[m], rank);
        }
    }
    result.ends = Array<BoundarySlots::Ends>(result.slots);
    for (std::size_t s = 0; s < result.slots; ++s) result.ends[s] = slots[s];
    return result;
}

} // namespace gpipe
