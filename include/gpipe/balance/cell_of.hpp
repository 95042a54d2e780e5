#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// The cell of a layer, where cell c begins with layer first[c].
GPIPE_INLINE constexpr std::uint32_t cell_of(Array<std::size_t> const& first, std::size_t layer) {
    std::uint32_t cell = 0;
    while (first[cell + 1] <= layer) ++cell;
    return cell;
}

} // namespace gpipe
