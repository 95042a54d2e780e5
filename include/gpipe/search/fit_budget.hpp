#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/offload_times.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/search/device_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace gpipe {

/// What fit_budget() finds.
struct BudgetFit {
    bool fits = false;           ///< whether anything was found within the bytes
    Array<Reversal> reversals;   ///< by cell
    Programs programs;           ///< the schedule with their recomputes
    std::size_t device = 0;      ///< if it does not fit: the first that lacks the most bytes
    std::size_t least_bytes = 0; ///< likewise: the least budget that would do
    std::size_t plans = 0;       ///< how many the search has made so far
    double makespan = 0;         ///< of a step, by the layers' declared costs, if any is simulated
};

/// The search for reversals with which every device has at most so many bytes in all, as
/// plan_memory() has it, and a step takes the least time by the layers' declared costs, of what is
/// looked at: see detail::CellReversals and BudgetEffort. On each device those are chosen whose
/// layers that run again take the least time. But a step may be shorter if they take more: where a
/// recompute waits for nobody. So steps are simulated, within this budget, within smaller ones, and
/// of whatever EverySegment, SquareRoot, Revolve and Selective make of all cells, everything kept,
/// and every cell run again as a whole: none of these is faster and fits. Nor do more bytes make a
/// step slower, as far as all budgets that differ are among those that are simulated. Where the
/// schedule has the halves of backwards apart, each of them is simulated with weight halves at
/// once, as the reversals' rule has them, all later, and all with their layers run again.
/// Where cells may offload what they keep, all that is simulated with that, too.
///
/// What a choice takes is found by planning its device (see Tightness::quick: the plan in the end
/// may have less, which is looked at where it decides). But the slots of boundaries, and the
/// outboxes of transfers, depend on what other cells choose, too. So the whole plan is made, and a
/// device that has got more than it was reckoned with chooses again with so much less.
class BudgetSearch {
  public:
    /// Throws std::invalid_argument if of anything that is looked at there is none, or of heights
    /// only one.
    [[gnu::cold]] constexpr BudgetSearch(BudgetProblem problem, BudgetEffort const& effort = {})
        : problem_(static_cast<BudgetProblem&&>(problem)), effort_(effort),
          cells_(problem_.schedule.devices()), choices_(problem_.schedule.devices()) {
        // A slack that is chosen takes no more bytes, and to choose it for each plan takes long.
        problem_.slack = std::min(problem_.slack, no_wait);
        problem_.in_halves = with_joined_halves(problem_.cut_chain(), problem_.schedule);
        problem_.schedule =
            join_halves(problem_.in_halves, Array<bool>(problem_.in_halves.cells()));
        if (effort.slots == 0 || effort.most_numbers == 0 || effort.most_states == 0 ||
            effort.heights < 2)
            throw std::invalid_argument("gpipe: a budget cannot be met where nothing is looked at");
        for (std::size_t kind = 0; kind < detail::reversal_kinds; ++kind)
            demands_[kind] = detail::demands_of_kind(problem_, kind);
        for (std::size_t d = 0; d < cells_.size(); ++d) {
            cells_[d] = problem_.schedule.cells_of(d);
            Array<Array<detail::ReversalChoice>> rows(cells_[d].size());
            for (std::size_t i = 0; i < rows.size(); ++i)
                rows[i] = detail::row_of(problem_, cells_[d][i], demands_, effort);
            choices_[d] = {static_cast<Array<Array<detail::ReversalChoice>>&&>(rows), effort};
            detail::add_policies(problem_, cells_[d], effort, choices_[d]);
            choices_[d].weigh([&](auto const& reversal_of) {
                return detail::device_bytes(problem_, d, cells_[d], demands_, reversal_of);
            });
        }
        if (effort.simulations > 0) simulate_others();
    }

    /// The fastest choice found within so many bytes per device.
    [[gnu::cold]] constexpr BudgetFit fit(std::size_t bytes) {
        BudgetFit result;
        try_fit(bytes, result);
        BudgetFit least = result; // within the first budget that is reckoned to do
        while (!least.fits) {
            result.least_bytes = least.least_bytes;
            result.device = least.device;
            try_fit(result.least_bytes, least);
        }
        if (effort_.simulations > 0) {
            // What fits, or the least, comes first.
            Array<Simulated> own(variants());
            for (std::size_t h = 0; h < own.size(); ++h) own[h] = simulated(least.reversals, h);
            choose(own, bytes, result);
        }
        result.plans = plans_;
        return result;
    }

