#pragma once

// All that benchmarks/plan knows of how the library plans. Whoever replaces the planner rewrites
// this header and nothing else, so that the rows of both can be compared.

#include <gpipe/balance/bottleneck.hpp>
#include <gpipe/checkpoint/reversed_costs.hpp>
#include <gpipe/plan/evaluation.hpp>
#include <gpipe/plan/links.hpp>
#include <gpipe/plan/messages.hpp>
#include <gpipe/plan/simulate_lowered.hpp>
#include <gpipe/runtime/choices.hpp>
#include <gpipe/runtime/lanes.hpp>
#include <gpipe/runtime/table_proof.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace benchmark {

/// A network, loss and optimizer as they are planned.
struct PlannedNet {
    gpipe::Array<gpipe::LayerInfo> layers;
    gpipe::Array<double> costs;
    gpipe::GroupSizes loss_scratch;
    std::size_t states = 0;
};
template <class Net, class Loss, class Optimizer> PlannedNet planned_net() {
    using Scratch = typename gpipe::detail::ScratchOf<Loss>::type;
    return {Net::layers(), Net::costs(), gpipe::detail::sizes_of<Scratch>(), Optimizer::states};
}

/// What is planned for it. Within a device links are shared, whatever they are between two.
struct PlanCase {
    gpipe::schedule::Dynamic schedule;
    gpipe::checkpoint::Dynamic checkpointing;
    std::string links; ///< shared, copied, staged; or sent: each device is a rank's
    std::size_t devices = 1, micro_batches = 1, samples = 1;
};

/// A plan and its tables as a device that enqueues has them after construction: a stream for every
/// program, and no needs that others imply.
struct FinishedPlan {
    gpipe::Programs programs;
    gpipe::MemoryPlan memory;
    std::size_t needs = 0; ///< entries, before any was dropped
    gpipe::StepTable training, evaluation;
    /// Of ranks, if devices are theirs, and the costs by which these walk.
    ///@{
    gpipe::Lanes lanes;
    std::optional<gpipe::ChainCosts<double>> cost;
    ///@}
};

/// What the rows of benchmarks/plan show.
struct PlanNumbers {
    std::size_t actions = 0;          ///< of a step, copies among them
    std::size_t largest = 0, all = 0; ///< bytes of the largest device, of all
    std::size_t host = 0;             ///< of the host's memory
    std::size_t needs = 0;            ///< entries in the table; of these:
    std::size_t needs_left = 0;       ///< not implied by others
    std::size_t needs_added = 0;      ///< there for room alone
    std::size_t waits = 0;            ///< of one stream for another
    std::vector<double> makespan;     ///< simulated, by draw
    /// If nothing ever waited for room; nor, between ranks, anybody for a message that comes later
    /// than was planned, or for the taker of another.
    std::vector<double> makespan_without_room;
};

/// An action whose duration is asked for.
struct Work {
    /// 1 or 2 of what computes, 1/4 of a copy; over messages the declared cost, and 0.
    double units = 0;
    bool copies = false;
    std::size_t kind = 0; ///< a number of its own for each
    std::size_t cell = 0, micro_batch = 0;
};

namespace detail {

// The same actions with the needs of their data alone.
inline gpipe::Lowered without_room(FinishedPlan const& plan) {
    gpipe::Lowered result = plan.memory.lowered;
    result.needs = find_needs(walk_of(result), plan.memory.operands,
                              [](std::size_t, gpipe::Operand const&) { return gpipe::Span{}; });
    return result;
}

} // namespace detail

