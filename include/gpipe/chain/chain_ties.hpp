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

/// Why what some layers tie is not one tensor.
struct TieFault {
    /// What is wrong with one end.
    enum class Kind : std::uint8_t {
        nothing,
        alone,        ///< no other layer has the tag
        other_tensor, ///< than that of the first end
    };
    Kind kind = Kind::nothing; ///< the first that was found
    std::size_t leaf = 0;      ///< that has the end
    std::uint32_t end = 0;     ///< see TieEnds
    std::size_t first = 0;     ///< leaf of the tie's first end
};

namespace detail {

// Calls f(tie, layer, end info) for each end, tie by tie. Returns the first fault.
template <class F>
constexpr TieFault each_tied(LayerInfo const* infos, Part<ItemExtent> items, F f) {
    TieFault fault;
    bool any = false;
    std::size_t leaves = 0;
    for (ItemExtent const& item : items)
        for (std::size_t g = 0; g < item.group; ++g) any = any || infos[leaves++].ties.count > 0;
    if (!any) return fault;
    // Calls g(layer, leaf, end) for every end in the order of the chain, until it returns false.
    auto const each_end = [&](auto g) {
        std::size_t layer = 0, leaf = 0;
        for (ItemExtent const& item : items) {
            for (std::size_t n = 0; n < item.count; ++n)
                for (std::size_t i = 0; i < item.group; ++i, ++layer)
                    for (std::uint32_t e = 0; e < infos[leaf + i].ties.count; ++e)
                        if (!g(layer, leaf + i, e)) return;
            leaf += item.group;
        }
    };
    std::uint32_t ties = 0;
    each_end([&](std::size_t first_layer, std::size_t first_leaf, std::uint32_t first_end) {
        TieInfo const& first = infos[first_leaf].ties.first[first_end];
        std::size_t count = 0;
        bool first_of_tie = true;
        each_end([&](std::size_t layer, std::size_t leaf, std::uint32_t end) {
            TieInfo const& info = infos[leaf].ties.first[end];
            if (info.tag != first.tag) return true;
            if (count++ == 0) first_of_tie = layer == first_layer && end == first_end;
            if (!first_of_tie) return false;
            if (info.type != first.type && fault.kind == TieFault::Kind::nothing)
                fault = {TieFault::Kind::other_tensor, leaf, end, first_leaf};
            f(ties, layer, info);
            return true;
        });
        ties += first_of_tie;
        if (first_of_tie && count == 1 && fault.kind == TieFault::Kind::nothing)
            fault = {TieFault::Kind::alone, first_leaf, first_end, first_leaf};
        return true;
    });
    return fault;
}

// How many ends there are.
GPIPE_INLINE constexpr std::size_t count_tied(LayerInfo const* infos, Part<ItemExtent> items) {
    std::size_t count = 0;
    each_tied(infos, items, [&](auto, auto, auto const&) { ++count; });
    return count;
}

// All of them.
GPIPE_INLINE constexpr void write_tied(LayerInfo const* infos, Part<ItemExtent> items,
                                       TiedTensor* to) {
    std::uint32_t ties = 0;
    each_tied(infos, items, [&](std::uint32_t tie, std::size_t layer, TieInfo const& info) {
        bool const first = tie == ties;
        ties = tie + 1;
        *to++ = {tie,       static_cast<std::uint32_t>(layer), info.tensor, first, info.elements,
                 info.bytes};
    });
}

} // namespace detail
} // namespace gpipe
