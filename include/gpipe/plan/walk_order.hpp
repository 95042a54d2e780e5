#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/messages.hpp>
#include <gpipe/plan/operands.hpp>
#include <gpipe/schedule/costs.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Where the actions of a table run, and one linear order of them that respects every stream.
struct Walk {
    std::size_t streams = 0;       ///< how many
    Array<std::uint32_t> stream;   ///< by action
    Array<std::uint32_t> position; ///< by action: on its stream, from 1
    Array<std::uint32_t> order;    ///< actions
};

/// The table itself, every program a stream, in its order.
[[gnu::cold]] GPIPE_INLINE constexpr Walk walk_of(Lowered const& lowered) {
    Programs const& programs = lowered.programs;
    Walk walk{lowered.streams(), Array<std::uint32_t>(programs.size()),
              Array<std::uint32_t>(programs.size()), lowered.order};
    for (std::size_t s = 0; s < walk.streams; ++s)
        for (std::size_t i = programs.begin(s); i < programs.end(s); ++i) {
            walk.stream[i] = static_cast<std::uint32_t>(s);
            walk.position[i] = static_cast<std::uint32_t>(i - programs.begin(s) + 1);
        }
    return walk;
}

/// The order that proof, placement and waits follow: by start where forwards, halves of backwards
/// and copies take one unit of time and nothing has to wait for room; then by stream. What receives
/// a message comes right behind what sends it, and takes its time. Throws std::logic_error if
/// actions wait for each other, or for what nobody makes.
[[gnu::cold]] GPIPE_INLINE constexpr Array<std::uint32_t> order_of(Lowered const& lowered,
                                                                   Operands const& operands) {
    Programs const& programs = lowered.programs;
    std::size_t const size = programs.size();
    std::size_t const streams = lowered.streams();
    constexpr std::uint32_t nobody = 0xFFFFFFFF;
    Array<std::uint32_t> start(size), end(size);  // 0: has not run
    Array<std::uint32_t> waiting(size, nobody);   // by action: a stream that waits for it
    Array<std::uint32_t> others(streams, nobody); // by stream: another that does, too
    Array<std::size_t> next(streams);
    Array<std::uint32_t> clock(streams), ready(streams); // a stack
    std::size_t ready_count = 0;
    for (std::size_t s = streams; s-- > 0;) {
        next[s] = programs.begin(s);
        ready[ready_count++] = static_cast<std::uint32_t>(s);
    }
    Array<std::uint32_t> const receives = messages_of(lowered);
    Array<std::uint32_t> stream_of;
    if (!receives.empty()) stream_of = walk_of(lowered).stream;
    std::uint32_t makespan = 0;
    std::size_t left = size;
    while (ready_count > 0) {
        std::uint32_t const s = ready[--ready_count];
        for (; next[s] < programs.end(s); ++next[s], --left) {
            std::size_t const i = next[s];
            std::uint32_t missing = nobody;
            std::uint32_t now = clock[s];
            for (Operand const& operand : operands[i]) {
                if (operand.use != Use::read) continue;
                std::uint32_t const writer = operands.values[operand.value].writer;
                if (writer >= size)
                    throw std::logic_error("gpipe: an action reads what nobody makes");
                if (end[writer] == 0)
                    missing = writer;
                else if (now < end[writer])
                    now = end[writer];
            }
            std::uint32_t const received = receives.empty() ? no_message : receives[i];
            if (received != no_message) { // who receives has to be there, too
                std::uint32_t const r = stream_of[received];
                if (now < clock[r]) now = clock[r];
                if (next[r] < received) missing = received - 1;
            }
            if (missing != nobody) {
                others[s] = waiting[missing];
                waiting[missing] = s;
                break;
            }
            start[i] = now;
            end[i] = clock[s] = now + static_cast<std::uint32_t>(unit_cost(programs[i]));
            if (makespan < end[i]) makespan = end[i];
            for (std::uint32_t w = waiting[i]; w != nobody; w = others[w]) ready[ready_count++] = w;
            if (received == no_message) continue;
            std::uint32_t const r = stream_of[received];
            start[received] = now;
            end[received] = clock[r] = end[i];
            ++next[r], --left;
            for (std::uint32_t w = waiting[received]; w != nobody; w = others[w])
                ready[ready_count++] = w;
        }
    }
    if (left > 0) throw std::logic_error("gpipe: the programs wait for each other");

    Array<std::uint32_t> place(makespan + 1); // a counting sort, stable
    for (std::uint32_t const t : start) ++place[t + 1];
    for (std::size_t t = 1; t < place.size(); ++t) place[t] += place[t - 1];
    Array<std::uint32_t> order(size);
    Array<bool> follows(receives.size());
    for (std::uint32_t const received : receives)
        if (received != no_message) follows[received] = true;
    for (std::size_t i = 0; i < size; ++i) {
        if (!receives.empty() && follows[i]) continue;
        order[place[start[i]]++] = static_cast<std::uint32_t>(i);
        if (!receives.empty() && receives[i] != no_message) order[place[start[i]]++] = receives[i];
    }
    return order;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
