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
        std::size_t layer = 0, leaf = 0;
        std::uint32_t number = 0; // see TieEnds
        std::size_t tag = 0;      // the first end of a leaf that has the same
    };
    std::size_t count = 0, leaves = 0, leaf_ends = 0, layer = 0;
    for (ItemExtent const& item : items)
        for (std::size_t g = 0; g < item.group; ++g) {
            std::size_t const own = infos[leaves++].ties.size();
            leaf_ends += own;
            count += item.count * own;
        }
    auto const info = [&](End const& end) -> TieInfo const& {
        return infos[end.leaf].ties[end.number];
    };
    // Names are compared for leaves only: what repeats them has many more ends.
    Array<End> of_leaves(leaf_ends), ends(count);
    Array<std::size_t> begin(leaves + 1);
    for (std::size_t leaf = 0, n = 0; leaf < leaves; ++leaf) {
        for (std::uint32_t e = 0; e < infos[leaf].ties.size(); ++e, ++n) {
            of_leaves[n] = {0, leaf, e, 0};
            while (info(of_leaves[of_leaves[n].tag]).tag != info(of_leaves[n]).tag)
                ++of_leaves[n].tag;
        }
        begin[leaf + 1] = n;
    }
    count = leaves = 0;
    for (ItemExtent const& item : items) {
        for (std::size_t n = 0; n < item.count && count < ends.size(); ++n)
            for (std::size_t g = 0; g < item.group; ++g)
                for (std::size_t e = begin[leaves + g]; e < begin[leaves + g + 1]; ++e) {
                    ends[count] = of_leaves[e];
                    ends[count++].layer = layer + n * item.group + g;
                }
        layer += item.count * item.group;
        leaves += item.group;
    }
    TieFault fault;
    auto const blame = [&](TieFault::Kind kind, End const& end, End const& first) {
        if (fault.kind == TieFault::Kind::nothing)
            fault = {kind, end.leaf, end.number, first.leaf, first.number};
    };
    std::uint32_t tie = 0;
    Array<bool> found(leaf_ends); // by tag
    for (std::size_t i = 0; i < count; ++i) {
        if (found[ends[i].tag]) continue;
        found[ends[i].tag] = true;
        std::size_t size = 0;
        for (std::size_t e = i; e < count; ++e) {
            if (ends[e].tag != ends[i].tag) continue;
            TieInfo const& own = info(ends[e]);
            if (own.type != info(ends[i]).type)
                blame(TieFault::Kind::other_tensor, ends[e], ends[i]);
            f(TiedTensor{tie, static_cast<std::uint32_t>(ends[e].layer), own.tensor, e == i,
                         own.elements, own.bytes});
            ++size;
        }
        if (size == 1) blame(TieFault::Kind::alone, ends[i], ends[i]);
        ++tie;
    }
    return fault;
}

// How many ends there are; and writes them, if there is room.
GPIPE_INLINE constexpr std::size_t write_tied(LayerInfo const* infos, Part<ItemExtent> items,
                                              TiedTensor* to = nullptr) {
    std::size_t count = 0;
    each_tied(infos, items, [&](TiedTensor const& end) {
        if (to) to[count] = end;
        ++count;
    });
    return count;
}

} // namespace detail
} // namespace gpipe
