#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe {

/// A side input as planning and the runtime see it.
struct SideInfo {
    void const* id = nullptr;       ///< one address per tag
    std::string_view tag;           ///< its type's name
    std::string_view tensor;        ///< likewise
    std::size_t bytes = 0;          ///< of a sample
    std::size_t leaf = 0;           ///< of a chain's: where it is read first
    std::size_t place = 0;          ///< among what is read there
    void const* optional = nullptr; ///< see ElementInfo
};

/// The side inputs that a layer reads.
using SideEnds = Part<SideInfo>;
/// Whether one of this tag is among them.
GPIPE_INLINE constexpr bool has(SideEnds sides, std::string_view tag) {
    for (SideInfo const& side : sides)
        if (side.tag == tag) return true;
    return false;
}

/// Where the side inputs of a chain lie for one device, in a step.
struct StepSides {
    Part<SideInfo> all;                 ///< of the chain
    std::byte* const* arrays = nullptr; ///< [micro-batch][side]: of that micro-batch's samples

    /// Of one that is among them.
    std::byte* of(void const* id, std::size_t micro_batch) const {
        std::size_t side = 0;
        while (all[side].id != id) ++side;
        return arrays[micro_batch * all.size() + side];
    }
};

} // namespace gpipe
