#pragma once

#include <gpipe/checkpoint/piece.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>

/// Binomial checkpointing for layers of equal cost: Griewank and Walther, "Algorithm 799: Revolve"
/// (TOMS 2000).
///
/// There, s counts every stored input, that of layer 0 included; here `slots` are those beside it:
/// s = slots + 1. beta(s, r) = C(s + r, s) layers can be reversed with every layer advanced over
/// (run to keep nothing but perhaps its input) at most r times. For n layers let r be the least
/// number with n <= beta(s, r); then r n - C(s + r, s + 1) advances are needed, and no fewer will
/// do: the sum of n - beta(s, i) over i < r, as n - beta(s, i) layers are advanced over more than i
/// times. They begin at the input of layer 0: the cell's own forward has kept nothing of use, and
/// is not among them.
///
/// A backward needs its layer kept whole. Where one layer at a time is, layer l is kept whole
/// between the backwards of l + 1 and l, when no later layer has to run any more: once for every
/// layer, and never in an advance. So the forwards are n + r n - C(s + r, s + 1): 2 n - 1 at the
/// least, with slots >= n - 1, and n (n + 1) / 2 without a slot.
namespace gpipe {

namespace detail {

// C(s + r, s), or some number above `limit` if it is above that. Exact: a product of i consecutive
// numbers is divisible by i!.
GPIPE_INLINE constexpr std::size_t binomial(std::size_t s, std::size_t r, std::size_t limit) {
    std::size_t value = 1;
    for (std::size_t i = 1; i <= r && value <= limit; ++i) value = value * (s + i) / i;
    return value;
}

// How many of n > 1 layers the first advance of an optimal sequence covers, when the first input
// and s - 1 > 0 more may be stored. Any number j will do with beta(s, r - 2) <= j <= beta(s, r - 1)
// and beta(s - 1, r - 1) <= n - j <= beta(s - 1, r); this is the least.
GPIPE_INLINE constexpr std::size_t first_advance(std::size_t n, std::size_t s) {
    std::size_t r = 0;
    while (binomial(s, r, n) < n) ++r;
    std::size_t j = r >= 2 ? binomial(s, r - 2, n) : 1;
    std::size_t const rest = binomial(s - 1, r, n);
    if (rest < n && n - rest > j) j = n - rest;
    return j;
}

// For append_piece(); room is slots.
struct RevolveTable {
    constexpr std::size_t split(std::size_t first, std::size_t last, std::size_t slots) const {
        std::size_t const n = last - first;
        if (n == 1) return first;
        // Without a slot, the sequence goes to the last layer; nothing is stored there.
        return first + (slots > 0 ? first_advance(n, slots + 1) : n - 1);
    }
    constexpr std::size_t beside_all(std::size_t, std::size_t slots) const { return slots; }
    constexpr std::size_t beside_input(std::size_t, std::size_t slots) const {
        return slots > 0 ? slots - 1 : 0;
    }
};

} // namespace detail

/// How many forwards revolve(layers, slots) has in its steps: the least that are possible with so
/// many stored inputs beside the boundary's and one layer at a time kept whole.
GPIPE_INLINE constexpr std::size_t revolve_forwards(std::size_t layers, std::size_t slots) {
    // More than a slot per layer is of no use.
    std::size_t const s = slots < layers ? slots + 1 : layers;
    std::size_t forwards = layers;
    std::size_t reached = 1; // beta(s, i)
    for (std::size_t i = 0; reached < layers; ++i) {
        forwards += layers - reached;
        reached = reached * (s + i + 1) / (i + 1);
    }
    return forwards;
}

/// The reversal with the fewest forwards of so many layers of equal cost, when the forward keeps
/// nothing, at most `slots` inputs beside the boundary's are stored, and one layer at a time is
/// kept whole, right before its backward. Throws std::invalid_argument if there is no layer.
GPIPE_INLINE constexpr Reversal revolve(std::size_t layers, std::size_t slots) {
    detail::check_layers(layers);
    Reversal result;
    result.forward = Array<Keep>(layers);
    detail::StepList steps;
    detail::append_piece(detail::RevolveTable{}, 0, layers, slots < layers ? slots : layers - 1,
                         steps);
    result.steps = steps.steps();
    return result;
}

} // namespace gpipe
