#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/place_parts.hpp>
#include <gpipe/memory/tie_holders.hpp>
#include <gpipe/plan/pools.hpp>
#include <gpipe/plan/replication.hpp>

#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Bytes of a device's arena by what they are for; slots, with their padding.
struct DeviceBytes {
    std::size_t parameters = 0;  ///< that its layers train
    std::size_t gradients = 0;   ///< likewise
    std::size_t optimizer = 0;   ///< its states of these parameters
    std::size_t frozen = 0;      ///< their other parameters, and room for gradients nobody wants
    std::size_t buffers = 0;     ///< of its layers, twice, what moves them, and what is exchanged
    std::size_t boundary = 0;    ///< tensors between cells, where these have slots
    std::size_t activations = 0; ///< tensors inside of cells, what of them moves, and those without
    std::size_t staging = 0;     ///< the mini-batch and the state of a step, see Staging
    std::size_t handles = 0;     ///< what library handles work with

    /// What outlives a step: the first bytes of the arena.
    constexpr std::size_t state() const {
        return parameters + gradients + optimizer + frozen + buffers;
    }
    /// All of them: the arena's size.
    constexpr std::size_t total() const {
        return state() + boundary + activations + staging + handles;
    }
};

/// What an arena holds beside the tensors of layers on a device whose work cannot read the host's
/// memory; nothing on one that can.
struct Staging {
    GroupSizes inputs;         ///< of the chain: on the device of the first cell
    GroupSizes targets;        ///< of the loss, or outputs: on the device of the last
    std::size_t samples = 0;   ///< largest mini-batch
    std::size_t sums = 0;      ///< bytes of the loss's numbers: on the device of the last cell
    std::size_t state = 0;     ///< bytes of what changes from step to step: on every device
    std::size_t optimizer = 0; ///< bytes of the optimizer: where updates are
    /// Bytes that summing up the squares of a gradient takes: where updates are. If any, there is
    /// room for the sums, too: where updates are, and for all on the device of the last cell.
    std::size_t squares = 0;
    std::size_t steps = 1; ///< mini-batches that there is room for at once
    bool ties = false;     ///< whether there is room for gradients where tied ones are added up
};

/// A slack with which nobody waits for room.
inline constexpr std::size_t no_wait = 0x7FFFFFFF;
/// A slack that is chosen for a plan: of no_wait, 4, 1 and 0 the one with the fewest bytes whose
/// step, simulated, takes at most 1.01 times as long as that of no_wait, in all but one of 32 draws
/// of what actions take (cells up to twice as slow as planned, copies up to four times as fast,
/// each action up to a fifth off).
inline constexpr std::size_t chosen_slack = no_wait + 1;

/// What memory is planned for, beside programs and how cells are reversed.
struct PlanRequest {
    ChainShape chain;         ///< with its loss
    Array<std::size_t> first; ///< layer that each cell begins with, and L
    std::size_t states = 0;   ///< arrays of the optimizer for each parameter tensor
    std::size_t capacity = 0; ///< samples of a micro-batch
    Staging staging{};        ///< of a device that needs that
    /// By cell: how the tensors before it get there; behind these, by skip, how its tensor does.
    /// Empty: all are shared.
    Array<Link> links{};
    Tightness tightness = Tightness::full; ///< of tensors inside of cells
    std::size_t guard = 0;       ///< bytes behind the gradients and statistics of each layer
    std::size_t slack = no_wait; ///< see TrainingOptions
    Replication replication{};   ///< whose gradients are added up
    bool hears = false; ///< whether what ends a step comes from another rank while layers run
};

/// In which inputs of cells, their gradients and parts have a place each.
struct Room {
    Array<std::size_t> height; ///< by device; 0 where inputs and gradients have slots
    Array<std::size_t> at;     ///< by value: its offset

    /// What a device has, and where.
    constexpr void set(std::size_t device, std::size_t bytes, Array<std::uint32_t> const& values,
                       Array<std::size_t> const& offsets) {
        height[device] = bytes;
        for (std::size_t n = 0; n < values.size(); ++n) at[values[n]] = offsets[n];
    }
};

/// Where what a device has begins in its arena.
struct DeviceOffsets {
    std::size_t frozen = 0;       ///< parameters that are
    std::size_t unwanted = 0;     ///< behind them: where gradients go that nobody wants
    std::size_t buffers = 0;      ///< those of its layers
    std::size_t next = 0;         ///< what they become
    std::size_t statistics = 0;   ///< those of the mini-batch, of each replica
    std::size_t part = 0;         ///< behind them: those of each micro-batch, and one more
    std::size_t exchanged = 0;    ///< before a backward: the most that a layer's replicas tell
    std::size_t parts = 0;        ///< the room that tensors share which stay inside of cells
    std::size_t evaluation = 0;   ///< likewise, in an evaluation
    std::size_t state = 0;        ///< of a step
    std::size_t optimizer = 0;    ///< the functor
    std::size_t constants = 0;    ///< of a step; 0: none are read
    std::size_t sides = 0;        ///< the staged side inputs that it reads
    std::size_t staged_sides = 0; ///< bytes of one mini-batch's, as MemoryPlan::staged_inputs
    std::size_t squares = 0;      ///< what sums of squares take, then the sums
    std::size_t replicas = 0;     ///< where parts of other replicas' gradients come
    std::size_t handles = 0;      ///< their workspaces
    std::size_t host = 0; ///< not there, but in the host's memory: what it copies to or through
};

