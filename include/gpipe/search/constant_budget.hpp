#pragma once

#include <gpipe/search/fit_budget.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpipe {

/// That reversals fit into the bytes of a policy. The template arguments name the device that lacks
/// the most, and the least budget that would do; 0 if all devices fit.
template <class Policy, std::size_t device, std::size_t least_bytes, std::size_t bytes>
struct CheckBudget {
    static consteval bool ok() {
        static_assert(least_bytes <= bytes,
                      "gpipe: this device does not fit into the bytes of Policy, however often "
                      "layers run again: it needs least_bytes for the samples of Policy");
        return least_bytes <= bytes;
    }
};

// fit_budget() in parts, each a constant of its own: a compiler limits the steps of one evaluation,
// not of all. Source has the numbers of devices and cells, layers(cell), the bytes, and
// with_problem(f), which returns f(BudgetProblem), and with_layers(f), which leaves out the
// schedule. All boundaries are shared, so that what a device is reckoned with is what the plan has.
namespace detail {

template <class Source, std::size_t kind> struct ConstantSurroundings {
    struct Value {
        CellSurroundings cells[Source::cells] = {};
        std::size_t fixed[Source::devices] = {};
    };
    static constexpr Value value = Source::with_problem([](BudgetProblem const& problem) {
        Surroundings const found = surroundings(problem, kind);
        Value result;
        for (std::size_t c = 0; c < Source::cells; ++c) result.cells[c] = found.cells[c];
        for (std::size_t d = 0; d < Source::devices; ++d) result.fixed[d] = found.fixed[d];
        return result;
    });
};

// A cell's reversals and their costs.
template <class Source, std::size_t cell> struct ConstantCell {
    static constexpr std::size_t in_flight =
        ConstantSurroundings<Source, 2>::value.cells[cell].retained_blocks;
    static constexpr std::size_t in_flight_again =
        ConstantSurroundings<Source, 3>::value.cells[cell].retained_blocks;
    static constexpr std::size_t count =
        CellReversals::count(Source::layers(cell), in_flight != in_flight_again, constant_effort);
    static constexpr CellReversals reversals(BudgetProblem const& problem) {
        return {problem, cell, in_flight, in_flight_again, constant_effort};
    }
};

template <class Source, std::size_t cell, std::size_t number> struct ConstantChoice {
    struct Value {
        bool found = false;
        std::size_t steps = 0;
        ReversalChoice choice{};
    };
    static constexpr Value value = Source::with_layers([](BudgetProblem const& problem) {
        CellReversals const reversals = ConstantCell<Source, cell>::reversals(problem);
        Reversal const reversal = reversals.reversal(number);
        if (reversal.layers() == 0) return Value{};
        CellSurroundings const* const around[reversal_kinds] = {
            ConstantSurroundings<Source, 0>::value.cells,
            ConstantSurroundings<Source, 1>::value.cells,
            ConstantSurroundings<Source, 2>::value.cells,
            ConstantSurroundings<Source, 3>::value.cells};
        return Value{true, reversal.steps.size(),
                     measure(problem, around[kind_of(reversal)][cell], cell,
                             static_cast<std::uint32_t>(number), reversal)};
    });
};

// The choices of a cell, those that were found.
template <class Source, std::size_t cell> struct ConstantRow {
    static constexpr std::size_t most = ConstantCell<Source, cell>::count;
    std::size_t count = 0;
    std::size_t steps[most] = {}; // by number
    ReversalChoice choices[most] = {};

    template <std::size_t... numbers>
    static constexpr ConstantRow all(std::index_sequence<numbers...>) {
        ConstantRow row;
        auto const add = [&](auto const& value) {
            if (!value.found) return;
            row.steps[value.choice.number] = value.steps;
            row.choices[row.count++] = value.choice;
        };
        (add(ConstantChoice<Source, cell, numbers>::value), ...);
        return row;
    }
    static constexpr Array<ReversalChoice> row();
};
template <class Source, std::size_t cell>
inline constexpr ConstantRow<Source, cell> constant_row =
    ConstantRow<Source, cell>::all(std::make_index_sequence<ConstantRow<Source, cell>::most>{});
template <class Source, std::size_t cell>
constexpr Array<ReversalChoice> ConstantRow<Source, cell>::row() {
    auto const& from = constant_row<Source, cell>;
    Array<ReversalChoice> result(from.count);
    for (std::size_t i = 0; i < from.count; ++i) result[i] = from.choices[i];
    return result;
}

// What a device takes: by cell of its own the number of the reversal.
template <class Source, std::size_t device> struct ConstantDevice {
    struct Value {
        bool fits = false;
        std::size_t least_bytes = 0;
        std::size_t numbers[Source::cells] = {};
    };
    template <std::size_t... cells>
    static constexpr Value find(BudgetProblem const& problem, std::index_sequence<cells...>) {
        using Row = Array<ReversalChoice> (*)();
        Row const row_of_cell[] = {&ConstantRow<Source, cells>::row...};
        Array<std::size_t> const own = cells_of(problem.schedule, device);
        Array<Array<ReversalChoice>> rows(own.size());
        for (std::size_t i = 0; i < own.size(); ++i) rows[i] = row_of_cell[own[i]]();
        DeviceChoice choice(static_cast<Array<Array<ReversalChoice>>&&>(rows),
                            ConstantSurroundings<Source, 0>::value.fixed[device], constant_effort);
        add_policies(problem, own, constant_effort, choice);
        Value found;
        found.least_bytes = choice.least_bytes();
        std::size_t const best = choice.fastest(Source::bytes);
        found.fits = best != DeviceChoice::none;
        for (std::size_t i = 0; i < own.size() && found.fits; ++i)
            found.numbers[own[i]] = choice.number(best, i);
        return found;
    }
    static constexpr Value value = Source::with_problem([](BudgetProblem const& problem) {
        return find(problem, std::make_index_sequence<Source::cells>{});
    });
};

template <class Source> struct ConstantFit {
    bool fits = true;
    std::size_t device = 0; // the first that lacks the most
    std::size_t least_bytes = 0;
    std::size_t numbers[Source::cells] = {};

    template <std::size_t... devices>
    static constexpr ConstantFit all(std::index_sequence<devices...>) {
        ConstantFit fit;
        auto const add = [&](std::size_t d, auto const& value) {
            fit.fits = fit.fits && value.fits;
            if (!value.fits && value.least_bytes > fit.least_bytes) {
                fit.device = d;
                fit.least_bytes = value.least_bytes;
            }
            for (std::size_t c = 0; c < Source::cells; ++c) fit.numbers[c] += value.numbers[c];
        };
        (add(devices, ConstantDevice<Source, devices>::value), ...);
        return fit;
    }
};
template <class Source>
inline constexpr ConstantFit<Source>
    constant_fit = ConstantFit<Source>::all(std::make_index_sequence<Source::devices>{});

template <class Source, std::size_t cell> struct ConstantReversal {
    static constexpr std::size_t number = constant_fit<Source>.numbers[cell];
    static constexpr std::size_t step_count = constant_row<Source, cell>.steps[number];
    struct Value {
        Keep forward[Source::layers(cell)] = {};
        ReversalStep steps[step_count] = {};
    };
    static constexpr Value value = Source::with_layers([](BudgetProblem const& problem) {
        Reversal const found = ConstantCell<Source, cell>::reversals(problem).reversal(number);
        Value result;
        for (std::size_t l = 0; l < found.layers(); ++l) result.forward[l] = found.forward[l];
        for (std::size_t s = 0; s < step_count; ++s) result.steps[s] = found.steps[s];
        return result;
    });
    static constexpr Reversal reversal() {
        Reversal result{Array<Keep>(Source::layers(cell)), Array<ReversalStep>(step_count)};
        for (std::size_t l = 0; l < result.layers(); ++l) result.forward[l] = value.forward[l];
        for (std::size_t s = 0; s < step_count; ++s) result.steps[s] = value.steps[s];
        return result;
    }
};

template <class Source, std::size_t... cells>
constexpr Array<Reversal> reversals_of_cells(std::index_sequence<cells...>) {
    Array<Reversal> result(Source::cells);
    ((result[cells] = ConstantReversal<Source, cells>::reversal()), ...);
    return result;
}

} // namespace detail

/// The reversals by cell, if they fit: see ConstantFit.
template <class Source> constexpr Array<Reversal> constant_reversals() {
    return detail::reversals_of_cells<Source>(std::make_index_sequence<Source::cells>{});
}

} // namespace gpipe
