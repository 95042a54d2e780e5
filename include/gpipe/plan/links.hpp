#pragma once

#include <gpipe/balance/cell_of.hpp>
#include <gpipe/chain/skip_pairs.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/edge.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>

namespace gpipe {

/// How tensors get from device to device, as plan_bytes() asks: before each cell those of the one
/// before, then those of each skip. `link(from, to)`: between two devices.
template <class F>
constexpr Array<Link> links_between(Programs const& programs, Array<std::size_t> const& first,
                                    Part<SkipPair> skips, F link) {
    std::size_t const cells = programs.cells();
    auto const device_of = [&](std::size_t layer) {
        return programs.device_of(cell_of(first, layer));
    };
    Array<Link> result(cells + skips.size());
    for (std::size_t c = 1; c < cells; ++c)
        result[c] = link(programs.device_of(c - 1), programs.device_of(c));
    for (std::size_t s = 0; s < skips.size(); ++s)
        result[cells + s] = link(device_of(skips[s].from), device_of(skips[s].to));
    return result;
}

/// The same where any two devices have such a link.
GPIPE_INLINE constexpr Array<Link> links_between(Programs const& programs,
                                                 Array<std::size_t> const& first,
                                                 Part<SkipPair> skips, Link link) {
    if (link == Link::shared) return {};
    return links_between(programs, first, skips, [=](std::size_t from, std::size_t to) {
        return from == to ? Link::shared : link;
    });
}

} // namespace gpipe