/// Every byte of a training, before the run: an arena per device, and an offset in it for every
/// tensor of every action.
struct MemoryPlan {
    Array<std::size_t> first;      ///< layer that each cell begins with, and L
    Array<DeviceBytes> devices;    ///< of each device's arena
    Array<DeviceOffsets> begin;    ///< by device
    Array<std::size_t> parameters; ///< by layer: offset in its device's arena, of what is trained
    Array<std::size_t> gradients;  ///< likewise
    Array<std::size_t> frozen;     ///< likewise: of parameters that are
    /// The states of a layer's tensors, tensor by tensor; where replicas have parts, those of the
    /// device's tensors.
    Array<std::size_t> optimizer;
    TieHolders holders; ///< none of replicas that share the optimizer's states
    /// By end of a tie: where its gradient comes to be added, on the device of the first, if that
    /// is another.
    Array<std::size_t> brought;
    /// By layer: offset of its buffers, and of its statistics, in the first replica's.
    ///@{
    Array<std::size_t> buffers;
    Array<std::size_t> statistics;
    ///@}
    /// By layer: offset of what its replicas tell each other, of each micro-batch.
    Array<std::size_t> exchanged;
    Array<std::size_t> in_flight;   ///< by cell: micro-batches between forward and end of backward
    PlacedParts parts;              ///< tensors that stay inside of cells
    Room room;                      ///< of a step, at DeviceOffsets::evaluation
    Room evaluation_room;           ///< of an evaluation, likewise, by that table's values
    std::size_t capacity = 0;       ///< samples in a micro-batch
    std::size_t inputs_at = 0;      ///< offset of the staged inputs in the first cell's arena
    std::size_t targets_at = 0;     ///< of the staged targets in the last cell's
    std::size_t sums_at = 0;        ///< of the loss's numbers, likewise
    std::size_t all_squares_at = 0; ///< on the device of the last cell: those of all tensors
    std::size_t order_at = 0;       ///< likewise: their order in the chain
    Replication replication{};      ///< for how many of these
    Lowered lowered;                ///< the programs with all copies
    Array<CellValues> cells;        ///< by cell: which values its actions have
    Operands operands;              ///< what actions read and write
    Pools pools;                    ///< where that lies, see Located
    /// By skip of the chain: its edge; Operands::none where both ends are in one cell.
    Array<std::uint32_t> skip_edges;
    bool stages = false;            ///< whether devices cannot read the host's memory, see Staging
    std::size_t staged_inputs = 0;  ///< bytes of one mini-batch's inputs, and targets or outputs,
    std::size_t staged_targets = 0; ///< where these are staged: several lie one behind the other
    std::size_t host = 0;           ///< bytes of the host's memory that copies go to or through
    /// Bytes of the host's memory for a copy of all parameters and optimizer state, if asked for.
    std::size_t snapshot = 0;

    /// Whether inputs, gradients and parts have places of their own on a device.
    constexpr bool has_room(std::size_t device) const {
        return !room.height.empty() && room.height[device] > 0;
    }
    /// Whether a recompute writes the cell's output again, for its backward: what was sent is gone.
    constexpr bool rewrites_output(std::size_t cell) const {
        for (std::uint32_t const e : lowered.edges.out_of(cell))
            if (lowered.edges[e].written_again()) return true;
        return false;
    }
    /// The parts of a table's cells; points here.
    constexpr PartTable part_table(bool evaluates) const {
        return parts.table(lowered.programs.cells(), lowered.programs.micro_batches(), evaluates);
    }
    /// What the calls of a cell depend on.
    constexpr CellUse use_of(std::size_t cell) const {
        return {capacity, cells[cell].discards, rewrites_output(cell)};
    }
    /// Of what a cell offloads of a micro-batch.
    constexpr std::size_t offloaded_bytes(std::size_t cell) const {
        return pools.pool(Holds::offloaded, cell).bytes;
    }

    /// Bytes of the host's memory that belong to the devices in front of this one: they stand in
    /// the order of the devices.
    constexpr std::size_t host_before(std::size_t device) const {
        return device < begin.size() ? begin[device].host : host;
    }
    /// Of all arenas.
    constexpr std::size_t total() const {
        std::size_t bytes = 0;
        for (DeviceBytes const& device : devices) bytes += device.total();
        return bytes;
    }
};

} // namespace gpipe
GPIPE_RUNS_ONCE_END
