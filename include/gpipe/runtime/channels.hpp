#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/exact_sum.hpp>
#include <gpipe/plan/lowered.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/tables.hpp>
#include <gpipe/transport/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// The channels between ranks, two at a time, there and back: in each replica of each edge that is
// Link::sent, and of each end of a tie that is not on the rank of the first; of each device with
// parameters between any two replicas; and between each rank and the one which decides; and, where
// updates are immediate, from that one for commits, and to it for the losses of other replicas,
// both of which come while hosts talk. Returns them, and has the tables say which are whose.
[[gnu::cold]] GPIPE_INLINE Array<Channel> make_channels(Tables& tables, Lowered const& lowered,
                                                        bool immediate) {
    Programs const& programs = lowered.programs;
    Ranks const& ranks = tables.ranks;
    std::size_t const devices = lowered.devices();
    auto const number = [&](std::size_t replica, std::size_t device) {
        return static_cast<std::uint32_t>(ranks.number(replica, ranks.of(device)));
    };
    Array<Channel> all(2 * (ranks.replicas * (lowered.edges.size() + tables.tied.size() +
                                              devices * (ranks.replicas - 1)) +
                            2 * ranks.all()));
    std::uint32_t count = 0;
    auto const add = [&](std::uint32_t from, std::uint32_t to, std::size_t there, std::size_t back,
                         std::size_t device = 0, bool between_hosts = false) {
        std::uint32_t const first = count;
        auto const on = static_cast<std::uint32_t>(device);
        all[count++] = {from, to, there, between_hosts, on};
        all[count++] = {to, from, back, between_hosts, on};
        return first;
    };
    tables.channels = Array<std::uint32_t>(tables.tied.size() + ranks.all(), no_channel);
    for (std::size_t replica = 0; replica < ranks.replicas; ++replica) {
        auto const rank_of = [&](std::size_t cell) {
            return number(replica, programs.device_of(cell));
        };
        auto const rank_of_end = [&](std::size_t end) {
            return number(replica, tables.device_of_end(end));
        };
        auto const tell = [&](std::uint32_t& which, std::uint32_t channel) {
            if (replica == ranks.replica) which = channel;
        };
        for (std::size_t e = 0; e < lowered.edges.size(); ++e)
            if (Edge const& edge = lowered.edges[e]; edge.link == Link::sent) {
                EdgeRow& row = tables.edges[e];
                tell(row.channel,
                     add(rank_of(edge.from), rank_of(edge.to), row.tensors(tables.capacity),
                         row.gradients(tables.capacity)));
            }
        for (Tables::Tie const& tie : tables.ties)
            for (std::size_t i = tie.first + 1; i < tie.last && tables.learns(tie); ++i)
                if (std::uint32_t const here = rank_of_end(i), first = rank_of_end(tie.first);
                    here != first)
                    tell(tables.channels[i], add(here, first, tie.bytes, tie.bytes));
    }
    ReplicaParts& parts = tables.replicas;
    auto const longest = [&](std::size_t d) {
        DeviceBuffers const& buffers = tables.buffers.devices[d];
        return std::max({parts.message[d], buffers.statistics_bytes, buffers.exchanged_bytes});
    };
    if (parts.any()) parts.channels = Array<std::uint32_t>(devices * ranks.replicas, no_channel);
    for (std::size_t d = 0; d < devices && parts.any(); ++d)
        for (std::size_t low = 0; low < ranks.replicas; ++low)
            for (std::size_t high = low + 1; high < ranks.replicas && longest(d) > 0; ++high) {
                std::uint32_t const both =
                    add(number(low, d), number(high, d), longest(d), longest(d), d);
                std::uint32_t* const row = parts.channels.begin() + d * ranks.replicas;
                if (low == ranks.replica) row[high] = both;
                if (high == ranks.replica) row[low] = both;
            }
    auto const decider = static_cast<std::uint32_t>(tables.decider());
    auto const last = static_cast<std::uint32_t>(tables.last_device);
    for (std::uint32_t r = 0; r < ranks.all(); ++r) {
        if (r == decider) continue; // which keeps no_channel
        std::size_t const rank = r % ranks.count;
        std::size_t const rows =
            tables.updates_at[ranks.end(rank)] - tables.updates_at[ranks.begin(rank)];
        std::size_t const losses = tables.micro_batches * tables.loss_row;
        std::size_t const totals = tables.sums + 1;
        std::size_t const exact = parts.any() ? exact_words : 0;
        tables.channels[tables.tied.size() + r] = add(
            r, decider,
            std::max(std::max({rows, losses, totals, exact}) * sizeof(double), sizeof(RankNote)),
            std::max({sizeof(StepState), sizeof(RankNote), totals * sizeof(double)}), last, true);
        if (immediate) all[count++] = {decider, r, sizeof(StepState), false, last, true};
        if (immediate && rank == tables.decider())
            all[count++] = {r, decider, losses * sizeof(double), false, last, true};
    }
    return first_of(all, count);
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
