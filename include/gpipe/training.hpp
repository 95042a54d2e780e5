#pragma once

#include <gpipe/layer/batch.hpp>
#include <gpipe/optimizer/check_rates.hpp>
#include <gpipe/pipeline.hpp>
#include <gpipe/runtime/accumulation.hpp>
#include <gpipe/runtime/check_training.hpp>
#include <gpipe/runtime/constant_plan.hpp>
#include <gpipe/runtime/has_constants.hpp>
#include <gpipe/runtime/inspectable.hpp>
#include <gpipe/runtime/machine_of.hpp>
#include <gpipe/runtime/pending_step.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace gpipe {

/// Trains a Pipeline. Net is the Pipeline; the policies stand in any order, each with a default:
/// - Cells<K> (default Cells<1>) or Balance<n, ...>: how the layers are cut, for K devices;
/// - MicroBatches<M> (default 4 K: "negligible" bubble in the paper, section 2.3);
/// - Loss<F>: the loss functor; there is no default;
/// - Optimizer<F> (default SGD);
/// - a schedule (default schedule::GPipe);
/// - a checkpointing policy (default checkpoint::ExceptLast);
/// - when parameters are updated (default update::AfterCommit), and Replicas (default: none);
/// - a transport (default transport::Local) and a device (default device::Host).
/// What is constant is checked, proven and planned at compile time; what is `dynamic`
/// (Cells<dynamic>, MicroBatches<dynamic>, Replicas<dynamic>, schedule::Dynamic,
/// checkpoint::Dynamic), and what checkpoint::Optimal finds, by the same functions in the
/// constructor, which throws std::invalid_argument where a constant would not have compiled. See
/// ConstantPlan for the former.
///
/// All memory is allocated in the constructor: a step allocates nothing. A Training is used by one
/// thread at a time, and not from within its own steps: std::logic_error. Any number may exist.
template <class Net, class... Policies>
class Training : public ConstantPlan<Net, Policies...>,
                 public Inspectable<Training<Net, Policies...>, Net,
                                    typename detail::ChosenPolicies<Net, Policies...>::Device>,
                 public Accumulating<Training<Net, Policies...>, Net, Policies...>,
                 public HasConstants<Net, Policies...> {
    using Chosen = detail::ChosenPolicies<Net, Policies...>;
    using Device = typename Chosen::Device;
    using LossFunctor = typename Chosen::LossFunctor;
    using OptimizerFunctor = typename Chosen::OptimizerFunctor;
    using Team = typename Chosen::ReplicasPolicy::template Team<Chosen, Net>;
    static constexpr std::size_t metrics = detail::loss_metrics<LossFunctor, typename Net::Output>;

  public:
    using Input = detail::inputs_of<Net>; ///< of one sample: of the first layer, then side inputs
    using Target = typename LossFunctor::Target; ///< of one sample, as the loss takes it
    using Result = StepResult<metrics>;          ///< what a step and an evaluation return
    using Pending = PendingStep<metrics>;        ///< what start() returns
    /// What is chosen at construction.
    using Options = TrainingOptions<typename Chosen::Joins>;

    /// Plans and allocates all memory and initializes the parameters. Throws std::invalid_argument
    /// where an option does not fit, and what a layer's initialize throws.
    Training(Net net, LossFunctor loss, OptimizerFunctor optimizer, Options const& options)
        : net_(std::move(net)), loss_(std::move(loss)), optimizer_(std::move(optimizer)),
          team_(net_, loss_, optimizer_, this->constants(), options),
          machine_(detail::made_together<Device>(
              team_.device(options), [&](MachineWork& work, typename Device::Options& device) {
                  detail::make_work<Chosen>(work, net_, loss_, optimizer_, this->constants(),
                                            options, device);
              })) {}
    /// @cond
    // For its sentences alone.
    template <class N = Net, class F = LossFunctor, class O = OptimizerFunctor>
        requires(!detail::are_taken<N, Net, F, LossFunctor, O, OptimizerFunctor>)
    Training(N const&, F const&, O const&, Options const&)
        : Training(detail::CheckArguments<N, Net, F, LossFunctor, O, OptimizerFunctor>::refuse()) {}
    template <class N = Net>
    Training(N const&, Options const&) : Training(detail::CheckFour<N>::refuse()) {}
    template <class N = Net>
    Training(N const&, LossFunctor const&, Options const&)
        : Training(detail::CheckFour<N>::refuse()) {}
    template <class N = Net, class O>
        requires(!std::convertible_to<O, Options>)
    Training(N const&, LossFunctor const&, O const&) : Training(detail::CheckFour<N>::refuse()) {}
    template <class N = Net, class O>
        requires(!std::convertible_to<O, Options>)
    Training(N const&, LossFunctor const&, Options const&, O const&)
        : Training(detail::CheckFour<N>::refuse()) {}
    /// @endcond
    Training(Training const&) = delete;
    Training& operator=(Training const&) = delete;

    /// Trains on one mini-batch of N samples, at most Options::samples for each replica: forward,
    /// backward, update. Returns the mean loss before the update. An exception of a layer or of the
    /// loss leaves as it was thrown, failure() tells where; parameters, optimizer state and step
    /// count are then as before. Throws std::invalid_argument for batches that do not fit, and for
    /// rates, groups and other numbers of the optimizer that are none or out of bounds,
    /// std::domain_error if the total weight of the loss is not positive and, as if a layer had
    /// thrown it, if the loss, or what of the gradients is looked at, is not finite: see
    /// Options::not_finite, finite_gradients.
    Result step(Batch<Input> inputs, Batch<Target> targets) {
        return started(inputs, targets).result();
    }
    /// The same, but on a device that enqueues it returns before the step is done, with a handle
    /// whose result() waits. Up to two steps are under way, a third waits for the first, and for
    /// the second if that is in vain. The arrays may be changed as soon as this returns. For ones
    /// in a GPU's memory it waits until they are read, behind all that is by now on the default
    /// stream of that GPU, and on streams that wait for it; what other streams write
    /// (cudaStreamNonBlocking) must have been written, here and in evaluate() and predict(). What
    /// goes wrong later is thrown by result(), or by the next call if the handle is gone. On a host
    /// the step is done when this returns, unless updates are immediate, of several lanes or ranks.
    Pending start(Batch<Input> inputs, Batch<Target> targets) { return started(inputs, targets); }
    /// The same for arrays in a GPU's memory, managed or pinned: the step waits for what is on the
    /// caller's stream by now, and what comes on that stream next may write them again; the host,
    /// when the step is done. Throws std::invalid_argument for an array in pageable memory, and for
    /// a stream that is capturing.
    template <class D = Device>
    Pending start(Batch<Input> inputs, Batch<Target> targets, typename D::CallersStream stream) {
        return started(inputs, targets, stream);
    }

    /// What a step begins with: forward and backward of a mini-batch, with the random numbers of
    /// the next step. Leaves the mean gradients (clipped, where a step clips them) and changes
    /// nothing else: parameters, optimizer state and the number of steps are as before. Returns and
    /// throws what step() does.
    Result compute_gradients(Batch<Input> inputs, Batch<Target> targets) {
        std::size_t const samples = checked_step(inputs, targets);
        double const* sums = nullptr;
        team_.together(machine_, [&](auto& machine, bool first) {
            auto const own = machine.engine().gradients(inputs.tensors(), targets.tensors(),
                                                        samples, &optimizer_);
            if (first) sums = own.data();
        });
        return detail::mean<metrics>(sums);
    }

    /// The mean loss over any number of samples, finite or not: forward only, no dropout, nothing
    /// kept or changed.
    Result evaluate(Batch<Input> inputs, Batch<Target> targets) {
        std::size_t const samples = checked(inputs, targets, "targets");
        std::array<double, 3 + metrics> total{};
        team_.together(machine_, [&](auto& machine, bool first) {
            std::array<double, 3 + metrics> unheard{};
            machine.engine().forward(inputs.tensors(), targets.tensors(), samples,
                                     (first ? total : unheard).data());
        });
        return detail::mean<metrics>(total.data());
    }

    /// Writes the chain's outputs for any number of samples, in order: forward only, as evaluate().
    void predict(Batch<Input> inputs, Batch<typename Net::Output, true> outputs) {
        std::size_t const samples = checked(inputs, outputs, "outputs");
        team_.together(machine_, [&](auto& machine, bool) {
            machine.engine().forward(inputs.tensors(), outputs.tensors(), samples, nullptr);
        });
    }

    /// The optimizer, to change a learning rate between steps.
    OptimizerFunctor& optimizer() { return optimizer_; }
    OptimizerFunctor const& optimizer() const { return optimizer_; } ///< to be looked at

    LossFunctor const& loss() const { return loss_; } ///< as it is
    /// Calls change(loss), which may set its run-time members: see change_layer().
    template <class F> void change_loss(F&& change) {
        if constexpr (!detail::CheckChange<F, LossFunctor>::ok()) return;
        machine_.engine().forget_steps();
        static_cast<F&&>(change)(loss_);
    }

    /// The mean gradients of the last step, or compute_gradients(); unspecified after a step that
    /// failed, and those of single parameters that are frozen.
    template <std::size_t index> auto gradients() {
        std::byte* const* all = nullptr;
        if constexpr (detail::CheckViews<Device>::ok())
            all = not_frozen(this->settled(), index).layer(index).gradients;
        return parameter_views<ParametersOf<index>, detail::Access::write>(all);
    }
    /// The mean gradient of a parameter tensor in the last step: see parameter().
    template <class T> std::span<T> gradient(std::size_t layer, std::size_t tensor) {
        if constexpr (!detail::CheckViews<Device>::ok()) return {};
        auto const at = parameter_at<T>(not_frozen(this->settled(), layer, tensor), layer, tensor);
        return {reinterpret_cast<T*>(at.gradient), at.bytes / sizeof(T)};
    }
    /// The same by copies: see read_parameter().
    template <class T = void, class Range = std::span<T>>
        requires detail::IsArray<Range>
    void read_gradient(std::size_t layer, std::size_t tensor, Range&& to) {
        auto const values = detail::written_span<T, Range>(to);
        auto& machine = not_frozen(this->settled(), layer, tensor);
        machine.copy(std::as_writable_bytes(values).data(),
                     parameter_for(machine, layer, tensor, values).gradient, values.size_bytes());
    }
    /// Copies an array of what the optimizer has for a parameter tensor, as its rule() numbers
    /// them: of Adam 0 the first moment and 1 the second, of a user's own perhaps an average of
    /// parameters. Zeros before the first step. Throws as read_gradient(), std::out_of_range where
    /// the optimizer has not so many, and std::logic_error where replicas have parts of them.
    template <class T = void, class Range = std::span<T>>
        requires detail::IsArray<Range>
    void read_optimizer_state(std::size_t layer, std::size_t tensor, std::size_t array,
                              Range&& to) {
        auto const values = detail::written_span<T, Range>(to);
        auto& machine = this->settled();
        machine.copy(std::as_writable_bytes(values).data(),
                     optimizer_state_for(machine, layer, tensor, array, values),
                     values.size_bytes());
    }
    /// What the gradient of the loss is multiplied by in the next step, see Options::loss_scale; 1
    /// if it is not scaled. Waits for all steps.
    double loss_scale() { return this->settled().engine().runs().scale().factor; }
    /// Which gradient was not finite, if there is a loss scale, and the last step that is done was
    /// skipped for one. (Without a scale StepResult::skipped() says that it was.)
    std::optional<Failure> skipped() const { return machine_.engine().runs().skipped(); }
    /// By cell how it is reversed, or none.
    Array<Reversal> const& reversals() const { return machine_.reversals(); }
    /// What its actions take where layers take that, and the bytes that the plan has for what goes
    /// from cell to cell, for simulate() and predicted_bubble().
    ChainCosts<double> costs_of(LayerTimes const& times) const {
        return with_edges(reversed_costs(times, machine_.chain(), reversals()),
                          this->plan().lowered.edges);
    }
    /// How often a step runs each layer again, by layer.
    Array<std::size_t> extra_forwards() const {
        return gpipe::extra_forwards(this->programs(), machine_.chain(), reversals());
    }

  private:
    friend struct detail::MachineAccess;
    template <std::size_t index>
    using ParametersOf = typename LayerTraits<typename Net::template Layer<index>>::Parameters;

    explicit Training(detail::Refused); // never

    void check_rates() const {
        detail::check_rates<OptimizerFunctor>(&optimizer_, machine_.model().states);
    }
    template <class... Stream>
    Pending started(Batch<Input> const& inputs, Batch<Target> const& targets, Stream... stream) {
        Pending pending(machine_.engine());
        std::size_t const samples = checked_step(inputs, targets);
        if constexpr (!joins_ranks<Device> || calls_enqueue<Device>) // else they do so together
            check_rates();
        team_.start_together(machine_, [&](Machine<Device>& machine, bool first) {
            auto const start = [&](StepOutcome* outcome) {
                machine.engine().start(inputs.tensors(), targets.tensors(), samples, &optimizer_,
                                       outcome, stream...);
            };
            if (first) return start(&pending.outcome_);
            std::array<double, 3 + metrics> totals;
            StepOutcome unheard(totals.data());
            start(&unheard);
        });
        return pending;
    }
    std::size_t checked_step(Batch<Input> const& inputs, Batch<Target> const& targets) {
        return detail::or_refuse<true>(machine_, [&] {
            std::size_t const samples = detail::checked_batch(inputs, targets, "targets");
            check_room(samples, machine_.all_samples());
            if (joins_ranks<Device> && !machine_.engine().runs().all_ended())
                check_rates(); // else they do so together
            if constexpr (requires { optimizer_.chosen_name(); })
                check_optimizer(optimizer_.chosen_name(), planned_optimizer_);
            if constexpr (requires { optimizer_.check_layers(Net::size); })
                optimizer_.check_layers(Net::size);
            return samples;
        });
    }
    template <class Others>
    std::size_t checked(Batch<Input> const& inputs, Others const& others, char const* what) {
        return detail::or_refuse(machine_,
                                 [&] { return detail::checked_batch(inputs, others, what); });
    }

    Net net_;
    LossFunctor loss_;
    OptimizerFunctor optimizer_;
    std::string_view const planned_optimizer_ = detail::chosen_name(optimizer_);
    [[no_unique_address]] Team team_;
    Machine<Device> machine_;
};

} // namespace gpipe
