#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/byte_planner.hpp>
#include <gpipe/memory/choose_slack.hpp>
#include <gpipe/memory/countable.hpp>
#include <gpipe/memory/fill_arenas.hpp>
#include <gpipe/memory/locate.hpp>
#include <gpipe/memory/place_values.hpp>
#include <gpipe/plan/lower.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <type_traits>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

namespace detail {

// All that actions use, where the plan has found it out for edges only.
[[gnu::cold]] GPIPE_INLINE constexpr void add_parts(MemoryPlan& plan) {
    plan.operands = find_operands(plan.lowered, plan.cells, plan.part_table(false));
    plan.pools.put_in_front(plan.parts.at.size());
}

// Of a plan without arenas.
[[gnu::cold]] GPIPE_INLINE MemoryPlan with_chosen_slack(MemoryPlan const& plan,
                                                        PlanRequest const& request,
                                                        Programs const& programs) {
    constexpr std::size_t count = sizeof slacks_tried / sizeof *slacks_tried;
    Array<MemoryPlan> plans(count, plan);
    place_values(plans.data(), {slacks_tried, count});
    for (MemoryPlan& each : plans) fill_arenas(each, request, programs);
    return static_cast<MemoryPlan&&>(plans[choose_slack(plans)]);
}

// Where these cells offload nothing, whatever they say.
[[gnu::cold]] GPIPE_INLINE constexpr MemoryPlan
plan_with(PlanRequest const& request, std::size_t slack, Programs const& programs,
          Array<Reversal> const& reversals, ChooseOffloads choose, Array<bool> const& stays = {}) {
    MemoryPlan plan;
    BytePlanner(plan, request, programs, reversals, choose, stays);
    if (request.tightness == Tightness::full && !std::is_constant_evaluated()) {
        add_parts(plan);
        if (slack == chosen_slack && places_values(plan))
            return with_chosen_slack(plan, request, programs);
        slack = std::min(slack, no_wait);
        place_values(&plan, {&slack, 1});
    }
    fill_arenas(plan, request, programs);
    return plan;
}

} // namespace detail

/// Plans the bytes of `programs` (with their recomputes), whose cells are reversed so, see
/// each_reversal(). `choose`: what leaves the device where they say so. No device offloads anything
/// if it has fewer bytes then. In a constant what it says of tensors inside of cells is an upper
/// bound. Throws std::invalid_argument where there are more bytes than can be counted.
[[gnu::cold]] GPIPE_INLINE constexpr MemoryPlan
plan_bytes(PlanRequest const& request, Programs const& programs,
           Array<Reversal> const& reversals = {}, ChooseOffloads choose = &choose_offloads) {
    if (!countable(request, programs.micro_batches()))
        throw std::invalid_argument("gpipe: a plan for micro-batches of so many samples has more "
                                    "bytes than memory has addresses");
    Array<Reversal> const each = each_reversal(reversals, request.first.data(), programs.cells());
    bool const quickly = request.tightness == Tightness::constant || std::is_constant_evaluated();
    bool offloads = false;
    for (Reversal const& reversal : each) offloads = offloads || reversal.offload;
    offloads = offloads && !quickly;
    // Who does is decided while nobody waits for room: then a chosen slack takes no more bytes.
    bool const chooses = offloads && request.slack == chosen_slack;
    std::size_t const slack = chooses ? no_wait : request.slack;
    MemoryPlan plan = detail::plan_with(request, slack, programs, each, choose);
    if (!offloads) return plan;
    Array<bool> stays(programs.cells(), true);
    MemoryPlan const without = detail::plan_with(request, slack, programs, each, choose, stays);
    bool any = false;
    for (std::size_t c = 0; c < stays.size(); ++c) {
        std::size_t const d = programs.device_of(c);
        stays[c] = plan.devices[d].total() > without.devices[d].total();
        any = any || stays[c];
    }
    if (any || chooses)
        plan = detail::plan_with(request, request.slack, programs, each, choose, stays);
    return plan;
}

/// The same with everything that actions use, and all that they have to wait for.
[[gnu::cold]] GPIPE_INLINE constexpr MemoryPlan
plan_memory(PlanRequest const& request, Programs const& programs,
            Array<Reversal> const& reversals = {}, ChooseOffloads choose = &choose_offloads) {
    MemoryPlan plan = plan_bytes(request, programs, reversals, choose);
    if (request.tightness != Tightness::full || std::is_constant_evaluated())
        detail::add_parts(plan);
    plan.lowered.needs = find_needs(walk_of(plan.lowered), plan.operands, Located(plan));
    // One cell has nothing to go on with while its gradients are added up.
    if (request.hears)
        add_streams_beside(plan.lowered, 1);
    else if (request.replication.count > 1 && request.replication.apart)
        add_streams_beside(plan.lowered, 2);
    return plan;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
