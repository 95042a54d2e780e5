#pragma once

#include <gpipe/core/version.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// Where the tensors of a group lie for one micro-batch: one after the other from `base`, each in a
/// slot for `capacity` samples; or, if `table` is set, wherever it points (the caller's own
/// arrays), and `base` is its first entry.
struct GroupAddress {
    std::byte* base = nullptr;         ///< of the first tensor, or of the table
    std::byte* const* table = nullptr; ///< by tensor

    /// Of `count` arrays wherever they are.
    static constexpr GroupAddress of_arrays(std::byte* const* table, std::size_t count) {
        return {count > 0 ? table[0] : nullptr, table};
    }
};

/// Where a tensor may lie. The first five are memory of the cell, and say how long what lies there
/// lives (where backwards are whole, nothing is held or deferred); the others are the tensors at
/// the ends of the cell, wherever the micro-batch has them.
enum class Region : std::uint8_t {
    retained,  ///< from forward to backward, whatever runs again between
    kept,      ///< from the begin of the reversal to backward, or to its first half
    temporary, ///< within an action
    held,      ///< from forward to the weight gradient
    deferred,  ///< from the input gradient to the weight gradient
    input,
    output,
    output_gradient,
    input_gradient,
    skip, ///< of a skip to another cell, see Frame::skips
};
/// How many have an address of their own: all but the last.
inline constexpr std::size_t region_count = 9;

} // namespace gpipe
