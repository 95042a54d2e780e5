#pragma once

#include <gpipe/runtime/layer_check.hpp>
#include <gpipe/training.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace gpipe {

namespace detail {

template <class Device>
GradientReport check_layers(Machine<Device>& machine, Array<LayerElements> const& elements,
                            std::span<TensorPointer const> inputs,
                            std::span<TensorPointer const> targets, std::size_t samples,
                            GradientCheckOptions const& options) {
    using Probe = LayerProbe<Device>;
    GradientReport report;
    report.samples = std::max<std::size_t>(options.samples, 3);
    typename Probe::Sizes const sizes{report.samples - report.samples / 3, report.samples / 3};
    Model const& model = machine.model();
    std::size_t const layers = elements.size();
    std::unique_ptr<Probe> before;
    std::vector<std::vector<std::byte>> skips(Probe::parts * model.skips.size());
    for (std::size_t i = 0; i <= layers; ++i) {
        bool const loss = i == layers;
        LayerElements of_loss;
        if (loss) of_loss = {elements[i - 1].output(), {}, {}, elements[i - 1].outputs, 0};
        auto probe = std::make_unique<Probe>(machine, i, loss ? of_loss : elements[i], sizes);
        if (before) probe->give_output(*before);
        for (std::size_t s = 0; s < model.skips.size(); ++s)
            for (std::size_t p = 0; p < Probe::parts; ++p) {
                SkipPair const& skip = model.skips[s];
                std::vector<std::byte>& tensor = skips[Probe::parts * s + p];
                if (before && skip.from + 1 == i) tensor = before->stashed(p, skip.stash);
                if (skip.to == i) probe->give_popped(p, skip.pop, tensor);
            }
        for (std::size_t s = 0; s < report.samples; ++s) {
            auto const sample = [&](TensorPointer const& of) {
                return of.data + s % samples * of.sample_bytes;
            };
            for (std::size_t t = 0; t < inputs.size() && i == 0; ++t)
                probe->give(s, t, sample(inputs[t]));
            for (std::size_t t = 0; t < targets.size() && loss; ++t)
                probe->give_target(s, t, sample(targets[t]));
        }
        probe->upload();
        std::size_t const faults = report.faults();
        LayerCheck<Device> check(*probe, i, loss ? model.loss.name : model.infos[i].name, options);
        if (probe->has_backward()) check.add_to(report);
        if (report.faults() > faults && report.rows.back().fault == "forward gives no number")
            break; // nothing can be said of the layers behind
        before = std::move(probe);
    }
    return report;
}

} // namespace detail

/// Whether each layer's backward, and the loss's gradient, are the derivatives of its forward: by
/// central differences, for sampled entries of its inputs and parameters. Each layer is looked at
/// by itself, on what the chain gives it in the next step's forward (the same random numbers), with
/// random gradients of its outputs, so that a fault is found in the layer that has it. The halves
/// of a backward, and backwards that are given gpipe::none, are compared, too; two micro-batches of
/// different sizes are run twice, so that gradients must be added to and may not depend on how
/// samples are cut. Entries at which widths disagree, where the function has a kink, are left out.
///
/// Changes nothing of the training, and allocates what it needs. The arrays are in the host's
/// memory. Throws what a layer throws, and std::invalid_argument for batches that do not fit.
/// A forward takes time for each entry and width, some 4 x (entries + 4) per tensor.
template <class Net, class... Policies>
GradientReport check_gradients(Training<Net, Policies...>& train,
                               Batch<typename Training<Net, Policies...>::Input> inputs,
                               Batch<typename Training<Net, Policies...>::Target> targets,
                               GradientCheckOptions const& options = {}) {
    std::size_t const samples = detail::checked_batch(inputs, targets, "targets");
    auto& machine = detail::MachineAccess::of(train);
    machine.finish();
    return detail::check_layers(machine, elements_of<Net>(), inputs.tensors(), targets.tensors(),
                                samples, options);
}

} // namespace gpipe
