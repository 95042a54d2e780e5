#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/core/finite.hpp>
#include <gpipe/probe/check_layers.hpp>
#include <gpipe/training.hpp>

#include <cstddef>
#include <stdexcept>

namespace gpipe {

/// Whether each layer's backward, and the loss's gradient, are the derivatives of its forward: by
/// central differences, for sampled entries of its inputs and parameters. Each layer is looked at
/// by itself, on what the chain gives it in the next step's forward (the same random numbers), with
/// random gradients of its outputs, so that a fault is found in the layer that has it. The halves
/// of a backward, and backwards that are given gpipe::none, are compared, too; two micro-batches of
/// different sizes are run twice, so that gradients must be added to and may not depend on how
/// samples are cut. Entries at which widths disagree, where the function has a kink or rounding
/// hides what it does, are left out; the report counts tensors of which all are.
///
/// Changes nothing of the training, and allocates what it needs. With several ranks all call it,
/// each looks at its own layers (of several replicas those of the first do), and all have the
/// report. The arrays are in the host's memory. Throws what a layer throws, and
/// std::invalid_argument for batches that do not fit, and for a tolerance that is none. It takes
/// some 8 x (entries + 4) forwards per tensor; where rounding asks for more widths, up to ten times
/// as many.
template <class Net, class... Policies>
[[nodiscard]] GradientReport
check_gradients(Training<Net, Policies...>& train,
                Batch<typename Training<Net, Policies...>::Input> inputs,
                Batch<typename Training<Net, Policies...>::Target> targets,
                GradientCheckOptions const& options = {}) {
    auto& machine = detail::MachineAccess::machine(train);
    std::size_t const samples = detail::or_refuse(machine, [&] {
        if (!(options.tolerance >= 0 && detail::is_finite(options.tolerance)))
            detail::throw_error<std::invalid_argument>(
                "gpipe: GradientCheckOptions::tolerance is %g: an error is compared with it",
                options.tolerance);
        return detail::checked_batch(inputs, targets, "targets");
    });
    machine.begin_together(detail::RankCall::checks_gradients);
    GradientReport report;
    detail::gathered(machine.device(), "check_gradients()", [&](auto& all) {
        auto const given = inputs.tensors();
        auto const wanted = targets.tensors();
        detail::GivenBatch batch{given, wanted, samples};
        batch.look_for_absent(given, inputs.optionals);
        batch.look_for_absent(wanted, targets.optionals);
        report = detail::check_layers(machine, all, elements_of<Net>(), batch, options);
    });
    return report;
}

} // namespace gpipe
