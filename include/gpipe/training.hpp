#pragma once

#include <gpipe/balance/validate.hpp>
#include <gpipe/chain/handle_table.hpp>
#include <gpipe/checkpoint/reversed_costs.hpp>
#include <gpipe/core/checked.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/layer/stash.hpp>
#include <gpipe/memory/usage.hpp>
#include <gpipe/pipeline.hpp>
#include <gpipe/plan/edge_costs.hpp>
#include <gpipe/runtime/choices.hpp>
#include <gpipe/runtime/chosen_policies.hpp>
#include <gpipe/runtime/loss_thunk.hpp>
#include <gpipe/runtime/machine.hpp>
#include <gpipe/runtime/machine_timeline.hpp>
#include <gpipe/runtime/model_of.hpp>
#include <gpipe/runtime/parameter_access.hpp>
#include <gpipe/runtime/pending_step.hpp>
#include <gpipe/runtime/summary.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/trace/timeline.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

namespace detail {

template <class Net, bool is_pipeline> struct CheckModel {
    static consteval bool ok() {
        static_assert(is_pipeline,
                      "gpipe: the first argument of Training is the model: a gpipe::Pipeline");
        return is_pipeline;
    }
};

// Whether a Training is what it should be; says what is not.
template <class Net, class... Policies> consteval bool check_training() {
    if constexpr (!CheckModel<Net, is_pipeline<Net>>::ok())
        return false;
    else if constexpr (!is_sound<Net>) // has been said
        return false;
    else
        return ChosenPolicies<Net, Policies...>::check();
}

struct StateAccess;    // of gpipe/state/
struct GradientAccess; // of gpipe/check_gradients.hpp

} // namespace detail

