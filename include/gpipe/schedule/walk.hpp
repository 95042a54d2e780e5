#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>

namespace gpipe {

/// "No action" among indices of actions.
inline constexpr std::size_t no_action = static_cast<std::size_t>(-1);

/// Runs all programs at once, each device strictly in order, every action as soon as what it needs
/// on any device has run: a forward the forward of the cell before, a backward (or its first half)
/// that of the next cell. Calls visit(index, index of what it needed or no_action) for each.
/// Returns how far each device came: all to their end, unless the programs deadlock. A device that
/// waits is looked at again only when what it waits for has run, so time is linear in the number of
/// actions. Cells and micro-batches must be in range, and no action be there twice.
template <class Visit> constexpr Array<std::size_t> walk(ProgramsView const& view, Visit visit) {
    // Forward and backward of each pair have a key; that of the next cell is `row` further. Few
    // statements per action: they are what clang counts.
    std::size_t const row = 2 * view.micro_batches;
    std::size_t const keys = row * view.cells;
    Array<std::size_t> next(view.devices);
    Array<std::size_t> ready(view.devices);
    Array<std::size_t> done(keys, no_action);
    Array<std::size_t> waiter(keys); // 1 + the device that waits here
    std::size_t* const done_at = done.data();
    std::size_t* const waiter_at = waiter.data();
    for (std::size_t d = 0; d < view.devices; ++d) {
        ready[d] = view.devices - 1 - d; // device 0 first
        next[d] = view.begin[d];
    }
    for (std::size_t ready_count = view.devices; ready_count > 0;) {
        std::size_t const d = ready[--ready_count];
        std::size_t const end = view.begin[d + 1];
        std::size_t i = next[d];
        for (; i < end; ++i) {
            Action const& a = view.actions[i];
            bool const gradient = a.kind == Kind::backward || a.kind == Kind::input_gradient;
            std::size_t const key = row * a.cell + 2 * a.micro_batch + gradient;
            std::size_t const need = a.kind == Kind::forward && a.cell > 0 ? key - row
                                     : gradient && a.cell + 1 < view.cells ? key + row
                                                                           : no_action;
            if (need != no_action && done_at[need] == no_action) {
                waiter_at[need] = d + 1;
                break;
            }
            visit(i, need != no_action ? done_at[need] : no_action);
            if (a.kind != Kind::forward && !gradient) continue;
            done_at[key] = i;
            if (waiter_at[key]) ready[ready_count++] = waiter_at[key] - 1;
        }
        next[d] = i;
    }
    return next;
}
/// The same.
template <class Visit> constexpr Array<std::size_t> walk(Programs const& programs, Visit visit) {
    return walk(programs.view(), visit);
}

} // namespace gpipe
