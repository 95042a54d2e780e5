#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/layer/random.hpp>
#include <gpipe/memory/locate.hpp>
#include <gpipe/plan/simulate_lowered.hpp>
#include <gpipe/plan/walk_order.hpp>

#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// So many times it is drawn how long actions take.
inline constexpr std::uint32_t cost_draws = 32;

// What every action of a table takes in one of the draws: cells are up to twice as slow as planned,
// copies up to four times as fast, each action is up to a fifth off. In whole numbers, so that all
// ranks draw the same; a million is one unit of time.
[[gnu::cold]] GPIPE_INLINE Array<std::uint64_t> drawn_costs(Programs const& programs,
                                                            std::uint32_t draw) {
    auto const number = [&](std::size_t first, std::size_t second, std::uint32_t below) {
        return philox({draw, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(second)},
                      0)[0] %
               below;
    };
    enum : std::size_t { of_action, of_cell, of_copies };
    Array<std::uint64_t> cells(programs.cells());
    for (std::size_t c = 0; c < cells.size(); ++c) cells[c] = 1000 + number(c, of_cell, 1001);
    std::uint64_t const copies = 250 + number(0, of_copies, 751);
    Array<std::uint64_t> result(programs.size());
    for (std::size_t i = 0; i < result.size(); ++i) {
        Action const& a = programs[i];
        std::uint64_t const units = is_copy(a.kind) ? copies : cells[a.cell];
        result[i] =
            static_cast<std::uint64_t>(unit_cost(a)) * units * (800 + number(i, of_action, 401));
    }
    return result;
}

// Of plans that differ in where values lie, with ever fewer bytes, the last with which a step
// takes as long as with the first, but for a hundredth and in all draws but a twentieth. At the
// costs that are planned it does anyway.
[[gnu::cold]] GPIPE_INLINE std::size_t choose_slack(Array<MemoryPlan>& plans) {
    constexpr std::uint32_t most_late = cost_draws / 20;
    Walk const walk = walk_of(plans[0].lowered);
    Array<std::uint32_t> late(plans.size(), most_late + 1);
    std::size_t left = 0; // that may be chosen
    for (std::size_t p = plans.size(); p-- > 0;) {
        bool const saves = p > 0 && plans[p].total() < plans[p - 1].total();
        if (!saves && (p > 0 || left == 0)) continue;
        plans[p].lowered.needs = find_needs(walk, plans[p].operands, Located(plans[p]));
        late[p] = 0;
        ++left;
    }
    for (std::uint32_t draw = 0; draw < cost_draws && left > 1; ++draw) {
        Array<std::uint64_t> const costs = drawn_costs(plans[0].lowered.programs, draw);
        auto const makespan = [&](MemoryPlan const& plan) {
            auto const cost = [&](Action const& a) {
                return costs[static_cast<std::size_t>(&a - plan.lowered.programs.actions())];
            };
            return simulate<std::uint64_t>(plan.lowered, cost).makespan;
        };
        std::uint64_t const without = makespan(plans[0]);
        for (std::size_t p = 1; p < plans.size(); ++p) {
            if (late[p] > most_late) continue;
            late[p] += 100 * makespan(plans[p]) > 101 * without;
            left -= late[p] > most_late;
        }
    }
    std::size_t chosen = plans.size() - 1;
    while (chosen > 0 && late[chosen] > most_late) --chosen;
    return chosen;
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