/// Trains a Pipeline. Net is the Pipeline; the policies stand in any order, each with a default:
/// - Cells<K> (default Cells<1>) or Balance<n, ...>: how the layers are cut, for K devices;
/// - MicroBatches<M> (default 4 K: "negligible" bubble in the paper, section 2.3);
/// - Loss<F>: the loss functor; there is no default;
/// - Optimizer<F> (default SGD);
/// - a schedule (default schedule::GPipe);
/// - a checkpointing policy (default checkpoint::ExceptLast);
/// - when parameters are updated (default update::AfterCommit);
/// - a transport (default transport::Local) and a device (default device::Host).
/// What is constant is checked, proven and planned at compile time; what is `dynamic`
/// (Cells<dynamic>, MicroBatches<dynamic>, schedule::Dynamic, checkpoint::Dynamic), and what
/// checkpoint::Optimal finds, by the same functions in the constructor, which throws
/// std::invalid_argument where a constant would not have compiled.
///
/// All memory is allocated in the constructor: a step allocates nothing. A Training is used by one
/// thread at a time; any number of them may exist.
template <class Net, class... Policies> class Training {
    using Chosen = detail::ChosenPolicies<Net, Policies...>;
    using Cut = typename Chosen::Cut;
    using Schedule = typename Chosen::Schedule;
    using Checkpointing = typename Chosen::Checkpointing;
    using Update = typename Chosen::Update;
    using Device = typename Chosen::Device;
    using LossFunctor = typename Chosen::LossFunctor;
    using OptimizerFunctor_ = typename Chosen::OptimizerFunctor;
    using Stream = typename Device::Stream;

  public:
    /// L, K, the cells on all of the devices, and M; `dynamic` where they are chosen at
    /// construction.
    static constexpr std::size_t layer_count = Net::size;
    static constexpr std::size_t device_count = Chosen::device_count;           ///< K
    static constexpr std::size_t cell_count = Chosen::cell_count;               ///< on all devices
    static constexpr std::size_t micro_batch_count = Chosen::micro_batch_count; ///< M
    /// Whether everything but the number of samples is in the type, and what runs again is no
    /// matter of a search, as within the budget of checkpoint::Optimal.
    static constexpr bool constant = Chosen::constant;

    using Input = typename Net::Input;           ///< of one sample, as the first layer takes it
    using Target = typename LossFunctor::Target; ///< of one sample, as the loss takes it
    /// What a step and an evaluation return.
    using Result = StepResult<detail::loss_metrics<LossFunctor, Net>>;
    using Pending = PendingStep<detail::loss_metrics<LossFunctor, Net>>; ///< what start() returns

    /// The layer that each cell begins with, then L, where nothing that it hangs on is chosen at
    /// construction: see cut_for().
    static constexpr Array<std::size_t> first_layers() requires(Chosen::constant_cut) {
        return Chosen::first_layers();
    }
    /// The idle share of device time at unit costs (forward, input gradient and weight gradient of
    /// a cell 1 each; a whole backward 2), without recomputation. In a cell without a layer that
    /// offers both halves of its backward that runs whole.
    static constexpr Ratio bubble() requires(Chosen::constant_schedule) {
        return gpipe::bubble(Chosen::schedule_programs());
    }
    /// The same where cost(action) is what each action takes (CellCosts, ChainCosts, or any
    /// function), with recomputation, which counts as work; see simulate() for the rest.
    template <class Cost>
    static constexpr double bubble(Cost const& cost, double latency = 0,
                                   double bandwidth = unlimited<double>) requires constant {
        Programs const programs = Chosen::checkpointed().programs;
        return gpipe::bubble(simulate<double>(programs, cost, latency, bandwidth),
                             programs.devices());
    }
    /// What actions take where layers take that, for bubble(): see reversed_costs(). With the bytes
    /// that go from cell to cell for micro-batches of so many samples, if that is given.
    static constexpr ChainCosts<double> action_costs(LayerTimes const& times,
                                                     std::size_t samples = 0) requires constant {
        Array<LayerInfo> const layers = Net::layers();
        Array<std::size_t> const first = first_layers();
        ChainCosts<double> costs = reversed_costs(
            times, {layers.data(), layers.size(), first.data()}, Chosen::checkpointed().reversals);
        if (samples == 0) return costs;
        return with_edges(std::move(costs),
                          plan_with(samples, plan_bytes, Link::shared, false).lowered.edges);
    }
    /// The most activations of a micro-batch in a cell that a device holds at a time: from the
    /// begin of the forward to the end of the backward.
    static constexpr std::size_t
    peak_micro_batches(std::size_t device) requires(Chosen::constant_schedule) {
        return gpipe::peak_micro_batches(Chosen::schedule_programs(), device);
    }
    /// The bytes that a device needs in all, for micro-batches of up to `samples` samples, with
    /// what the norm of the gradients takes, and what copies do: where tensors may have to be
    /// copied between devices, any two have such a `link`. On a machine with several kinds ask for
    /// each; benchmarks/plan prints the most over all of them beside every plan.
    static constexpr std::size_t peak_bytes(std::size_t device, std::size_t samples,
                                            Link link = Device::most_link) requires constant {
        return plan_with(samples, plan_bytes, link, true).devices[device].total();
    }
    /// The whole memory plan for micro-batches of up to `samples` samples, where any two devices
    /// have such a link and nobody wants the norm of the gradients.
    static constexpr MemoryPlan plan_for(std::size_t samples,
                                         Link link = Link::shared) requires constant {
        return plan_with(samples, plan_memory, link, false);
    }

    /// What is chosen at construction. `cells` (the K of Cells<K>), `micro_batches`, `schedule` and
    /// `checkpointing` are for the policies that are dynamic.
    struct Options {
        std::size_t samples = 0; ///< largest mini-batch that memory is planned for
        std::uint64_t seed = 0;  ///< of all random numbers: the first parameters, dropout masks
        std::size_t cells = 0;   ///< k of Cells<dynamic>
        std::size_t micro_batches = 0; ///< 0: 4 K
        /// Gradients whose norm over all parameters is larger are scaled down to it (Pascanu,
        /// Mikolov and Bengio, 2013), which must be finite. 0: neither. On a device that cannot
        /// read the host's memory it takes some.
        double clip_norm = 0;
        /// Whether gradients must be finite, too, where nothing is clipped: it takes the same norm.
        /// With update::Immediate each device looks at its own: those that find no fault update,
        /// and unless none did the object is then of no use, and says so.
        bool finite_gradients = false;
        /// What becomes of a step whose loss, or what of its gradients is looked at, is not.
        NotFinite not_finite = NotFinite::fail;
        /// For schedule::Dynamic; none: GPipe.
        schedule::Dynamic schedule{};
        /// For checkpoint::Dynamic; none: ExceptLast.
        checkpoint::Dynamic checkpointing{};
        /// What the device lets one choose, e.g. which GPUs.
        typename Device::Options device{};
        /// Whether there is room in the host's memory for a copy of parameters and optimizer state,
        /// from which start_save() writes while training goes on: MemoryPlan::snapshot bytes.
        bool snapshot = false;
        /// Whether every call of a layer, or the loss, is looked at. What it has to write holds
        /// NaNs before (of integers large numbers), and so does its scratch. Memory is planned for
        /// one sample more in each micro-batch, whatever the bytes of checkpoint::Optimal, and for
        /// something behind the gradients of each layer: nobody may write that. What is left
        /// unwritten, or written beyond its end, is a std::logic_error that names tensor, place,
        /// function and layer; the step fails as if that had thrown. All results are those without
        /// it, in every bit. Not noticed are copies of what was unwritten; fewer than eight bytes
        /// in a row of integers of one or two; and a parameter's gradient that is written on in
        /// the next one's, if its bytes are a multiple of 256. On a GPU every call is waited for,
        /// so that a kernel's fault has its layer's name, but not in steps that are kept as graphs,
        /// which are not looked at; and see device::Cuda::Options::blocking.
        bool debug = false;
    };

    /// Plans and allocates all memory and initializes the parameters. Throws std::invalid_argument
    /// where an option does not fit, and what a layer's initialize throws.
    Training(Net net, LossFunctor loss, OptimizerFunctor_ optimizer, Options options)
        : net_(std::move(net)), loss_(std::move(loss)), optimizer_(std::move(optimizer)),
          machine_(detail::model_of<Device>(net_, loss_, optimizer_), chosen_cut(options),
                   chosen_programs(options), checked_samples(options.samples), options.seed,
                   chosen_checks(options), Update::immediate, device_options(options)) {}
    Training(Training const&) = delete;
    Training& operator=(Training const&) = delete;

    /// Trains on one mini-batch of N samples, 1 <= N <= Options::samples: forward, backward,
    /// update. Returns the mean loss before the update. An exception of a layer or of the loss
    /// leaves as it was thrown, failure() tells where; parameters, optimizer state and step count
    /// are then as before. Throws std::invalid_argument for batches that do not fit,
    /// std::domain_error if the total weight of the loss is not positive, and, as if a layer had
    /// thrown it, if the loss is not finite: see Options::not_finite, finite_gradients.
    Result step(Batch<Input> inputs, Batch<Target> targets) {
        return start(inputs, targets).result();
    }
    /// The same, but on a device that enqueues it returns before the step is done, with a handle
    /// whose result() waits. Up to two steps are under way, a third waits for the first. The arrays
    /// may be changed as soon as this returns. For ones in a GPU's memory it waits until they are
    /// read, behind all that is by now on the default stream of that GPU, and on streams that wait
    /// for it; what other streams write (cudaStreamNonBlocking) must have been written, here and in
    /// evaluate() and predict(). What goes wrong later is thrown by result(), or by the next call
    /// if the handle is gone. On a host the step is done when this returns, unless updates are
    /// immediate and there are several lanes: then the others may be in it yet.
    Pending start(Batch<Input> inputs, Batch<Target> targets) {
        Pending pending(&machine_.engine(), &finish);
        machine_.engine().start(inputs.tensors(), targets.tensors(), checked_step(inputs, targets),
                                &optimizer_, pending.outcome_);
        return pending;
    }
    /// The same for arrays in a GPU's memory, managed or pinned: the step waits for what is on the
    /// caller's stream by now, and what comes on that stream next may write them again; the host,
    /// when the step is done. Throws std::invalid_argument for an array in pageable memory.
    template <class D = Device>
    Pending start(Batch<Input> inputs, Batch<Target> targets, typename D::CallersStream stream) {
        Pending pending(&machine_.engine(), &finish);
        machine_.engine().start(inputs.tensors(), targets.tensors(), checked_step(inputs, targets),
                                &optimizer_, pending.outcome_, stream);
        return pending;
    }

    /// What a step begins with: forward and backward of a mini-batch, with the random numbers of
    /// the next step. Leaves the mean gradients (clipped, where a step clips them) and changes
    /// nothing else: parameters, optimizer state and the number of steps are as before. Returns and
    /// throws what step() does.
    Result compute_gradients(Batch<Input> inputs, Batch<Target> targets) {
        std::size_t const samples = checked_step(inputs, targets);
        auto const sums =
            machine_.engine().gradients(inputs.tensors(), targets.tensors(), samples, &optimizer_);
        std::array<double, 3 + metrics> total{};
        std::copy(sums.begin(), sums.end(), total.begin());
        return detail::mean<metrics>(total);
    }

    /// The mean loss over any number of samples: forward only, no dropout, nothing kept or changed.
    Result evaluate(Batch<Input> inputs, Batch<Target> targets) {
        std::size_t const samples = checked_batch(inputs, targets, "targets");
        std::array<double, 3 + metrics> total{};
        machine_.engine().forward(inputs.tensors(), targets.tensors(), samples, true,
                                  [&](std::span<double const> sums) {
                                      for (std::size_t i = 0; i < total.size(); ++i)
                                          total[i] += sums[i];
                                  });
        return detail::mean<metrics>(total);
    }

    /// Writes the chain's outputs for any number of samples, in order: forward only, as evaluate().
    void predict(Batch<Input> inputs, Batch<typename Net::Output, true> outputs) {
        std::size_t const samples = checked_batch(inputs, outputs, "outputs");
        machine_.engine().forward(inputs.tensors(), outputs.tensors(), samples, false,
                                  [](std::span<double const>) {});
    }

    /// The optimizer, to change a learning rate between steps.
    OptimizerFunctor_& optimizer() { return optimizer_; }
    /// The same to be looked at.
    OptimizerFunctor_ const& optimizer() const { return optimizer_; }

    /// Layer `index` as it is; all repetitions in a Repeat share one.
    template <std::size_t index> typename Net::template Layer<index> const& layer() const {
        return *static_cast<typename Net::template Layer<index> const*>(
            net_.leaf_objects()[Net::leaf_of(index)]);
    }
    /// The loss as it is.
    LossFunctor const& loss() const { return loss_; }
    /// Calls change(layer), which may set its run-time members, once no step is under way: from the
    /// next step or evaluation on they hold. Steps that are kept as graphs are captured anew.
    template <std::size_t index, class F> void change_layer(F&& change) {
        machine_.engine().forget_steps();
        using Layer = typename Net::template Layer<index>;
        static_cast<F&&>(change)(const_cast<Layer&>(layer<index>())); // net_ is no constant
    }
    /// The same with the loss.
    template <class F> void change_loss(F&& change) {
        machine_.engine().forget_steps();
        static_cast<F&&>(change)(loss_);
    }

    /// The parameters of layer `index` as its context gives them, writable between steps; where the
    /// host can read the device's memory. What is written to tied ones is what all ends have when
    /// this, or any other call, is called next.
    template <std::size_t index> auto parameters() requires HostReadable<Device> {
        settled().engine().tied().lend(index);
        return tensor_views<ParametersOf<index>, detail::Access::write>(
            machine_.layer(index).parameters);
    }
    /// The mean gradients of the last step, or compute_gradients(); unspecified after a step that
    /// failed.
    template <std::size_t index> auto gradients() requires HostReadable<Device> {
        return tensor_views<ParametersOf<index>, detail::Access::write>(
            settled().layer(index).gradients);
    }
    /// Parameter tensor `tensor` of layer `layer`, by number. Throws std::out_of_range, and
    /// std::invalid_argument if its elements are of another type than T; std::byte stands for any.
    template <class T>
    std::span<T> parameter(std::size_t layer, std::size_t tensor) requires HostReadable<Device> {
        auto const at = parameter_at<T>(settled(), layer, tensor);
        machine_.engine().tied().lend(layer);
        return {reinterpret_cast<T*>(at.parameter), at.bytes / sizeof(T)};
    }
    /// Its mean gradient in the last step.
    template <class T>
    std::span<T> gradient(std::size_t layer, std::size_t tensor) requires HostReadable<Device> {
        auto const at = parameter_at<T>(settled(), layer, tensor);
        return {reinterpret_cast<T*>(at.gradient), at.bytes / sizeof(T)};
    }
    /// The same by copies, from and to any device's memory. Throws std::invalid_argument, too, if
    /// the sizes differ.
    template <class T> void read_parameter(std::size_t layer, std::size_t tensor, std::span<T> to) {
        auto const at = parameter_for(settled(), layer, tensor, to);
        machine_.copy(reinterpret_cast<std::byte*>(to.data()), at.parameter, at.bytes);
    }
    /// To the parameter.
    template <class T>
    void write_parameter(std::size_t layer, std::size_t tensor, std::span<T const> from) {
        auto const at = parameter_for(settled(), layer, tensor, from);
        machine_.copy(at.parameter, reinterpret_cast<std::byte const*>(from.data()), at.bytes);
        machine_.engine().tied().spread(layer);
    }
    /// From the mean gradient in the last step.
    template <class T> void read_gradient(std::size_t layer, std::size_t tensor, std::span<T> to) {
        auto const at = parameter_for(settled(), layer, tensor, to);
        machine_.copy(reinterpret_cast<std::byte*>(to.data()), at.gradient, at.bytes);
    }
    /// How many parameter tensors a layer has. Throws std::out_of_range.
    std::size_t tensors(std::size_t layer) const {
        check_layer(machine_, layer);
        return machine_.model().infos[layer].parameters.count;
    }

    /// Layers, shapes, parameters, cells and bytes as a text of two tables.
    std::string summary() const {
        return gpipe::summary(machine_.model().infos, elements_of<Net>(), machine_.model().ties,
                              plan());
    }

    /// Where the last step, evaluate or predict failed, if it did.
    std::optional<Failure> const& failure() const { return machine_.engine().failure(); }
    /// Steps trained, and done by now.
    std::uint64_t steps() const { return machine_.engine().steps(); }
    /// K.
    std::size_t devices() const { return machine_.programs().devices(); }
    /// On all devices.
    std::size_t cells() const { return machine_.programs().cells(); }
    /// M.
    std::size_t micro_batches() const { return machine_.programs().micro_batches(); }
    /// Walkers of a step: threads on the host.
    std::size_t lanes() const { return machine_.engine().lanes(); }
    /// Options::seed.
    std::uint64_t seed() const { return machine_.engine().seed(); }
    /// Options::samples: the largest mini-batch.
    std::size_t samples() const { return machine_.samples(); }
    /// The programs with their recomputes, and the memory plan, as they run.
    Programs const& programs() const { return machine_.programs(); }
    /// Where everything lies.
    MemoryPlan const& plan() const { return machine_.plan(); }
    /// By cell how it is reversed, or none.
    Array<Reversal> const& reversals() const { return machine_.reversals(); }
    /// What its actions take where layers take that, and the bytes that the plan has for what goes
    /// from cell to cell, for simulate() and predicted_bubble().
    ChainCosts<double> costs_of(LayerTimes const& times) const {
        Array<LayerInfo> const& layers = machine_.model().infos;
        return with_edges(
            reversed_costs(times, {layers.data(), layers.size(), plan().first.data()}, reversals()),
            plan().lowered.edges);
    }
    /// How often a step runs each layer again, by layer.
    Array<std::size_t> extra_forwards() const {
        Array<LayerInfo> const& layers = machine_.model().infos;
        return gpipe::extra_forwards(
            programs(), {layers.data(), layers.size(), plan().first.data()}, reversals());
    }
    /// Bytes of all arenas by the plan, and as allocated.
    std::size_t planned_bytes() const { return machine_.plan().total(); }
    /// As allocated.
    std::size_t used_bytes() const { return machine_.used_bytes(); }
    /// Bytes of the host's memory that copies go to or through: what is offloaded, tensors on their
    /// way between devices that cannot reach each other, and the snapshot, if there is one.
    std::size_t host_bytes() const { return plan().host + plan().snapshot; }
    /// A device's memory.
    std::span<std::byte> arena(std::size_t device) { return machine_.arena(device); }

    /// From the next run on, notes when every action runs, or is enqueued: see times(). Steps are
    /// then not kept as graphs.
    void time_actions() { machine_.engine().time_actions(); }
    /// When each action of the last run ran, by its index among all actions; only after
    /// time_actions().
    Array<ActionTime> const& times() const { return machine_.engine().times(); }
    /// The same as a timeline in seconds, to be drawn; without those whose micro-batch was empty.
    /// After a training step with the bytes that were in use. Says how often a lane lost its core.
    /// Throws std::logic_error if there is no timed run.
    Timeline timeline(std::string_view title = {}) const {
        return detail::timeline_of(machine_, title);
    }

    /// The timeline of a step in which actions take cost(action) and every device runs by itself,
    /// by simulation, with the bytes in use; copies, and the waits for their room, take no time.
    template <class Cost>
    Timeline predicted_timeline(Cost const& cost, std::string_view title = {}) const {
        auto const times = simulate<double>(programs(), cost);
        Timeline result = gpipe::timeline(programs(), times, title);
        result.memory(memory_usage(plan(), times));
        return result;
    }
    /// The idle share of the lanes' time that a step would have if cost(action) were what each
    /// action takes: the programs of neighbouring devices merged for each walker, with needs and
    /// nothing else to wait for.
    template <class Cost> double predicted_bubble(Cost cost) const {
        Lanes const lanes = machine_.merged(cost);
        double const available = lanes.makespan * static_cast<double>(lanes.lanes());
        return available > 0 ? 1 - lanes.busy / available : 0;
    }

  private:
    template <class Plan>
    static constexpr MemoryPlan plan_with(std::size_t samples, Plan plan, Link link,
                                          bool squares) requires constant {
        Array<LayerInfo> const layers = Net::layers();
        Array<std::size_t> const first = first_layers();
        Checkpointed const checkpointed = Chosen::checkpointed();
        ChainShape const shape = Chosen::shape(layers);
        Array<Link> links;
        if (link != Link::shared)
            links = links_between(
                checkpointed.programs, first, shape.skips,
                [=](std::size_t from, std::size_t to) { return from == to ? Link::shared : link; });
        PlanRequest const request{
            shape, first, OptimizerFunctor_::states, samples, Chosen::staging(samples, squares),
            links};
        return plan(request, checkpointed.programs, checkpointed.reversals, &choose_offloads);
    }
    friend struct detail::StateAccess;
    friend struct detail::GradientAccess;
    template <std::size_t index>
    using ParametersOf = typename LayerTraits<typename Net::template Layer<index>>::Parameters;
    static constexpr std::size_t metrics = detail::loss_metrics<LossFunctor, Net>;

    // Once no step is under way. Throws what was wrong with one that nobody listens to.
    Machine<Device>& settled() {
        machine_.finish();
        return machine_;
    }
    static void finish(void* engine, StepOutcome const& outcome) {
        static_cast<Engine<Device>*>(engine)->finish(outcome);
    }
    std::size_t checked_step(Batch<Input> const& inputs, Batch<Target> const& targets) const {
        std::size_t const samples = checked_batch(inputs, targets, "targets");
        if (samples > machine_.samples())
            detail::throw_error<std::invalid_argument>(
                "gpipe: a mini-batch of %zu samples, but memory was planned for %zu", samples,
                machine_.samples());
        if constexpr (requires { optimizer_.chosen_name(); })
            check_optimizer(optimizer_.chosen_name());
        return samples;
    }

    // Another one would take the state for its own.
    void check_optimizer(std::string_view chosen) const {
        if (chosen != planned_optimizer_)
            detail::throw_error<std::invalid_argument>(
                "gpipe: the optimizer is %.*s now, but state was planned for %.*s",
                static_cast<int>(chosen.size()), chosen.data(),
                static_cast<int>(planned_optimizer_.size()), planned_optimizer_.data());
    }

    static StepChecks chosen_checks(Options const& options) {
        double const norm = checked_clip(options.clip_norm);
        if (Update::immediate && norm > 0)
            detail::throw_error<std::invalid_argument>(
                "gpipe: Options::clip_norm is %g, but with update::Immediate devices update their "
                "parameters before the norm of all gradients is known",
                norm);
        if (Update::immediate && options.finite_gradients && options.not_finite == NotFinite::go_on)
            throw std::invalid_argument(
                "gpipe: Options::finite_gradients with NotFinite::go_on drops steps whose "
                "gradients "
                "are not finite, but with update::Immediate devices update their parameters before "
                "all gradients are known");
        return {norm, options.finite_gradients, options.not_finite};
    }
    static typename Device::Options device_options(Options const& options) {
        typename Device::Options result = options.device;
        if constexpr (requires { result.blocking; }) result.blocking |= options.debug;
        return result;
    }
    static schedule::Dynamic chosen_schedule(Options const& options) {
        if constexpr (Chosen::knows_schedule)
            return Schedule{};
        else if (!options.schedule)
            return schedule::GPipe{};
        else
            return options.schedule;
    }
    // K.
    static std::size_t chosen_devices(Options const& options) {
        std::size_t const cells_per_device = chosen_schedule(options).cells_per_device();
        if constexpr (!Chosen::knows_schedule && cuts_by_hand<Cut>)
            if (Cut::cells % cells_per_device != 0)
                detail::throw_error<std::invalid_argument>(
                    "gpipe: the schedule has %zu cells on each device, and the %zu entries of the "
                    "balance are no multiple of it",
                    cells_per_device, Cut::cells);
        return chosen_number("cells", devices_of<Cut>(cells_per_device), options.cells, 0);
    }
    static Array<std::size_t> chosen_cut(Options const& options) {
        std::size_t const devices = chosen_devices(options);
        check_cells(Net::size, devices); // each has one at least
        std::size_t const cells =
            checked_product(devices, chosen_schedule(options).cells_per_device());
        check_cells(Net::size, cells);
        Array<double> const costs = detail::declared_costs<Net>();
        check_costs(costs.data(), costs.size());
        if constexpr (Chosen::constant_cut)
            return Chosen::first_layers();
        else
            return Chosen::cut(cells, costs, weighed_programs(options));
    }
    // For the cut; none if they are wrong, which is said later.
    static Programs weighed_programs(Options const& options) {
        checkpoint::Dynamic const checkpointing = chosen_checkpointing(options);
        if (!WeighsCells<Cut> || checkpointing.reverses()) return {};
        std::size_t const devices = chosen_devices(options);
        schedule::Dynamic const schedule = chosen_schedule(options);
        std::size_t const cells = devices * schedule.cells_per_device();
        std::size_t const micro_batches = weighed_micro_batches(
            chosen_micro_batches(options, devices), cells, schedule.least_micro_batches(devices));
        if (micro_batches == 0) return {};
        Programs const plain = schedule.programs(devices, micro_batches);
        if (plain.cells() != cells || plain.devices() != devices || !verify(plain)) return {};
        return checkpointing.lower(plain);
    }
    static std::size_t chosen_micro_batches(Options const& options, std::size_t devices) {
        return chosen_number("micro_batches", micro_batch_count, options.micro_batches,
                             checked_product(4, devices));
    }
    static checkpoint::Dynamic chosen_checkpointing(Options const& options) {
        if constexpr (!std::is_same_v<Checkpointing, checkpoint::Dynamic>)
            return Checkpointing{};
        else if (!options.checkpointing)
            return checkpoint::ExceptLast{};
        else
            return options.checkpointing;
    }
    static MachineWork chosen_programs(Options const& options) {
        std::size_t const devices = chosen_devices(options);
        std::size_t const micro_batches = chosen_micro_batches(options, devices);
        Array<LayerInfo> layers(Net::size);
        Net::for_each_layer(
            [&](std::size_t layer, std::size_t leaf) { layers[layer] = Net::leaf_info[leaf]; });
        Array<std::size_t> const first = chosen_cut(options);
        check_micro_batches(micro_batches, first.size() - 1);
        MachineWork work;
        work.snapshot = options.snapshot;
        work.debug = options.debug;
        if constexpr (Chosen::proven) {
            static_cast<Checkpointed&>(work) =
                Chosen::applied(layers, first, Schedule::programs(devices, micro_batches));
        } else {
            static_cast<Checkpointed&>(work) =
                proven_programs(chosen_schedule(options), chosen_checkpointing(options), devices,
                                micro_batches, {layers.data(), layers.size(), first.data()});
        }
        constexpr bool any = std::is_same_v<Checkpointing, checkpoint::Dynamic>;
        if constexpr (any || BudgetPolicy<Checkpointing>) work.fit = &fitted_programs;
        if constexpr (any || reverses_cells<Checkpointing>) work.choose = &choose_offloads;
        return work;
    }

    template <class Other>
    static std::size_t checked_batch(Batch<Input> const& inputs, Other const& other,
                                     char const* what) {
        std::size_t const samples = inputs.samples("inputs");
        std::size_t others = samples;
        if constexpr (Other::count > 0) others = other.samples(what); // a loss may have no targets
        if (samples != others)
            detail::throw_error<std::invalid_argument>("gpipe: %zu inputs, but %zu %s", samples,
                                                       others, what);
        if (samples == 0)
            detail::throw_error<std::invalid_argument>("gpipe: the mini-batch is empty");
        return samples;
    }

    Net net_;
    LossFunctor loss_;
    OptimizerFunctor_ optimizer_;
    std::string_view const planned_optimizer_ = detail::chosen_name(optimizer_);
    Machine<Device> machine_;
};

