#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/view.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe::detail {

// Gives every receive a slot: the one that came free last.
GPIPE_INLINE constexpr void assign_slots(ProgramsView const& view, std::uint32_t* slot,
                                         std::uint32_t* input_slots,
                                         std::uint32_t* gradient_slots) {
    // Inputs of cell c have pool c, gradients of its output pool cells + c.
    std::size_t const micro_batches = view.micro_batches;
    Array<std::uint32_t> held_slot(2 * view.cells * micro_batches); // 1 + the slot
    Array<std::uint32_t> free_slots(2 * view.cells * micro_batches);
    Array<std::uint32_t> free_count(2 * view.cells);
    Array<std::uint32_t> pool_size(2 * view.cells);
    std::uint32_t* const held = held_slot.data();
    std::uint32_t* const unused = free_slots.data();
    std::uint32_t* const count = free_count.data();
    std::uint32_t* const most = pool_size.data();
    for (std::size_t i = 0; i < view.size(); ++i) {
        Action const& a = view.actions[i];
        if (a.kind == Kind::receive_input || a.kind == Kind::receive_gradient) {
            std::size_t const pool = a.kind == Kind::receive_input ? a.cell : view.cells + a.cell;
            std::size_t const first = pool * micro_batches;
            slot[i] = count[pool] > 0 ? unused[first + --count[pool]] : most[pool]++;
            held[first + a.micro_batch] = slot[i] + 1;
        } else if (a.kind == Kind::backward || a.kind == Kind::weight_gradient) {
            for (std::size_t pool = a.cell; pool < 2 * view.cells; pool += view.cells) {
                std::size_t const first = pool * micro_batches;
                if (held[first + a.micro_batch] > 0)
                    unused[first + count[pool]++] = held[first + a.micro_batch] - 1;
            }
        }
    }
    for (std::size_t c = 0; c < view.cells; ++c) {
        input_slots[c] = most[c];
        gradient_slots[c] = most[view.cells + c];
    }
}

} // namespace gpipe::detail
