#pragma once

#include <gpipe/balance/cell_of.hpp>
#include <gpipe/checkpoint/reversing.hpp>
#include <gpipe/core/checked.hpp>
#include <gpipe/core/clock.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/device/host.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/plan/ending.hpp>
#include <gpipe/plan/evaluation.hpp>
#include <gpipe/plan/links.hpp>
#include <gpipe/runtime/engine.hpp>
#include <gpipe/runtime/lane_choice.hpp>
#include <gpipe/runtime/machine_work.hpp>
#include <gpipe/runtime/mini_batch.hpp>
#include <gpipe/runtime/model.hpp>
#include <gpipe/runtime/pending_step.hpp>
#include <gpipe/runtime/placement.hpp>
#include <gpipe/runtime/table_proof.hpp>
#include <gpipe/runtime/tables.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Everything that a Training does at run time, for one kind of device: owns the device, the arenas
/// and the tables, and turns a mini-batch into runs of the engine. Knows layers as values only, so
/// all Trainings of a program share it.
template <DeviceRuntime Device> class Machine {
  public:
    using Pointers = MiniBatch::Pointers; ///< arrays of the caller, one per tensor
    using HostMemory =
        decltype(std::declval<Device&>().allocate_host(0)); ///< as the device allocates it

    /// `first`: the layer that each cell begins with; `immediate`: see update::Immediate.
    /// Initializes the parameters; throws what a layer's initialize throws, and
    /// std::invalid_argument if a budget does not do.
    Machine(Model model, Array<std::size_t> first, MachineWork work, std::size_t samples,
            std::uint64_t seed, StepChecks checks, bool immediate,
            typename Device::Options options);
    ~Machine();
    Machine(Machine const&) = delete;
    Machine& operator=(Machine const&) = delete;

    /// One training step: forward, backward, update by `optimizer`. Tells `outcome` the loss's
    /// numbers over the mini-batch, of which [0] is the sum and [1] the weight; without a positive
    /// weight nothing is updated and the step does not count. Throws what a layer threw. On a
    /// device whose calls enqueue it may return before the step is done; then others wait for it,
    /// and one that failed unheard is heard of at the next.
    void start(Pointers inputs, Pointers targets, std::size_t samples, void const* optimizer,
               StepOutcome& outcome);
    /// The same for arrays that the caller's stream has written, and may write again after this.
    template <class CallersStream>
    void start(Pointers inputs, Pointers targets, std::size_t samples, void const* optimizer,
               StepOutcome& outcome, CallersStream caller) requires(Device::calls_enqueue) {
        start_within(inputs, targets, samples, optimizer, outcome, [&](auto begin) {
            auto const following = device_.follow(caller, plan_.lowered.streams());
            bool const started = begin();
            device_.lead(caller, plan_.lowered.streams());
            return started;
        });
    }
    /// Waits for the step that tells this, and for those before it.
    void finish(StepOutcome const& outcome);
    /// Waits for all steps. Throws what was wrong with one that nobody listens to. Spreads what was
    /// lent.
    void finish();

    /// Forward and backward as in the next step, which leaves the mean gradients and nothing else.
    /// The loss's numbers; throws as start().
    std::span<double const> gradients(Pointers inputs, Pointers targets, std::size_t samples,
                                      void const* optimizer);
    /// Forgets what steps were kept as: layers, or the loss, are others now.
    void forget_steps() {
        finish();
        if constexpr (requires { device_.forget_graphs(); }) device_.forget_graphs();
    }

    /// Forward only, over any number of samples. Either the loss is measured and add(sums) called
    /// for each part of at most samples() samples, or the outputs are written to `others`.
    template <class Add>
    void forward(Pointers inputs, Pointers others, std::size_t samples, bool measures, Add add) {
        finish();
        if constexpr (Device::calls_enqueue)
            for (Pointers arrays : {inputs, others})
                for (TensorPointer const& array : arrays) device_.await_writers(array.data);
        for (std::size_t first = 0; first < samples; first += samples_) {
            std::size_t const count = std::min(samples_, samples - first);
            batches_[0].take(inputs, others, first, count, measures, 0);
            run(lane_plan().forward, batches_[0], {seed_, steps_, nullptr, measures, count});
            if (measures) add(engine_.totals(0));
        }
    }

    /// What it was made of, or has made of it.
    ///@{
    Programs const& programs() const { return programs_; }
    Array<Reversal> const& reversals() const { return reversals_; }
    MemoryPlan const& plan() const { return plan_; }
    Model const& model() const { return model_; }
    ///@}
    /// Where layer i's parameters and gradients lie.
    LayerMemory const& layer(std::size_t i) const { return engine_.tables().layers[i]; }
    /// Of the last run, if it failed.
    std::optional<Failure> const& failure() const { return engine_.failure(); }
    /// Steps trained.
    std::uint64_t steps() const { return steps_; }
    /// See Options::seed.
    std::uint64_t seed() const { return seed_; }
    /// See Options::samples.
    std::size_t samples() const { return samples_; }
    /// The most that a step may use, see DeviceRuntime::lanes.
    std::size_t lanes() const { return plans_[plans_.size() - 1].training.lanes(); }
    /// All memory of a device.
    std::span<std::byte> arena(std::size_t device) {
        return {arenas_[device].data(), arenas_[device].size()};
    }
    /// Copies from the host's memory to a device's or back, between steps; done when it returns.
    void copy(std::byte* to, std::byte const* from, std::size_t bytes);
    /// All parameter tensors, with their optimizer state, in the order of the chain; of tied ones
    /// the first end.
    std::size_t tensors() const { return engine_.tables().order.size(); }
    /// One of tensors().
    UpdateRow const& tensor(std::size_t i) const {
        return engine_.tables().updates[engine_.tables().order[i]];
    }
    /// Gives what a layer's tied parameters hold, and their state, to the other ends: once it is
    /// written between steps.
    void spread(std::size_t layer) {
        for (Tables::Tie const& tie : engine_.tables().ties)
            for (std::size_t i = tie.first; i < tie.last; ++i)
                if (model_.ties[i].layer == layer) spread(tie, i);
    }
    /// Whether a parameter tensor is one with that of an earlier layer.
    bool is_repeated(std::size_t layer, std::size_t tensor) const {
        for (TiedTensor const& end : model_.ties)
            if (end.layer == layer && end.tensor == tensor) return !end.is_first;
        return false;
    }
    /// From the first ends of all ties.
    void spread() {
        for (Tables::Tie const& tie : engine_.tables().ties) spread(tie, tie.first);
    }
    /// That somebody may write the layer's parameters until finish(), or a step, is called.
    void lend(std::size_t layer) {
        for (TiedTensor const& end : model_.ties)
            if (end.layer == layer) lent_ = layer;
    }
    /// Goes on as if so many steps had been trained with this seed, once no step is under way.
    void go_on(std::uint64_t seed, std::uint64_t steps) {
        finish();
        seed_ = seed;
        steps_ = steps;
        initialize_states();
    }
    /// Waits for all steps, then throws if an update was interrupted.
    void check_whole() {
        finish();
        engine_.check_whole();
    }
    /// The host's memory for a copy of the state (MemoryPlan::snapshot bytes), which outlives this
    /// object where somebody else holds it, and who reads it.
    std::shared_ptr<HostMemory> const& snapshot() const { return snapshot_; }
    /// Who saves the state in the background; null if nobody ever did.
    std::shared_ptr<void>& saving() { return saving_; }
    /// For who looks at a layer by itself, between steps: memory beside the plan's, a device's
    /// handles, and f(stream) on a device's stream, done when it returns. Throws what f throws.
    auto allocate(std::size_t device, std::size_t bytes) { return device_.allocate(device, bytes); }
    /// The library handles of a device.
    HandleSet const& handles(std::size_t device) const { return handles_[device]; }
    /// See above.
    template <class F> void call(std::size_t device, F f) {
        finish();
        std::exception_ptr error;
        std::size_t const stream = plans_[0].training.stream_of_device[device];
        device_.run(1, [&](std::size_t) {
            device_.launch(stream, [&]() noexcept {
                try {
                    f(device_.stream(stream));
                } catch (...) {
                    error = std::current_exception();
                }
            });
            return true;
        });
        if (error) std::rethrow_exception(error);
    }
    /// Of a layer.
    ///@{
    std::size_t cell_of(std::size_t layer) const { return gpipe::cell_of(first_, layer); }
    std::size_t device_of(std::size_t layer) const { return programs_.device_of(cell_of(layer)); }
    ///@}
    /// Of all arenas.
    std::size_t used_bytes() const {
        std::size_t bytes = 0;
        for (auto const& arena : arenas_) bytes += arena.size();
        return bytes;
    }

    /// From the next step on, see Engine::time_actions().
    void time_actions();
    /// Of the last step that has come to its end, see Engine.
    ///@{
    Array<ActionTime> const& times() const { return engine_.times(); }
    std::uint64_t preemptions() const { return engine_.preemptions(); }
    ///@}

    /// The programs merged onto the lanes of a step as if cost(action) were what actions take.
    template <class Cost> Lanes merged(Cost const& cost) const {
        return merge_lanes(plan_.lowered,
                           place_programs(plan_.lowered, lanes(), Device::enqueues, cost_), cost);
    }

  private:
    static constexpr std::size_t slots = Engine<Device>::slots;
    static constexpr std::size_t none_lent = static_cast<std::size_t>(-1);

    template <class Surround>
    void start_within(Pointers inputs, Pointers targets, std::size_t samples, void const* optimizer,
                      StepOutcome& outcome, Surround surround) {
        std::size_t const slot = next_slot_;
        take_back();
        finish_slot(slot);
        MiniBatch& batch = batches_[slot];
        batch.take(inputs, targets, 0, samples, true, slot);
        RunArguments const arguments{seed_, next_step(), optimizer, true, samples, slot};
        if constexpr (Device::calls_enqueue) {
            if (doubtful_) initialize_states();
            doubtful_ = true;
            bool const started =
                surround([&] { return engine_.start(lane_plan().training, batch, arguments); });
            if (!started) std::rethrow_exception(engine_.failure()->error);
            doubtful_ = false;
            put_under_way(slot, outcome);
        } else {
            if constexpr (Device::overlaps) {
                if (immediate_ && lanes() > 1) {
                    engine_.start(lane_plan().training, batch, arguments, programs_.device_of(0),
                                  follows_);
                    follows_ = true;
                    return put_under_way(slot, outcome);
                }
            }
            bool const timed = lane_choice_.trying();
            double const begin = timed ? detail::seconds_now() : 0;
            run(lane_plan().training, batch, arguments);
            lane_choice_.note(timed ? detail::seconds_now() - begin : 0);
            count_step(slot);
            outcome.tell(engine_.totals(slot));
        }
    }
    void take_back() {
        if (std::size_t const layer = std::exchange(lent_, none_lent); layer != none_lent)
            spread(layer);
    }
    void spread(Tables::Tie const& tie, std::size_t from) {
        Tables const& tables = engine_.tables();
        UpdateRow const& written = tables.updates[tables.tied[from]];
        for (std::size_t i = tie.first; i < tie.last; ++i) {
            UpdateRow const& row = tables.updates[tables.tied[i]];
            if (i == from) continue;
            copy(row.parameter, written.parameter, tie.bytes);
            copy(row.state, written.state, model_.states * slot_bytes(tie.bytes));
        }
    }
    void put_under_way(std::size_t slot, StepOutcome& outcome) {
        under_way_[slot] = true;
        outcome.wait_at(outcomes_[slot]);
        next_slot_ = (slot + 1) % slots;
    }
    // The number of the step that is started next. Where the device counts for itself, nobody asks
    // this machine.
    std::uint64_t next_step() const {
        std::uint64_t number = steps_;
        for (bool const under_way : under_way_) number += under_way && !Device::calls_enqueue;
        return number;
    }
    void count_step(std::size_t slot) {
        if (!engine_.committed(slot)) return;
        steps_ = Device::calls_enqueue ? steps_ + 1 : engine_.step_number(slot) + 1;
    }
    // Waits for the step of a slot, if there is one.
    void finish_slot([[maybe_unused]] std::size_t slot) {
        if constexpr (Device::calls_enqueue || Device::overlaps) {
            if (!std::exchange(under_way_[slot], false)) return;
            StepOutcome* const outcome = outcomes_[slot];
            try {
                if (!engine_.finish(slot)) std::rethrow_exception(engine_.failure()->error);
                count_step(slot);
                if (outcome) outcome->tell(engine_.totals(slot));
            } catch (...) {
                if (!outcome) throw;
                outcome->tell(std::current_exception());
            }
        }
    }
    // The same for who does not want to know.
    void tell(std::size_t slot) {
        try {
            finish_slot(slot);
        } catch (...) {
        }
    }

    // The device whose memory one of these is; its stream has the same number.
    std::size_t owner(std::byte const* a, std::byte const* b) const {
        // As numbers: pointers into different arrays have no order.
        auto const number = [](std::byte const* at) {
            return reinterpret_cast<std::uintptr_t>(at);
        };
        auto const holds = [&](std::size_t d, std::byte const* at) {
            return number(at) - number(arena_data_[d]) < arenas_[d].size();
        };
        std::size_t d = 0;
        while (d + 1 < arenas_.size() && !holds(d, a) && !holds(d, b)) ++d;
        return d;
    }

    PlanRequest request(std::size_t capacity) const {
        std::size_t const micro_batches = programs_.micro_batches();
        Staging staging;
        if constexpr (!Device::reads_host)
            staging = step_staging(model_.infos[0].input, model_.targets,
                                   checked_product(capacity, micro_batches), micro_batches,
                                   model_.sums, model_.optimizer_bytes, slots, checks_.squares());
        return {{model_.infos.data(), model_.infos.size(), learner_, model_.loss_scratch,
                 model_.loss_handles, model_.skips, model_.ties},
                first_,
                model_.states,
                capacity,
                staging,
                links()};
    }
    MemoryPlan planned(MachineWork const& work) {
        std::size_t const micro_batches = programs_.micro_batches();
        std::size_t const capacity =
            samples_ / micro_batches + (samples_ % micro_batches != 0); // rounded up
        if (!countable(request(capacity), micro_batches))
            detail::throw_error<std::invalid_argument>(
                "gpipe: Options::samples is %zu: the tensors of micro-batches of %zu samples have "
                "more bytes than memory has addresses",
                samples_, capacity);
        if (work.budget.given) {
            BudgetProblem const budgeted{request(checked_capacity(work.budget, capacity)),
                                         programs_};
            if (!countable(budgeted, micro_batches))
                detail::throw_error<std::invalid_argument>(
                    "gpipe: checkpoint::Optimal is for micro-batches of %zu samples, whose tensors "
                    "have more bytes than memory has addresses",
                    budgeted.capacity);
            Checkpointed fitted = work.fit(budgeted, work.budget);
            programs_ = std::move(fitted.programs);
            reversals_ = std::move(fitted.reversals);
            cost_ = DeclaredCost(model_.costs, model_.infos, first_, reversals_);
        }
        MemoryPlan plan = plan_memory(request(capacity), programs_, reversals_, work.choose);
        for (LayerInfo const& layer : model_.infos)
            for (std::size_t t = 0; t < layer.parameters.count && work.snapshot; ++t)
                plan.snapshot += (1 + model_.states) * layer.parameters.bytes[t];
        for (TiedTensor const& end : model_.ties)
            if (work.snapshot && !end.is_first) plan.snapshot -= (1 + model_.states) * end.bytes;
        return plan;
    }
    Array<Link> links() const {
        if constexpr (HasLinks<Device>)
            return links_between(
                programs_, first_, model_.skips,
                [&](std::size_t from, std::size_t to) { return device_.link(from, to); });
        else
            return {};
    }

    // The tables for one number of lanes.
    struct LanePlan {
        StepTable training;
        StepTable forward;
    };

    void run(StepTable const& table, MiniBatch const& batch, RunArguments const& arguments);

    // In the order in which the plan has them.
    [[gnu::cold]] void make_handles() {
        for (std::size_t c = 0; c < programs_.cells(); ++c) {
            std::size_t const d = programs_.device_of(c);
            auto const add = [&](HandleSpecs specs) {
                handles_[d].add(specs, &device_.stream(d), arena_data_[d] + plan_.handles_at[d]);
            };
            for (std::size_t i = first_[c]; i < first_[c + 1]; ++i)
                add(model_.layers[i].functions.handles);
            if (c + 1 == programs_.cells()) add(model_.loss.handles);
        }
    }

    // Layers initialize in the host's memory.
    [[gnu::cold]] void initialize_layers() {
        std::size_t const count = model_.layers.size();
        for (std::size_t i = 0; i < count; ++i) {
            LayerParts const& parts = model_.layers[i];
            std::byte* const parameters = layer(i).parameters;
            if constexpr (Device::reads_host) {
                parts.functions.initialize(parts.object, parameters, seed_, i, count);
            } else {
                std::size_t const bytes = parts.info.parameters.slots(1);
                device::HostBuffer const values(bytes);
                parts.functions.initialize(parts.object, values.data(), seed_, i, count);
                copy(parameters, values.data(), bytes);
            }
        }
        spread();
    }

    [[gnu::cold]] void fill_tables() {
        evaluation_ = evaluation_of(plan_.lowered);
        Operands const operands = find_operands(evaluation_, plan_.cells, plan_.part_table(true));
        evaluation_.needs =
            find_needs(walk_of(evaluation_), operands, Located(plan_, operands, true));
        Ending ending{Array<bool>(arenas_.size()),
                      immediate_ ? checks_.finite_gradients : checks_.squares(), immediate_,
                      Device::calls_enqueue, !Device::reads_host};
        for (std::size_t d = 0; d < arenas_.size(); ++d)
            ending.updates[d] = engine_.tables().has_updates(d);
        ending.ties = Array<TiedCell>(model_.ties.size());
        for (std::size_t i = 0; i < model_.ties.size(); ++i)
            ending.ties[i] = {model_.ties[i].tie,
                              static_cast<std::uint32_t>(cell_of(model_.ties[i].layer))};
        EndedStep const training = with_ending(plan_.lowered, plan_.operands, ending);
        std::size_t const most = device_.lanes();
        plans_ = Array<LanePlan>(most > 1 ? 2 : 1);
        for (std::size_t n = 0; n < plans_.size(); ++n) {
            auto const table = [&](Lowered const& lowered, Operands const& of, bool evaluates) {
                Placement const placement =
                    place_programs(lowered, n == 0 ? 1 : most, Device::enqueues, cost_);
                StepTable result = step_table(plan_, lowered, of, placement,
                                              merge_lanes(lowered, placement, cost_), arena_data_,
                                              staging_.data(), evaluates);
                bool const repeats = immediate_ && !evaluates;
                if (repeats) add_waits_before(result, plan_, of);
                check_table(result, plan_, lowered, of, repeats);
                return result;
            };
            plans_[n].training = table(training.lowered, training.operands, false);
            plans_[n].forward = table(evaluation_, operands, true);
        }
        std::uint32_t longest = 0;
        for (LanePlan const& plan : plans_)
            longest = std::max({longest, plan.training.longest, plan.forward.longest});
        if constexpr (requires { device_.prepare(plan_.lowered.device, longest); })
            prepare_streams(longest);
        if constexpr (requires { device_.chooses_lanes(); })
            lane_choice_ =
                LaneChoice(most > 1 && device_.chooses_lanes() && !immediate_, programs_.size());
    }
    LanePlan const& lane_plan() const {
        return lane_choice_.alone() ? plans_[0] : plans_[plans_.size() - 1];
    }

    // Those of the programs, and, where mini-batches are fed, one for each of their tensors.
    [[gnu::cold]] void prepare_streams([[maybe_unused]] std::uint32_t longest) {
        Array<std::size_t> const& programs = plan_.lowered.device;
        if constexpr (Device::calls_enqueue) {
            Array<std::size_t> const feeds = batches_[0].copy_devices();
            Array<std::size_t> devices(programs.size() + feeds.size());
            std::copy(programs.begin(), programs.end(), devices.begin());
            std::copy(feeds.begin(), feeds.end(), devices.begin() + programs.size());
            device_.prepare(devices, longest, feeds.size());
        } else if constexpr (Device::enqueues) {
            device_.prepare(programs, longest);
        }
    }

    // What a device that cannot read the host's memory has to know before the first step, and after
    // one that may have been committed although it failed.
    [[gnu::cold]] void initialize_states() {
        if constexpr (!Device::reads_host) {
            finish();
            StepState const state{seed_, steps_, 0, checks_.clip, 0};
            for (StepState* const at : engine_.tables().states)
                copy(reinterpret_cast<std::byte*>(at), reinterpret_cast<std::byte const*>(&state),
                     sizeof state);
            doubtful_ = false;
            Tables const& tables = engine_.tables();
            if (checks_.squares())
                copy(reinterpret_cast<std::byte*>(tables.order_there),
                     reinterpret_cast<std::byte const*>(tables.order.data()),
                     tables.order.size() * sizeof(std::uint32_t));
        }
    }

    Model model_;
    Array<std::size_t> first_;
    Programs programs_;
    Array<Reversal> reversals_; ///< by cell, or none
    std::size_t samples_;
    std::uint64_t seed_;
    StepChecks checks_;
    bool immediate_;
    std::uint64_t steps_ = 0;
    DeclaredCost cost_;
    std::size_t learner_;
    Device device_;
    MemoryPlan plan_;
    Lowered evaluation_;
    Array<decltype(std::declval<Device&>().allocate(0, 0))> arenas_;
    Array<std::byte*> arena_data_;
    HostMemory staging_;
    std::shared_ptr<HostMemory> snapshot_;
    std::shared_ptr<void> saving_; ///< what reads the snapshot, if anything does
    Array<HandleSet> handles_;     ///< by device; goes before its workspaces and streams
    MiniBatch batches_[slots];     ///< by slot
    Engine<Device> engine_;
    Array<LanePlan> plans_; ///< one lane; as many as the device has, if that is more
    LaneChoice lane_choice_;
    std::size_t lent_ = none_lent; ///< layer whose tied parameters may have been written
    std::size_t next_slot_ = 0;
    bool under_way_[slots] = {};        ///< by slot
    bool doubtful_ = false;             ///< whether the devices may count other steps
    bool follows_ = false;              ///< whether the run before was such a step, perhaps is yet
    StepOutcome* outcomes_[slots] = {}; ///< who is told, by slot
};

