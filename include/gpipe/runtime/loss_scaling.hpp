#pragma once

#include <gpipe/runtime/machine.hpp>

#include <optional>

namespace gpipe {

/// What a Training has of Options::loss_scale.
template <class Training> class LossScaling {
  public:
    /// What the gradient of the loss is multiplied by in the next step; 1 if it is not scaled.
    /// Waits for all steps.
    double loss_scale() {
        auto& machine = detail::MachineAccess::machine(static_cast<Training&>(*this));
        machine.finish();
        return machine.engine().runs().scale().factor;
    }
    /// Which gradient was not finite, if there is a loss scale, and the last step that is done was
    /// skipped for one. (Without a scale StepResult::skipped() says that it was.)
    std::optional<Failure> skipped() const {
        return detail::MachineAccess::of(static_cast<Training const&>(*this))
            .engine()
            .runs()
            .skipped();
    }
};

} // namespace gpipe