  private:
    // Reversals with what they take.
    struct Simulated {
        std::size_t bytes = 0; // of the device that has the most, or more
        std::size_t device = 0;
        bool is_exact = false;
        double makespan = 0;
        std::size_t again = 0; // forwards in a step that are not the first
        bool moves = false;    // whether what cells keep is offloaded
        Array<Reversal> reversals;
        Programs programs;
    };

    // When weight halves may come: at once, by the reversal's rule, later, with their layers again.
    // Most bytes are saved by the first, so this is what choices are made for.
    constexpr std::size_t halvings() const {
        for (Action const& a : problem_.in_halves)
            if (a.kind == Kind::weight_gradient) return 4;
        return 1;
    }
    // Each without and with what cells keep in the host's memory.
    constexpr std::size_t variants() const { return halvings() * (problem_.offloads ? 2 : 1); }
    constexpr Simulated simulated(Array<Reversal> reversals, std::size_t variant) {
        std::size_t const halving = variant % halvings();
        constexpr WeightHalf halves[] = {WeightHalf::at_once, WeightHalf::at_once,
                                         WeightHalf::later, WeightHalf::again};
        Simulated result;
        result.moves = variant >= halvings();
        for (Reversal& reversal : reversals) {
            reversal.offload = result.moves;
            if (halving != 1)
                reversal.weights = Array<WeightHalf>(reversal.layers(), halves[halving]);
        }
        result.programs = lower_reversed(problem_.cut_chain(), problem_.in_halves, reversals);
        MemoryPlan const plan = result.moves
                                    ? plan_memory(problem_.quickly(), result.programs, reversals)
                                    : plan_bytes(problem_.quickly(), result.programs, reversals);
        weigh(result, plan);
        for (std::size_t const runs :
             extra_forwards(result.programs, problem_.cut_chain(), reversals))
            result.again += runs;
        result.makespan = makespan(result.programs, reversals, result.moves ? &plan : nullptr);
        result.reversals = static_cast<Array<Reversal>&&>(reversals);
        return result;
    }
    constexpr void weigh(Simulated& one, MemoryPlan const& plan) {
        ++plans_;
        one.bytes = 0;
        for (std::size_t d = 0; d < plan.devices.size(); ++d) {
            if (plan.devices[d].total() <= one.bytes) continue;
            one.bytes = plan.devices[d].total();
            one.device = d;
        }
    }
    // A plan in full is made of what may need it only: it takes long. (Another may leave more where
    // it is.)
    constexpr bool fits(Simulated& one, std::size_t bytes) {
        if (!one.is_exact && (one.moves || one.bytes > bytes)) {
            weigh(one, plan_bytes(problem_, one.programs, one.reversals));
            one.is_exact = true;
        }
        return one.bytes <= bytes;
    }
    // The fastest of those and of the others, or the least that would do.
    constexpr void choose(Array<Simulated>& own, std::size_t bytes, BudgetFit& result) {
        auto const each = [&](auto f) {
            for (Simulated& one : own) f(one);
            for (std::size_t i = 0; i < count_; ++i) f(others_[i]);
        };
        Simulated const* best = nullptr;
        each([&](Simulated& one) {
            bool const is_better =
                !best || one.makespan < best->makespan ||
                (one.makespan == best->makespan &&
                 (one.moves != best->moves ? best->moves : one.again < best->again));
            if (is_better && fits(one, bytes)) best = &one;
        });
        if (best) {
            result.fits = true;
            result.makespan = best->makespan;
            result.reversals = best->reversals;
            result.programs = best->programs;
            return;
        }
        each([&](Simulated const& one) {
            if (one.bytes > result.least_bytes) return;
            result.least_bytes = one.bytes;
            result.device = one.device;
        });
    }
    // `offloads`: the plan that says what is.
    constexpr double makespan(Programs const& programs, Array<Reversal> const& reversals,
                              MemoryPlan const* offloads) const {
        auto const costs = declared_costs(problem_.cut_chain(), reversals);
        if (!offloads) return simulate<double>(programs, costs).makespan;
        return simulate<double>(offloads->lowered,
                                OffloadCosts{*offloads, costs, problem_.bandwidth})
            .makespan;
    }
    constexpr void add(Array<Reversal> const& reversals) {
        for (std::size_t h = 0; h < variants(); ++h) others_[count_++] = simulated(reversals, h);
    }
    constexpr void simulate_others() {
        // Every budget at which a device chooses anew, or as many of them as may be looked at.
        std::size_t count = 0;
        for (detail::DeviceChoice const& choice : choices_) count += choice.size();
        Array<std::size_t> budgets(count);
        count = 0;
        for (detail::DeviceChoice const& choice : choices_)
            for (std::size_t i = 0; i < choice.size(); ++i) budgets[count++] = choice[i].bytes;
        std::sort(budgets.begin(), budgets.end());
        count =
            static_cast<std::size_t>(std::unique(budgets.begin(), budgets.end()) - budgets.begin());
        std::size_t const steps = std::min(count, effort_.simulations);

        Array<std::size_t> all(problem_.schedule.cells());
        for (std::size_t c = 0; c < all.size(); ++c) all[c] = c;
        std::size_t const most = detail::most_layers(problem_, all, effort_);
        others_ = Array<Simulated>(variants() * (steps + 2 * most + 4));
        for (std::size_t i = 0; i < steps; ++i) {
            BudgetFit fit;
            try_fit(budgets[steps > 1 ? i * (count - 1) / (steps - 1) : 0], fit);
            if (fit.fits) add(fit.reversals);
        }
        // The least has fewer bytes than it was reckoned with, and that is what counts.
        BudgetFit least;
        while (!least.fits) try_fit(least.least_bytes, least);
        add(least.reversals);
        if (most > 0)
            detail::each_policy(problem_, most, [&](auto number) {
                Array<Reversal> reversals(all.size());
                for (std::size_t c = 0; c < all.size(); ++c)
                    reversals[c] =
                        detail::reversals_for(problem_, c, demands_, effort_).reversal(number(c));
                for (Reversal const& reversal : reversals)
                    if (reversal.layers() == 0) return;
                add(reversals);
            });
    }

