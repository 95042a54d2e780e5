#pragma once

#include <gpipe/chain/item.hpp>
#include <gpipe/chain/skip_pairs.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe::detail {

// Of a leaf in its item's first repetition.
GPIPE_INLINE constexpr std::size_t layer_of(std::size_t leaf, ItemExtent const* item) {
    std::size_t layer = 0;
    for (; leaf >= item->group; ++item) {
        leaf -= item->group;
        layer += item->count * item->group;
    }
    return layer + leaf;
}

// Calls f(SkipPair) for each skip of a chain, in the order of what is popped: first those within
// each Repeat, in all its repetitions. Returns the first fault.
template <class F>
constexpr SkipFault each_skip(LayerInfo const* infos, Part<ItemExtent> items, F f) {
    std::size_t leaves = 0;
    for (ItemExtent const& item : items) leaves += item.group;
    Array<std::size_t> inside(leaves); // of a scope
    std::size_t size = 0;
    SkipFault fault;
    auto const match = [&](std::size_t repetitions, std::size_t group) {
        auto const found = [&](std::size_t from, std::uint32_t stash, std::size_t to,
                               std::uint32_t pop) {
            SkipInfo const& info = infos[from].skips.first[stash];
            std::size_t const first = layer_of(from, items.data());
            std::size_t const last = layer_of(to, items.data());
            for (std::size_t before = 0; before < repetitions * group; before += group)
                f(SkipPair{static_cast<std::uint32_t>(first + before),
                           static_cast<std::uint32_t>(last + before), stash, pop, info.bytes,
                           info.gradient_bytes});
        };
        if (fault.kind == SkipFault::Kind::nothing && size > 0)
            fault = match_skips(infos, {inside.data(), size}, found);
        size = 0;
    };
    auto const look_at = [&](std::size_t leaf) {
        if (infos[leaf].skips.count() > 0) inside[size++] = leaf;
    };
    std::size_t leaf = 0;
    for (ItemExtent const& item : items) {
        for (std::size_t g = 0; g < item.group && item.repeats; ++g) look_at(leaf + g);
        leaf += item.group;
        match(item.count, item.group);
    }
    leaf = 0;
    for (ItemExtent const& item : items) {
        if (!item.repeats) look_at(leaf);
        leaf += item.group;
    }
    match(1, 1);
    return fault;
}

} // namespace gpipe::detail
