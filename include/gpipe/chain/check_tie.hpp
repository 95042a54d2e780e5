#pragma once

#include <gpipe/chain/chain_ties.hpp>

#include <cstddef>

namespace gpipe {

/// The sentence about a parameter tensor T that layer `Index` ties under Tag, where that is not one
/// with others.
template <TieFault::Kind kind, std::size_t Index, class L, class Tag, std::size_t First,
          class FirstLayer, class T>
struct CheckTie {
    static consteval bool ok() {
        using Fault = TieFault::Kind;
        static_assert(kind != Fault::alone,
                      "gpipe: layer Index (L) ties a parameter tensor under Tag, but no other "
                      "layer does");
        static_assert(kind != Fault::other_tensor,
                      "gpipe: layer Index (L) ties a T under Tag, but layer First (FirstLayer) "
                      "another tensor");
        return false;
    }
};

} // namespace gpipe
