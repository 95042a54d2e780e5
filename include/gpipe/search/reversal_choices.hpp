#pragma once

#include <gpipe/checkpoint/optimal.hpp>
#include <gpipe/checkpoint/reversed_costs.hpp>
#include <gpipe/checkpoint/reversing.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace gpipe {

/// All that memory is planned for but the reversals of the cells, which are to be chosen.
struct BudgetProblem : PlanRequest {
    Programs schedule;     ///< without recomputes; a BudgetSearch has whole backwards in it
    bool offloads = false; ///< whether what cells keep may wait in the host's memory
    double bandwidth = std::numeric_limits<double>::infinity(); ///< for that, see Budget
    /// By which policies are asked what they would choose: halves apart, but for cells of which no
    /// layer has any. A BudgetSearch makes it.
    Programs in_halves{};

    /// Of a cell.
    constexpr std::size_t layers(std::size_t cell) const { return first[cell + 1] - first[cell]; }
    /// As checkpointing policies see it.
    constexpr CutChain cut_chain() const { return {chain.layers, chain.size, first.data()}; }
    /// Planned without a search, and with slots for all that crosses an edge: no fewer bytes.
    constexpr PlanRequest quickly() const {
        PlanRequest request = *this;
        request.tightness = std::min(tightness, Tightness::quick);
        return request;
    }
};

/// How much is looked at to fit reversals into a budget.
struct BudgetEffort {
    std::size_t budgets = 128;           ///< that optimal() is asked for in each cell, at the most
    std::size_t squares = 128 * 24 * 24; ///< those times the square of the cell's layers, likewise
    std::size_t slots = 64;              ///< that it has
    std::size_t most_numbers = 64;       ///< of segments, and of slots of revolve()
    std::size_t most_forwards = 32;      ///< that revolve() may take for each layer
    std::size_t heights = 8; ///< of the temporaries that cells of one device share, two or more
    std::size_t most_states = 128; ///< of the choices for such a device, cell after cell
    std::size_t simulations = 48;  ///< of steps within smaller budgets; 0: none at all
};

namespace detail {

// What a cell's share of memory depends on, beside the layout of its reversal: whether that begins
// with layers that run again, and whether it is_whole().
inline constexpr std::size_t reversal_kinds = 4;
GPIPE_INLINE constexpr std::size_t kind_of(Reversal const& reversal) {
    return std::size_t{2} * !is_whole(reversal) + begins_again(reversal);
}
// One of a kind; of a single layer all are whole.
GPIPE_INLINE constexpr Reversal reversal_of_kind(std::size_t layers, std::size_t kind) {
    bool const whole = kind < 2 || layers == 1;
    if (kind % 2 == 1) return equal_segments(layers, whole ? 1 : 2);
    Array<bool> expensive(layers, whole);
    expensive[layers - 1] = true;
    return selective(expensive);
}

// What a cell asks of memory and time beside what its reversal keeps.
struct CellDemand {
    CellUse use;
    std::size_t boundary = 0; // bytes of its slots, and of the outbox behind it
    std::size_t retained_blocks = 0;
    std::size_t kept_blocks = 0;
    std::size_t not_held = 0; // micro-batches for which a recompute runs
};
struct Demands {
    Array<CellDemand> cells;
    Array<std::size_t> fixed; // by device: bytes of all that is neither boundary nor activations
};
// Where all cells have reversals of that kind.
[[gnu::cold]] GPIPE_INLINE constexpr Demands demands_of_kind(BudgetProblem const& problem,
                                                             std::size_t kind) {
    std::size_t const cells = problem.schedule.cells();
    Array<Reversal> reversals(cells);
    for (std::size_t c = 0; c < cells; ++c)
        reversals[c] = reversal_of_kind(problem.layers(c), kind);
    Programs const programs = lower_reversed(problem.cut_chain(), problem.schedule, reversals);
    MemoryPlan const plan = plan_bytes(problem.quickly(), programs, reversals);
    // By cell, the most micro-batches at a time whose reversal has begun: with the recompute or,
    // where none comes, the forward.
    Array<std::size_t> const kept = most_between(programs, [&](Action const& a) {
        bool const recomputes = (plan.parts.way(a.cell, a.micro_batch) & way_recomputes) != 0;
        return a.kind == (recomputes ? Kind::recompute : Kind::forward);
    });
    Demands result{Array<CellDemand>(cells), Array<std::size_t>(plan.devices.size())};
    Array<std::size_t> const not_held = not_held_by_cell(problem.schedule);
    for (std::size_t c = 0; c < cells; ++c) {
        std::size_t boundary = 0;
        for (std::uint32_t const e : plan.lowered.edges.into(c))
            boundary += plan.pools.pool(Holds::input, e).total();
        for (std::uint32_t const e : plan.lowered.edges.out_of(c))
            boundary += plan.pools.pool(Holds::output, e).total();
        result.cells[c] = {plan.use_of(c), boundary, plan.in_flight[c], kept[c], not_held[c]};
    }
    for (std::size_t d = 0; d < result.fixed.size(); ++d)
        result.fixed[d] =
            plan.devices[d].total() - plan.devices[d].boundary - plan.devices[d].activations;
    return result;
}

// A reversal that may be chosen for a cell, by its number among the cell's.
struct ReversalChoice {
    std::uint32_t number = 0;
    double time = 0;           // of the layers that run again in a step
    std::size_t blocks = 0;    // bytes, with those of the boundary
    std::size_t temporary = 0; // shared with the other cells of the device
    Reversal reversal{};
};

// The time of the layers that run again in a step: in every backward, and for those micro-batches
// that are not held in front of it. In the last cell these do not run again: the whole forward runs
// later, and the step takes longer by as much.
GPIPE_INLINE constexpr double again_time(BudgetProblem const& problem, CellDemand const& demand,
                                         std::size_t cell, Reversal const& reversal) {
    RunsAgain const again =
        runs_again(problem.cut_chain(), problem.chain.lowest_learner, cell, reversal);
    bool const late = cell + 2 == problem.first.size() && begins_again(reversal);
    double time = 0;
    for (std::size_t l = 0; l < problem.layers(cell); ++l)
        time += static_cast<double>(problem.schedule.micro_batches() * again.backward[l] +
                                    demand.not_held * (late ? 1 : again.recompute[l])) *
                problem.chain.layers[problem.first[cell] + l].cost;
    return time;
}

// Nearly what a cell takes, to tell good choices for several cells of a device from bad ones: all
// blocks at once, beside what one micro-batch takes that goes through the cell.
[[gnu::cold]] GPIPE_INLINE constexpr ReversalChoice measure(BudgetProblem const& problem,
                                                            CellDemand const& demand,
                                                            std::size_t cell, std::uint32_t number,
                                                            Reversal reversal) {
    std::size_t const way = begins_again(reversal) && demand.not_held > 0 ? way_recomputes : 0;
    CellWay const made = cell_way(cell_calls(problem.chain, problem.first[cell],
                                             problem.first[cell + 1], demand.use, reversal, way),
                                  finest_slices, false);
    Array<std::size_t> at(made.parts.parts.size());
    GapList room;
    for (std::size_t s = 0; s < stage_count; ++s)
        take_turns(room, made, static_cast<Stage>(s), at.data());
    // What stays from the forward on, and from the begin of the reversal on.
    std::size_t retained = 0, kept = 0;
    std::uint32_t const backward = made.calls.begin[2];
    for (CellTensor const& one : made.calls.tensors)
        if (one.begin < backward && one.end >= backward)
            (one.begin < made.calls.restart ? retained : kept) += one.bytes;
    std::size_t const blocks = retained + (demand.kept_blocks > 0 ? kept : 0);
    ReversalChoice result{number, again_time(problem, demand, cell, reversal)};
    result.blocks = demand.boundary + demand.retained_blocks * retained + demand.kept_blocks * kept;
    result.temporary = room.height() > blocks ? room.height() - blocks : 0;
    result.reversal = static_cast<Reversal&&>(reversal);
    return result;
}

// The reversals that are looked at for a cell, by number: everything kept; what is expensive to
// recompute; segments of equal numbers and of equal lengths; binomial ones; and what optimal()
// makes of budgets between the least and the one in which nothing runs again, closer together near
// the least. That is asked for the micro-batches in flight where nothing, and where something runs
// again first.
class CellReversals {
  public:
    constexpr CellReversals(BudgetProblem const& problem, std::size_t cell, std::size_t in_flight,
                            std::size_t in_flight_again, BudgetEffort const& effort)
        : costs_(reversal_costs(problem.cut_chain(), problem.first[cell], problem.first[cell + 1],
                                problem.capacity)),
          expensive_(costs_.layers()), in_flight_{in_flight, in_flight_again}, effort_(effort) {
        for (std::size_t l = 0; l < expensive_.size(); ++l)
            expensive_[l] = !problem.chain.layers[problem.first[cell] + l].recompute_is_cheap;
    }

