#pragma once

#include <gpipe/balance/validate.hpp>
#include <gpipe/core/checked.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/type_name.hpp>
#include <gpipe/core/version.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/choices.hpp>
#include <gpipe/runtime/chosen_policies.hpp>
#include <gpipe/runtime/machine.hpp>
#include <gpipe/runtime/model_of.hpp>
#include <gpipe/runtime/training_options.hpp>
#include <gpipe/transport/local.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// Throws std::invalid_argument if a policy is an option, too, that the type says.
template <class Policy, class Dynamic> void check_open(char const* name, Dynamic const& option) {
    if constexpr (!std::is_same_v<Policy, Dynamic>) check_not_given(name, bool(option));
}
// A schedule or checkpointing policy: the constant, or else the option, which may be left open.
template <class Policy, class Default, class Dynamic> Dynamic chosen(Dynamic const& option) {
    if constexpr (!std::is_same_v<Policy, Dynamic>)
        return Policy{};
    else if (!option)
        return Default{};
    else
        return option;
}
// By types and options, what is cut and scheduled.
struct WorkChoice {
    schedule::Dynamic const& schedule;
    checkpoint::Dynamic const& checkpointing;
    std::size_t devices, cells, micro_batches;
};

// What the type of a Training or an Inference says of its machine, as values. By pointers to
// functions, so that what no type of a program needs is no code there.
struct MachineType {
    std::size_t by_hand = 0;             // the cells that a Balance names
    std::size_t devices = dynamic;       // K, if none does
    std::size_t micro_batches = dynamic; // M
    std::size_t replicas = 1;            // or dynamic
    Replication replication{};           // of one
    bool overlaps = false;               // see MachineWork
    std::uint64_t program = 0;           // the same in no other

    // Of a Training: the layer that each cell begins with; programs that have been proven, with the
    // recomputes put in.
    Array<std::size_t> (*cut)(WorkChoice const& choice, Array<LayerInfo> const& layers) = nullptr;
    Checkpointed (*checkpointed)(WorkChoice const& choice, CutChain const& chain) = nullptr;
    // See MachineWork.
    Checkpointed (*fit)(BudgetProblem const& problem, Budget const& budget) = nullptr;
    ChooseOffloads choose = &no_offloads;
};

// K, 0 if nothing says it, and M, with so many cells on each device. Throws std::invalid_argument
// where an option does not fit its type.
struct ChosenNumbers {
    std::size_t devices, micro_batches;
};
[[gnu::cold]] GPIPE_INLINE ChosenNumbers chosen_numbers(MachineType const& type, std::size_t each,
                                                        std::size_t entries, std::size_t cells,
                                                        std::size_t micro_batches) {
    check_cells_per_device(each, entries);
    std::size_t const constant = type.by_hand > 0 ? type.by_hand / each : type.devices;
    if (entries > 0 && constant != dynamic)
        throw std::invalid_argument("gpipe: Options::balance is for Cells<dynamic>, but the type "
                                    "says how the layers are cut");
    if (type.by_hand > 0) check_cells_per_device(each, type.by_hand);
    std::size_t const devices =
        chosen_number("cells", constant, cells == 0 ? entries / each : cells, 0);
    return {devices, chosen_number("micro_batches", type.micro_batches, micro_batches,
                                   checked_product(4, devices))};
}

// By Options::balance.
[[gnu::cold]] GPIPE_INLINE Array<std::size_t> cut_by_sizes(std::vector<std::size_t> const& sizes,
                                                           std::size_t layers, std::size_t cells) {
    Array<std::size_t> first(cells + 1);
    gpipe::cut_by_sizes(sizes.data(), sizes.size(), layers, cells, first.data());
    return first;
}

