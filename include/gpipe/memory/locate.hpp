#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/memory_plan.hpp>
#include <gpipe/plan/sweep.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// Bytes [begin, end) of a device's arena or of the host's memory.
struct Location {
    std::size_t space = 0; ///< a device, or as many as there are: the host
    std::size_t begin = 0; ///< offset
    std::size_t end = 0;   ///< one past the last byte
};

/// Where a value of plan.operands lies: the one answer. In an `evaluation`, whose values are the
/// same but for what actions have for themselves, these lie in the first block of their kind.
[[gnu::cold]] GPIPE_INLINE constexpr Location locate(MemoryPlan const& plan, Value const& value,
                                                     bool evaluation = false) {
    Programs const& programs = plan.lowered.programs;
    std::size_t const host = plan.devices.size();
    std::size_t const m = value.micro_batch;
    auto const bytes_at = [](std::size_t space, std::size_t begin, std::size_t bytes) {
        return Location{space, begin, begin + bytes};
    };
    if (static_cast<std::size_t>(value.holds) < holds_of_edges) {
        Edge const& edge = plan.lowered.edges[value.owner];
        std::size_t const c = edge.to;
        BoundarySlots const& slots = plan.boundaries[c];
        Transfers const& transfers = plan.transfers[c];
        Offloaded const& moved = plan.offloaded[c];
        std::size_t const taker = programs.device_of(c);
        auto const slot = [&](std::size_t s, std::size_t bytes) {
            return bytes_at(taker, plan.slots_at[c] + s * plan.slot_size[c], bytes);
        };
        auto const outbox = [&](std::size_t s, std::size_t bytes) {
            return bytes_at(programs.device_of(edge.from),
                            transfers.outbox_at + s * transfers.slot_size, bytes);
        };
        auto const staged = [&](std::size_t at, StagingSlots const& of, std::size_t bytes) {
            return bytes_at(host, at + of.slot[m] * transfers.slot_size, bytes);
        };
        switch (value.holds) {
        case Holds::input:
            return slot(slots.input[m], edge.bytes);
        case Holds::gradient:
            if (!edge.gradient) return {taker, 0, 0};
            if (plan.cells[c].gradient_inside)
                return bytes_at(taker,
                                plan.temporaries_at[c] + plan.layouts[c].input_gradient.offset,
                                edge.gradient_bytes);
            return slot(slots.gradient[m], edge.gradient_bytes);
        case Holds::output:
            return outbox(transfers.outbox.output[m], edge.bytes);
        case Holds::output_again:
            return outbox(transfers.outbox.recomputed[m], edge.bytes);
        case Holds::arrived:
            return outbox(transfers.outbox.gradient[m], edge.gradient_bytes);
        case Holds::staged_output:
            return staged(transfers.outputs_at, transfers.outputs, edge.bytes);
        case Holds::staged_gradient:
            return staged(transfers.gradients_at, transfers.gradients, edge.gradient_bytes);
        default: // input_back
            return bytes_at(taker, moved.inputs_at + moved.inputs.slot[m] * moved.input,
                            moved.input);
        }
    }
    std::size_t const c = value.owner;
    std::size_t const device = programs.device_of(c);
    CellBlocks const& cell = plan.cells[c];
    Offloaded const& moved = plan.offloaded[c];
    auto const block = [&](std::size_t at, BlockUse const& use, std::size_t bytes) {
        std::size_t const number = evaluation ? 0 : use.of_action[value.writer];
        return bytes_at(device, at + number * bytes, bytes);
    };
    switch (value.holds) {
    case Holds::retained:
        return block(plan.retained_at[c], plan.blocks.retained, cell.retained);
    case Holds::retained_back:
        return bytes_at(device, plan.retained_at[c] + moved.returned[m] * cell.retained,
                        cell.retained);
    case Holds::offloaded:
        return bytes_at(host, moved.host_at + moved.host.slot[m] * moved.bytes(), moved.bytes());
    case Holds::kept:
        return block(plan.blocks_at[c], plan.blocks.kept, cell.kept);
    case Holds::held:
        return block(plan.held_at[c], plan.blocks.held, cell.held);
    case Holds::deferred:
        return block(plan.deferred_at[c], plan.blocks.deferred, cell.deferred);
    case Holds::discarded:
        return bytes_at(
            device, plan.slots_at[c] + plan.boundaries[c].discarded_output[m] * plan.slot_size[c],
            cell.discarded);
    case Holds::temporary: // behind the kept block where they share a region
        return bytes_at(device, plan.temporaries_at[c] + (plan.layouts[c].adjacent ? cell.kept : 0),
                        cell.temporary);
    default: // a turn
        return {device, 0, 0};
    }
}

/// Where the operands of a table lie, one address for each byte of all arenas and of the host's
/// memory: for find_needs() and prove(). It owns all that it tells.
class Located {
  public:
    /// See locate().
    [[gnu::cold]] constexpr Located(MemoryPlan const& plan, Operands const& operands,
                                    bool evaluation = false)
        : spans_(operands.values.size()) {
        Array<std::uint64_t> begin(plan.devices.size() + 1); // of a space
        for (std::size_t d = 0; d < plan.devices.size(); ++d)
            begin[d + 1] = begin[d] + plan.devices[d].total();
        for (std::size_t v = 0; v < spans_.size(); ++v) {
            Location const at = locate(plan, operands.values[v], evaluation);
            spans_[v] = {begin[at.space] + at.begin, begin[at.space] + at.end};
        }
    }
    /// Of an action's operand.
    constexpr Span operator()(std::size_t, Operand const& operand) const {
        return spans_[operand.value];
    }

  private:
    Array<Span> spans_;
};

} // namespace gpipe