    static constexpr std::size_t begin = 2; // of the numbers of segments
    // How far apart the numbers of segments and slots are, and how many there are of each.
    constexpr std::size_t stride() const {
        return (expensive_.size() + effort_.most_numbers - 1) / effort_.most_numbers;
    }
    constexpr std::size_t numbers() const { return (expensive_.size() - 1) / stride() + 1; }
    // Of optimal(), which takes a time of up to layers^4.
    constexpr std::size_t budgets() const {
        std::size_t const most = effort_.squares / (expensive_.size() * expensive_.size());
        return most < 2 ? 0 : std::min(effort_.budgets, most);
    }
    constexpr std::size_t count() const {
        bool const both = in_flight_[0] != in_flight_[1];
        return begin + 3 * numbers() + (both ? 2 : 1) * budgets();
    }

    // Of no layer where that would be too long.
    constexpr Reversal reversal(std::size_t number) const {
        std::size_t const layers = costs_.layers();
        if (number == 0) return keep_everything(layers);
        if (number == 1) return selective(expensive_);
        std::size_t const each = numbers();
        std::size_t const kind = (number - begin) / each;
        std::size_t const i = (number - begin) % each * stride();
        if (kind == 0) return equal_segments(layers, i + 1);
        if (kind == 1) return every_segment(layers, i + 1);
        if (kind == 2) {
            // Not by `?:`, of which g++ 12 frees the result too early in constant evaluation.
            if (revolve_forwards(layers, i) > effort_.most_forwards * layers) return {};
            return revolve(layers, i);
        }
        std::size_t const which = number - begin - 3 * each;
        std::size_t const most = budgets();
        return within(in_flight_[which / most],
                      static_cast<double>(which % most) / static_cast<double>(most));
    }

  private:
    constexpr Reversal within(std::size_t in_flight, double part) const {
        std::size_t const least = optimal(costs_, in_flight, 0, effort_.slots).least_bytes;
        std::size_t const most =
            reversal_bytes(keep_everything(costs_.layers()), costs_).total(in_flight);
        auto const more = static_cast<std::size_t>(part * part * static_cast<double>(most - least));
        return optimal(costs_, in_flight, least + more, effort_.slots).reversal;
    }

    ReversalCosts costs_;
    Array<bool> expensive_;
    std::size_t in_flight_[2];
    BudgetEffort effort_;
};

} // namespace detail
} // namespace gpipe
