#pragma once

#include <gpipe/balance/partition.hpp>
#include <gpipe/balance/validate.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>

#include <array>
#include <cstddef>
#include <stdexcept>

namespace gpipe {

namespace policy {
/// The kind of the policies that say how the layers are cut into cells.
struct Cut;
} // namespace policy

/// The first of first[0 ... cells] that is not as a cut of so many layers has it: first[0] is 0,
/// each is more than the one before, and the last is `layers`. More than `cells` if all are.
GPIPE_INLINE constexpr std::size_t first_wrong_cut(std::size_t const* first, std::size_t cells,
                                                   std::size_t layers) {
    for (std::size_t c = 0; c <= cells; ++c) {
        bool const grows = c == 0 ? first[c] == 0 : first[c] > first[c - 1];
        if (!grows || (c == cells ? first[c] != layers : first[c] >= layers)) return c;
    }
    return cells + 1;
}
/// Throws std::invalid_argument with the place of that.
GPIPE_INLINE void check_found_cut(Array<std::size_t> const& first, std::size_t layers) {
    std::size_t const cells = first.size() - 1,
                      wrong = first_wrong_cut(first.data(), cells, layers);
    if (wrong > cells) return;
    detail::throw_error<std::invalid_argument>(
        "gpipe: the cut's objective is wrong at first[%zu], which it fills with %zu: first[0] is "
        "0, first[%zu] is %zu, and each is more than the one before",
        wrong, first[wrong], cells, layers);
}

/// What a cut is best at. A user's own objective is a struct with such a `cut`.
namespace objective {

/// The most expensive cell is as cheap as possible. The default.
struct Bottleneck {
    /// Fills first[0 ... cells]: cell k holds the layers [first[k], first[k + 1]). An objective
    /// that takes weights, see cut_by_bottleneck(), hears of what runs again: see cut_for().
    static constexpr void cut(double const* costs, std::size_t layers, std::size_t cells,
                              std::size_t* first, Array<std::size_t> const& weights = {}) {
        cut_by_bottleneck(costs, layers, cells, first, weights);
    }
};

/// The variance of the costs of the cells is as small as possible, as in the paper (GPipe,
/// section 2.2). Its bottleneck is close to the smallest on most chains, but can be a quarter above
/// it on uneven ones.
struct LeastVariance {
    /// Fills first[0 ... cells]: cell k holds the layers [first[k], first[k + 1]).
    static constexpr void cut(double const* costs, std::size_t layers, std::size_t cells,
                              std::size_t* first) {
        cut_by_variance(costs, layers, cells, first);
    }
};

} // namespace objective

/// Policy: cut the layers into cells by their costs, for K devices: one cell on each, or as many as
/// the schedule has. `Cells<dynamic>` takes K at construction. A Training also counts what cells
/// run again, if the objective can: see cut_for().
template <std::size_t K, class Objective = objective::Bottleneck> struct Cells {
    using policy_kind = policy::Cut;
    /// What is made small: objective::Bottleneck or objective::LeastVariance.
    using objective_type = Objective;
    /// K, or dynamic.
    static constexpr std::size_t cells = K;

    /// Fills first[0 ... count] from the costs of the layers; throws as the objective does.
    static constexpr void cut(double const* costs, std::size_t layers, std::size_t count,
                              std::size_t* first) {
        Objective::cut(costs, layers, count, first);
    }
};

/// Fills first[0 ... count] from the `entries` sizes of a balance. Throws std::invalid_argument
/// unless they are those of `count` non-empty cells and sum to `layers`.
GPIPE_INLINE constexpr void cut_by_sizes(std::size_t const* sizes, std::size_t entries,
                                         std::size_t layers, std::size_t count,
                                         std::size_t* first) {
    check_balance(sizes, entries, layers);
    if (count != entries)
        detail::throw_error<std::invalid_argument>("gpipe: the balance has %zu entries, but there "
                                                   "are %zu cells: one on each device, or as "
                                                   "many as the schedule has",
                                                   entries, count);
    first[0] = 0;
    for (std::size_t k = 0; k < count; ++k) first[k + 1] = first[k] + sizes[k];
}

/// Policy: cut the layers into cells of these sizes, by hand. `Balance<2, 1, 1, 2>` is four cells
/// of six layers: of four devices, or of two where the schedule has two cells on each.
template <std::size_t... Sizes> struct Balance {
    using policy_kind = policy::Cut;
    static constexpr std::size_t cells = sizeof...(Sizes); ///< k times the cells on each device
    /// Layers of each cell.
    static constexpr std::array<std::size_t, cells> sizes{Sizes...};

    /// Fills first[0 ... count] from the sizes, whatever the costs; throws as cut_by_sizes().
    static constexpr void cut(double const*, std::size_t layers, std::size_t count,
                              std::size_t* first) {
        cut_by_sizes(sizes.data(), cells, layers, count, first);
    }
};

/// Whether a policy says of each cell how large it is.
template <class Cut> inline constexpr bool cuts_by_hand = requires { Cut::sizes; };

/// K under policy Cut and a schedule with so many cells per device; dynamic if it is chosen at
/// construction.
template <class Cut> constexpr std::size_t devices_of(std::size_t cells_per_device) {
    return cuts_by_hand<Cut> ? Cut::cells / cells_per_device : Cut::cells;
}

} // namespace gpipe