namespace detail {

// A value that goes with everything.
struct Anything {
    template <class T> constexpr operator T() const { return T(); }
    float& operator[](auto const&) const;
    float& operator()(auto const&...) const;
    friend constexpr bool operator==(Anything, auto const&) { return true; }
    friend constexpr bool operator<(Anything, auto const&) { return true; }
    friend constexpr bool operator<=(Anything, auto const&) { return true; }
    friend constexpr bool operator>(Anything, auto const&) { return true; }
    friend constexpr bool operator>=(Anything, auto const&) { return true; }
};
// A Training in which nothing is wrong: of a parameter, so that it is made only where it is wanted.
template <class> struct AnyTraining { using type = Training<Pipeline<AnyLayer>, Loss<AnyLoss>>; };

} // namespace detail

/// @cond
// What a Training with a mistake is, once the sentence about it has been said: it takes and gives
// everything, so that this sentence is the only error, whatever is written with the Training.
template <class Net, class... Policies>
    requires(!detail::check_training<Net, Policies...>())
class Training<Net, Policies...> : public detail::AnyTraining<Net>::type {
    using Base = typename detail::AnyTraining<Net>::type;
    using Anything = detail::Anything;
    template <class Kind, class Default>
    using Functor = typename detail::policy_or<Kind, Default, Policies...>::functor;

  public:
    static constexpr Anything layer_count{}, device_count{}, cell_count{}, micro_batch_count{};
    static constexpr Anything first_layers() { return {}; }
    static constexpr Anything bubble(auto const&...) { return {}; }
    static constexpr Anything action_costs(auto const&...) { return {}; }
    static constexpr Anything peak_micro_batches(std::size_t) { return {}; }
    static constexpr Anything peak_bytes(std::size_t, std::size_t) { return {}; }

    using typename Base::Options;
    using typename Base::Pending;
    using typename Base::Result;

    Training(auto&&, auto&&, auto&&, Options);
    ~Training();
    Result step(auto const&, auto const&);
    Pending start(auto const&, auto const&, auto const&...);
    Result evaluate(auto const&, auto const&);
    void predict(auto const&, auto const&);
    Functor<policy::Optimizer, Optimizer<SGD>>& optimizer();
    template <std::size_t> Anything parameters();
    template <std::size_t> Anything gradients();
};
/// @endcond

} // namespace gpipe
GPIPE_RUNS_ONCE_END