// What a Training calls is defined here, not inline, so that it is not instantiated again where it
// has been compiled.

template <DeviceRuntime Device>
Machine<Device>::Machine(Model model, Array<std::size_t> first, MachineWork work,
                         std::size_t samples, std::uint64_t seed, StepChecks checks, bool immediate,
                         typename Device::Options options)
    : model_(std::move(model)), first_(std::move(first)), programs_(std::move(work.programs)),
      reversals_(std::move(work.reversals)), samples_(samples), seed_(seed), checks_(checks),
      immediate_(immediate), cost_(model_.costs, model_.infos, first_, reversals_),
      learner_(lowest_learner(model_.infos.data(), model_.infos.size())),
      device_(options, programs_.devices()), plan_(planned(work)), arenas_(programs_.devices()),
      arena_data_(programs_.devices()), staging_(device_.allocate_host(plan_.host)),
      snapshot_(std::make_shared<HostMemory>(device_.allocate_host(plan_.snapshot))),
      handles_(programs_.devices()), engine_(device_) {
    for (std::size_t d = 0; d < programs_.devices(); ++d) {
        arenas_[d] = device_.allocate(d, plan_.devices[d].total());
        arena_data_[d] = arenas_[d].data();
    }
    for (MiniBatch& batch : batches_)
        batch = MiniBatch(model_, plan_, arena_data_, !Device::reads_host);
    engine_.prepare(
        make_tables(model_, plan_, arena_data_, handles_, learner_, !Device::reads_host), checks_,
        immediate_, Device::calls_enqueue ? batches_[0].staged_bytes() : 0,
        plan_.lowered.streams());
    fill_tables();
    make_handles();
    initialize_layers();
    initialize_states();
}

