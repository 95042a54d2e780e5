#pragma once

#include <gpipe/core/version.hpp>

#include <cstdint>

namespace gpipe {

/// What kept a step from being committed: something threw, or was not finite.
enum class StepFault : std::uint32_t {
    nothing,
    thrown,   ///< on a rank, by its number; only where ranks commit on their streams
    loss,     ///< of a micro-batch
    gradient, ///< the sum of its squares; by place in the order of the chain's tensors
    norm,     ///< of all gradients
};

/// The least total weight of a step's losses: one over it is finite in parameters of any type.
inline constexpr double least_weight = 0x1p-126;

/// In place of a micro-batch: the loss over all of them.
inline constexpr std::uint32_t no_micro_batch = 0xFFFFFFFF;

/// What changes from step to step and is read by the work of a step: in a device's own memory where
/// that cannot read the host's, so that work that was enqueued once may run in another step.
struct StepState {
    std::uint64_t seed = 0;      ///< see Options::seed
    std::uint64_t step = 0;      ///< steps trained; the commit counts its own
    double scale = 0;            ///< one over the loss's weight: turns sums of gradients into means
    double clip = 0;             ///< largest norm of the mean gradients; 0: any
    std::uint64_t committed = 0; ///< whether parameters are updated; written by the commit
    StepFault fault = StepFault::nothing; ///< likewise
    /// Which rank, micro-batch (of all replicas, one after the other; or none), or which gradient.
    std::uint32_t fault_at = 0;
    double fault_value = 0;       ///< what it found there
    double loss_scale = 1;        ///< what the loss's gradient is multiplied by, see LossScale
    double unscale = 1;           ///< one over what it was multiplied by in this step
    std::uint32_t good_steps = 0; ///< committed since that changed
    std::uint32_t skipped = 0;    ///< whether the fault is one that a smaller scale may mend
};

} // namespace gpipe
