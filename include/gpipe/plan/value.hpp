#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/edge.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpipe {

/// What a value is. Values of an edge and a micro-batch, then those of a cell and a micro-batch.
enum class Holds : std::uint8_t {
    input,           ///< of the taker: what has crossed the edge
    output,          ///< where the giver makes that, if links copy
    output_again,    ///< what its recompute makes
    gradient,        ///< of the input, where the taker makes it
    arrived,         ///< that, where the giver reads it, if links copy
    staged_output,   ///< on its way through the host's memory
    staged_gradient, ///< likewise
    input_back,      ///< an input that has been in slower memory
    retained,        ///< what the forward leaves for a reversal, where that is offloaded
    retained_back,   ///< that, when it has been in slower memory
    offloaded,       ///< both, there
    turn,            ///< no bytes: that a fetch may begin
    discarded,       ///< the output of a recompute that nobody reads
    part,            ///< tensors that stay inside of the cell, see TensorPart
    // Of a device, but gradients and statistics of a cell, and of no bytes here: what orders the
    // end of a step.
    gradients,  ///< of a cell's parameters, with those of one backward more
    brought,    ///< such gradients, of an end of a tie, where they are added up
    statistics, ///< of a cell's layers, of a micro-batch, and what replicas exchange of it
    buffers,    ///< what they become, if the step counts
    squares,    ///< the sums of those of the gradients
    committed,  ///< whether the step counts, where the device reads that
    told,       ///< that, on its way to another rank
    revoked,    ///< likewise, in the end
    updated,    ///< the part of the parameters that this replica gives to the others
    state,      ///< seed and number of the step, where layers' work reads them
    parameters, ///< with buffers, as layers read them
};
/// How many have a number for each edge, or cell, and micro-batch.
inline constexpr std::size_t holds_count = 13;
/// How many are of an edge.
inline constexpr std::size_t holds_of_edges = 8;

/// Whether they are of an edge.
GPIPE_INLINE constexpr bool is_of_edge(Holds holds) {
    return static_cast<std::size_t>(holds) < holds_of_edges;
}

/// Whether there are any bytes.
GPIPE_INLINE constexpr bool has_bytes(Holds holds) {
    return holds != Holds::turn && holds <= Holds::part;
}
/// Whether they may have a place of their own in a device's memory, rather than take turns with
/// others of their kind.
GPIPE_INLINE constexpr bool is_placed(Holds holds) {
    return holds == Holds::input || holds == Holds::gradient || holds == Holds::discarded ||
           holds == Holds::part;
}
/// Whether it is there from step to step: what a step reads the one before has written.
GPIPE_INLINE constexpr bool is_lasting(Holds holds) { return holds >= Holds::state; }

/// In words.
GPIPE_INLINE constexpr std::string_view name(Holds holds) {
    constexpr std::string_view names[] = {"input",
                                          "output",
                                          "output, again",
                                          "gradient",
                                          "arrived gradient",
                                          "staged output",
                                          "staged gradient",
                                          "input, back",
                                          "retained",
                                          "retained, back",
                                          "offloaded",
                                          "turn",
                                          "discarded output",
                                          "tensors",
                                          "gradients",
                                          "brought gradients",
                                          "statistics",
                                          "next buffers",
                                          "squares",
                                          "committed",
                                          "told",
                                          "revoked",
                                          "updated",
                                          "state",
                                          "parameters"};
    return names[static_cast<std::size_t>(holds)];
}

/// Something that one action writes and known actions read: bytes in one place from its writer to
/// its last readers, whatever their number. Nothing else says how long a tensor lives.
struct Value {
    std::uint32_t writer = 0;      ///< action
    std::uint32_t owner = 0;       ///< edge, cell or device, see Holds
    std::uint32_t micro_batch = 0; ///< that it is of
    Holds holds = Holds::input;    ///< what it is
};

/// What an action does with a value.
enum class Use : std::uint8_t {
    read,  ///< it finds what the writer has left
    write, ///< it is the writer
    next,  ///< it is the writer of what the next step reads of it; those of this one are done
};

/// A value that an action reads or writes.
struct Operand {
    std::uint32_t value = 0;   ///< its number
    std::uint16_t address = 0; ///< by which its calls know it, see Region
    Use use = Use::read;       ///< what the action does
    /// In which slices of the action, see TensorPart: before the first it is not written, behind
    /// the last not read any more.
    ///@{
    std::uint16_t from = 0;
    std::uint16_t to = 0xFFFF;
    ///@}
};

/// What each action reads and writes: the only description of data. Needs, lifetimes, addresses and
/// the proof all follow from it.
struct Operands {
    Array<std::uint32_t> begin; ///< by action, and the end
    Array<Operand> all;         ///< action by action; of each, what it writes by `from`
    Array<Value> values;        ///< by number: first all parts, if they are among them

    /// The numbers of those that others read, or none: by what they hold, for which edge or cell,
    /// and micro-batch.
    ///@{
    static constexpr std::uint32_t none = 0xFFFFFFFF;
    std::size_t edges = 0, cells = 0, micro_batches = 0;
    Array<std::uint32_t> numbers;
    constexpr std::uint32_t number(Holds holds, std::size_t owner, std::size_t micro_batch) const {
        return numbers[row(holds, owner) * micro_batches + micro_batch];
    }
    ///@}

    /// Those of an action.
    [[gnu::always_inline]] constexpr Part<Operand> operator[](std::size_t action) const {
        return {all.data() + begin[action], begin[action + 1] - begin[action]};
    }

    /// Where those of an edge or cell begin among `numbers`, in micro-batches.
    constexpr std::size_t row(Holds holds, std::size_t owner) const {
        auto const which = static_cast<std::size_t>(holds);
        return which < holds_of_edges
                   ? which * edges + owner
                   : holds_of_edges * edges + (which - holds_of_edges) * cells + owner;
    }
};

} // namespace gpipe
