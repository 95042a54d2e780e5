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

// Calls f(from, stash, to, pop, item) for each skip of a chain, by leaves and their ends; `item`
// has it in its every repetition; null if it goes from item to item. Returns the first fault.
template <class F>
constexpr SkipFault each_skip(LayerInfo const* infos, Part<ItemExtent> items, F f) {
    std::size_t leaves = 0;
    for (ItemExtent const& item : items) leaves += item.group;
    Array<std::size_t> inside(leaves); // of a scope
    std::size_t size = 0;
    SkipFault fault;
    auto const match = [&](ItemExtent const* item) {
        if (fault.kind == SkipFault::Kind::nothing && size > 0)
            fault = match_skips(
                infos, {inside.data(), size},
                [&](auto from, auto stash, auto to, auto pop) { f(from, stash, to, pop, item); });
        size = 0;
    };
    auto const look_at = [&](std::size_t leaf) {
        if (infos[leaf].skips.count() > 0) inside[size++] = leaf;
    };
    std::size_t leaf = 0;
    for (ItemExtent const& item : items) {
        for (std::size_t g = 0; g < item.group && item.repeats; ++g) look_at(leaf + g);
        leaf += item.group;
        match(&item);
    }
    leaf = 0;
    for (ItemExtent const& item : items) {
        if (!item.repeats) look_at(leaf);
        leaf += item.group;
    }
    match(nullptr);
    return fault;
}

// How many there are; and writes them, if there is room, in the order of what is popped: first
// those within each Repeat.
GPIPE_INLINE constexpr std::size_t write_skips(LayerInfo const* infos, Part<ItemExtent> items,
                                               SkipPair* to = nullptr) {
    std::size_t count = 0;
    each_skip(infos, items,
              [&](std::size_t from, std::uint32_t stash, std::size_t end, std::uint32_t pop,
                  ItemExtent const* item) {
                  count += item ? item->count : 1;
                  SkipInfo const& info = infos[from].skips.first[stash];
                  std::size_t const first = layer_of(from, items.data());
                  std::size_t const last = layer_of(end, items.data());
                  for (std::size_t n = 0; to && n < (item ? item->count : 1); ++n) {
                      std::size_t const before = item ? n * item->group : 0;
                      *to++ = {static_cast<std::uint32_t>(first + before),
                               static_cast<std::uint32_t>(last + before),
                               stash,
                               pop,
                               info.bytes,
                               info.gradient_bytes};
                  }
              });
    return count;
}

} // namespace gpipe::detail
