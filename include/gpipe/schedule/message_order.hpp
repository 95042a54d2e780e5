#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/walk.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

// Where messages go in programs. Each step is a function from arrays to arrays, so that each can be
// a constant of its own.
namespace gpipe::detail {

// When each action starts at unit costs, and when the one that waits for what it makes; returns how
// far each device came.
GPIPE_INLINE constexpr Array<std::size_t> start_times(ProgramsView const& view,
                                                      std::uint32_t* start, std::uint32_t* used) {
    Array<std::uint32_t> clocks(view.devices);
    std::uint32_t* const clock = clocks.data();
    Action const* const actions = view.actions;
    return walk(view, [&](std::size_t i, std::size_t needed) {
        std::uint32_t& now = clock[view.device_of[actions[i].cell]];
        if (needed != no_action) {
            std::uint32_t const done = start[needed] + 1 + (actions[needed].kind == Kind::backward);
            if (now < done) now = done;
            used[needed] = now;
        }
        start[i] = now;
        now += 1 + (actions[i].kind == Kind::backward);
    });
}

// How many messages there are.
GPIPE_INLINE constexpr std::size_t message_count(ProgramsView const& view, bool const* crosses) {
    std::size_t count = 0;
    for (std::size_t c = 1; c < view.cells; ++c)
        if (view.device_of[c - 1] != view.device_of[c])
            count += view.micro_batches * (crosses[c] ? 2 : 1);
    return count;
}

// The actions that make what is sent, in the order of their messages, and the moments of these: as
// late as the sender's next action and the receiver's use of it allow.
GPIPE_INLINE constexpr void order_messages(ProgramsView const& view, bool const* crosses,
                                           std::uint32_t const* start, std::uint32_t const* used,
                                           std::size_t count, std::uint32_t* producer,
                                           std::uint32_t* moment) {
    std::uint32_t end = 0;
    for (std::size_t d = 0; d < view.devices; ++d) {
        std::size_t const last = view.begin[d + 1];
        if (last > view.begin[d] && end <= start[last - 1]) end = start[last - 1] + 1;
    }
    // A counting sort by moment; what is sent at the same moment stays in order of devices.
    Array<std::uint32_t> unsorted(2 * count);
    Array<std::uint32_t> places(end + 2);
    std::uint32_t* const when = unsorted.data();
    std::uint32_t* const what = when + count;
    std::uint32_t* const place = places.data();
    std::size_t n = 0;
    for (std::size_t d = 0; d < view.devices; ++d)
        for (std::size_t i = view.begin[d]; i < view.begin[d + 1]; ++i) {
            Action const& a = view.actions[i];
            bool const gradient = a.kind == Kind::backward || a.kind == Kind::input_gradient;
            std::size_t const c = gradient ? a.cell : a.cell + 1u; // the boundary before c
            if ((!gradient && a.kind != Kind::forward) || c == 0 || c == view.cells ||
                view.device_of[c - 1] == view.device_of[c] || (gradient && !crosses[c]))
                continue;
            std::uint32_t const next = i + 1 < view.begin[d + 1] ? start[i + 1] : end;
            when[n] = used[i] < next ? used[i] : next;
            what[n] = static_cast<std::uint32_t>(i);
            ++place[when[n++] + 1];
        }
    for (std::size_t t = 1; t < end + 2; ++t) place[t] += place[t - 1];
    for (std::size_t k = 0; k < count; ++k) {
        std::uint32_t const to = place[when[k]]++;
        producer[to] = what[k];
        moment[to] = when[k];
    }
}

// The programs with their messages.
GPIPE_INLINE constexpr void put_messages_in(ProgramsView const& view, bool const* crosses,
                                            std::uint32_t const* start, std::size_t count,
                                            std::uint32_t const* producer,
                                            std::uint32_t const* moment, std::size_t* begin,
                                            Action* to) {
    for (std::size_t c = 1; c < view.cells; ++c)
        for (std::size_t const neighbour : {c - 1, c})
            if (view.device_of[c - 1] != view.device_of[c])
                begin[view.device_of[neighbour] + 1] += view.micro_batches * (crosses[c] ? 2 : 1);
    Array<std::size_t> reads(view.devices);
    Array<std::size_t> writes(view.devices);
    std::size_t* const read = reads.data();
    std::size_t* const written = writes.data();
    for (std::size_t d = 0; d < view.devices; ++d) {
        read[d] = view.begin[d];
        written[d] = begin[d];
        begin[d + 1] += begin[d] + view.begin[d + 1] - view.begin[d];
    }
    for (std::size_t k = 0; k < count; ++k) {
        Action const& made = view.actions[producer[k]];
        bool const output = made.kind == Kind::forward;
        for (bool const sends : {true, false}) {
            std::uint32_t const cell = sends ? made.cell : output ? made.cell + 1 : made.cell - 1;
            std::size_t const d = view.device_of[cell];
            std::size_t r = read[d], w = written[d];
            for (; r < view.begin[d + 1] && start[r] < moment[k]; ++r) to[w++] = view.actions[r];
            to[w] = {output  ? sends ? Kind::send_output : Kind::receive_input
                     : sends ? Kind::send_gradient
                             : Kind::receive_gradient,
                     cell, made.micro_batch};
            read[d] = r;
            written[d] = w + 1;
        }
    }
    for (std::size_t d = 0; d < view.devices; ++d)
        for (std::size_t r = read[d], w = written[d]; r < view.begin[d + 1]; ++r)
            to[w++] = view.actions[r];
}

} // namespace gpipe::detail
