#pragma once

#include <gpipe/plan/operands.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/plan/replication.hpp>

#include <cstdint>

namespace gpipe {

/// Where parameters are one tensor with others.
struct TiedCell {
    std::uint32_t tie = 0;  ///< ends of a tie stand together, in the order of the chain
    std::uint32_t cell = 0; ///< that has one
    std::uint32_t end = 0;  ///< its number, in Model::ties
};

/// What a cell has of layers with buffers, or whose replicas tell each other something.
struct CellBuffers {
    bool any = false;       ///< whether any has buffers
    bool gathers = false;   ///< whether forwards add to statistics
    bool exchanges = false; ///< whether they exchange what recomputes and backwards read
};

/// How a step ends.
struct Ending {
    Array<bool> learns;           ///< by cell: whether it has parameters that are trained
    bool squares = false;         ///< whether anybody wants the sums of the gradients' squares
    bool immediate = false;       ///< see update::Immediate
    bool calls_enqueue = false;   ///< so that all layers are called before the end is; then also:
    bool copies_state = false;    ///< whether each device has the step's state in its own memory
    Array<TiedCell> ties{};       ///< of the parameters
    Ranks ranks{};                ///< who has the devices; none: they are of one rank
    Replication replicas{};       ///< whose gradients are added up
    Array<CellBuffers> buffers{}; ///< by cell; none at all: all are as they are made
};

/// The table of a step with its end.
struct EndedStep {
    Lowered lowered;   ///< the end is a program behind those of the streams, on which it runs
    Operands operands; ///< those of the step, and what orders the end
};

} // namespace gpipe
