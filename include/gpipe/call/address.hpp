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

/// Where the tensors lie that a mini-batch brings, by micro-batch.
struct GivenTensors {
    GroupAddress first;     ///< of the first micro-batch
    std::size_t stride = 0; ///< entries of the table from one to the next; 0: all are there

    /// Those of one.
    constexpr GroupAddress operator[](std::size_t micro_batch) const {
        if (stride == 0) return first;
        std::byte* const* const table = first.table + micro_batch * stride;
        return {*table, table};
    }
};

/// Where a tensor may lie: which of a frame's addresses it counts from. An action has these and,
/// from `inside` on, two for each skip between cells, then one for each part of its own tensors.
/// Calls that are made by hand have the last three instead.
enum class Region : std::uint16_t {
    nothing, ///< for tensors of no bytes
    input,
    output,
    output_gradient,
    input_gradient,
    retained, ///< see Holds
    inside,
    saved = inside,
    deferred,
    scratch,
    given = 0xFFFF, ///< none of a frame's: where a mini-batch's inputs are, see GivenTensors
};

} // namespace gpipe
