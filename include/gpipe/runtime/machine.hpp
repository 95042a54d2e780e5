#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/shared.hpp>
#include <gpipe/device/host.hpp>
#include <gpipe/runtime/arenas.hpp>
#include <gpipe/runtime/engine_steps.hpp>
#include <gpipe/runtime/machine_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Everything that a Training has at run time, for one kind of device: the device, the arenas and
/// the engine. Knows layers as values only, so all Trainings of a program share it.
template <DeviceRuntime Device> class Machine {
  public:
    using HostMemory =
        decltype(std::declval<Device&>().allocate_host(0)); ///< as the device allocates it
    using Snapshot = detail::CountedValue<HostMemory>;      ///< of the host's memory

    /// Initializes the parameters; throws what a layer's initialize throws, and
    /// std::invalid_argument if a budget does not do.
    Machine(typename Device::Options const& options, MachineWork work);
    Machine(Machine const&) = delete;
    Machine& operator=(Machine const&) = delete;
    ~Machine();

    /// Who runs it.
    ///@{
    Engine<Device>& engine() { return engine_; }
    Engine<Device> const& engine() const { return engine_; }
    ///@}
    /// Waits for all steps, see Engine.
    void finish() { engine_.finish(); }

    /// What it was made of, or has made of it.
    ///@{
    Programs const& programs() const { return planned_.programs; }
    Array<Reversal> const& reversals() const { return planned_.reversals; }
    MemoryPlan const& plan() const { return planned_.plan; }
    Model const& model() const { return planned_.model; }
    CutChain chain() const { return planned_.chain(); }
    ///@}
    /// Who has the devices.
    Ranks const& ranks() const { return planned_.ranks; }
    /// Where layer i's parameters and gradients lie. Throws std::out_of_range if that is on another
    /// rank.
    LayerMemory const& layer(std::size_t i) const {
        if (std::size_t const d = device_of(i); !ranks().own(d))
            detail::throw_error<std::out_of_range>(
                "gpipe: layer %zu is on rank %zu, and this is rank %zu", i,
                ranks().number(ranks().replica, ranks().of(d)), ranks().number());
        return engine_.tables().layers[i];
    }
    /// See Options::samples: of a replica, and of all.
    ///@{
    std::size_t samples() const { return planned_.samples; }
    std::size_t all_samples() const { return planned_.samples * ranks().replicas; }
    ///@}
    /// All memory of a device.
    std::span<std::byte> arena(std::size_t device) { return arenas_[device]; }
    /// Of the next step: see Options::seed, and its number.
    ///@{
    std::uint64_t seed() const { return engine_.seed(); }
    std::uint64_t steps() const { return engine_.steps(); }
    ///@}
    /// Of all arenas.
    std::size_t used_bytes() const { return arenas_.bytes(); }
    /// Copies from the host's memory to a device's or back, between steps; done when it returns.
    void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
        detail::OneCaller::Call const call(engine_.caller());
        finish();
        arenas_.copy(to, from, bytes);
    }
    /// The devices that walk it.
    Device const& device() const { return device_; }
    /// What all ranks do together begins, which is no run. Throws std::invalid_argument on all of
    /// them, on hosts, unless they are told the same, see detail::RankCall.
    template <class Kind> void begin_together([[maybe_unused]] Kind kind) {
        finish();
        if constexpr (joins_processes<Device> && !calls_enqueue<Device>)
            device_.agree_on(engine_.tables(), kind);
    }
    /// The host's memory for a copy of the state (MemoryPlan::snapshot bytes), which outlives this
    /// object where somebody else holds it, and who reads it.
    detail::Shared<Snapshot> const& snapshot() const { return snapshot_; }
    /// Who saves the state in the background; null if nobody ever did.
    detail::Shared<detail::Counted>& saving() { return saving_; }
    /// For who looks at a layer by itself, between steps: memory beside the plan's, a device's
    /// handles, and f(stream) on a device's stream, done when it returns. Throws what f throws.
    auto allocate(std::size_t device, std::size_t bytes) { return device_.allocate(device, bytes); }
    /// The library handles of a device.
    HandleSet const& handles(std::size_t device) const { return handles_[device]; }
    /// See above.
    template <class F> void call(std::size_t device, F f) {
        detail::OneCaller::Call const call(engine_.caller());
        finish();
        detail::call_on(device_, engine_.stream_of(device), f);
    }
    /// Of a layer.
    ///@{
    std::size_t cell_of(std::size_t layer) const { return planned_.cell_of(layer); }
    std::size_t device_of(std::size_t layer) const { return planned_.device_of(layer); }
    ///@}
    /// The programs merged onto the lanes of a step as if cost(action) were what actions take.
    template <class Cost> Lanes merged(Cost const& cost) const {
        Lowered const& lowered = planned_.plan.lowered;
        return merge_lanes(lowered, planned_.placement(lowered, engine_.lanes()), cost);
    }

  private:
    // When all ranks have their plans and memory.
    Device& planned_device() {
        if constexpr (joins_ranks<Device>) device_.all_planned();
        return device_;
    }
    // In the order in which the plan has them.
    [[gnu::cold]] void make_handles() {
        Programs const& all = programs();
        for (std::size_t c = 0; c < all.cells(); ++c) {
            std::size_t const d = all.device_of(c);
            if (!ranks().own(d)) continue;
            auto const add = [&](HandleSpecs specs) {
                handles_[d].add(specs, &device_.stream(d - ranks().begin()),
                                arenas_.begins()[d] + plan().begin[d].handles);
            };
            for (std::size_t i = planned_.first[c]; i < planned_.first[c + 1]; ++i)
                add(model().layers[i].functions.handles);
            if (c + 1 == all.cells()) add(model().loss.handles);
        }
    }

    // What a layer begins with, in the host's memory.
    struct Initial {
        device::HostBuffer values, buffers;
    };
    Initial initial(std::size_t layer) const {
        LayerParts const& parts = model().layers[layer];
        LayerInfo const& info = model().infos[layer];
        Initial result{device::HostBuffer(info.parameters.slots(1)),
                       device::HostBuffer(info.buffers.slots(1))};
        parts.functions.initialize(parts.object, result.values.data(), result.buffers.data(),
                                   engine_.seed(), layer, model().layers.size());
        return result;
    }
    [[gnu::cold]] void initialize_layers() {
        for (std::size_t i = 0; i < model().layers.size(); ++i) {
            if (!ranks().own(device_of(i))) continue;
            auto const [values, buffers] = initial(i);
            LayerMemory const& memory = engine_.tables().layers[i];
            GroupSizes const& sizes = model().infos[i].parameters;
            for (std::size_t t = 0; t < sizes.count; ++t)
                if (!holder_of(model().ties, plan().holders, i, t))
                    copy(memory.parameters[t], sizes.find(values.data(), t), sizes.bytes[t]);
            copy(memory.buffers.buffers, buffers.data(), buffers.size());
        }
        engine_.tied().spread();
        if constexpr (joins_ranks<Device>) initialize_tied();
    }
    // What is one with a layer of another rank.
    void initialize_tied() {
        Tables const& tables = engine_.tables();
        for (Tables::Tie const& tie : tables.ties) {
            TiedTensor const& first = model().ties[tie.first];
            if (ranks().own(device_of(first.layer))) continue;
            Initial const begins = initial(first.layer);
            std::byte* const from =
                model().infos[first.layer].parameters.find(begins.values.data(), first.tensor);
            for (std::size_t i = tie.first; i < tie.last; ++i)
                if (std::byte* const to = engine_.tied().parameter(i)) copy(to, from, tie.bytes);
        }
    }
    // Of the host's memory: bytes that are this rank's, and where those of all ranks would begin.
    std::size_t host_bytes() const {
        return plan().host_before(ranks().end()) - plan().host_before(ranks().begin());
    }
    std::byte* host_begin() const {
        std::size_t const before = plan().host_before(ranks().begin());
        auto const own = reinterpret_cast<std::uintptr_t>(staging_.data());
        return reinterpret_cast<std::byte*>(own ? own - before : slot_alignment);
    }

    Device device_;
    MachinePlan<Device> planned_;
    Arenas<Device> arenas_;
    HostMemory staging_;
    detail::Shared<Snapshot> snapshot_;
    detail::Shared<detail::Counted> saving_; ///< what reads the snapshot, if anything does
    Array<HandleSet> handles_;               ///< by device; goes before its workspaces and streams
    Engine<Device> engine_;
};