// What options say as they are, and what a device is told beside.
template <class Device, class Options>
void take_options(MachineWork& work, MachineType const& type, Options const& options,
                  [[maybe_unused]] typename Device::Options& device,
                  [[maybe_unused]] std::size_t devices) {
    work.seed = options.seed;
    work.debug = options.debug;
    if constexpr (requires { device.blocking; }) device.blocking |= work.debug;
    if constexpr (joins_ranks<Device>) {
        device.replicas = work.replication.count;
        device.program = type.program + 31 * std::uint64_t{GPIPE_VERSION};
        if (device.devices == dynamic) device.devices = devices;
        // Else they would begin the next step when they are called, and not when they can.
        if constexpr (requires { device.device.apart; }) device.device.apart |= work.overlaps;
        using Transport = typename Device::Transport;
        if constexpr (requires { &Transport::share; })
            device.device = Transport::share(std::move(device.device), device.transport->rank(),
                                             device.replicas, devices);
    }
    work.samples = checked_samples(options.samples);
}

// The rest of the work of a Training's machine, whose model and policies it has: what its type
// leaves open is in its options, and the device is told what they say of it. Throws
// std::invalid_argument where one does not fit.
template <class Device, class Options>
void plan_work(MachineWork& work, MachineType const& type, schedule::Dynamic const& schedule,
               checkpoint::Dynamic const& checkpointing, Options const& options,
               typename Device::Options& device) {
    Model& model = work.model;
    freeze(model, options.frozen, options.frozen_parameters);
    std::size_t const layers = model.infos.size();
    std::size_t const each = schedule.cells_per_device();
    std::size_t const entries = options.balance.size();
    auto const [devices, micro_batches] =
        chosen_numbers(type, each, entries, options.cells, options.micro_batches);
    if (devices == 0)
        throw std::invalid_argument("gpipe: nothing says how many devices there are: with "
                                    "Cells<dynamic> Options::cells does, or Options::balance");
    check_cells(layers, devices); // each has one at least
    std::size_t const cells = checked_product(devices, each);
    check_cells(layers, cells);
    WorkChoice const choice{schedule, checkpointing, devices, cells, micro_batches};
    Array<double> const declared = layer_costs(model.infos.data(), layers);
    check_costs(declared.data(), layers);
    Array<std::size_t>& first = work.first;
    first =
        entries > 0 ? cut_by_sizes(options.balance, layers, cells) : type.cut(choice, model.infos);
    check_found_cut(first, layers);
    check_micro_batches(micro_batches, cells);

    work.snapshot = options.snapshot;
    work.slack = options.slack;
    work.overlaps = type.overlaps;
    work.replication = type.replication;
    work.replication.count = chosen_number("replicas", type.replicas, options.replicas, 1);
    static_cast<Checkpointed&>(work) =
        type.checkpointed(choice, {model.infos.data(), layers, first.data()});
    work.fit = type.fit;
    work.choose = type.choose;
    work.checks = chosen_checks(options.clip_norm, options.finite_gradients, options.not_finite,
                                options.loss_scale, type.overlaps,
                                joins_ranks<Device> && calls_enqueue<Device>);
    model.loss.scales = work.checks.scale.scales();
    take_options<Device>(work, type, options, device, devices);
}
GPIPE_INSTANTIATE(void plan_work<device::Host>(MachineWork&, MachineType const&,
                                               schedule::Dynamic const&, checkpoint::Dynamic const&,
                                               TrainingOptions<device::Host> const&,
                                               device::Host::Options&));

// What all of Chosen says, that is ChosenPolicies or InferencePolicies.
template <class Chosen> constexpr MachineType machine_type() {
    using Cut = typename Chosen::Cut;
    MachineType type;
    if constexpr (cuts_by_hand<Cut>)
        type.by_hand = Cut::cells;
    else
        type.devices = Cut::cells;
    type.micro_batches = Chosen::micro_batch_count;
    type.program = type_id<Chosen>;
    return type;
}

