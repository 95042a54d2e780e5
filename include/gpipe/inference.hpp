#pragma once

#include <gpipe/runtime/inference_plan.hpp>
#include <gpipe/training.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace gpipe {

/// Evaluates a Pipeline: what Training::predict() does, in every bit, without a loss, an optimizer,
/// or memory for gradients. Net is the Pipeline; the policies stand in any order, each with a
/// default:
/// - Cells<K> (default Cells<1>) or Balance<n, ...>: how the layers are cut, for K devices;
/// - MicroBatches<M> (default 4 K), that a mini-batch, or a part of one, comes in;
/// - a transport (default transport::Local) and a device (default device::Host).
/// Cells<dynamic> and MicroBatches<dynamic> are chosen in the constructor, which throws
/// std::invalid_argument where a constant would not have compiled. What its type says without an
/// object, InferencePlan has.
///
/// The table that is walked has forwards alone, and so has the plan: parameters, buffers, what the
/// calls of a cell need, and of what goes from cell to cell two slots, so that a device begins with
/// the next micro-batch while the one behind it works on this. Layers are called with
/// Phase::evaluate. Parameters are the layers' first ones until copy_from(), write_parameter() or,
/// with gpipe::state, gpipe::load() brings others.
///
/// All memory is allocated in the constructor. An Inference is used by one thread at a time,
/// else it throws std::logic_error.
template <class Net, class... Policies>
class Inference : public InferencePlan<Net, Policies...>,
                  public Inspectable<Inference<Net, Policies...>, Net,
                                     typename detail::InferencePolicies<Net, Policies...>::Device>,
                  public HasConstants<Net> {
    using Chosen = detail::InferencePolicies<Net, Policies...>;
    using Device = typename Chosen::Device;

  public:
    using Input = detail::inputs_of<Net>;     ///< of one sample, as a Training's
    using Output = typename Net::Output;      ///< of one sample, as the last layer gives it
    using Pending = PendingRun<1>;            ///< what start() returns
    using Options = InferenceOptions<Device>; ///< what is chosen at construction

    /// Plans and allocates all memory and initializes the parameters. Throws std::invalid_argument
    /// where an option does not fit, and what a layer's initialize throws.
    Inference(Net net, Options const& options)
        : net_(std::move(net)),
          machine_(detail::made_together<Device>(
              options.device, [&](MachineWork& work, typename Device::Options& device) {
                  detail::make_inference_work<Chosen>(work, net_, this->constants(), options,
                                                      device);
              })) {}
    Inference(Inference const&) = delete;
    Inference& operator=(Inference const&) = delete;

    /// Writes the chain's outputs for any number of samples, in order: of more than
    /// Options::samples part by part, each of which begins while the one before it is under way. An
    /// exception of a layer leaves as it was thrown, failure() tells where; of several parts it is
    /// the first that failed. Throws std::invalid_argument for batches that do not fit.
    void predict(Batch<Input> inputs, Batch<Output, true> outputs) {
        std::size_t const samples = detail::or_refuse(
            machine_, [&] { return detail::checked_batch(inputs, outputs, "outputs"); });
        machine_.engine().infer(inputs.tensors(), outputs.tensors(), samples);
    }
    /// The same for at most Options::samples, but it may return before that is done, with a handle
    /// whose wait() waits: on a device that enqueues, and on a host of several lanes and one rank.
    /// Up to two are under way, a third waits for the first. The inputs may be changed as soon as
    /// this returns (see Training::start() for those in a GPU's memory), the outputs are there when
    /// wait() has returned, and have to stay until then; if the handle is gone without, as where
    /// something throws in between, until a later call has waited for it, or this object goes. Ones
    /// in a GPU's memory are written behind what is by now on its default stream. What goes wrong
    /// later is thrown by wait(), or by the next call if the handle is gone.
    Pending start(Batch<Input> inputs, Batch<Output, true> outputs) {
        return started(inputs, outputs);
    }
    /// The same for arrays in a GPU's memory, managed or pinned: behind what is on the caller's
    /// stream by now. See Training::start(). Outputs in pageable memory may make it wait.
    template <class D = Device>
    Pending start(Batch<Input> inputs, Batch<Output, true> outputs,
                  typename D::CallersStream stream) {
        return started(inputs, outputs, stream);
    }

    /// Takes the parameters and buffers of a Training of the same Net, whatever its policies, and
    /// seed and number of its steps, by which layers may draw random numbers. Run-time members of
    /// layers stay as they are. Of several ranks each copies the layers that it has: throws
    /// std::out_of_range for one that the training has on another, see gpipe::load().
    template <class... Others> void copy_from(Training<Net, Others...>& train) {
        std::vector<std::byte> values;
        for (std::size_t i = 0; i < Net::size; ++i) {
            if (!machine_.ranks().own(machine_.device_of(i))) continue;
            LayerInfo const& layer = machine_.model().infos[i];
            for (std::size_t t = 0; t < layer.parameters.count; ++t) {
                values.resize(layer.parameters.bytes[t]);
                train.read_parameter(i, t, values);
                this->write_parameter(i, t, values);
            }
            for (std::size_t t = 0; t < layer.buffers.count; ++t) {
                values.resize(layer.buffers.bytes[t]);
                train.read_buffer(i, t, values);
                this->write_buffer(i, t, values);
            }
        }
        machine_.engine().go_on(train.seed(), train.steps(), {});
    }

  private:
    friend struct detail::MachineAccess;

    template <class... Stream>
    Pending started(Batch<Input> const& inputs, Batch<Output, true> const& outputs,
                    Stream... stream) {
        std::size_t const samples = detail::or_refuse(machine_, [&] {
            std::size_t const count = detail::checked_batch(inputs, outputs, "outputs");
            check_room(count, machine_.samples());
            return count;
        });
        Pending pending(machine_.engine());
        machine_.engine().start(inputs.tensors(), outputs.tensors(), samples, nullptr,
                                &pending.outcome_, stream...);
        return pending;
    }

    Net net_;
    [[no_unique_address]] OneReplica::Team<Chosen, Net> team_{};
    Machine<Device> machine_;
};

/// @cond
// What an Inference with a mistake is, once the sentence about it has been said: see Training.
template <class Net, class... Policies>
    requires(!detail::check_inference<Net, Policies...>())
class Inference<Net, Policies...> {
    using Anything = detail::Anything;

  public:
    static constexpr Anything layer_count{}, device_count{}, micro_batch_count{};
    static constexpr Anything first_layers() { return {}; }
    static constexpr Anything peak_bytes(auto const&...) { return {}; }
    static constexpr Anything plan_for(auto const&...) { return {}; }
    using Options = InferenceOptions<device::Host>;
    Inference(auto&&, Options);
    void predict(auto const&, auto const&);
    Anything start(auto const&...);
    void copy_from(auto&);
    template <std::size_t> Anything parameters();
};
/// @endcond

} // namespace gpipe
