#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/lowered.hpp>

#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

namespace detail {

// A device has a stream for each kind of copy: a direction that has nothing to do does not hold up
// the other.
inline constexpr std::size_t copy_kinds = 6;
// Which of them all a copy is for: of a device first those that send.
GPIPE_INLINE constexpr std::size_t copy_stream(Action const& a, Programs const& programs) {
    constexpr std::size_t place[copy_kinds] = {0, 2, 1, 3, 4, 5};
    return programs.device_of(a.cell) * copy_kinds +
           place[static_cast<std::size_t>(a.kind) - static_cast<std::size_t>(Kind::send_output)];
}

// Puts the copies in: of the edges whose ends share no memory, and to slower memory and back where
// a cell `offloads[c]` (empty: none), of these `chosen`. A stream copies in `order`
// (linear_order(programs)), which every program follows, so that no two streams can wait for each
// other. `edges` are between the cells of `programs`. There are no needs yet.
[[gnu::cold]] GPIPE_INLINE constexpr Lowered put_copies_in(Programs const& programs, Edges edges,
                                                           Array<std::size_t> const& order,
                                                           Array<bool> const& offloads,
                                                           Offloads chosen) {
    std::size_t const devices = programs.devices();
    Lowered result;
    result.edges = static_cast<Edges&&>(edges);
    result.offloads = static_cast<Offloads&&>(chosen);
    Offloads const& moves = result.offloads;
    // All copies in that order.
    auto const each_copy = [&](auto const& put) {
        for (std::size_t const i : order) {
            Action const& a = programs[i];
            auto const send = [&](Kind out, Kind in, std::uint32_t e, std::uint32_t to) {
                Edge const& edge = result.edges[e];
                if (edge.shared()) return;
                put({out, a.cell, a.micro_batch, e});
                if (edge.received()) put({in, to, a.micro_batch, e});
            };
            if (a.kind == Kind::forward)
                for (std::uint32_t const e : result.edges.out_of(a.cell))
                    send(Kind::send_output, Kind::receive_input, e, result.edges[e].to);
            if (gives_gradient(a.kind))
                for (std::uint32_t const e : result.edges.into(a.cell))
                    if (result.edges[e].gradient)
                        send(Kind::send_gradient, Kind::receive_gradient, e, result.edges[e].from);
            if (a.kind == Kind::forward && moves.moved(a.cell, a.micro_batch))
                put({Kind::offload, a.cell, a.micro_batch});
            if (std::size_t const reversal = moves.behind(i); reversal != Offloads::none)
                put({Kind::fetch, programs[reversal].cell, programs[reversal].micro_batch});
        }
    };

    // What copies there can be says which streams there are: the same in training and without.
    Array<bool> used(devices * copy_kinds);
    auto const use = [&](Kind kind, std::size_t cell) {
        used[copy_stream({kind, static_cast<std::uint32_t>(cell), 0}, programs)] = true;
    };
    for (Edge const& edge : result.edges) {
        if (edge.link == Link::shared) continue;
        use(Kind::send_output, edge.from);
        if (edge.gradient) use(Kind::send_gradient, edge.to);
        if (!edge.received()) continue;
        use(Kind::receive_input, edge.to);
        if (edge.gradient) use(Kind::receive_gradient, edge.from);
    }
    for (std::size_t c = 0; c < offloads.size(); ++c) {
        if (!offloads[c]) continue;
        use(Kind::offload, c);
        use(Kind::fetch, c);
    }
    std::size_t streams = devices, count = 0;
    for (bool const stream : used) streams += stream;
    Array<std::size_t> length(used.size());
    each_copy([&](Action const& a) { ++length[copy_stream(a, programs)], ++count; });
    result.programs = Programs(programs, streams, programs.size() + count);
    result.device = Array<std::size_t>(streams);
    for (std::size_t d = 0; d < devices; ++d) {
        result.programs.add_program(programs.program(d));
        result.device[d] = d;
    }
    std::size_t stream = devices;
    Array<Action*> next(used.size());
    for (std::size_t s = 0; s < used.size(); ++s) {
        if (!used[s]) continue;
        next[s] = result.programs.append(length[s]);
        result.programs.next_device();
        result.device[stream++] = s / copy_kinds;
    }
    each_copy([&](Action const& a) { *next[copy_stream(a, programs)]++ = a; });
    return result;
}

} // namespace detail

/// Gives each device with so many cells, or more, a stream for what its layers go on beside.
[[gnu::cold]] GPIPE_INLINE constexpr void add_streams_beside(Lowered& lowered, std::size_t least) {
    Programs const& all = lowered.programs;
    std::size_t const devices = lowered.devices();
    Array<std::size_t> cells(devices);
    std::size_t streams = lowered.streams();
    for (std::size_t c = 0; c < all.cells(); ++c) streams += ++cells[all.device_of(c)] == least;
    Programs more(all, streams, all.size());
    Array<std::size_t> device(streams);
    std::size_t s = 0;
    for (; s < lowered.streams(); ++s) {
        more.add_program(all.program(s));
        device[s] = lowered.device[s];
    }
    lowered.beside = Array<std::size_t>(devices);
    for (std::size_t d = 0; d < devices; ++d) {
        lowered.beside[d] = cells[d] < least ? d : s;
        if (cells[d] < least) continue;
        device[s++] = d;
        more.next_device();
    }
    lowered.programs = static_cast<Programs&&>(more);
    lowered.device = static_cast<Array<std::size_t>&&>(device);
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
