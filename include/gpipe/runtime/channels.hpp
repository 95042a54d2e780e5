#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/tables.hpp>
#include <gpipe/transport/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// The channels between ranks, two at a time, there and back: of each edge that is Link::sent; of
// each end of a tie that is not on the rank of the first; and between each rank and that of the
// last cell, which decides. Returns them, and has the tables say which are whose.
[[gnu::cold]] GPIPE_INLINE Array<Channel> make_channels(Tables& tables, Lowered const& lowered) {
    Programs const& programs = lowered.programs;
    Ranks const& ranks = tables.ranks;
    auto const rank_of = [&](std::size_t cell) {
        return static_cast<std::uint32_t>(ranks.of(programs.device_of(cell)));
    };
    Array<Channel> all(2 * (lowered.edges.size() + tables.tied.size() + ranks.count));
    std::uint32_t count = 0;
    auto const add = [&](std::uint32_t from, std::uint32_t to, std::size_t there,
                         std::size_t back) {
        std::uint32_t const first = count;
        all[count++] = {from, to, there};
        all[count++] = {to, from, back};
        return first;
    };
    for (std::size_t e = 0; e < lowered.edges.size(); ++e)
        if (Edge const& edge = lowered.edges[e]; edge.link == Link::sent) {
            EdgeRow& row = tables.edges[e];
            row.channel = add(rank_of(edge.from), rank_of(edge.to), row.tensors(tables.capacity),
                              row.gradients(tables.capacity));
        }
    auto const rank_of_end = [&](std::size_t i) {
        std::size_t device = 0;
        while (!tables.has_row(device, tables.tied[i])) ++device;
        return static_cast<std::uint32_t>(ranks.of(device));
    };
    tables.channels = Array<std::uint32_t>(tables.tied.size() + ranks.count, no_channel);
    for (Tables::Tie const& tie : tables.ties)
        for (std::size_t i = tie.first + 1; i < tie.last; ++i)
            if (std::uint32_t const here = rank_of_end(i), first = rank_of_end(tie.first);
                here != first)
                tables.channels[i] = add(here, first, tie.bytes, tie.bytes);
    auto const decides = static_cast<std::uint32_t>(ranks.of(tables.last_device));
    for (std::uint32_t r = 0; r < ranks.count; ++r) {
        if (r == decides) continue;
        std::size_t const rows =
            tables.updates_at[ranks.end(r)] - tables.updates_at[ranks.begin(r)];
        tables.channels[tables.tied.size() + r] = add(
            r, decides, std::max(rows * sizeof(double), sizeof(RankNote)),
            std::max({sizeof(StepState), sizeof(RankNote), (tables.sums + 1) * sizeof(double)}));
    }
    return first_of(all, count);
}

// That, and opens them.
template <class Transport>
void open_channels(Transport& transport, Tables& tables, Lowered const& lowered) {
    transport.open(make_channels(tables, lowered));
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