// Defined here, not inline, so that it is not instantiated again where it has been compiled.
template <DeviceRuntime Device>
Machine<Device>::Machine(typename Device::Options const& options, MachineWork work)
    : device_(options, work.programs.devices()), planned_(device_, std::move(work)),
      arenas_(device_, plan(), ranks()), staging_(device_.allocate_host(host_bytes())),
      snapshot_(new Snapshot(device_.allocate_host(plan().snapshot))),
      handles_(programs().devices()),
      engine_(planned_device(), planned_, arenas_, host_begin(), handles_) {
    make_handles();
    initialize_layers();
    if constexpr (joins_ranks<Device>) // and so all ranks have been made
        device_.compare_plans(planned_, engine_.plan_hash());
}

template <DeviceRuntime Device> Machine<Device>::~Machine() = default;

GPIPE_INSTANTIATE(class Machine<device::Host>);

namespace detail {

// What check() says of a call; where it throws, processes that do the same hear of it. `starts`:
// whether that is a step, for which they may not wait until others are done.
template <bool starts = false, class Device, class F>
auto or_refuse(Machine<Device>& machine, F check) {
    OneCaller::Call const call(machine.engine().caller()); // of one in a step nobody is told
    if constexpr (joins_processes<Device> && !calls_enqueue<Device>) {
        machine.engine().runs().refuse_if_torn(); // as all do by themselves
        try {
            return check();
        } catch (...) {
            auto& transport = machine.device().transport();
            if constexpr (requires { transport.give_up(""); })
                if (starts && !machine.engine().runs().all_ended()) {
                    transport.give_up("has refused what it was told while steps were under way");
                    throw;
                }
            machine.engine().finish(); // as all do first; throws what they throw
            machine.device().refuse_call(machine.engine().tables());
            throw;
        }
    } else {
        return check();
    }
}

// That of a Training, for who needs more than its public members.
struct MachineAccess {
    template <class Training> static auto& of(Training& train) {
        if constexpr (!std::is_const_v<Training>) train.team_.lend(); // it may be written
        return train.machine_;
    }
    // The same to be looked at only.
    template <class Training> static auto& machine(Training& train) { return train.machine_; }
    template <class Training, class Inputs, class Targets>
    static std::size_t checked_step(Training& train, Inputs const& inputs, Targets const& targets) {
        return train.checked_step(inputs, targets);
    }
    // f(machine, whether it is the first) with those of all replicas in this process.
    template <class Training, class F> static void start_together(Training& train, F f) {
        train.team_.start_together(train.machine_, f);
    }
    template <class Training, class F> static void together(Training& train, F f) {
        train.team_.together(train.machine_, f);
    }
};

} // namespace detail

} // namespace gpipe
GPIPE_RUNS_ONCE_END
