#pragma once

#include <gpipe/balance/balance.hpp>
#include <gpipe/balance/check.hpp>
#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/core/policy.hpp>
#include <gpipe/device/host.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/optimizer/sgd.hpp>
#include <gpipe/pipeline.hpp>
#include <gpipe/runtime/engine.hpp>
#include <gpipe/runtime/lane_choice.hpp>
#include <gpipe/runtime/loss_thunk.hpp>
#include <gpipe/schedule/check.hpp>
#include <gpipe/schedule/gpipe.hpp>
#include <gpipe/transport/local.hpp>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace gpipe {

namespace detail {

// What stands for a missing loss once its sentence is said.
struct NoLoss {
    using Target = Tensors<>;
    LossValue<> operator()(auto&&...) const { return {}; }
};

} // namespace detail

/// Trains a Pipeline. Net is the Pipeline; the policies stand in any order, each with a default:
/// - Cells<K> (default Cells<1>) or Balance<n, ...>: how the layers are cut, one cell per device;
/// - MicroBatches<M> (default 4 K: "negligible" bubble in the paper, section 2.3);
/// - Loss<F>: the loss functor; there is no default;
/// - Optimizer<F> (default SGD);
/// - a schedule (default schedule::GPipe);
/// - a checkpointing policy (default checkpoint::ExceptLast);
/// - a transport (default transport::Local) and a device (default device::Host).
/// What is constant is checked, proven and planned at compile time; what is `dynamic`
/// (Cells<dynamic>, MicroBatches<dynamic>, schedule::Dynamic, checkpoint::Dynamic) by the same
/// functions in the constructor, which throws std::invalid_argument where a constant would not have
/// compiled.
///
/// All memory is allocated in the constructor: a step allocates nothing. A Training is used by one
/// thread at a time; any number of them may exist.
template <class Net, class... Policies> class Training {
    using Cut = detail::policy_or<policy::Cut, Cells<1>, Policies...>;
    using Schedule = detail::policy_or<policy::Schedule, schedule::GPipe, Policies...>;
    using Checkpointing =
        detail::policy_or<policy::Checkpointing, checkpoint::ExceptLast, Policies...>;
    using Device = detail::policy_or<policy::Device, device::Host, Policies...>;
    using LossFunctor =
        typename detail::policy_or<policy::Loss, Loss<detail::NoLoss>, Policies...>::functor;
    using OptimizerFunctor_ =
        typename detail::policy_or<policy::Optimizer, Optimizer<SGD>, Policies...>::functor;
    static constexpr std::size_t default_micro_batches =
        Cut::cells == dynamic ? dynamic : 4 * Cut::cells;
    using MicroBatchesPolicy =
        detail::policy_or<policy::MicroBatches, MicroBatches<default_micro_batches>, Policies...>;
    using Stream = typename Device::Stream;

    static_assert(
        detail::check_policies<List<Policies...>, policy::Cut, policy::MicroBatches, policy::Loss,
                               policy::Optimizer, policy::Schedule, policy::Checkpointing,
                               policy::Transport, policy::Device>());
    static_assert(!std::is_same_v<LossFunctor, detail::NoLoss>,
                  "gpipe: a Training needs a loss: gpipe::Loss<Functor> among its policies");
    static_assert(std::is_same_v<LossFunctor, detail::NoLoss> || CheckLoss<LossFunctor, Net>::ok);
    static_assert(CheckOptimizer<OptimizerFunctor_>::ok);
    static_assert(detail::check_trainable<Net>());
    static_assert(MicroBatchesPolicy::count != 0,
                  "gpipe: MicroBatches<M> needs at least one micro-batch");

  public:
    /// L, K and M; `dynamic` where they are chosen at construction.
    static constexpr std::size_t layer_count = Net::size;
    static constexpr std::size_t cell_count = Cut::cells;
    static constexpr std::size_t micro_batch_count = MicroBatchesPolicy::count;
    /// Whether everything but the number of samples is in the type.
    static constexpr bool constant = cell_count != dynamic && micro_batch_count != dynamic &&
                                     !std::is_same_v<Schedule, schedule::Dynamic> &&
                                     !std::is_same_v<Checkpointing, checkpoint::Dynamic>;

    using Input = typename Net::Input;
    using Target = typename LossFunctor::Target;
    using Result = StepResult<detail::loss_metrics<LossFunctor, Net>>;

  private:
    static_assert(CheckCut<Cut, Net::size>::ok);
    // Without a sound number of cells or micro-batches, which has its own sentence, there is
    // nothing to prove.
    static consteval bool check_programs() {
        if constexpr (cell_count == dynamic || micro_batch_count == dynamic || cell_count == 0 ||
                      micro_batch_count == 0 || std::is_same_v<Schedule, schedule::Dynamic>)
            return true;
        else if constexpr (!detail::check_schedule<Schedule, cell_count, micro_batch_count>())
            return false;
        else if constexpr (!std::is_same_v<Checkpointing, checkpoint::Dynamic>)
            return detail::check_lowered<Schedule, Checkpointing, cell_count, micro_batch_count>();
        else
            return true;
    }
    static_assert(check_programs());

    static constexpr Array<std::size_t> cut(std::size_t cells) {
        Array<double> const costs = Net::costs();
        Array<std::size_t> first(cells + 1);
        Cut::cut(costs.data(), costs.size(), cells, first.data());
        return first;
    }
    static constexpr ChainShape shape(Array<LayerInfo> const& layers) {
        return {layers.data(), layers.size(), lowest_learner(layers.data(), layers.size()),
                detail::sizes_of<typename detail::ScratchOf<LossFunctor>::type>()};
    }

  public:
    /// The layer that each cell begins with, then L.
    static constexpr Array<std::size_t> first_layers() requires(cell_count != dynamic) {
        return cut(cell_count);
    }
    /// The idle share of device time at unit costs (backward twice a forward), without
    /// recomputation.
    static constexpr Ratio bubble() requires constant {
        return gpipe::bubble(Schedule::programs(cell_count, micro_batch_count));
    }
    /// The most micro-batches that are between forward and backward on a device.
    static constexpr std::size_t peak_micro_batches(std::size_t device) requires constant {
        return gpipe::peak_micro_batches(Schedule::programs(cell_count, micro_batch_count), device);
    }
    /// The bytes that a device needs in all, for micro-batches of up to `samples` samples.
    static constexpr std::size_t peak_bytes(std::size_t device,
                                            std::size_t samples) requires constant {
        return plan_for(samples).devices[device].total();
    }
    /// The whole memory plan for micro-batches of up to `samples` samples.
    static constexpr MemoryPlan plan_for(std::size_t samples) requires constant {
        Array<LayerInfo> const layers = Net::layers();
        return plan_memory(shape(layers), cut(cell_count),
                           Checkpointing::lower(Schedule::programs(cell_count, micro_batch_count)),
                           OptimizerFunctor_::states, samples);
    }

    /// What is chosen at construction. `cells`, `micro_batches`, `schedule` and `checkpointing` are
    /// for the policies that are dynamic.
    struct Options {
        std::size_t samples = 0; ///< largest mini-batch that memory is planned for
        std::uint64_t seed = 0;
        std::size_t cells = 0;
        std::size_t micro_batches = 0; ///< 0: 4 K
        schedule::Dynamic schedule{};
        checkpoint::Dynamic checkpointing{};
        typename Device::Options device{};
    };

    /// Plans and allocates all memory and initializes the parameters. Throws std::invalid_argument
    /// where an option does not fit, and what a layer's initialize throws.
    Training(Net net, LossFunctor loss, OptimizerFunctor_ optimizer, Options options)
        : net_(std::move(net)), loss_(std::move(loss)), optimizer_(std::move(optimizer)),
          seed_(options.seed), samples_(checked_samples(options)),
          first_(cut_checked(chosen_cells(options))), programs_(chosen_programs(options)),
          plan_(
              plan_memory(shape(infos_), first_, programs_, OptimizerFunctor_::states,
                          (samples_ + programs_.micro_batches() - 1) / programs_.micro_batches())),
          device_(options.device, programs_.devices()), engine_(device_) {
        allocate();
        fill_layers();
        fill_cells();
        fill_tables();
    }
    Training(Training const&) = delete;
    Training& operator=(Training const&) = delete;

    /// Trains on one mini-batch of N samples, 1 <= N <= Options::samples: forward, backward,
    /// update. Returns the mean loss before the update. An exception of a layer or of the loss
    /// leaves as it was thrown, failure() tells where; parameters, optimizer state and step count
    /// are then as before. Throws std::invalid_argument for batches that do not fit,
    /// std::domain_error if the total weight of the loss is not positive.
    Result step(Batch<Input> inputs, Batch<Target> targets) {
        std::size_t const samples = checked_batch(inputs, targets);
        if (samples > samples_)
            throw std::invalid_argument("gpipe: a mini-batch of " + std::to_string(samples) +
                                        " samples, but memory was planned for " +
                                        std::to_string(samples_));
        point_to(inputs, targets, 0, samples);
        LanePlan const& lanes = lane_plan();
        bool const timed = lane_choice_.trying();
        auto const begin = timed ? Clock::now() : Clock::time_point{};
        bool const done = engine_.run(lanes.training, {seed_, steps_, true, true, samples});
        if (!done) std::rethrow_exception(engine_.failure()->error);
        Result const result = total(samples);
        engine_.update(lanes.training.lanes(), lanes.lane_of_device, &optimizer_, steps_ + 1,
                       1 / result.weight);
        ++steps_;
        lane_choice_.note(timed ? std::chrono::duration<double>(Clock::now() - begin).count() : 0);
        return result;
    }

    /// The mean loss over any number of samples: forward only, no dropout, nothing kept or changed.
    Result evaluate(Batch<Input> inputs, Batch<Target> targets) {
        std::size_t const samples = checked_batch(inputs, targets);
        Sums sums;
        for (std::size_t first = 0; first < samples; first += samples_) {
            std::size_t const count = std::min(samples_, samples - first);
            point_to(inputs, targets, first, count);
            run_forward(true, count);
            add_losses(sums, count);
        }
        return sums.mean();
    }

    /// Writes the chain's outputs for any number of samples, in order: forward only, as evaluate().
    void predict(Batch<Input> inputs, Batch<typename Net::Output, true> outputs) {
        std::size_t const samples = checked_samples_of(inputs, outputs, "outputs");
        for (std::size_t first = 0; first < samples; first += samples_) {
            std::size_t const count = std::min(samples_, samples - first);
            point_to(inputs, outputs, first, count);
            run_forward(false, count);
        }
    }

    /// The optimizer, to change a learning rate between steps.
    OptimizerFunctor_& optimizer() { return optimizer_; }
    OptimizerFunctor_ const& optimizer() const { return optimizer_; }

    /// The parameters of layer I as its context gives them, writable between steps.
    template <std::size_t I> auto parameters() {
        return tensor_views<ParametersOf<I>, detail::Access::write>(engine_.layers[I].parameters);
    }
    /// The mean gradients of the last step; unspecified after a step that failed.
    template <std::size_t I> auto gradients() {
        return tensor_views<ParametersOf<I>, detail::Access::write>(engine_.layers[I].gradients);
    }
    /// Parameter tensor `tensor` of layer `layer`, by number. Throws std::out_of_range, and
    /// std::invalid_argument if its elements cannot be T.
    template <class T> std::span<T> parameter(std::size_t layer, std::size_t tensor) {
        return tensor_span<T>(engine_.layers.at(layer).parameters, layer, tensor);
    }
    template <class T> std::span<T> gradient(std::size_t layer, std::size_t tensor) {
        return tensor_span<T>(engine_.layers.at(layer).gradients, layer, tensor);
    }
    /// How many parameter tensors a layer has.
    std::size_t tensors(std::size_t layer) const { return infos_[layer].parameters.count; }

    /// Where the last step, evaluate or predict failed, if it did.
    std::optional<Failure> const& failure() const { return engine_.failure(); }
    /// Steps trained.
    std::uint64_t steps() const { return steps_; }
    std::size_t cells() const { return programs_.cells(); }
    std::size_t micro_batches() const { return programs_.micro_batches(); }
    /// Walkers of a step: threads on the host.
    std::size_t lanes() const { return plans_.back().training.lanes(); }
    std::uint64_t seed() const { return seed_; }
    std::size_t samples() const { return samples_; }
    /// The programs with their recomputes, and the memory plan, as they run.
    Programs const& programs() const { return programs_; }
    MemoryPlan const& plan() const { return plan_; }
    /// Bytes of all arenas by the plan, and as allocated.
    std::size_t planned_bytes() const { return plan_.total(); }
    std::size_t used_bytes() const {
        std::size_t bytes = 0;
        for (auto const& arena : arenas_) bytes += arena.size();
        return bytes;
    }
    /// A device's memory.
    std::span<std::byte> arena(std::size_t device) {
        return {arenas_[device].data(), arenas_[device].size()};
    }

    /// From the next run on, notes when every action runs: see times().
    void time_actions() {
        engine_.time_actions(std::max(programs_.size(), forwards_.programs.size()));
    }
    /// When each action of the last run ran, by its index among all actions; only after
    /// time_actions().
    std::vector<ActionTime> const& times() const { return engine_.times(); }

    /// The idle share of the lanes' time that a step would have if cost(action) were what each
    /// action takes: the programs merged as they are walked, with needs and nothing else to wait
    /// for.
    template <class Cost> double predicted_bubble(Cost cost) const {
        Lanes const lanes = merge_lanes(programs_, placement(plans_.back().training.lanes()), cost);
        double const available = lanes.makespan * static_cast<double>(lanes.lanes());
        return available > 0 ? 1 - lanes.busy / available : 0;
    }

  private:
    template <std::size_t I>
    using ParametersOf = typename LayerTraits<typename Net::template Layer<I>>::Parameters;

    using Clock = std::chrono::steady_clock;

    // The tables for one number of lanes.
    struct LanePlan {
        StepTable training;
        StepTable forward;
        std::vector<std::size_t> lane_of_device;
    };

    struct Sums {
        double loss = 0;
        double weight = 0;
        std::array<double, std::tuple_size_v<decltype(Result::metric)>> metric{};

        Result mean() const {
            if (!(weight > 0) || std::isinf(weight))
                throw std::domain_error("gpipe: the loss's total weight over the mini-batch is " +
                                        std::to_string(weight) + ", not positive");
            Result result{loss / weight, weight, metric};
            for (double& value : result.metric) value /= weight;
            return result;
        }
    };

    static std::size_t checked_samples(Options const& options) {
        if (options.samples == 0)
            throw std::invalid_argument(
                "gpipe: Options::samples, the largest mini-batch that memory "
                "is planned for, is zero");
        return options.samples;
    }
    static std::size_t chosen(char const* what, std::size_t constant_value, std::size_t option,
                              std::size_t fallback) {
        if (constant_value != dynamic && option != 0 && option != constant_value)
            throw std::invalid_argument("gpipe: Options::" + std::string(what) + " is " +
                                        std::to_string(option) + ", but the type says " +
                                        std::to_string(constant_value));
        if (constant_value != dynamic) return constant_value;
        return option != 0 ? option : fallback;
    }
    static std::size_t chosen_cells(Options const& options) {
        return chosen("cells", cell_count, options.cells, 0);
    }
    static Array<std::size_t> cut_checked(std::size_t cells) {
        check_cells(Net::size, cells);
        Array<double> const costs = Net::costs();
        check_costs(costs.data(), costs.size());
        return cut(cells);
    }
    static Programs chosen_programs(Options const& options) {
        std::size_t const cells = chosen_cells(options);
        std::size_t const micro_batches =
            chosen("micro_batches", micro_batch_count, options.micro_batches, 4 * cells);
        Programs const schedule = [&] {
            if constexpr (std::is_same_v<Schedule, schedule::Dynamic>) {
                schedule::Dynamic const choice =
                    options.schedule ? options.schedule : schedule::Dynamic(schedule::GPipe{});
                return choice.programs(cells, micro_batches);
            } else {
                return Schedule::programs(cells, micro_batches);
            }
        }();
        prove(schedule, "schedule");
        Programs const lowered = [&] {
            if constexpr (std::is_same_v<Checkpointing, checkpoint::Dynamic>) {
                checkpoint::Dynamic const choice =
                    options.checkpointing ? options.checkpointing
                                          : checkpoint::Dynamic(checkpoint::ExceptLast{});
                return choice.lower(schedule);
            } else {
                return Checkpointing::lower(schedule);
            }
        }();
        prove(lowered, "checkpointing policy");
        return lowered;
    }
    static void prove(Programs const& programs, char const* what) {
        Verdict const verdict = verify(programs);
        if (!verdict)
            throw std::invalid_argument("gpipe: the programs of the " + std::string(what) +
                                        " are wrong: " + std::string(sentence(verdict.problem)) +
                                        " (device " + std::to_string(verdict.device) +
                                        ", position " + std::to_string(verdict.position) + ", " +
                                        std::string(name(verdict.action.kind)) + " of cell " +
                                        std::to_string(verdict.action.cell) + ", micro-batch " +
                                        std::to_string(verdict.action.micro_batch) + ")");
    }

    template <class Other>
    static std::size_t checked_samples_of(Batch<Input> const& inputs, Other const& other,
                                          char const* what) {
        std::size_t const samples = inputs.samples("inputs");
        std::size_t const others = other.samples(what);
        if (samples != others)
            throw std::invalid_argument("gpipe: " + std::to_string(samples) + " inputs, but " +
                                        std::to_string(others) + " " + what);
        if (samples == 0) throw std::invalid_argument("gpipe: the mini-batch is empty");
        return samples;
    }
    static std::size_t checked_batch(Batch<Input> const& inputs, Batch<Target> const& targets) {
        return checked_samples_of(inputs, targets, "targets");
    }

    void allocate() {
        for (std::size_t d = 0; d < programs_.devices(); ++d) {
            arenas_.push_back(device_.allocate(d, plan_.devices[d].total()));
            arena_data_.push_back(arenas_.back().data());
        }
    }

    void fill_layers() {
        auto const objects = net_.leaf_objects();
        auto const& functions = Net::template leaf_functions<Stream>;
        std::size_t const learner = lowest_learner(infos_.data(), infos_.size());
        engine_.layers.resize(Net::size);
        engine_.layer_names.resize(Net::size);
        engine_.updates.resize(programs_.devices());
        Net::for_each_layer([&](std::size_t i, std::size_t leaf) {
            std::size_t const cell = cell_of(i);
            std::size_t const d = programs_.device_of(cell);
            LayerPlaces const& places = plan_.layouts[cell].places[i - first_[cell]];
            LayerRow& row = engine_.layers[i];
            row.forward = functions[leaf].forward;
            if (i == learner)
                row.backward = functions[leaf].lowest_backward;
            else if (i > learner)
                row.backward = functions[leaf].backward;
            row.layer = objects[leaf];
            row.parameters = arena_data_[d] + plan_.parameters[i];
            row.gradients = arena_data_[d] + plan_.gradients[i];
            row.output = places.output;
            row.output_gradient = places.output_gradient;
            row.saved = places.saved;
            row.forward_scratch = places.forward_scratch;
            row.backward_scratch = places.backward_scratch;
            row.index = static_cast<std::uint32_t>(i);
            engine_.layer_names[i] = infos_[i].name;
            functions[leaf].initialize(row.layer, row.parameters, seed_, i, Net::size);
            update_rows[leaf](engine_.updates[d], row.parameters, row.gradients,
                              arena_data_[d] + plan_.optimizer[i]);
        });
        for (std::size_t d = 0; d < programs_.devices(); ++d)
            engine_.gradients.push_back(
                {arena_data_[d] + plan_.devices[d].parameters, plan_.devices[d].gradients});
    }

    // Appends the update rows of one layer.
    template <class L> struct UpdateRows {
        template <class... Ts>
        static void append(Tensors<Ts...>, std::vector<UpdateRow>& rows, std::byte* parameters,
                           std::byte* gradients, std::byte* states) {
            if constexpr (sizeof...(Ts) > 0) {
                UpdateFunction const functions[] = {
                    &detail::update_tensor<typename Ts::Element, OptimizerFunctor_>...};
                std::size_t const elements[] = {Ts::size...};
                std::size_t const bytes[] = {slot_bytes(Ts::bytes)...};
                for (std::size_t t = 0; t < sizeof...(Ts); ++t) {
                    rows.push_back({functions[t], parameters, gradients, states, elements[t],
                                    LayerTraits<L>::decay(t)});
                    parameters += bytes[t];
                    gradients += bytes[t];
                    states += OptimizerFunctor_::states * bytes[t];
                }
            }
        }
        static void of(std::vector<UpdateRow>& rows, std::byte* parameters, std::byte* gradients,
                       std::byte* states) {
            append(typename LayerTraits<L>::Parameters{}, rows, parameters, gradients, states);
        }
    };
    using AppendUpdates = void (*)(std::vector<UpdateRow>&, std::byte*, std::byte*, std::byte*);
    struct UpdatesOf {
        using Value = AppendUpdates;
        template <class L> static constexpr Value of() { return &UpdateRows<L>::of; }
    };
    static constexpr auto update_rows = Net::template leaf_table<UpdatesOf>();

    void fill_cells() {
        std::size_t const learner = lowest_learner(infos_.data(), infos_.size());
        engine_.cells.resize(cells());
        for (std::size_t c = 0; c < cells(); ++c) {
            CellRow& cell = engine_.cells[c];
            CellLayout const& layout = plan_.layouts[c];
            LayerRow const* const rows = engine_.layers.data();
            cell.first = rows + first_[c];
            cell.last = rows + first_[c + 1];
            cell.learner = rows + std::clamp(learner, first_[c], first_[c + 1]);
            cell.temporaries = arena_data_[programs_.device_of(c)] + plan_.temporaries_at[c];
            cell.is_first = c == 0;
            cell.is_last = c + 1 == cells();
            cell.recomputes_last_layer = cell.is_last || infos_[first_[c + 1] - 1].saved.count > 0;
            cell.discards = learner >= first_[c] && learner < first_[c + 1];
            cell.discarded = layout.discarded_gradient;
        }
        engine_.loss = {&detail::loss_thunk<LossFunctor, Net, Stream, true>,
                        &detail::loss_thunk<LossFunctor, Net, Stream, false>, &loss_,
                        type_name<LossFunctor>(), plan_.layouts[cells() - 1].loss_scratch};
        engine_.capacity = plan_.capacity;
        engine_.micro_batches = micro_batches();
        engine_.sums = 2 + detail::loss_metrics<LossFunctor, Net>;
        engine_.loss_sums.resize(micro_batches() * engine_.sums);
        engine_.input_tensors = Batch<Input>::count;
        engine_.target_tensors =
            std::max(Batch<Target>::count, Batch<typename Net::Output, true>::count);
        engine_.inputs.resize(micro_batches() * engine_.input_tensors);
        engine_.targets.resize(micro_batches() * engine_.target_tensors);
        engine_.output_sizes = infos_[Net::size - 1].output;
    }

    // Cost of an action by the layers' declared costs: backward twice a forward.
    double declared_cost(Action const& action) const {
        double cost = 0;
        for (std::size_t i = first_[action.cell]; i < first_[action.cell + 1]; ++i)
            cost += costs_[i];
        return action.kind == Kind::backward ? 2 * cost : cost;
    }
    // Which lane walks which device: neighbouring devices together, cut by cost as layers are into
    // cells.
    Placement placement(std::size_t lanes) const {
        std::size_t const devices = programs_.devices();
        Placement result{lanes, Device::enqueues ? devices : lanes, Array<std::size_t>(devices),
                         Array<std::size_t>(devices)};
        if (Device::enqueues) {
            for (std::size_t d = 0; d < devices; ++d) result.stream[d] = d;
            return result;
        }
        Array<double> work(devices);
        for (std::size_t i = 0; i < programs_.size(); ++i)
            work[programs_.device_of(programs_[i].cell)] += declared_cost(programs_[i]);
        Array<std::size_t> begin(lanes + 1);
        cut_by_bottleneck(work.data(), devices, lanes, begin.data());
        for (std::size_t lane = 0; lane < lanes; ++lane)
            for (std::size_t d = begin[lane]; d < begin[lane + 1]; ++d)
                result.lane[d] = result.stream[d] = lane;
        return result;
    }

    void fill_tables() {
        forwards_ = forward_programs(programs_, plan_);
        auto const cost = [this](Action const& action) { return declared_cost(action); };
        std::size_t const most = device_.lanes();
        for (std::size_t lanes : {std::size_t{1}, most}) {
            Placement const place = placement(lanes);
            LanePlan plan;
            plan.training =
                training_table(programs_, merge_lanes(programs_, place, cost), plan_, arena_data_);
            plan.forward = forward_table(
                forwards_, merge_lanes(forwards_.programs, place, cost, forwards_.also), plan_,
                arena_data_);
            plan.lane_of_device.assign(place.lane.begin(), place.lane.end());
            engine_.stream_of_device.assign(place.stream.begin(), place.stream.end());
            plans_.push_back(std::move(plan));
            if (most == 1) break;
        }
        if constexpr (requires { device_.chooses_lanes(); })
            lane_choice_ = LaneChoice(most > 1 && device_.chooses_lanes(), programs_.size());
    }
    LanePlan const& lane_plan() const {
        return lane_choice_.alone() ? plans_.front() : plans_.back();
    }

    std::size_t cell_of(std::size_t layer) const {
        std::size_t cell = 0;
        while (layer >= first_[cell + 1]) ++cell;
        return cell;
    }

    // Tells the engine where samples [first, first + count) of the caller's arrays lie.
    template <class Others>
    void point_to(Batch<Input> const& inputs, Others const& others, std::size_t first,
                  std::size_t count) {
        for (std::size_t m = 0; m < micro_batches(); ++m) {
            std::size_t const at = first + micro_batch_range(count, micro_batches(), m).first;
            for (std::size_t t = 0; t < Batch<Input>::count; ++t)
                engine_.inputs[m * engine_.input_tensors + t] = inputs.at(t, at);
            for (std::size_t t = 0; t < Others::count; ++t)
                engine_.targets[m * engine_.target_tensors + t] = others.at(t, at);
        }
    }
    void run_forward(bool measures, std::size_t samples) {
        if (!engine_.run(lane_plan().forward, {seed_, steps_, false, measures, samples}))
            std::rethrow_exception(engine_.failure()->error);
    }
    // In ascending order of micro-batches, whatever order they ran in.
    void add_losses(Sums& sums, std::size_t samples) const {
        for (std::size_t m = 0; m < micro_batches(); ++m) {
            if (micro_batch_range(samples, micro_batches(), m).count == 0) break;
            double const* const values = engine_.loss_sums.data() + m * engine_.sums;
            sums.loss += values[0];
            sums.weight += values[1];
            for (std::size_t i = 0; i < sums.metric.size(); ++i) sums.metric[i] += values[2 + i];
        }
    }
    Result total(std::size_t samples) const {
        Sums sums;
        add_losses(sums, samples);
        return sums.mean();
    }

    template <class T>
    std::span<T> tensor_span(std::byte* base, std::size_t layer, std::size_t tensor) const {
        GroupSizes const& sizes = infos_[layer].parameters;
        if (tensor >= sizes.count)
            throw std::out_of_range("gpipe: layer " + std::to_string(layer) + " has " +
                                    std::to_string(sizes.count) + " parameter tensors");
        if (sizes.bytes[tensor] % sizeof(T) != 0)
            throw std::invalid_argument("gpipe: a parameter tensor of another element type");
        for (std::size_t t = 0; t < tensor; ++t) base += slot_bytes(sizes.bytes[t]);
        return {reinterpret_cast<T*>(base), sizes.bytes[tensor] / sizeof(T)};
    }

    Net net_;
    LossFunctor loss_;
    OptimizerFunctor_ optimizer_;
    Array<LayerInfo> infos_ = Net::layers();
    Array<double> costs_ = Net::costs();
    std::uint64_t seed_;
    std::uint64_t steps_ = 0;
    std::size_t samples_;
    Array<std::size_t> first_;
    Programs programs_;
    MemoryPlan plan_;
    ForwardPrograms forwards_;
    Device device_;
    std::vector<decltype(std::declval<Device&>().allocate(0, 0))> arenas_;
    std::vector<std::byte*> arena_data_;
    Engine<Device> engine_;
    std::vector<LanePlan> plans_; ///< one lane; as many as the device has
    LaneChoice lane_choice_;
};

} // namespace gpipe