namespace detail {

// When ranks have walked their lanes, each in its order: who receives a message waits until it is
// sent, who sends one until no more than four of its channel are on their way. Messages take no
// time.
template <class Cost>
double walked_by_ranks(gpipe::Lowered const& lowered, gpipe::Lanes const& lanes, Cost const& cost) {
    gpipe::Programs const& programs = lowered.programs;
    constexpr std::size_t ahead = 4;
    constexpr double never = -1;
    auto const receives = messages_of(lowered);
    std::vector<double> end(programs.size(), never), clock(lanes.lanes());
    std::vector<std::size_t> at(lanes.begin.begin(), lanes.begin.end() - 1);
    std::vector<std::vector<std::size_t>> sent(2 * lowered.edges.size()); // what receives it
    bool goes_on = true;
    auto const walk = [&](std::size_t lane) {
        std::size_t const i = lanes.steps[at[lane]].action;
        double start = clock[lane];
        auto const after = [&](std::size_t needed) {
            start = std::max(start, end[needed]);
            return end[needed] != never;
        };
        for (std::size_t const needed : lowered.needs[i])
            if (!after(needed)) return false;
        if (!receives.empty() && receives[i] != gpipe::no_message) {
            bool const back = programs[i].kind == gpipe::Kind::send_gradient;
            std::vector<std::size_t>& channel = sent[2 * programs[i].edge + back];
            if (channel.size() >= ahead && !after(channel[channel.size() - ahead])) return false;
            channel.push_back(receives[i]);
        }
        end[i] = clock[lane] = start + (computes(programs[i].kind) ? cost(programs[i]) : 0);
        return true;
    };
    while (std::exchange(goes_on, false))
        for (std::size_t lane = 0; lane < lanes.lanes(); ++lane)
            for (; at[lane] < lanes.begin[lane + 1] && walk(lane); ++at[lane]) goes_on = true;
    for (double const each : end)
        if (each == never) throw std::logic_error("ranks wait for each other");
    return *std::max_element(clock.begin(), clock.end());
}

// What is planned.
struct Prepared {
    gpipe::ChainShape chain;
    gpipe::Array<std::size_t> first;
    gpipe::Checkpointed made;
    std::size_t capacity = 0;
};
inline Prepared prepare(PlannedNet const& net, PlanCase const& of) {
    using namespace gpipe;
    Array<LayerInfo> const& layers = net.layers;
    ChainShape const chain{layers.data(), layers.size(),
                           lowest_learner(layers.data(), layers.size()), net.loss_scratch};
    std::size_t const cells = of.devices * of.schedule.cells_per_device();
    Array<std::size_t> first(cells + 1);
    cut_by_bottleneck(net.costs.data(), layers.size(), cells, first.data());
    Checkpointed made = proven_programs(of.schedule, of.checkpointing, of.devices, of.micro_batches,
                                        {layers.data(), layers.size(), first.data()});
    return {chain, static_cast<Array<std::size_t>&&>(first), static_cast<Checkpointed&&>(made),
            (of.samples + of.micro_batches - 1) / of.micro_batches};
}
inline gpipe::Array<gpipe::Link> links_of(Prepared const& of, std::string const& name) {
    using gpipe::Link;
    if (name == "shared") return {};
    return links_between(of.made.programs, of.first, of.chain.skips,
                         [&](std::size_t from, std::size_t to) {
                             return from == to         ? Link::shared
                                    : name == "copied" ? Link::copied
                                    : name == "sent"   ? Link::sent
                                                       : Link::staged;
                         });
}

inline gpipe::PlanRequest request_of(PlannedNet const& net, Prepared const& of,
                                     std::string const& links) {
    return {of.chain, of.first, net.states, of.capacity, {}, links_of(of, links)};
}

} // namespace detail

/// By device: Training::peak_bytes() for these links.
inline std::vector<std::size_t> bytes_at_most(PlannedNet const& net, PlanCase const& of) {
    detail::Prepared const prepared = detail::prepare(net, of);
    gpipe::PlanRequest request = detail::request_of(net, prepared, of.links);
    request.tightness = gpipe::Tightness::constant;
    gpipe::MemoryPlan const plan =
        plan_bytes(request, prepared.made.programs, prepared.made.reversals);
    std::vector<std::size_t> most(of.devices);
    for (std::size_t d = 0; d < of.devices; ++d) most[d] = plan.devices[d].total();
    return most;
}

