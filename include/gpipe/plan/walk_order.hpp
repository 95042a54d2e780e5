#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/operands.hpp>
#include <gpipe/plan/simulate_lowered.hpp>

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
    std::size_t const size = lowered.programs.size();
    Array<std::uint32_t> const receives = messages_of(lowered);
    auto const each_need = [&](std::size_t i, auto const& need) {
        for (Operand const& operand : operands[i]) {
            if (operand.use != Use::read) continue;
            std::uint32_t const writer = operands.values[operand.value].writer;
            if (writer >= size) throw std::logic_error("gpipe: an action reads what nobody makes");
            need(writer);
        }
    };
    auto const times = detail::run_streams<std::uint32_t>(lowered, receives, each_need, unit_cost);

    Array<std::uint32_t> const& start = times.start;
    Array<std::uint32_t> place(times.makespan + 1); // a counting sort, stable
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