// Fills in the work of the machine of a Training, whose functors and constants must outlive it: see
// plan_work().
template <class Chosen, class Net, class Device = typename Chosen::Device>
void make_work(MachineWork& work, Net const& net, typename Chosen::LossFunctor const& loss,
               typename Chosen::OptimizerFunctor const& optimizer, StepConstants constants,
               TrainingOptions<typename Chosen::Joins> const& options,
               typename Device::Options& device) {
    using Checkpointing = typename Chosen::Checkpointing;
    static constexpr MachineType type = [] {
        MachineType all = machine_type<Chosen>();
        all.replicas = Chosen::ReplicasPolicy::count;
        all.replication = Chosen::replication(1);
        all.overlaps = Chosen::Update::immediate;
        all.cut = [](WorkChoice const& choice, Array<LayerInfo> const& layers) {
            if constexpr (Chosen::constant_cut) {
                return Chosen::first_layers();
            } else {
                Programs weighed;
                if constexpr (WeighsCells<typename Chosen::Cut>)
                    weighed = weighed_programs(choice.schedule, choice.checkpointing,
                                               choice.devices, choice.micro_batches);
                return Chosen::cut(choice.cells, cut_costs(layers.data(), layers.size()), weighed);
            }
        };
        all.checkpointed = [](WorkChoice const& choice, CutChain const& chain) {
            if constexpr (Chosen::proven)
                return apply_checkpointing<Checkpointing>(
                    chain, Chosen::Schedule::programs(choice.devices, choice.micro_batches));
            else
                return proven_programs(choice.schedule, choice.checkpointing, choice.devices,
                                       choice.micro_batches, chain);
        };
        constexpr bool any = std::is_same_v<Checkpointing, checkpoint::Dynamic>;
        if constexpr (any || BudgetPolicy<Checkpointing>) all.fit = &fitted_programs;
        if constexpr (any || reverses_cells<Checkpointing>) all.choose = &choose_offloads;
        return all;
    }();
    check_open<typename Chosen::Schedule>("schedule", options.schedule);
    check_open<Checkpointing>("checkpointing", options.checkpointing);
    make_model<Device>(work.model, net, loss, optimizer);
    work.model.constants = constants;
    auto const schedule = chosen<typename Chosen::Schedule, schedule::GPipe>(options.schedule);
    if constexpr (Chosen::proven) // and cut: the policy's code is not wanted
        plan_work<Device>(work, type, schedule, {}, options, device);
    else
        plan_work<Device>(work, type, schedule,
                          chosen<Checkpointing, checkpoint::ExceptLast>(options.checkpointing),
                          options, device);
}

// Tells other ranks, which are making theirs or wait for this one, what it has thrown by itself.
template <class Transport> void tell_unmade(Transport& transport, Making how) noexcept {
    if (how == Making::alone) return tell_thrown(transport);
    Words const words(std::current_exception());
    try {
        throw;
    } catch (std::bad_alloc const&) {
    } catch (...) {
        if (how == Making::together) return;
    }
    Message const lost("could not be made: %s", words.text);
    lose_self(transport, lost.text);
}

// Who fills in the work of a machine, and says more of its device.
template <class Device> struct WorkMaker {
    void const* object;
    void (*call)(void const* object, MachineWork& work, typename Device::Options& device);
};

// The machine of that work. Where ranks in other processes make theirs, too, what is thrown on one
// is thrown on all: elsewhere as a RankError.
template <class Device>
Machine<Device> machine_of(typename Device::Options options, WorkMaker<Device> make) {
    MachineWork work;
    if constexpr (joins_processes<Device>) {
        Making how = Making::alone;
        options.making = &how;
        try {
            make.call(make.object, work, options);
            return Machine<Device>(options, std::move(work));
        } catch (...) {
            if (options.transport) tell_unmade(*options.transport, how);
            throw;
        }
    } else {
        make.call(make.object, work, options);
        return Machine<Device>(options, std::move(work));
    }
}
GPIPE_INSTANTIATE(Machine<device::Host> machine_of(device::Host::Options, WorkMaker<device::Host>));

// The same of f(work, device).
template <class Device, class F>
Machine<Device> made_together(typename Device::Options const& options, F const& f) {
    return machine_of<Device>(
        options, {&f, [](void const* object, MachineWork& work, typename Device::Options& device) {
                      (*static_cast<F const*>(object))(work, device);
                  }});
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
