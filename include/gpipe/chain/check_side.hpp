#pragma once

#include <gpipe/chain/chain_sides.hpp>

#include <cstddef>

namespace gpipe {

/// The sentence about a side input that layer `Index` reads under Tag as a T, where another layer
/// reads another tensor under it.
template <std::size_t Index, class L, class Tag, std::size_t First, class FirstLayer, class T,
          bool fits = false>
struct CheckSide {
    static consteval bool ok() {
        static_assert(fits, "gpipe: layer Index (L) reads a T as the side input Tag, but layer "
                            "First (FirstLayer) another tensor");
        return fits;
    }
};

} // namespace gpipe
