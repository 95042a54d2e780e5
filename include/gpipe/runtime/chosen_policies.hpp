#pragma once

#include <gpipe/balance/balance.hpp>
#include <gpipe/balance/check_cut.hpp>
#include <gpipe/chain/check_neighbours.hpp>
#include <gpipe/chain/handle_table.hpp>
#include <gpipe/checkpoint/check_checkpointing.hpp>
#include <gpipe/core/checked.hpp>
#include <gpipe/core/policy.hpp>
#include <gpipe/device/host.hpp>
#include <gpipe/optimizer/sgd.hpp>
#include <gpipe/optimizer/when.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/check_parts.hpp>
#include <gpipe/runtime/device_work.hpp>
#include <gpipe/runtime/one_replica.hpp>
#include <gpipe/schedule/check_schedule.hpp>
#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/search/cut_for.hpp>
#include <gpipe/search/least_budget.hpp>
#include <gpipe/transport/local.hpp>

#include <cstddef>
#include <type_traits>

namespace gpipe::detail {

// The Pipeline Net with these layers, and a loss, as the planner sees them.
template <class Net, class Loss> constexpr ChainShape shape_of(Array<LayerInfo> const& layers) {
    return {layers.data(),
            layers.size(),
            lowest_learner(layers.data(), layers.size()),
            sizes_of<typename ScratchOf<Loss>::type>(),
            handle_needs<Loss>(),
            {Net::skips.data(), Net::skips.size()},
            {Net::ties.data(), Net::ties.size()},
            constant_needs<Loss>(),
            {Net::sides.data(), Net::sides.size()}};
}

// The policies of a Training over the Pipeline Net, whatever their order, with the defaults filled
// in; checked, and proven as far as they are constants.
template <class Net, class... Policies> struct ChosenPolicies {
    using Cut = policy_or<policy::Cut, Cells<1>, Policies...>;
    using Schedule = policy_or<policy::Schedule, schedule::GPipe, Policies...>;
    using Checkpointing = policy_or<policy::Checkpointing, checkpoint::ExceptLast, Policies...>;
    using Update = policy_or<policy::Update, update::AfterCommit, Policies...>;
    using ReplicasPolicy = policy_or<policy::Replicas, OneReplica, Policies...>;
    // The devices of a pipeline; joined with those of other ranks; and with other replicas'.
    using OwnDevice = policy_or<policy::Device, device::Host, Policies...>;
    using Joins = typename policy_or<policy::Transport, transport::Local,
                                     Policies...>::template Of<OwnDevice>;
    using Device = typename ReplicasPolicy::template Of<Joins>;
    using LossFunctor = typename policy_or<policy::Loss, Loss<NoLoss>, Policies...>::functor;
    using OptimizerFunctor =
        typename policy_or<policy::Optimizer, Optimizer<SGD>, Policies...>::functor;

    // The number of cells on a device, and K where it does not hang on a schedule that is chosen at
    // construction.
    static constexpr bool knows_schedule = !std::is_same_v<Schedule, schedule::Dynamic>;
    static constexpr std::size_t per_device = gpipe::cells_per_device<Schedule>;
    static constexpr std::size_t device_count =
        knows_schedule || !cuts_by_hand<Cut> ? devices_of<Cut>(per_device) : dynamic;
    using MicroBatchesPolicy =
        policy_or<policy::MicroBatches, MicroBatches<micro_batches_for(device_count)>, Policies...>;

    static constexpr std::size_t cell_count = knows_schedule && device_count != dynamic
                                                  ? checked_product(device_count, per_device)
                                                  : dynamic;
    static constexpr std::size_t micro_batch_count = MicroBatchesPolicy::count;
    // Whether the schedule as it runs over the layers is in the type, and whether the recomputes
    // are, too: of all but the number of samples. Those within a budget are searched for.
    static constexpr bool constant_schedule =
        cell_count != dynamic && micro_batch_count != dynamic && ScheduleFunction<Schedule> &&
        !std::is_same_v<Checkpointing, checkpoint::Dynamic>;
    static constexpr bool constant = constant_schedule && !BudgetPolicy<Checkpointing>;

    // Whether the programs have been proven, as constants.
    static constexpr bool proven = [] {
        if constexpr (constant)
            return proven_as_constant<Schedule, device_count, micro_batch_count>;
        else
            return false;
    }();

    // Whether the cut hangs on what cells run again, and whether it is a constant.
    static constexpr bool weighs_cells = WeighsCells<Cut> && !reverses_cells<Checkpointing> &&
                                         weighed_micro_batches(dynamic, cell_count, 1) > 0;
    static constexpr bool constant_cut =
        cell_count != dynamic && (constant_schedule || !weighs_cells);

    // For `weighed` programs, see weighed_micro_batches(), if there are any.
    static constexpr Array<std::size_t> cut(std::size_t cells, Array<double> const& costs,
                                            Programs const& weighed = {}) {
        if (weighed.cells() == cells) return cut_for<Cut>(costs, weighed);
        return cut_by_costs<Cut>(costs, cells);
    }
    struct ConstantCut {
        struct Value {
            std::size_t first[cell_count + 1] = {};
        };
        static constexpr Programs weighed() {
            if constexpr (weighs_cells) {
                std::size_t const m = weighed_micro_batches(
                    micro_batch_count, cell_count, least_micro_batches<Schedule>(device_count));
                if (m > 0) return Checkpointing::lower(Schedule::programs(device_count, m));
            }
            return {};
        }
        static constexpr Value value = [] {
            Array<LayerInfo> const infos = Net::layers();
            Array<std::size_t> const found =
                cut(cell_count, cut_costs(infos.data(), infos.size()), weighed());
            Value result;
            for (std::size_t c = 0; c < found.size(); ++c) result.first[c] = found[c];
            return result;
        }();
    };
    static constexpr Array<std::size_t> first_layers() requires constant_cut {
        Array<std::size_t> first(cell_count + 1);
        for (std::size_t c = 0; c < first.size(); ++c) first[c] = ConstantCut::value.first[c];
        return first;
    }
    // f(the layers, cut into cells).
    template <class F> static constexpr auto over_cut(F f) requires constant_cut {
        Array<LayerInfo> const layers = Net::layers();
        Array<std::size_t> const first = first_layers();
        return f(CutChain{layers.data(), layers.size(), first.data()});
    }
    // As it runs over the layers, without what runs again.
    static constexpr Programs schedule_programs() requires constant_schedule {
        return over_cut([](CutChain const& chain) {
            Programs schedule =
                with_joined_halves(chain, Schedule::programs(device_count, micro_batch_count));
            if constexpr (ReversingPolicy<Checkpointing>)
                schedule = with_joined_halves(chain, schedule,
                                              reversals_of<Checkpointing>(chain, schedule));
            return schedule;
        });
    }
    // Of a device that cannot read the host's memory, for micro-batches of so many samples;
    // `squares`: with the norm of all gradients.
    static constexpr Staging staging(std::size_t samples, bool squares = false) requires constant {
        Staging result = Device::staged([&] {
            return step_staging(sizes_of<as_tensors<typename Net::Input>>(),
                                sizes_of<as_tensors<typename LossFunctor::Target>>(),
                                checked_product(micro_batch_count, samples), micro_batch_count,
                                2 + loss_metrics<LossFunctor, typename Net::Output>,
                                sizeof(OptimizerFunctor), Device::depth, squares,
                                joins_ranks<Device> ? most_ranks : 0,
                                ReplicasPolicy::count == dynamic ? 1 : ReplicasPolicy::count);
        });
        result.ties = result.ties || joins_ranks<Device>;
        return result;
    }

    static constexpr Replication replication(std::size_t replicas) {
        return {replicas, ReplicasPolicy::shards,
                calls_enqueue<Device> ? Replication::longest_enqueued
                                      : Replication::longest_message,
                calls_enqueue<Device>};
    }

    // A budget is left as it is.
    static constexpr Checkpointed applied(Array<LayerInfo> const& layers,
                                          Array<std::size_t> const& first,
                                          Programs const& schedule) {
        return apply_checkpointing<Checkpointing>({layers.data(), layers.size(), first.data()},
                                                  schedule);
    }
    static constexpr Checkpointed checkpointed(Programs const& schedule) requires constant {
        return applied(Net::layers(), first_layers(), schedule);
    }
    static constexpr Checkpointed checkpointed() requires constant {
        return checkpointed(Schedule::programs(device_count, micro_batch_count));
    }
    // The checkpointing as a pass over the schedule's programs.
    struct OverLayers {
        static constexpr Programs lower(Programs const& schedule) {
            return checkpointed(schedule).programs;
        }
    };

    // Whether that hangs on the layers.
    static consteval bool joins() {
        if constexpr (reverses_cells<Checkpointing>) return true;
        if constexpr (proven_as_constant<Schedule, device_count, micro_batch_count>) {
            auto const& programs =
                SchedulePrograms<Schedule, device_count, micro_batch_count>::value;
            Array<bool> halves; // found only if it matters: the layers may be many
            for (std::size_t i = 0; i < programs.begin[device_count]; ++i) {
                if (programs.actions[i].kind != Kind::weight_gradient) continue;
                if (halves.empty())
                    halves = over_cut(
                        [](CutChain const& chain) { return split_cells(chain, cell_count); });
                if (!halves[programs.actions[i].cell]) return true;
            }
        }
        return false;
    }
    static constexpr LeastBudget least_for(std::size_t samples) {
        Array<LayerInfo> const layers = Net::layers();
        return least_budget({{shape_of<Net, LossFunctor>(layers), first_layers(),
                              OptimizerFunctor::states, samples},
                             schedule_programs(),
                             Checkpointing{}.budget().offloads});
    }
    static consteval bool check_budget() {
        constexpr Budget budget = Checkpointing{}.budget();
        if constexpr (budget.samples == dynamic) {
            return true; // known, and checked, at construction
        } else {
            constexpr LeastBudget least = least_for(budget.samples);
            return CheckBudget<Checkpointing, least.device, least.bytes, budget.bytes>::ok();
        }
    }
    static consteval bool check_reversals() {
        if constexpr (!reverses_cells<Checkpointing>) {
            return true;
        } else if constexpr (is_users<Checkpointing> &&
                             !CheckConstantReversal<Checkpointing, ChosenPolicies>::ok()) {
            return false;
        } else {
            constexpr ReversalsVerdict found =
                verify(checkpointed().reversals, first_layers().data());
            return CheckReversal<Checkpointing, found.verdict.problem, found.cell,
                                 found.verdict.position>::ok();
        }
    }
    static consteval bool check_constant_cut() {
        if constexpr (constant_cut) {
            constexpr auto const& first = ConstantCut::value.first;
            constexpr std::size_t wrong = first_wrong_cut(first, cell_count, Net::size);
            constexpr bool any = wrong <= cell_count;
            constexpr std::size_t found = any ? first[wrong] : 0;
            constexpr std::size_t before = any && wrong > 0 ? first[wrong - 1] : 0;
            return CheckFoundCut<Cut, wrong, found, before, cell_count, Net::size>::ok();
        } else {
            return true;
        }
    }
    static consteval bool check_pass() {
        if constexpr (std::is_same_v<Checkpointing, checkpoint::Dynamic> ||
                      reverses_cells<Checkpointing> || !is_users<Checkpointing> ||
                      !proven_as_constant<Schedule, device_count, micro_batch_count>)
            return true;
        else
            return CheckConstantPass<Checkpointing, Schedule, device_count,
                                     micro_batch_count>::ok();
    }
    static consteval bool check_programs() {
        if constexpr (cell_count == dynamic)
            return true;
        else if constexpr (micro_batch_count == dynamic)
            return check_constant_cut();
        else if constexpr (!check_schedule<Schedule, device_count, micro_batch_count>())
            return false;
        else if constexpr (!check_pass())
            return false;
        else if constexpr (!check_constant_cut())
            return false;
        else if constexpr (!constant_schedule)
            return true;
        else if constexpr (!constant)
            return check_budget();
        else if constexpr (!fits_cells<Checkpointing, cell_count>)
            return false;
        else if constexpr (!check_reversals())
            return false;
        else
            return check_lowered<Schedule, std::conditional_t<joins(), OverLayers, Checkpointing>,
                                 device_count, micro_batch_count>();
    }
    // Says what is wrong, and that alone: what is behind it would only say it again.
    static consteval bool check() {
        if constexpr (!check_policies<List<Policies...>, policy::Cut, policy::MicroBatches,
                                      policy::Loss, policy::Optimizer, policy::Schedule,
                                      policy::Checkpointing, policy::Update, policy::Replicas,
                                      policy::Transport, policy::Device>())
            return false;
        else if constexpr (!CheckParts<ChosenPolicies, Net>::ok())
            return false;
        else if constexpr (!ReplicasPolicy::template check<Joins>())
            return false;
        else if constexpr (!check_trainable<Net>())
            return false;
        else if constexpr (!CheckCut<Cut, Net::size, per_device>::ok())
            return false;
        else if constexpr (!CheckCheckpointing<Checkpointing>::ok())
            return false;
        else if constexpr (!CheckScheduleFunction<Schedule>::ok())
            return false;
        else if constexpr (!CheckMicroBatches<micro_batch_count, cell_count>::ok())
            return false;
        else
            return check_programs();
    }
};

} // namespace gpipe::detail
