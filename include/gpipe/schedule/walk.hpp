#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>

namespace gpipe {

/// "No action" among indices of actions.
inline constexpr std::size_t no_action = static_cast<std::size_t>(-1);

/// The action that must have run, on whatever device, before `action` may start.
struct Need {
    bool exists = false;
    bool is_backward = false;
    std::size_t cell = 0;
};

/// The boundary tensor that an action waits for: a forward its input, a backward (or its first
/// half) its output's gradient.
constexpr Need need_of(Action const& action, std::size_t cells) {
    if (action.kind == Kind::forward && action.cell > 0) return {true, false, action.cell - 1u};
    if (gives_gradient(action.kind) && action.cell + 1 < cells)
        return {true, true, action.cell + 1u};
    return {};
}

/// Runs all programs at once, each device strictly in order, every action as soon as what it needs
/// has run; calls visit(index, index of what it needed or no_action) for each. Returns how far each
/// device came: all to their end, unless the programs deadlock. A device that waits is looked at
/// again only when what it waits for has run, so time is linear in the number of actions.
template <class Visit> constexpr Array<std::size_t> walk(Programs const& programs, Visit visit) {
    std::size_t const cells = programs.cells();
    std::size_t const micro_batches = programs.micro_batches();
    std::size_t const devices = programs.devices();
    Array<std::size_t> next(devices);
    Array<std::size_t> ready(devices);
    Array<std::size_t> done(2 * cells * micro_batches, no_action);
    Array<std::size_t> waiter(2 * cells * micro_batches); // 1 + the device that waits here
    for (std::size_t d = 0; d < devices; ++d) {
        ready[d] = devices - 1 - d; // device 0 first
        next[d] = programs.begin(d);
    }
    for (std::size_t ready_count = devices; ready_count > 0;) {
        std::size_t const d = ready[--ready_count];
        std::size_t const end = programs.end(d);
        std::size_t i = next[d];
        for (; i < end; ++i) {
            Action const& action = programs[i];
            Need const need = need_of(action, cells);
            std::size_t needed = no_action;
            if (need.exists) {
                std::size_t const key =
                    2 * (need.cell * micro_batches + action.micro_batch) + need.is_backward;
                needed = done[key];
                if (needed == no_action) {
                    waiter[key] = d + 1;
                    break;
                }
            }
            visit(i, needed);
            bool const gradient = gives_gradient(action.kind);
            if (action.kind != Kind::forward && !gradient) continue;
            std::size_t const key =
                2 * (action.cell * micro_batches + action.micro_batch) + gradient;
            done[key] = i;
            if (waiter[key]) ready[ready_count++] = waiter[key] - 1;
        }
        next[d] = i;
    }
    return next;
}

} // namespace gpipe
