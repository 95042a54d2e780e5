#pragma once

#include <gpipe/memory/blocks.hpp>
#include <gpipe/memory/boundary_slots.hpp>
#include <gpipe/memory/cell_layout.hpp>
#include <gpipe/memory/offloaded.hpp>
#include <gpipe/memory/reversal_layout.hpp>
#include <gpipe/memory/window.hpp>
#include <gpipe/plan/operands.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// Bytes of a device's arena by what they are for; slots, with their padding.
struct DeviceBytes {
    std::size_t parameters = 0;  ///< of all layers on the device
    std::size_t gradients = 0;   ///< likewise
    std::size_t optimizer = 0;   ///< its states of these parameters
    std::size_t boundary = 0;    ///< slots of tensors between cells
    std::size_t activations = 0; ///< kept blocks and temporaries
    std::size_t staging = 0;     ///< the mini-batch and the state of a step, see Staging
    std::size_t handles = 0;     ///< what library handles work with

    /// What outlives a step: the first bytes of the arena.
    constexpr std::size_t state() const { return parameters + gradients + optimizer; }
    /// All of them: the arena's size.
    constexpr std::size_t total() const {
        return state() + boundary + activations + staging + handles;
    }
};

/// What an arena holds beside the tensors of layers on a device whose work cannot read the host's
/// memory; nothing on one that can.
struct Staging {
    GroupSizes inputs;         ///< of the chain: on the device of the first cell
    GroupSizes targets;        ///< of the loss: on the device of the last
    std::size_t samples = 0;   ///< largest mini-batch
    std::size_t sums = 0;      ///< bytes of the loss's numbers: on the device of the last cell
    std::size_t state = 0;     ///< bytes of what changes from step to step: on every device
    std::size_t optimizer = 0; ///< bytes of the optimizer: where updates are
    /// Bytes that summing up the squares of a gradient takes: where updates are. If any, there is
    /// room for the sums, too: where updates are, and for all on the device of the last cell.
    std::size_t squares = 0;
    std::size_t steps = 1; ///< mini-batches that there is room for at once
};

/// The sending side of a boundary that is no Link::shared.
struct Transfers {
    Outbox outbox; ///< on the device of the cell before
    bool keeps =
        false; ///< whether backward reads the output there, and a recompute writes it again
    std::size_t slot_size = 0;    ///< of the outbox and of staged tensors
    std::size_t outbox_at = 0;    ///< in the arena of the device of the cell before
    StagingSlots outputs;         ///< if the link is staged
    StagingSlots gradients;       ///< likewise
    std::size_t outputs_at = 0;   ///< in the host's memory
    std::size_t gradients_at = 0; ///< likewise
};

/// Every byte of a training, before the run: an arena per device, and an offset in it for every
/// tensor of every action.
struct MemoryPlan {
    Array<std::size_t> first;          ///< layer that each cell begins with, and L
    Array<DeviceBytes> devices;        ///< of each device's arena
    Array<std::size_t> parameters;     ///< by layer: offset in its device's arena
    Array<std::size_t> gradients;      ///< likewise: of the gradients
    Array<std::size_t> optimizer;      ///< the states of a layer's tensors, tensor by tensor
    Array<CellLayout> layouts;         ///< by cell
    Array<ReversalLayout> reversals;   ///< by cell: where it is reversed piece by piece
    Array<CellUse> uses;               ///< by cell: what its layout depends on beside its layers
    Array<std::size_t> retained_at;    ///< by cell: offset of its first block of retained tensors
    Array<std::size_t> blocks_at;      ///< of kept, likewise
    Array<std::size_t> held_at;        ///< of held, likewise
    Array<std::size_t> deferred_at;    ///< of deferred, likewise
    Array<std::size_t> temporaries_at; ///< by cell: offset of the region of temporaries
    Array<BoundarySlots> boundaries;   ///< by cell; of the first, empty
    Array<std::size_t> slots_at;       ///< by cell: offset of its boundary slots
    Array<std::size_t> slot_size;      ///< by cell
    /// By cell: whether the gradient of its input lies among its temporaries, in no slot. So it is
    /// with one micro-batch: nothing follows that would need the room.
    Array<bool> holds_gradient;
    Blocks blocks;                    ///< of kept activations
    std::size_t capacity = 0;         ///< samples in a micro-batch
    std::size_t inputs_at = 0;        ///< offset of the staged inputs in the first cell's arena
    std::size_t targets_at = 0;       ///< of the staged targets in the last cell's
    std::size_t sums_at = 0;          ///< of the loss's numbers, likewise
    Array<std::size_t> states_at;     ///< by device: offset of a step's state
    Array<std::size_t> optimizers_at; ///< by device: offset of the optimizer
    Array<std::size_t> squares_at;    ///< by device: what sums of squares take, then the sums
    std::size_t all_squares_at = 0;   ///< on the device of the last cell: those of all tensors
    std::size_t order_at = 0;         ///< likewise: their order in the chain
    Array<std::size_t> handles_at;    ///< by device: offset of the handles' workspaces
    Lowered lowered;                  ///< what the plan is for: the programs with all copies
    Array<std::uint32_t> order;     ///< of its actions, in which all were placed: for walk_along()
    Operands operands;              ///< what its actions read and write; see locate()
    Array<CellBlocks> cells;        ///< by cell: bytes of its values
    Array<Transfers> transfers;     ///< by cell: of the boundary before it
    Array<Offloaded> offloaded;     ///< likewise: what the cell moves to the host's memory
    std::size_t staged_inputs = 0;  ///< bytes of one mini-batch's inputs, and targets, where these
    std::size_t staged_targets = 0; ///< are staged: several lie one behind the other
    std::size_t host = 0;           ///< bytes of the host's memory that copies go to or through
    /// Bytes of the host's memory for a copy of all parameters and optimizer state, if asked for.
    std::size_t snapshot = 0;

    /// The boundary before cell c, as an edge.
    constexpr Edge const& edge_before(std::size_t c) const { return lowered.edges[c - 1]; }

    /// Of all arenas.
    constexpr std::size_t total() const {
        std::size_t bytes = 0;
        for (DeviceBytes const& device : devices) bytes += device.total();
        return bytes;
    }
};

} // namespace gpipe
