#pragma once

#include <gpipe/core/host_device.hpp>
#include <gpipe/core/version.hpp>

#include <cstdint>

namespace gpipe {

/// What the gradient of the loss is multiplied by, so that those of all layers stay in the range of
/// their type, as in half precision (Micikevicius et al., 2018); the mean gradients that optimizers
/// see are divided by it. A step whose gradients are not finite is skipped, and after that the
/// scale is smaller; after enough steps that counted it is larger. Of powers of two nothing is
/// rounded: without overflow all bits are those without it. As a default: none.
struct LossScale {
    double initial = 0;         ///< before the first step; 0: gradients are not scaled
    double growth = 1;          ///< factor, after `interval` steps
    double backoff = 1;         ///< factor, after a step that was skipped
    std::uint32_t interval = 0; ///< steps that counted, one after the other; 0: it never grows
    double least =
        1; ///< below this it does not fall: gradients that are not finite then are a fault
    double most = 1.7e38; ///< above this it does not grow

    /// Always the same one.
    static constexpr LossScale fixed(double scale) { return {scale}; }
    /// One that adapts itself, by default as torch.amp.GradScaler does.
    static constexpr LossScale dynamic(double initial = 65536, double growth = 2,
                                       double backoff = 0.5, std::uint32_t interval = 2000) {
        return {initial, growth, backoff, interval};
    }
    /// Whether there is one.
    GPIPE_HOST_DEVICE constexpr bool scales() const { return initial > 0; }
};

/// What it is by now.
struct LossScaleState {
    double factor = 1;            ///< of the next step
    std::uint32_t good_steps = 0; ///< that counted since it changed
};

} // namespace gpipe
