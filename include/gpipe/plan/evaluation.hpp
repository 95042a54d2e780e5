#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/lowered.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// What an evaluation walks: of a table the forwards, and the copies of what they make, on the same
/// streams, one micro-batch after the other: in training a last cell may begin with the last one,
/// and here nobody should have to wait for that. Its values may lie where those of the same name do
/// in training: whoever writes there stands behind the last forward that reads what was there
/// before, and has to wait for it, see find_needs(). There are no needs yet.
[[gnu::cold]] GPIPE_INLINE constexpr Lowered evaluation_of(Lowered const& training) {
    Programs const& all = training.programs;
    std::size_t const row = 3 * all.cells(); // a forward, then what sends and receives its output
    Lowered result;
    result.edges = training.edges;
    result.device = training.device;
    // Of a micro-batch and a cell several edges may begin.
    Array<std::uint32_t> begin(row * all.micro_batches() + 1);
    auto const turn = [&](Action const& a) {
        std::size_t const cell = a.kind == Kind::forward ? a.cell : training.edges[a.edge].from;
        return a.micro_batch * row + 3 * cell + (a.kind == Kind::send_output) +
               2 * (a.kind == Kind::receive_input);
    };
    auto const stays = [](Action const& a) {
        return a.kind == Kind::forward || a.kind == Kind::send_output ||
               a.kind == Kind::receive_input;
    };
    std::size_t size = 0;
    for (Action const& a : all)
        if (stays(a)) ++begin[turn(a) + 1], ++size;
    for (std::size_t t = 1; t < begin.size(); ++t) begin[t] += begin[t - 1];
    Array<std::uint32_t> order(size); // of the training's actions; a counting sort
    for (std::size_t i = 0; i < all.size(); ++i)
        if (stays(all[i])) order[begin[turn(all[i])]++] = static_cast<std::uint32_t>(i);

    Programs& forwards = result.programs;
    forwards = Programs(all, all.devices(), size);
    Array<std::uint32_t> stream_of(all.size());
    Array<std::size_t> next(all.devices()); // by stream: where its next action comes
    for (std::size_t s = 0; s < all.devices(); ++s) {
        std::size_t length = 0;
        for (std::size_t i = all.begin(s); i < all.end(s); ++i) {
            stream_of[i] = static_cast<std::uint32_t>(s);
            length += stays(all[i]);
        }
        next[s] = forwards.size();
        forwards.append(length);
        forwards.next_device();
    }
    result.order = Array<std::uint32_t>(size);
    for (std::size_t r = 0; r < size; ++r) {
        std::size_t const at = next[stream_of[order[r]]]++;
        forwards[at] = all[order[r]];
        result.order[r] = static_cast<std::uint32_t>(at);
    }
    return result;
}

} // namespace gpipe
