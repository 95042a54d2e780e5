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
// K, 0 if nothing says it, and M: of a Chosen whose schedule has so many cells on each device.
// Throws std::invalid_argument where an option does not fit its type.
struct ChosenNumbers {
    std::size_t devices, micro_batches;
};
template <class Chosen, class Options>
ChosenNumbers chosen_numbers(std::size_t each, Options const& options) {
    using Cut = typename Chosen::Cut;
    std::size_t const entries = options.balance.size();
    check_cells_per_device(each, entries);
    std::size_t const constant = devices_of<Cut>(each);
    if (entries > 0 && (cuts_by_hand<Cut> || constant != dynamic))
        throw std::invalid_argument("gpipe: Options::balance is for Cells<dynamic>, but the type "
                                    "says how the layers are cut");
    if constexpr (cuts_by_hand<Cut>) check_cells_per_device(each, Cut::cells);
    std::size_t const devices =
        chosen_number("cells", constant, options.cells == 0 ? entries / each : options.cells, 0);
    return {devices, chosen_number("micro_batches", Chosen::micro_batch_count,
                                   options.micro_batches, checked_product(4, devices))};
}

// What options say as they are, and what a device is told beside: of a Chosen with so many devices.
template <class Chosen, class Options>
void take_options(MachineWork& parts, Options const& options,
                  [[maybe_unused]] typename Chosen::Device::Options& device,
                  [[maybe_unused]] std::size_t devices) {
    using Device = typename Chosen::Device;
    parts.seed = options.seed;
    parts.debug = options.debug;
    if constexpr (requires { device.blocking; }) device.blocking |= parts.debug;
    if constexpr (joins_ranks<Device>) {
        device.replicas = parts.replication.count;
        device.program = type_id<Chosen> + 31 * std::uint64_t{GPIPE_VERSION};
        if (device.devices == dynamic) device.devices = devices;
        // Else they would begin the next step when they are called, and not when they can.
        if constexpr (requires { device.device.apart; }) device.device.apart |= parts.overlaps;
        using Transport = typename Device::Transport;
        if constexpr (requires { &Transport::share; })
            device.device = Transport::share(std::move(device.device), device.transport->rank(),
                                             device.replicas, devices);
    }
    parts.samples = checked_samples(options.samples);
}

// Of the Machine of a Training, whose functors and constants must outlive it: what Chosen, its
// ChosenPolicies, leaves open is in its options, and the device is told what they say of it. Throws
// std::invalid_argument where one does not fit.
template <class Chosen, class Net, class Device = typename Chosen::Device>
MachineWork machine_parts(Net const& net, typename Chosen::LossFunctor const& loss,
                          typename Chosen::OptimizerFunctor const& optimizer,
                          StepConstants constants,
                          TrainingOptions<typename Chosen::Joins> const& options,
                          typename Device::Options& device) {
    using Cut = typename Chosen::Cut;
    using Checkpointing = typename Chosen::Checkpointing;
    check_open<typename Chosen::Schedule>("schedule", options.schedule);
    check_open<Checkpointing>("checkpointing", options.checkpointing);
    MachineWork parts;
    Model& model = parts.model = model_of<Device>(net, loss, optimizer);
    model.constants = constants;
    freeze(model, options.frozen, options.frozen_parameters);
    auto const schedule = chosen<typename Chosen::Schedule, schedule::GPipe>(options.schedule);
    auto const checkpointing = [&] { // not of constants: that would be compiled for nothing
        return chosen<Checkpointing, checkpoint::ExceptLast>(options.checkpointing);
    };
    std::size_t const each = schedule.cells_per_device();
    std::size_t const entries = options.balance.size();
    ChosenNumbers const numbers = chosen_numbers<Chosen>(each, options);
    std::size_t const devices = numbers.devices, micro_batches = numbers.micro_batches;
    if (devices == 0)
        throw std::invalid_argument("gpipe: nothing says how many devices there are: with "
                                    "Cells<dynamic> Options::cells does, or Options::balance");
    check_cells(Net::size, devices); // each has one at least
    std::size_t const cells = checked_product(devices, each);
    check_cells(Net::size, cells);
    Array<double> const declared = Net::costs();
    check_costs(declared.data(), declared.size());
    Array<double> const costs = cut_costs(model.infos.data(), Net::size);
    Array<std::size_t> const& first = parts.first = [&] {
        if (entries > 0) {
            Array<std::size_t> by_hand(cells + 1);
            cut_by_sizes(options.balance.data(), entries, Net::size, cells, by_hand.data());
            return by_hand;
        }
        if constexpr (Chosen::constant_cut)
            return Chosen::first_layers();
        else if constexpr (WeighsCells<Cut>)
            return Chosen::cut(cells, costs,
                               weighed_programs(schedule, checkpointing(), devices, micro_batches));
        else
            return Chosen::cut(cells, costs);
    }();
    check_found_cut(first, Net::size);
    check_micro_batches(micro_batches, cells);

    parts.snapshot = options.snapshot;
    parts.slack = options.slack;
    parts.overlaps = Chosen::Update::immediate;
    parts.replication = Chosen::replication(
        chosen_number("replicas", Chosen::ReplicasPolicy::count, options.replicas, 1));
    if constexpr (Chosen::proven)
        static_cast<Checkpointed&>(parts) =
            Chosen::applied(model.infos, first, Chosen::Schedule::programs(devices, micro_batches));
    else
        static_cast<Checkpointed&>(parts) =
            proven_programs(schedule, checkpointing(), devices, micro_batches,
                            {model.infos.data(), model.infos.size(), first.data()});
    constexpr bool any = std::is_same_v<Checkpointing, checkpoint::Dynamic>;
    if constexpr (any || BudgetPolicy<Checkpointing>) parts.fit = &fitted_programs;
    if constexpr (any || reverses_cells<Checkpointing>) parts.choose = &choose_offloads;

    parts.checks = chosen_checks(options.clip_norm, options.finite_gradients, options.not_finite,
                                 options.loss_scale, Chosen::Update::immediate,
                                 joins_ranks<Device> && calls_enqueue<Device>);
    model.loss.scales = parts.checks.scale.scales();
    take_options<Chosen>(parts, options, device, devices);
    return parts;
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

// The machine of the work that `work(options)` makes, which says more of the device. Where ranks in
// other processes make theirs, too, what is thrown on one is thrown on all: elsewhere as a
// RankError.
template <class Device, class Work>
Machine<Device> made_together(typename Device::Options options, Work work) {
    if constexpr (joins_processes<Device>) {
        Making how = Making::alone;
        options.making = &how;
        try {
            return Machine<Device>(options, work(options));
        } catch (...) {
            if (options.transport) tell_unmade(*options.transport, how);
            throw;
        }
    } else {
        return Machine<Device>(options, work(options));
    }
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
