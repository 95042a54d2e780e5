#pragma once

#include <gpipe/memory/cell_layout.hpp>
#include <gpipe/memory/reversal_layout.hpp>
#include <gpipe/plan/pools.hpp>

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
    bool ties = false;     ///< whether there is room for a gradient where tied ones are added up
};

/// Every byte of a training, before the run: an arena per device, and an offset in it for every
/// tensor of every action.
struct MemoryPlan {
    Array<std::size_t> first;        ///< layer that each cell begins with, and L
    Array<DeviceBytes> devices;      ///< of each device's arena
    Array<std::size_t> parameters;   ///< by layer: offset in its device's arena
    Array<std::size_t> gradients;    ///< likewise: of the gradients
    Array<std::size_t> optimizer;    ///< the states of a layer's tensors, tensor by tensor
    Array<CellLayout> layouts;       ///< by cell
    Array<ReversalLayout> reversals; ///< by cell: where it is reversed piece by piece
    Array<std::size_t> in_flight;    ///< by cell: micro-batches between forward and end of backward
    Array<CellUse> uses;             ///< by cell: what its layout depends on beside its layers
    std::size_t capacity = 0;        ///< samples in a micro-batch
    std::size_t inputs_at = 0;       ///< offset of the staged inputs in the first cell's arena
    std::size_t targets_at = 0;      ///< of the staged targets in the last cell's
    std::size_t sums_at = 0;         ///< of the loss's numbers, likewise
    Array<std::size_t> states_at;    ///< by device: offset of a step's state
    Array<std::size_t> optimizers_at; ///< by device: offset of the optimizer
    Array<std::size_t> squares_at;    ///< by device: what sums of squares take, then the sums
    std::size_t all_squares_at = 0;   ///< on the device of the last cell: those of all tensors
    std::size_t order_at = 0;         ///< likewise: their order in the chain
    Array<std::size_t> tied_at;       ///< by device: where gradients of others come to be added
    Array<std::size_t> handles_at;    ///< by device: offset of the handles' workspaces
    Lowered lowered;                  ///< the programs with all copies
    Array<CellValues> cells;          ///< by cell: which values its actions have
    Operands operands;                ///< what actions read and write
    Pools pools;                      ///< where that lies, see Located
    /// By skip of the chain: its edge; Operands::none where both ends are in one cell.
    Array<std::uint32_t> skip_edges;
    Array<std::uint16_t> skip_slots; ///< by cell: ends of such edges, see Edge::giver_slot
    std::size_t staged_inputs = 0;   ///< bytes of one mini-batch's inputs, and targets, where these
    std::size_t staged_targets = 0;  ///< are staged: several lie one behind the other
    std::size_t host = 0;            ///< bytes of the host's memory that copies go to or through
    /// Bytes of the host's memory for a copy of all parameters and optimizer state, if asked for.
    std::size_t snapshot = 0;

    /// Whether a recompute writes the cell's output again, for its backward: what was sent is gone.
    constexpr bool rewrites_output(std::size_t cell) const {
        for (std::uint32_t const e : lowered.edges.out_of(cell))
            if (lowered.edges[e].written_again()) return true;
        return false;
    }
    /// Whether the gradient of an edge has no place of its own: it lies among the temporaries of
    /// the backward that writes it.
    constexpr bool gradient_lies_inside(Edge const& edge) const {
        return cells[edge.to].gradient_inside && !edge.is_skip();
    }
    /// Where the temporaries of a cell begin, in its device's arena: where the one kept block does
    /// that they may lie around.
    constexpr std::size_t temporaries_at(std::size_t cell) const {
        Pool const& pool = pools.temporaries(lowered.programs.device_of(cell));
        return pool.at - (layouts[cell].adjacent ? layouts[cell].kept : 0);
    }
    /// Of what a cell offloads of a micro-batch.
    constexpr std::size_t offloaded_bytes(std::size_t cell) const {
        return pools.pool(Holds::offloaded, cell).bytes;
    }

    /// Of all arenas.
    constexpr std::size_t total() const {
        std::size_t bytes = 0;
        for (DeviceBytes const& device : devices) bytes += device.total();
        return bytes;
    }
};

} // namespace gpipe
