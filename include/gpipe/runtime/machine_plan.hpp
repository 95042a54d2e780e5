#pragma once

#include <gpipe/checkpoint/reversed_costs.hpp>
#include <gpipe/core/checked.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/split.hpp>
#include <gpipe/device/device.hpp>
#include <gpipe/memory/memory_plan.hpp>
#include <gpipe/plan/evaluation.hpp>
#include <gpipe/plan/links.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/lanes.hpp>
#include <gpipe/runtime/machine_work.hpp>
#include <gpipe/runtime/model.hpp>
#include <gpipe/runtime/work.hpp>
#include <gpipe/transport/local.hpp>

#include <cstddef>
#include <stdexcept>
#include <utility>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

namespace detail {

// Bytes of a copy of the whole state: parameters, their optimizer state, and buffers; ties once.
[[gnu::cold]] GPIPE_INLINE std::size_t snapshot_bytes(Model const& model) {
    std::size_t bytes = 0;
    auto const kept = [&](std::size_t layer, std::size_t tensor) {
        return model.infos[layer].learns(tensor) ? 1 + model.states : 1;
    };
    for (std::size_t i = 0; i < model.infos.size(); ++i) {
        LayerInfo const& layer = model.infos[i];
        for (std::size_t t = 0; t < layer.parameters.count; ++t)
            bytes += kept(i, t) * layer.parameters.bytes[t];
        for (std::size_t t = 0; t < layer.buffers.count; ++t) bytes += layer.buffers.bytes[t];
    }
    for (TiedTensor const& end : model.ties)
        if (!end.is_first) bytes -= kept(end.layer, end.tensor) * end.bytes;
    return bytes;
}

// Of what one of several ranks saves of it, at most: with what its arenas have between tensors.
[[gnu::cold]] GPIPE_INLINE std::size_t snapshot_bytes(MemoryPlan const& plan, Ranks const& ranks) {
    std::size_t bytes = 0;
    bool const first = ranks.replica == 0;
    for (std::size_t d = ranks.begin(); d < ranks.end(); ++d) {
        DeviceOffsets const& begin = plan.begin[d];
        if (first)
            bytes += plan.devices[d].parameters + (begin.unwanted - begin.frozen) +
                     (begin.next - begin.buffers);
        if (first || plan.replication.shards) bytes += plan.devices[d].optimizer;
    }
    return bytes;
}

} // namespace detail

/// Of a device: the ranks that it is joined to, or itself alone.
template <class Device> Ranks ranks_of(Device const& device, std::size_t devices) {
    if constexpr (joins_ranks<Device>)
        return device.ranks();
    else
        return {devices};
}

