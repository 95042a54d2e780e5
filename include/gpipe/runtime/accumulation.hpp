#pragma once

#include <gpipe/chain/chain_sides.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/runtime/chosen_policies.hpp>
#include <gpipe/runtime/machine.hpp>

#include <cstddef>

namespace gpipe {

/// Gradient accumulation of a Training: mini-batches of more samples than memory is planned for.
template <class Training, class Net, class... Policies> class Accumulating {
    using Chosen = detail::ChosenPolicies<Net, Policies...>;
    using Input = detail::inputs_of<Net>;
    using Target = typename Chosen::LossFunctor::Target;
    using Device = typename Chosen::Device;

  public:
    /// Forward and backward of a part of the next step's mini-batch, at most Options::samples for
    /// each replica; any number of parts, and then step() or start() with the last. All of them are
    /// one step: its number and random numbers, gradients, statistics of layers and the loss, whose
    /// total weight the mean is by. Where a schedule runs backward in ascending order, parts of M
    /// micro-batches give every bit that one mini-batch of all their micro-batches would.
    ///
    /// Returns, and throws, as start(), but that the optimizer's numbers are looked at by the step:
    /// what goes wrong later by the next call. Then, and where the step fails, what was accumulated
    /// is forgotten, but not where a call is refused. Evaluations may come between; saved states do
    /// not have it; compute_gradients() throws std::logic_error. On a GPU every part is a graph of
    /// its own (Options::device.graphs).
    void accumulate(Batch<Input> inputs, Batch<Target> targets) { add(inputs, targets); }
    /// The same for arrays of a caller's stream, see start().
    template <class D = Device>
    void accumulate(Batch<Input> inputs, Batch<Target> targets, typename D::CallersStream stream) {
        add(inputs, targets, stream);
    }
    /// Samples that the next step will have beside its own.
    std::size_t accumulated() const { return machine().engine().accumulated(); }
    /// The next step begins anew.
    void forget_accumulated() {
        detail::MachineAccess::together(
            self(), [](auto& machine, bool) { machine.engine().forget_accumulated(); });
    }

  private:
    template <class... Stream>
    void add(Batch<Input> const& inputs, Batch<Target> const& targets, Stream... stream) {
        std::size_t const samples = detail::MachineAccess::checked_step(self(), inputs, targets);
        detail::MachineAccess::start_together(self(), [&](auto& machine, bool) {
            machine.engine().start(inputs.tensors(), targets.tensors(), samples,
                                   &self().optimizer(), nullptr, stream...);
        });
    }
    Training& self() { return static_cast<Training&>(*this); }
    auto const& machine() const {
        return detail::MachineAccess::of(static_cast<Training const&>(*this));
    }
};

} // namespace gpipe
