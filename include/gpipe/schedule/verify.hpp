#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/verdict.hpp>

#include <cstddef>

namespace gpipe {

namespace detail {

// What has been done for a (cell, micro-batch), in bits. A backward is both gradients.
enum Seen : unsigned {
    seen_forward = 1,
    seen_input_gradient = 2,
    seen_weight_gradient = 4,
    seen_recompute = 8,
    all_computed = 7,
};
// What an action needs to have been done for its own pair, and what it does.
struct Rule {
    unsigned char needs = 0;
    unsigned char does = 0; // 0: it has no place here
};
constexpr Rule rules[256] = {
    {0, seen_forward}, // by what a Kind may hold, so the forward
    {seen_forward, seen_recompute},
    {seen_forward, seen_input_gradient | seen_weight_gradient},
    {seen_forward, seen_input_gradient},
    {seen_input_gradient, seen_weight_gradient},
};

// Whether there are devices, each with a cell, and micro-batches.
GPIPE_INLINE constexpr Verdict verify_shape(ProgramsView const& view) {
    if (view.devices == 0 || view.cells == 0 || view.micro_batches == 0) return {Problem::shape};
    Array<bool> owns(view.devices);
    for (std::size_t c = 0; c < view.cells; ++c) {
        if (view.device_of[c] >= view.devices)
            return {Problem::no_such_device, view.device_of[c], 0, forward(c, 0)};
        owns[view.device_of[c]] = true;
    }
    for (std::size_t d = 0; d < view.devices; ++d)
        if (!owns[d]) return {Problem::idle_device, d};
    return {};
}

// The first of what has not been done.
GPIPE_INLINE constexpr Action missing_action(std::size_t cell, std::size_t micro_batch,
                                             unsigned not_done) {
    Action a = forward(cell, micro_batch);
    a.kind = not_done & seen_forward ? Kind::forward
             : not_done & seen_input_gradient
                 ? not_done & seen_weight_gradient ? Kind::backward : Kind::input_gradient
                 : Kind::weight_gradient;
    return a;
}

// Every action once, on the device that owns its cell, behind what it needs there; recomputes may
// be there.
GPIPE_INLINE constexpr Verdict verify_each(ProgramsView const& view) {
    std::size_t const cells = view.cells;
    std::size_t const row = view.micro_batches;
    Array<unsigned char> seen_by_pair(cells * row);
    unsigned char* const seen = seen_by_pair.data();
    for (std::size_t d = 0; d < view.devices; ++d) {
        for (std::size_t i = view.begin[d]; i < view.begin[d + 1]; ++i) {
            // Few statements: they are what clang counts.
            Action const& a = view.actions[i];
            if (a.cell >= cells || a.micro_batch >= row || view.device_of[a.cell] != d)
                return {a.cell < cells && a.micro_batch < row ? Problem::wrong_device
                                                              : Problem::no_such_cell,
                        d, i - view.begin[d], a};
            std::size_t const pair = a.cell * row + a.micro_batch;
            unsigned const needs = rules[static_cast<std::size_t>(a.kind)].needs;
            unsigned const does = rules[static_cast<std::size_t>(a.kind)].does;
            // What it needs of a neighbouring cell on the same device.
            bool const too_early = does & seen_forward
                                       ? a.cell > 0 && view.device_of[a.cell - 1] == d &&
                                             !(seen[pair - row] & seen_forward)
                                       : (does & seen_input_gradient) && a.cell + 1 < cells &&
                                             view.device_of[a.cell + 1] == d &&
                                             !(seen[pair + row] & seen_input_gradient);
            Problem const problem = does == 0                            ? Problem::unsupported
                                    : does & seen[pair]                  ? Problem::twice
                                    : too_early || (needs & ~seen[pair]) ? Problem::too_early
                                    : (does & seen_recompute) && (seen[pair] & seen_input_gradient)
                                        ? Problem::too_late
                                        : Problem::sound;
            if (problem != Problem::sound) return {problem, d, i - view.begin[d], a};
            seen[pair] = static_cast<unsigned char>(seen[pair] | does);
        }
    }
    for (std::size_t c = 0; c < cells; ++c)
        for (std::size_t m = 0; m < row; ++m)
            if (unsigned const not_done = all_computed & ~seen[c * row + m]) {
                std::size_t const d = view.device_of[c];
                return {Problem::missing, d, view.begin[d + 1] - view.begin[d],
                        missing_action(c, m, not_done)};
            }
    return {};
}

// Whether all devices come to their end, else the first that does not, where all programs run at
// once, each device strictly in order, every action as soon as what it needs on any device has run:
// a forward the forward of the cell before, a backward (or its first half) that of the next cell. A
// device that waits is looked at again only when what it waits for has run, so time is linear in
// the number of actions.
GPIPE_INLINE constexpr Verdict verify_ends(ProgramsView const& view) {
    // Forward and backward of each pair have a key; that of the next cell is `row` further. Few
    // statements per action: they are what clang counts.
    std::size_t const row = 2 * view.micro_batches;
    Array<std::size_t> next(view.devices);
    Array<std::size_t> ready(view.devices);
    Array<bool> done(row * view.cells);
    Array<std::size_t> waiter(row * view.cells); // 1 + the device that waits here
    bool* const done_at = done.data();
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
            if (need != no_action && !done_at[need]) {
                waiter_at[need] = d + 1;
                break;
            }
            if (a.kind != Kind::forward && !gradient) continue;
            done_at[key] = true;
            if (waiter_at[key]) ready[ready_count++] = waiter_at[key] - 1;
        }
        next[d] = i;
    }
    for (std::size_t d = 0; d < view.devices; ++d)
        if (next[d] < view.begin[d + 1])
            return {Problem::deadlock, d, next[d] - view.begin[d], view.actions[next[d]]};
    return {};
}

} // namespace detail

/// Proves that programs of forwards, recomputes and backwards, whole or in two halves, train every
/// micro-batch once: each forward and backward of each (cell, micro-batch) exactly once, a
/// recompute at most once, on the device that owns the cell and behind what it needs there; and,
/// walking all programs at once with every wait for a neighbouring cell, that all of them come to
/// their end. Time and memory are linear in the number of actions.
[[nodiscard, gnu::cold]] GPIPE_INLINE constexpr Verdict verify(Programs const& programs) {
    ProgramsView const view = programs.view();
    if (Verdict const verdict = detail::verify_shape(view); !verdict) return verdict;
    if (!programs.ended()) return {Problem::unended};
    Verdict const verdict = detail::verify_each(view);
    return verdict ? detail::verify_ends(view) : verdict;
}

} // namespace gpipe
