#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/boundary_slots.hpp>
#include <gpipe/schedule/order.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpipe {

/// The slots on the sending side of a boundary whose tensors are transferred: outputs until they
/// have been sent, gradients from when they arrive. Two are enough for GPipe and 1F1B to copy while
/// the device works, because a writer may wait for the reader before it; programs in which much is
/// under way at once have more.
struct Outbox {
    std::size_t slots = 0;         ///< how many
    Array<std::size_t> output;     ///< slot by micro-batch
    Array<std::size_t> recomputed; ///< of what a recompute writes; no_slot where that has no reader
    Array<std::size_t> gradient;   ///< no_slot where no gradient crosses
    /// Who writes each, and who is the last to use it.
    struct Ends {
        std::size_t first = no_action; ///< action that writes it
        std::size_t last = no_action;  ///< that uses it last
    };
    /// By micro-batch: of the slots of the same name.
    ///@{
    Array<Ends> output_ends;
    Array<Ends> recomputed_ends;
    Array<Ends> gradient_ends;
    ///@}
};

/// Room in the host's memory for what is staged in one direction, by micro-batch.
struct StagingSlots {
    std::size_t slots = 0;   ///< how many
    Array<std::size_t> slot; ///< by micro-batch
};

namespace detail {

// Gives slots to values in the linear order of their writers. Of the free slots a writer takes one
// that it need not wait for; else a new one, as long as there are fewer than `enough`; else it
// waits for the slot that has been free for longest.
class Window {
  public:
    constexpr Window(HappensBefore const& happens_before, std::size_t enough, std::size_t most)
        : happens_before_(happens_before), enough_(enough), slots_(most) {}

    constexpr std::size_t take(std::size_t writer, std::size_t rank) {
        std::size_t sure = count_;
        std::size_t oldest = count_;
        for (std::size_t s = 0; s < count_; ++s) {
            if (!slots_[s].free) continue;
            if (is_sure(slots_[s], writer) &&
                (sure == count_ || slots_[sure].freed < slots_[s].freed))
                sure = s;
            if (oldest == count_ || slots_[s].freed < slots_[oldest].freed) oldest = s;
        }
        std::size_t taken = sure;
        if (sure == count_ && count_ >= enough_) taken = oldest;
        if (taken == count_) ++count_;
        slots_[taken] = {false, writer, rank};
        return taken;
    }
    // The readers of a value come one after the other, so the last one stands for all.
    constexpr void use(std::size_t slot, std::size_t reader) { slots_[slot].last = reader; }
    constexpr void give_back(std::size_t slot, std::size_t rank) {
        slots_[slot].free = true;
        slots_[slot].freed = rank;
    }
    constexpr std::size_t count() const { return count_; }

  private:
    struct Slot {
        bool free = true;
        std::size_t last = no_action; // who used it
        std::size_t freed = 0;
    };
    constexpr bool is_sure(Slot const& slot, std::size_t writer) const {
        return happens_before_(slot.last, writer);
    }

    HappensBefore const& happens_before_;
    std::size_t enough_;
    Array<Slot> slots_;
    std::size_t count_ = 0;
};

} // namespace detail

/// Plans the outbox of the boundary before cell `cell`, on the device of the cell before. `order`
/// is linear_order(lowered). `reads_output`: whether the backward of the
/// cell before reads its output; `holds`: whether its weight gradients, which run apart, read that
/// and the gradient.
[[gnu::cold]] GPIPE_INLINE constexpr Outbox assign_outbox(Lowered const& lowered,
                                                          Array<std::uint32_t> const& order,
                                                          HappensBefore const& happens_before,
                                                          std::size_t cell, Link link,
                                                          bool reads_output, bool holds) {
    Programs const& programs = lowered.programs;
    std::size_t const micro_batches = programs.micro_batches();
    Outbox result{0,
                  Array<std::size_t>(micro_batches, no_slot),
                  Array<std::size_t>(micro_batches, no_slot),
                  Array<std::size_t>(micro_batches, no_slot),
                  Array<Outbox::Ends>(micro_batches),
                  Array<Outbox::Ends>(micro_batches),
                  Array<Outbox::Ends>(micro_batches)};
    Array<bool> recomputes(micro_batches);
    for (std::size_t i = 0; i < programs.size(); ++i)
        if (programs[i].kind == Kind::recompute && programs[i].cell + 1 == cell)
            recomputes[programs[i].micro_batch] = true;

    detail::Window window(happens_before, std::min<std::size_t>(2, micro_batches),
                          3 * micro_batches);
    for (std::size_t rank = 0; rank < order.size(); ++rank) {
        std::size_t const i = order[rank];
        Action const a = programs[i];
        std::size_t const m = a.micro_batch;
        bool const before = a.cell + 1 == cell;
        bool const keeps = reads_output && !recomputes[m];
        auto const take = [&](std::size_t& slot, Outbox::Ends& ends) {
            slot = window.take(i, rank);
            ends = {i, i};
        };
        auto const use = [&](std::size_t slot, Outbox::Ends& ends) {
            window.use(slot, i);
            ends.last = i;
        };
        if (before && a.kind == Kind::forward) take(result.output[m], result.output_ends[m]);
        if (before && a.kind == Kind::recompute && reads_output)
            take(result.recomputed[m], result.recomputed_ends[m]);
        if (before && a.kind == Kind::send_output) {
            use(result.output[m], result.output_ends[m]);
            if (!keeps) window.give_back(result.output[m], rank);
        }
        if (link == Link::copied ? a.cell == cell && a.kind == Kind::send_gradient
                                 : before && a.kind == Kind::receive_gradient)
            take(result.gradient[m], result.gradient_ends[m]);
        bool const last = holds ? ends_backward(a.kind) : gives_gradient(a.kind);
        if (before && (last || gives_gradient(a.kind))) {
            auto const read = [&](std::size_t slot, Outbox::Ends& ends) {
                use(slot, ends);
                if (last) window.give_back(slot, rank);
            };
            if (reads_output && keeps) read(result.output[m], result.output_ends[m]);
            if (reads_output && !keeps) read(result.recomputed[m], result.recomputed_ends[m]);
            if (result.gradient[m] != no_slot) read(result.gradient[m], result.gradient_ends[m]);
        }
    }
    result.slots = window.count();
    return result;
}

/// Plans the host's memory that staged outputs of cell `cell` (or gradients of its input) go
/// through: two slots, so that one is filled while the other is emptied; more where cells of one
/// device are far apart.
[[gnu::cold]] GPIPE_INLINE constexpr StagingSlots
assign_staging(Lowered const& lowered, Array<std::uint32_t> const& order,
               HappensBefore const& happens_before, std::size_t cell, bool gradients) {
    Programs const& programs = lowered.programs;
    std::size_t const micro_batches = programs.micro_batches();
    StagingSlots result{0, Array<std::size_t>(micro_batches, no_slot)};
    detail::Window window(happens_before, std::min<std::size_t>(2, micro_batches), micro_batches);
    for (std::size_t rank = 0; rank < order.size(); ++rank) {
        std::size_t const i = order[rank];
        Action const a = programs[i];
        std::size_t& slot = result.slot[a.micro_batch];
        if (a.cell == cell && a.kind == (gradients ? Kind::send_gradient : Kind::send_output))
            slot = window.take(i, rank);
        if (gradients ? a.cell + 1 == cell && a.kind == Kind::receive_gradient
                      : a.cell == cell + 1 && a.kind == Kind::receive_input) {
            window.use(slot, i);
            window.give_back(slot, rank);
        }
    }
    result.slots = window.count();
    return result;
}

} // namespace gpipe
