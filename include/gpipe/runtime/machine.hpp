#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/device/host.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/runtime/engine.hpp>
#include <gpipe/runtime/lane_choice.hpp>
#include <gpipe/runtime/lane_plans.hpp>
#include <gpipe/runtime/machine_plan.hpp>
#include <gpipe/runtime/mini_batch.hpp>
#include <gpipe/runtime/pending_step.hpp>
#include <gpipe/runtime/tables.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
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
    /// weight nothing is updated and the step does not count. Throws what a layer threw. It may
    /// return before the step is done, see DeviceExecutor; then others wait for it, and one that
    /// failed unheard is heard of at the next.
    void start(Pointers inputs, Pointers targets, std::size_t samples, void const* optimizer,
               StepOutcome& outcome);
    /// The same for arrays that the caller's stream has written, and may write again after this.
    template <class CallersStream>
    void start(Pointers inputs, Pointers targets, std::size_t samples, void const* optimizer,
               StepOutcome& outcome, CallersStream caller) {
        auto feeding = device_.feeding(caller);
        start_fed(feeding, inputs, targets, samples, optimizer, outcome);
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
        device_.forget();
    }

    /// Forward only, over any number of samples. Either the loss is measured and add(sums) called
    /// for each part of at most samples() samples, or the outputs are written to `others`.
    template <class Add>
    void forward(Pointers inputs, Pointers others, std::size_t samples, bool measures, Add add) {
        finish();
        if (!measures)
            for (TensorPointer const& output : others) device_.await_writers(output.data);
        for (std::size_t first = 0; first < samples; first += planned_.samples) {
            std::size_t const count = std::min(planned_.samples, samples - first);
            batches_[0].take(inputs, others, first, count, measures, 0);
            run(lane_plan().forward, batches_[0], {seed_, steps_, nullptr, measures, count});
            if (measures) add(engine_.totals(0));
        }
    }

    /// What it was made of, or has made of it.
    ///@{
    Programs const& programs() const { return planned_.programs; }
    Array<Reversal> const& reversals() const { return planned_.reversals; }
    MemoryPlan const& plan() const { return planned_.plan; }
    Model const& model() const { return planned_.model; }
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
    std::size_t samples() const { return planned_.samples; }
    /// The most that a step may use, see DeviceExecutor.
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
                if (planned_.model.ties[i].layer == layer) spread(tie, i);
    }
    /// Whether a parameter tensor is one with that of an earlier layer.
    bool is_repeated(std::size_t layer, std::size_t tensor) const {
        for (TiedTensor const& end : planned_.model.ties)
            if (end.layer == layer && end.tensor == tensor) return !end.is_first;
        return false;
    }
    /// From the first ends of all ties.
    void spread() {
        for (Tables::Tie const& tie : engine_.tables().ties) spread(tie, tie.first);
    }
    /// That somebody may write the layer's parameters until finish(), or a step, is called.
    void lend(std::size_t layer) {
        for (TiedTensor const& end : planned_.model.ties)
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
        device_.run([&] {
            device_.launch(stream, [&]() noexcept {
                try {
                    f(device_.stream(stream));
                } catch (...) {
                    error = std::current_exception();
                }
            });
        });
        if (error) std::rethrow_exception(error);
    }
    /// Of a layer.
    ///@{
    std::size_t cell_of(std::size_t layer) const { return planned_.cell_of(layer); }
    std::size_t device_of(std::size_t layer) const { return planned_.device_of(layer); }
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
        Lowered const& lowered = planned_.plan.lowered;
        return merge_lanes(lowered, planned_.placement(lowered, lanes()), cost);
    }

  private:
    static constexpr std::size_t slots = Engine<Device>::slots;
    static constexpr std::size_t none_lent = static_cast<std::size_t>(-1);

    template <class Feeding>
    void start_fed(Feeding& feeding, Pointers inputs, Pointers targets, std::size_t samples,
                   void const* optimizer, StepOutcome& outcome);
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
            copy(row.state, written.state, planned_.model.states * slot_bytes(tie.bytes));
        }
    }
    // The number of the step that is started next.
    std::uint64_t next_step() const {
        std::uint64_t number = steps_;
        for (bool const under_way : under_way_) number += under_way;
        return number;
    }
    // Throws what was wrong with the run of a slot, once it is done.
    void end(std::size_t slot) {
        if (!engine_.finish(slot)) std::rethrow_exception(engine_.failure()->error);
    }
    void count_step(std::size_t slot, StepOutcome* outcome) {
        if (engine_.state(slot).committed) steps_ = engine_.state(slot).step;
        if (outcome) outcome->tell(engine_.totals(slot));
    }
    // Waits for the step of a slot, if there is one.
    void finish_slot(std::size_t slot) {
        if (!std::exchange(under_way_[slot], false)) return;
        StepOutcome* const outcome = outcomes_[slot];
        try {
            end(slot);
            count_step(slot, outcome);
        } catch (...) {
            if (!outcome) throw;
            outcome->tell(std::current_exception());
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

    void run(StepTable const& table, MiniBatch const& batch, RunArguments const& arguments);

    // In the order in which the plan has them.
    [[gnu::cold]] void make_handles() {
        Programs const& all = programs();
        for (std::size_t c = 0; c < all.cells(); ++c) {
            std::size_t const d = all.device_of(c);
            auto const add = [&](HandleSpecs specs) {
                handles_[d].add(specs, &device_.stream(d), arena_data_[d] + plan().handles_at[d]);
            };
            for (std::size_t i = planned_.first[c]; i < planned_.first[c + 1]; ++i)
                add(model().layers[i].functions.handles);
            if (c + 1 == all.cells()) add(model().loss.handles);
        }
    }

    // Layers initialize in the host's memory.
    [[gnu::cold]] void initialize_layers() {
        std::size_t const count = planned_.model.layers.size();
        for (std::size_t i = 0; i < count; ++i) {
            LayerParts const& parts = planned_.model.layers[i];
            device::HostBuffer const values(parts.info.parameters.slots(1));
            parts.functions.initialize(parts.object, values.data(), seed_, i, count);
            copy(layer(i).parameters, values.data(), values.size());
        }
        spread();
    }

    LanePlan const& lane_plan() const {
        return lane_choice_.alone() ? plans_[0] : plans_[plans_.size() - 1];
    }

    // What devices have to know before the first step, and after one that may have been committed
    // although it failed.
    [[gnu::cold]] void initialize_states() {
        finish();
        engine_.give_states({seed_, steps_, 0, planned_.checks.clip, 0});
        doubtful_ = false;
    }

    Device device_;
    MachinePlan<Device> planned_;
    std::uint64_t seed_;
    bool immediate_;
    std::uint64_t steps_ = 0;
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
    StepOutcome* outcomes_[slots] = {}; ///< who is told, by slot
};

// What a Training calls is defined here, not inline, so that it is not instantiated again where it
// has been compiled.

template <DeviceRuntime Device>
Machine<Device>::Machine(Model model, Array<std::size_t> first, MachineWork work,
                         std::size_t samples, std::uint64_t seed, StepChecks checks, bool immediate,
                         typename Device::Options options)
    : device_(options, work.programs.devices()),
      planned_(device_, std::move(model), std::move(first), std::move(work), samples, checks),
      seed_(seed), immediate_(immediate), arenas_(programs().devices()),
      arena_data_(programs().devices()), staging_(device_.allocate_host(plan().host)),
      snapshot_(std::make_shared<HostMemory>(device_.allocate_host(plan().snapshot))),
      handles_(programs().devices()), engine_(device_) {
    for (std::size_t d = 0; d < arenas_.size(); ++d) {
        arenas_[d] = device_.allocate(d, plan().devices[d].total());
        arena_data_[d] = arenas_[d].data();
    }
    for (MiniBatch& batch : batches_) batch = MiniBatch(planned_.model, plan(), arena_data_);
    engine_.prepare(make_tables(planned_.model, plan(), arena_data_, handles_, planned_.learner),
                    checks, immediate, batches_[0].staged_bytes());
    std::size_t const most = device_.lanes();
    plans_ = make_lane_plans(planned_, ending_of(planned_, engine_.tables(), immediate), most,
                             arena_data_, staging_.data());
    lane_choice_ = LaneChoice(most > 1 && device_.chooses_lanes() && !immediate, programs().size());
    device_.prepare(plan().lowered.device, longest_of(plans_), batches_[0].copy_devices());
    make_handles();
    initialize_layers();
    initialize_states();
}

template <DeviceRuntime Device> Machine<Device>::~Machine() {
    for (std::size_t slot = 0; slot < slots; ++slot) tell(slot);
    device_.abort(); // what it uses goes from here on
}

template <DeviceRuntime Device>
void Machine<Device>::start(Pointers inputs, Pointers targets, std::size_t samples,
                            void const* optimizer, StepOutcome& outcome) {
    auto feeding = device_.feeding();
    start_fed(feeding, inputs, targets, samples, optimizer, outcome);
}

template <DeviceRuntime Device>
template <class Feeding>
void Machine<Device>::start_fed(Feeding& feeding, Pointers inputs, Pointers targets,
                                std::size_t samples, void const* optimizer, StepOutcome& outcome) {
    std::size_t const slot = next_slot_;
    take_back();
    finish_slot(slot);
    batches_[slot].take(inputs, targets, 0, samples, true, slot);
    if (doubtful_) initialize_states();
    doubtful_ = true;
    bool const timed = lane_choice_.trying();
    double const begin = timed ? detail::seconds_now() : 0;
    bool const done = engine_.submit(lane_plan().training, batches_[slot],
                                     {seed_, next_step(), optimizer, true, samples, slot});
    feeding.end();
    if (done) end(slot);
    doubtful_ = false;
    lane_choice_.note(timed ? detail::seconds_now() - begin : 0);
    if (done) return count_step(slot, &outcome);
    under_way_[slot] = true;
    outcome.wait_at(outcomes_[slot]);
    next_slot_ = (slot + 1) % slots;
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
    if (bytes > 0) device_.run([&] { device_.copy(owner(to, from), to, from, bytes); });
}

template <DeviceRuntime Device> void Machine<Device>::time_actions() {
    engine_.time_actions(
        std::max(plan().lowered.programs.size(), planned_.evaluation.programs.size()));
}

template <DeviceRuntime Device>
void Machine<Device>::run(StepTable const& table, MiniBatch const& batch,
                          RunArguments const& arguments) {
    engine_.submit(table, batch, arguments);
    end(arguments.slot);
}

template <DeviceRuntime Device>
std::span<double const> Machine<Device>::gradients(Pointers inputs, Pointers targets,
                                                   std::size_t samples, void const* optimizer) {
    finish();
    batches_[0].take(inputs, targets, 0, samples, true, 0);
    if (doubtful_) initialize_states();
    doubtful_ = true; // the device counts this for a step
    run(lane_plan().training, batches_[0], {seed_, steps_, optimizer, true, samples, 0, false});
    initialize_states();
    return engine_.totals(0);
}

GPIPE_INSTANTIATE(class Machine<device::Host>);

} // namespace gpipe
GPIPE_RUNS_ONCE_END