template <DeviceRuntime Device> Machine<Device>::~Machine() {
    for (std::size_t slot = 0; slot < slots; ++slot) tell(slot);
    // What it uses goes from here on.
    if constexpr (Device::calls_enqueue) static_cast<void>(device_.drain());
}

template <DeviceRuntime Device>
void Machine<Device>::start(Pointers inputs, Pointers targets, std::size_t samples,
                            void const* optimizer, StepOutcome& outcome) {
    start_within(inputs, targets, samples, optimizer, outcome, [&](auto begin) {
        bool const started = begin();
        if constexpr (Device::calls_enqueue) device_.settle(plan_.lowered.streams());
        return started;
    });
}

template <DeviceRuntime Device> void Machine<Device>::finish(StepOutcome const& outcome) {
    for (std::size_t n = 0; n < slots; ++n) // the oldest first
        if (outcome.waits()) tell((next_slot_ + n) % slots);
}

template <DeviceRuntime Device> void Machine<Device>::finish() {
    take_back();
    for (std::size_t n = 0; n < slots; ++n) finish_slot((next_slot_ + n) % slots);
}

template <DeviceRuntime Device>
void Machine<Device>::copy(std::byte* to, std::byte const* from, std::size_t bytes) {
    finish();
    if (bytes > 0)
        device_.run(1, [&](std::size_t) {
            device_.copy(owner(to, from), to, from, bytes);
            return true;
        });
}

template <DeviceRuntime Device> void Machine<Device>::time_actions() {
    engine_.time_actions(std::max(plan_.lowered.programs.size(), evaluation_.programs.size()));
}

template <DeviceRuntime Device>
void Machine<Device>::run(StepTable const& table, MiniBatch const& batch,
                          RunArguments const& arguments) {
    follows_ = false;
    if (!engine_.run(table, batch, arguments)) std::rethrow_exception(engine_.failure()->error);
}

template <DeviceRuntime Device>
std::span<double const> Machine<Device>::gradients(Pointers inputs, Pointers targets,
                                                   std::size_t samples, void const* optimizer) {
    finish();
    batches_[0].take(inputs, targets, 0, samples, true, 0);
    if (doubtful_) initialize_states();
    doubtful_ = Device::calls_enqueue; // the device counts this for a step
    run(lane_plan().training, batches_[0], {seed_, steps_, optimizer, true, samples, 0, false});
    initialize_states();
    return engine_.totals(0);
}

GPIPE_INSTANTIATE(class Machine<device::Host>);

} // namespace gpipe
GPIPE_RUNS_ONCE_END
