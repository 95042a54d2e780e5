#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/walk_order.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// What an evaluation walks: of a table the forwards, and the copies of what they make, on the same
/// streams and in the same linear order.
struct Evaluation {
    Lowered lowered;            ///< has no needs yet
    Array<std::uint32_t> order; ///< of its actions
};

/// The projection of a table that is walked in `order`. Its values may lie where those of the same
/// name do in training: whoever writes there stands behind the last forward that reads what was
/// there before, and has to wait for it, see find_needs().
[[gnu::cold]] GPIPE_INLINE constexpr Evaluation evaluation_of(Lowered const& training,
                                                              Array<std::uint32_t> const& order) {
    Programs const& all = training.programs;
    Evaluation result;
    result.lowered.edges = training.edges;
    result.lowered.device = training.device;
    Programs& forwards = result.lowered.programs;
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
    for (std::uint32_t const i : order)
        if (stays(all[i])) result.order[rank++] = number[i];
    return result;
}

} // namespace gpipe
