#pragma once

#include <gpipe/checkpoint/reversed_costs.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/plan/edge_costs.hpp>
#include <gpipe/plan/links.hpp>
#include <gpipe/runtime/chosen_policies.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <cstddef>
#include <stdexcept>
#include <utility>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// What the type of a Training says, without an object: its numbers, where it is cut, how long it
/// is idle, and every byte, as constants.
template <class Net, class... Policies> class ConstantPlan {
    using Chosen = detail::ChosenPolicies<Net, Policies...>;
    using Device = typename Chosen::Device;

  public:
    /// L, K, the cells on all of the devices, and M; `dynamic` where they are chosen at
    /// construction.
    static constexpr std::size_t layer_count = Net::size;
    static constexpr std::size_t device_count = Chosen::device_count;           ///< K
    static constexpr std::size_t cell_count = Chosen::cell_count;               ///< on all devices
    static constexpr std::size_t micro_batch_count = Chosen::micro_batch_count; ///< M
    /// Whether everything but the number of samples is in the type, and what runs again is no
    /// matter of a search, as within the budget of checkpoint::Optimal.
    static constexpr bool is_constant = Chosen::constant;

    /// Whether R is.
    static constexpr bool knows_replicas = Chosen::ReplicasPolicy::count != dynamic;

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
                                   double bandwidth = unlimited<double>) requires is_constant {
        Programs const programs = Chosen::checkpointed().programs;
        return gpipe::bubble(simulate<double>(programs, cost, latency, bandwidth),
                             programs.devices());
    }
    /// What actions take where layers take that, for bubble(): see reversed_costs(). With the bytes
    /// that go from cell to cell for micro-batches of so many samples, if that is given.
    static constexpr ChainCosts<double> action_costs(LayerTimes const& times,
                                                     std::size_t samples = 0) requires is_constant {
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
        check_device(device);
        return gpipe::peak_micro_batches(Chosen::schedule_programs(), device);
    }
    /// The bytes that a device needs in all, for micro-batches of up to `samples` samples, with
    /// what the norm of the gradients takes, and what copies do: where tensors may have to be
    /// copied between devices, any two have such a `link`. On a machine with several kinds ask for
    /// each; benchmarks/plan prints the most over all of them beside every plan.
    static constexpr std::size_t
    peak_bytes(std::size_t device, std::size_t samples,
               Link link = Device::most_link) requires(is_constant&& knows_replicas) {
        check_device(device);
        return plan_with(samples, plan_bytes, link, true).devices[device].total();
    }
    /// The whole memory plan for micro-batches of up to `samples` samples, where any two devices
    /// have such a link and nobody wants the norm of the gradients. What actions wait for is found
    /// by the sweep that proves tables, see find_needs(): of an order in which something is read
    /// before it is written this is no constant.
    static constexpr MemoryPlan
    plan_for(std::size_t samples, Link link = Link::shared) requires(is_constant&& knows_replicas) {
        return plan_with(samples, plan_memory, link, false);
    }

  private:
    static constexpr void check_device(std::size_t device) {
        if (device >= device_count)
            throw std::out_of_range("gpipe: there is no such device: they are numbered from 0, and "
                                    "there are Training::device_count");
    }
    template <class Plan>
    static constexpr MemoryPlan plan_with(std::size_t samples, Plan plan, Link link,
                                          bool squares) requires is_constant {
        Array<LayerInfo> const layers = Net::layers();
        Array<std::size_t> const first = first_layers();
        Checkpointed const checkpointed = Chosen::checkpointed();
        ChainShape const shape = detail::shape_of<Net, typename Chosen::LossFunctor>(layers);
        PlanRequest request{shape,
                            first,
                            Chosen::OptimizerFunctor::states,
                            samples,
                            Chosen::staging(samples, squares),
                            links_between(checkpointed.programs, first, shape.skips, link)};
        if constexpr (knows_replicas)
            request.replication = Chosen::replication(Chosen::ReplicasPolicy::count);
        return plan(request, checkpointed.programs, checkpointed.reversals, &choose_offloads);
    }
};

} // namespace gpipe
GPIPE_RUNS_ONCE_END
