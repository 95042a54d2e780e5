#pragma once

#include <gpipe/core/version.hpp>

#include <cstdint>

namespace gpipe {

/// What changes from step to step and is read by the work of a step: in a device's own memory where
/// that cannot read the host's, so that work that was enqueued once may run in another step.
struct StepState {
    std::uint64_t seed = 0;
    std::uint64_t step = 0;      ///< steps trained; the commit counts its own
    double scale = 0;            ///< one over the loss's weight: turns sums of gradients into means
    double clip = 0;             ///< largest norm of the mean gradients; 0: any
    std::uint64_t committed = 0; ///< whether parameters are updated; written by the commit
};

} // namespace gpipe