    constexpr void try_fit(std::size_t bytes, BudgetFit& fit) {
        std::size_t const devices = cells_.size();
        Array<std::size_t> beyond(devices); // that a device has got more than it was reckoned with
        fit.reversals = Array<Reversal>(problem_.schedule.cells());
        fit.least_bytes = 0;
        while (!fit.fits) {
            Array<std::size_t> reckoned(devices);
            for (std::size_t d = 0; d < devices; ++d) {
                std::size_t const best = bytes < beyond[d] ? detail::DeviceChoice::none
                                                           : choices_[d].fastest(bytes - beyond[d]);
                if (best == detail::DeviceChoice::none) {
                    std::size_t const least = choices_[d].least_bytes() + beyond[d];
                    if (least > fit.least_bytes) fit.device = d;
                    fit.least_bytes = std::max(fit.least_bytes, least);
                    continue;
                }
                reckoned[d] = choices_[d][best].bytes;
                for (std::size_t i = 0; i < cells_[d].size(); ++i)
                    fit.reversals[cells_[d][i]] = choices_[d].reversal(best, i);
            }
            if (fit.least_bytes > 0) return;
            fit.programs = lower_reversed(problem_.cut_chain(), problem_.schedule, fit.reversals);
            for (bool const exactly : {false, true}) {
                if (fit.fits) break;
                MemoryPlan const plan =
                    exactly ? plan_bytes(problem_, fit.programs, fit.reversals)
                            : plan_bytes(problem_.quickly(), fit.programs, fit.reversals);
                ++plans_;
                fit.fits = true;
                for (std::size_t d = 0; d < devices; ++d) {
                    std::size_t const total = plan.devices[d].total();
                    if (total <= bytes) continue;
                    fit.fits = false;
                    if (exactly) beyond[d] = total - reckoned[d];
                }
            }
        }
    }

    BudgetProblem problem_; // with backwards whole
    BudgetEffort effort_;
    detail::Demands demands_[detail::reversal_kinds];
    Array<Array<std::size_t>> cells_; // by device
    Array<detail::DeviceChoice> choices_;
    Array<Simulated> others_;
    std::size_t count_ = 0;                      // of them
    std::size_t plans_ = detail::reversal_kinds; // made so far
};

/// Fits reversals into so many bytes of each device.
[[gnu::cold]] GPIPE_INLINE constexpr BudgetFit fit_budget(BudgetProblem problem, std::size_t bytes,
                                                          BudgetEffort const& effort = {}) {
    return BudgetSearch(static_cast<BudgetProblem&&>(problem), effort).fit(bytes);
}

} // namespace gpipe
