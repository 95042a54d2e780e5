#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/lowered.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// What an evaluation walks: of a table the forwards, and the copies of what they make, on the same
/// streams and in the same linear order. Its values may lie where those of the same name do in
/// training: whoever writes there stands behind the last forward that reads what was there before,
/// and has to wait for it, see find_needs(). There are no needs yet.
[[gnu::cold]] GPIPE_INLINE constexpr Lowered evaluation_of(Lowered const& training) {
    Programs const& all = training.programs;
    Lowered result;
    result.edges = training.edges;
    result.device = training.device;
    Programs& forwards = result.programs;
    forwards = Programs(all.devices(), all.cells(), all.micro_batches(), all.size());
    for (std::size_t c = 0; c < all.cells(); ++c) forwards.place(c, all.device_of(c));
    auto const stays = [](Action const& a) {
        return a.kind == Kind::forward || a.kind == Kind::send_output ||
               a.kind == Kind::receive_input;
    };
    Array<std::uint32_t> number(all.size()); // of those that stay
    for (std::size_t s = 0; s < all.devices(); ++s) {
        for (std::size_t i = all.begin(s); i < all.end(s); ++i) {
            if (!stays(all[i])) continue;
            number[i] = static_cast<std::uint32_t>(forwards.size());
            forwards.add(all[i]);
        }
        forwards.next_device();
    }
    result.order = Array<std::uint32_t>(forwards.size());
    std::size_t rank = 0;
    for (std::uint32_t const i : training.order)
        if (stays(all[i])) result.order[rank++] = number[i];
    return result;
}

} // namespace gpipe