/// Everything from schedule and policy to the tables, with all proofs; no arena is allocated.
inline FinishedPlan finish_plan(PlannedNet const& net, PlanCase const& of) {
    using namespace gpipe;
    detail::Prepared prepared = detail::prepare(net, of);
    Checkpointed const& made = prepared.made;
    FinishedPlan result{made.programs, {}, 0, {}, {}, {}, {}};
    MemoryPlan& plan = result.memory;
    plan =
        plan_memory(detail::request_of(net, prepared, of.links), result.programs, made.reversals);
    result.needs = plan.lowered.needs.count();
    Lowered evaluation = evaluation_of(plan.lowered);
    Operands const operands = find_operands(evaluation, plan.cells, plan.part_table(true));
    evaluation.needs = find_needs(walk_of(evaluation), operands, Located(plan, operands, true));

    // Where arenas begin is all that tables know of them.
    Array<std::byte*> arenas(of.devices + 1);
    for (std::size_t d = 0; d <= of.devices; ++d)
        arenas[d] = reinterpret_cast<std::byte*>((d + 1) << 40);
    std::byte* const host = arenas[of.devices];
    auto const cost = declared_costs({net.layers.data(), net.layers.size(), prepared.first.data()},
                                     made.reversals);
    bool const is_sent = of.links == "sent";
    Array<std::size_t> first(of.devices + 1), most(of.devices, 1); // by rank: a device, a lane
    for (std::size_t d = 0; d <= of.devices; ++d) first[d] = d;
    Ranks const ranks =
        is_sent ? Ranks{of.devices, of.devices, 0, first.data(), most.data()} : Ranks{of.devices};
    auto const table = [&](Lowered const& lowered, Operands const& all, bool evaluates) {
        Placement const placement = place_programs(lowered, ranks, 1, !is_sent, cost);
        Lanes lanes = merge_lanes(lowered, placement, cost);
        if (is_sent && !evaluates) {
            result.lanes = lanes;
            result.cost = cost;
        }
        StepTable steps =
            step_table(plan, lowered, all, placement, std::move(lanes), arenas, host, evaluates);
        check_table(steps, plan, lowered, all);
        return steps;
    };
    result.training = table(plan.lowered, plan.operands, false);
    result.evaluation = table(evaluation, operands, true);
    return result;
}

/// Of a plan; simulated with duration(work, draw) for so many draws.
template <class Duration>
PlanNumbers plan_numbers(FinishedPlan const& plan, std::size_t draws, Duration const& duration) {
    gpipe::Lowered const& lowered = plan.memory.lowered;
    gpipe::Lowered const free = detail::without_room(plan);
    PlanNumbers result;
    result.actions = lowered.programs.size();
    for (gpipe::DeviceBytes const& bytes : plan.memory.devices)
        result.largest = std::max(result.largest, bytes.total());
    result.all = plan.memory.total();
    result.host = plan.memory.host;
    result.needs = plan.needs;
    result.needs_left = lowered.needs.count();
    result.needs_added = plan.needs - std::min(plan.needs, free.needs.count());
    for (gpipe::Step const& step : plan.training.steps) result.waits += step.waits;
    bool const is_sent = plan.cost.has_value();
    for (std::size_t draw = 0; draw < draws; ++draw) {
        auto const cost = [&](gpipe::Action const& a) {
            bool const copies = is_copy(a.kind);
            double const units = is_sent  ? (computes(a.kind) ? (*plan.cost)(a) : 0)
                                 : copies ? 0.25
                                          : double(unit_cost(a));
            return duration(Work{units, copies, std::size_t(a.kind), a.cell, a.micro_batch}, draw);
        };
        result.makespan.push_back(is_sent ? detail::walked_by_ranks(lowered, plan.lanes, cost)
                                          : gpipe::simulate<double>(lowered, cost).makespan);
        result.makespan_without_room.push_back(gpipe::simulate<double>(free, cost).makespan);
    }
    return result;
}

} // namespace benchmark
