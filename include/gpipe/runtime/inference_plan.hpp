#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/plan/links.hpp>
#include <gpipe/runtime/inference_policies.hpp>
#include <gpipe/runtime/machine_of.hpp>
#include <gpipe/schedule/forwards.hpp>

#include <cstddef>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// What the type of an Inference says, without an object, as ConstantPlan of a Training.
template <class Net, class... Policies> class InferencePlan {
    using Chosen = detail::InferencePolicies<Net, Policies...>;
    using Device = typename Chosen::Device;

  public:
    static constexpr std::size_t layer_count = Net::size;                       ///< L
    static constexpr std::size_t device_count = Chosen::device_count;           ///< K, or dynamic
    static constexpr std::size_t micro_batch_count = Chosen::micro_batch_count; ///< M, or dynamic
    /// Whether everything but the number of samples is in the type.
    static constexpr bool is_constant = Chosen::constant;

    /// The layer that each cell begins with, then L: cut by the costs of forwards.
    static constexpr Array<std::size_t> first_layers() requires(device_count != dynamic) {
        return cut_by_costs<typename Chosen::Cut>(Net::costs(), device_count);
    }
    /// The bytes that a device needs in all, for micro-batches of up to `samples` samples; where
    /// tensors may have to be copied between devices, any two have such a `link`. Without outputs
    /// that are kept there for graphs.
    static constexpr std::size_t peak_bytes(std::size_t device, std::size_t samples,
                                            Link link = Device::most_link) requires is_constant {
        return plan_with(samples, plan_bytes, link).devices[device].total();
    }
    /// The whole memory plan for micro-batches of up to `samples` samples, where any two devices
    /// have such a link.
    static constexpr MemoryPlan plan_for(std::size_t samples,
                                         Link link = Link::shared) requires is_constant {
        return plan_with(samples, plan_memory, link);
    }

  private:
    template <class Plan>
    static constexpr MemoryPlan plan_with(std::size_t samples, Plan plan, Link link) {
        Array<LayerInfo> layers = Net::layers();
        only_evaluate(layers);
        Array<std::size_t> const first = first_layers();
        Programs const programs = forwards(device_count, micro_batch_count);
        ChainShape const shape = detail::shape_of<Net, detail::NoLoss>(layers);
        Staging const staging = Device::staged([&] {
            return step_staging(detail::sizes_of<detail::as_tensors<typename Net::Input>>(), {},
                                checked_product(micro_batch_count, samples), micro_batch_count, 0,
                                0, Device::depth, false, joins_ranks<Device> ? most_ranks : 0);
        });
        PlanRequest const request{
            shape, first, 0, samples, staging, links_between(programs, first, shape.skips, link)};
        return plan(request, programs, {}, &no_offloads);
    }
};

namespace detail {

// Whether the options of a device, or of what joins several, say so.
template <class DeviceOptions> bool keeps_graphs(DeviceOptions const& options) {
    if constexpr (requires { options.graphs; })
        return options.graphs > 0;
    else if constexpr (requires { options.device.graphs; })
        return options.device.graphs > 0;
    else
        return false;
}

// The rest of the work of an Inference's machine, whose model it has: as plan_work().
template <class Device>
void plan_inference(MachineWork& work, MachineType const& type,
                    Array<std::size_t> (*cut)(Array<double> const& costs, std::size_t cells),
                    InferenceOptions<Device> const& options, typename Device::Options& device) {
    Model& model = work.model;
    std::size_t const layers = model.infos.size(), entries = options.balance.size();
    auto const [devices, micro_batches] =
        chosen_numbers(type, 1, entries, options.cells, options.micro_batches);
    if (keeps_graphs(options.device)) model.targets = model.infos[layers - 1].output;
    check_cells(layers, devices);
    Array<double> const costs = layer_costs(model.infos.data(), layers);
    check_costs(costs.data(), layers);
    Array<std::size_t>& first = work.first;
    first = entries > 0 ? cut_by_sizes(options.balance, layers, devices) : cut(costs, devices);
    check_found_cut(first, layers);
    check_micro_batches(micro_batches, devices);
    work.programs = forwards(devices, micro_batches);
    // Where a queue runs what it is given one behind the other, and where ranks agree, none does.
    work.overlaps = Device::depth > 1 && !calls_enqueue<Device> && !joins_ranks<Device>;
    take_options<Device>(work, type, options, device, devices);
}

// Fills in the work of the machine of an Inference of `net`, which must outlive it.
template <class Chosen, class Net, class Device = typename Chosen::Device>
void make_inference_work(MachineWork& work, Net const& net, StepConstants constants,
                         InferenceOptions<Device> const& options,
                         typename Device::Options& device) {
    static constexpr MachineType type = machine_type<Chosen>();
    make_inference_model<Device>(work.model, net);
    work.model.constants = constants;
    plan_inference<Device>(work, type, &cut_by_costs<typename Chosen::Cut>, options, device);
}

} // namespace detail
} // namespace gpipe
GPIPE_RUNS_ONCE_END