/// What a machine runs, and where everything lies: planned for one kind of device.
template <DeviceRuntime Device> class MachinePlan : public MachineWork {
  public:
    Ranks const ranks;            ///< who has the devices
    ChainCosts<double> cost;      ///< of actions, as layers declare them
    std::size_t const learner;    ///< see lowest_learner()
    MemoryPlan plan;              ///< of a step
    Lowered evaluation;           ///< its forwards alone
    Operands evaluation_operands; ///< theirs

    /// Throws std::invalid_argument if a budget does not do, and where memory has too few
    /// addresses.
    MachinePlan(Device const& device, MachineWork work)
        : MachineWork(std::move(work)), ranks(ranks_of(device, programs.devices())),
          cost(declared_costs(chain(), reversals)),
          learner(lowest_learner(model.infos.data(), model.infos.size())), plan(planned(device)),
          evaluation(evaluation_of(plan.lowered)),
          evaluation_operands(find_operands(evaluation, plan.cells, plan.part_table(true))) {
        evaluation.needs = find_needs(walk_of(evaluation), evaluation_operands,
                                      Located(plan, evaluation_operands, true));
    }

    /// Whether there is nothing but evaluations.
    bool infers() const { return programs.evaluates(); }
    /// See update::Immediate.
    bool immediate() const { return overlaps && !infers(); }
    /// As checkpointing policies see it.
    CutChain chain() const { return {model.infos.data(), model.infos.size(), first.data()}; }
    /// Of a layer.
    ///@{
    std::size_t cell_of(std::size_t layer) const { return gpipe::cell_of(first, layer); }
    std::size_t device_of(std::size_t layer) const { return programs.device_of(cell_of(layer)); }
    ///@}
    /// Of a mini-batch, what this replica sees: see Replicas.
    SampleRange own_part(std::size_t count) const {
        return Split(count, ranks.replicas)[ranks.replica];
    }
    /// Which of so many lanes walks each program, and on which stream.
    Placement placement(Lowered const& lowered, std::size_t lanes) const {
        bool const apart = Device::streams(lanes, lowered.streams()) != lanes;
        return place_programs(lowered, ranks, lanes, apart, cost);
    }

  private:
    std::size_t loss_row() const { return model.sums + debug; }
    PlanRequest request(Device const& device, std::size_t capacity, bool guards = false) const {
        std::size_t const micro_batches = programs.micro_batches();
        Staging staging = Device::staged([&] {
            return step_staging(model.infos[0].input, model.targets,
                                checked_product(capacity, micro_batches), micro_batches, loss_row(),
                                model.optimizer_bytes, Device::depth, checks.squares(),
                                joins_ranks<Device> ? ranks.all() : 0, ranks.replicas);
        });
        staging.ties = staging.ties || joins_ranks<Device>;
        return {{model.infos.data(), model.infos.size(), learner, model.loss.scratch,
                 model.loss.handle_needs, model.skips, model.ties, model.loss.constants,
                 model.sides},
                first,
                model.states,
                capacity,
                staging,
                links(device),
                // In a room a step would wait for all that the one before has there, and without
                // backwards a micro-batch for the one before.
                overlaps || infers() ? Tightness::quick : Tightness::full,
                guards ? slot_alignment : 0,
                slack,
                replication,
                joins_ranks<Device> && calls_enqueue<Device> && ranks.count > 1 &&
                    (immediate() || model.ties.size() > 0)};
    }
    // Whether this rank has all of the state, and no other process has the same.
    bool saves_alone() const {
        if constexpr (joins_ranks<Device>)
            return ranks.count == 1 &&
                   (ranks.replicas == 1 || !(joins_processes<Device> || replication.shards));
        else
            return true;
    }
    MemoryPlan planned(Device const& device) {
        std::size_t const micro_batches = programs.micro_batches();
        std::size_t const capacity = Split(samples, micro_batches)[0].count; // the most
        // Behind every tensor of samples, wherever a layer's functions look for the next. What runs
        // again is chosen without.
        PlanRequest const roomy = request(device, checked_sum(capacity, debug), debug);
        if (!countable(roomy, micro_batches))
            detail::throw_error<std::invalid_argument>(
                "gpipe: Options::samples is %zu: the tensors of micro-batches of %zu samples have "
                "more bytes than memory has addresses",
                samples, capacity);
        if (budget.given) {
            if (!(budget.bandwidth > 0))
                detail::throw_error<std::invalid_argument>(
                    "gpipe: checkpoint::Optimal is told that %g bytes are offloaded in a unit of "
                    "time: that has to be positive",
                    budget.bandwidth);
            BudgetProblem const budgeted{request(device, checked_capacity(budget, capacity)),
                                         programs, budget.offloads, budget.bandwidth};
            if (!countable(budgeted, micro_batches))
                detail::throw_error<std::invalid_argument>(
                    "gpipe: checkpoint::Optimal is for micro-batches of %zu samples, whose tensors "
                    "have more bytes than memory has addresses",
                    budgeted.capacity);
            static_cast<Checkpointed&>(*this) = fit(budgeted, budget);
            cost = declared_costs(chain(), reversals);
        }
        MemoryPlan result = plan_memory(roomy, programs, reversals, choose);
        if (snapshot)
            result.snapshot = saves_alone() ? detail::snapshot_bytes(model)
                                            : detail::snapshot_bytes(result, ranks);
        return result;
    }
    Array<Link> links(Device const& device) const {
        if (Device::most_link == Link::shared) return {};
        return links_between(programs, first, model.skips, [&](std::size_t from, std::size_t to) {
            return device.link(from, to);
        });
    }
};

} // namespace gpipe
GPIPE_RUNS_ONCE_END
