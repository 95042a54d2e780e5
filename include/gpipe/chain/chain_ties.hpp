#pragma once

#include <gpipe/chain/info.hpp>
#include <gpipe/chain/item.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// An end of a tie. Those of a tie stand together, in the order of the chain.
struct TiedTensor {
    std::uint32_t tie = 0;    ///< its number
    std::uint32_t layer = 0;  ///< in the chain
    std::uint32_t tensor = 0; ///< among the layer's parameters
    bool is_first = false;    ///< of its tie: the one that counts where parameters are counted
    std::size_t elements = 0; ///< of the tensor
    std::size_t bytes = 0;    ///< likewise
};

/// The end that a parameter tensor is; null if it is tied to no other.
GPIPE_INLINE constexpr TiedTensor const* tied_end(Part<TiedTensor> ties, std::size_t layer,
                                                  std::size_t tensor) {
    for (TiedTensor const& end : ties)
        if (end.layer == layer && end.tensor == tensor) return &end;
    return nullptr;
}

/// Why what some layers tie is not one tensor.
struct TieFault {
    /// What is wrong with one end.
    enum class Kind : std::uint8_t {
        nothing,
        alone,        ///< no other layer has the tag
        other_tensor, ///< than that of the first end
    };
    Kind kind = Kind::nothing;   ///< the first that was found
    std::size_t leaf = 0;        ///< that has the end
    std::uint32_t end = 0;       ///< see TieEnds
    std::size_t first = 0;       ///< leaf of the tie's first end
    std::uint32_t first_end = 0; ///< which it is there
};

namespace detail {

// Calls f(TiedTensor) for each end, tie by tie. Returns the first fault.
template <class F>
constexpr TieFault each_tied(LayerInfo const* infos, Part<ItemExtent> items, F f) {
    struct End {
        std::size_t leaf = 0;
        std::uint32_t number = 0; // see TieEnds
        std::size_t first = 0;    // that has the same tag
    };
    std::size_t leaves = 0;
    for (ItemExtent const& item : items) leaves += item.group;
    Array<std::size_t> begin(leaves + 1); // of a leaf's ends
    for (std::size_t l = 0; l < leaves; ++l) begin[l + 1] = begin[l] + infos[l].ties.size();
    // Names are compared for leaves only: what repeats them has many more ends.
    Array<End> ends(begin[leaves]);
    auto const info = [&](End const& end) -> TieInfo const& {
        return infos[end.leaf].ties[end.number];
    };
    for (std::size_t l = 0; l < leaves; ++l)
        for (std::uint32_t e = 0; e < infos[l].ties.size(); ++e) {
            End& end = ends[begin[l] + e] = {l, e};
            while (info(ends[end.first]).tag != info(end).tag) ++end.first;
        }
    TieFault fault;
    auto const blame = [&](TieFault::Kind kind, End const& end, End const& first) {
        if (fault.kind == TieFault::Kind::nothing)
            fault = {kind, end.leaf, end.number, first.leaf, first.number};
    };
    std::uint32_t tie = 0;
    for (std::size_t i = 0; i < ends.size(); ++i) {
        if (ends[i].first != i) continue;
        std::size_t size = 0, layer = 0, leaf = 0;
        for (ItemExtent const& item : items) {
            bool const any = begin[leaf] < begin[leaf + item.group];
            for (std::size_t n = 0; n < item.count && any; ++n)
                for (std::size_t e = begin[leaf]; e < begin[leaf + item.group]; ++e) {
                    if (ends[e].first != i) continue;
                    TieInfo const& own = info(ends[e]);
                    if (own.type != info(ends[i]).type)
                        blame(TieFault::Kind::other_tensor, ends[e], ends[i]);
                    std::size_t const at = layer + n * item.group + (ends[e].leaf - leaf);
                    f(TiedTensor{tie, static_cast<std::uint32_t>(at), own.tensor, size++ == 0,
                                 own.elements, own.bytes});
                }
            layer += item.count * item.group;
            leaf += item.group;
        }
        if (size == 1) blame(TieFault::Kind::alone, ends[i], ends[i]);
        ++tie;
    }
    return fault;
}

} // namespace detail
} // namespace gpipe
