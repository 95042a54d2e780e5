#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/messages.hpp>
#include <gpipe/schedule/verify.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

namespace detail {

// What there must be for each cell: everything that is computed, and the messages over boundaries
// between devices.
GPIPE_INLINE constexpr void places_with_messages(ProgramsView const& view, bool const* crosses,
                                                 unsigned char* place) {
    for (std::size_t c = 0; c < view.cells; ++c) place[c] = all_computed;
    auto const add = [&](std::size_t c, unsigned bits) {
        place[c] = static_cast<unsigned char>(place[c] | bits);
    };
    for (std::size_t c = 1; c < view.cells; ++c) {
        if (view.device_of[c - 1] == view.device_of[c]) continue;
        add(c - 1, seen_output_sent);
        add(c, seen_input_received);
        if (!crosses[c]) continue;
        add(c, seen_gradient_sent);
        add(c - 1, seen_gradient_received);
    }
}

// Runs the messages of all programs with nothing buffered: a device that sends and one that
// receives from it meet, and must mean the same tensor. A device is looked at again only when the
// one that it waits for has come, so time is linear. The programs have passed verify_each().
GPIPE_INLINE constexpr Verdict verify_meetings(ProgramsView const& view, std::size_t peak) {
    Array<std::size_t> reached(view.devices);
    Array<std::size_t> all_ready(view.devices);
    Array<bool> marks(view.devices, true);
    std::size_t* const next = reached.data();
    std::size_t* const ready = all_ready.data();
    bool* const is_ready = marks.data();
    Action const* const actions = view.actions;
    for (std::size_t d = 0; d < view.devices; ++d) {
        next[d] = view.begin[d];
        ready[d] = view.devices - 1 - d;
    }
    for (std::size_t ready_count = view.devices; ready_count > 0;) {
        std::size_t const d = ready[--ready_count];
        std::size_t const end = view.begin[d + 1];
        std::size_t i = next[d];
        is_ready[d] = false;
        for (;; ++i) {
            while (i < end && actions[i].kind < Kind::send_output) ++i;
            if (i == end) break;
            Action const& mine = actions[i];
            std::size_t const cell = mine.cell + toward[static_cast<std::size_t>(mine.kind)];
            std::size_t const other = view.device_of[cell];
            std::size_t const at = next[other];
            if (at == view.begin[other + 1]) break;
            Action const& theirs = actions[at];
            std::size_t const from = theirs.cell + toward[static_cast<std::size_t>(theirs.kind)];
            bool const sends = mine.kind == Kind::send_output || mine.kind == Kind::send_gradient;
            if (theirs.kind < Kind::send_output || view.device_of[from] != d ||
                sends == (theirs.kind == Kind::send_output || theirs.kind == Kind::send_gradient))
                break;
            if (theirs.cell != cell || from != mine.cell || theirs.micro_batch != mine.micro_batch)
                return sends ? Verdict{Problem::mismatched, other, at - view.begin[other], theirs}
                             : Verdict{Problem::mismatched, d, i - view.begin[d], mine};
            next[other] = at + 1;
            if (!is_ready[other]) ready[ready_count++] = other;
            is_ready[other] = true;
        }
        next[d] = i;
    }
    return verify_ends(view, next, peak);
}

// Nothing computed into the place of an output or gradient that is still to be sent.
GPIPE_INLINE constexpr Verdict verify_unsent(ProgramsView const& view, unsigned char const* place,
                                             std::size_t peak) {
    // By cell, outputs first: 1 + the micro-batch of what is there.
    Array<std::uint32_t> places(2 * view.cells);
    std::uint32_t* const unsent = places.data();
    for (std::size_t d = 0; d < view.devices; ++d)
        for (std::size_t i = view.begin[d]; i < view.begin[d + 1]; ++i) {
            Action const& a = view.actions[i];
            if (a.kind == Kind::weight_gradient || a.kind == Kind::receive_input ||
                a.kind == Kind::receive_gradient)
                continue;
            bool const output =
                a.kind == Kind::forward || a.kind == Kind::recompute || a.kind == Kind::send_output;
            std::uint32_t& there = unsent[output ? a.cell : view.cells + a.cell];
            if (a.kind >= Kind::send_output)
                there = 0;
            else if (there != 0 && there != a.micro_batch + 1)
                return {Problem::overwritten, d, i - view.begin[d], a};
            else if (a.kind != Kind::recompute &&
                     (place[a.cell] & (output ? seen_output_sent : seen_gradient_sent)))
                there = a.micro_batch + 1;
        }
    return {Problem::sound, 0, 0, {}, peak};
}

// No receive into a slot whose tensor is still needed.
GPIPE_INLINE constexpr Verdict verify_slots(ProgramsView const& view, unsigned char const* place,
                                            std::uint32_t const* slot,
                                            std::uint32_t const* input_slots,
                                            std::uint32_t const* gradient_slots, std::size_t peak) {
    // Inputs of cell c have pool c, gradients of its output pool cells + c.
    std::size_t const pools = 2 * view.cells;
    std::size_t const micro_batches = view.micro_batches;
    Array<std::size_t> first(pools + 1);
    for (std::size_t p = 0; p < pools; ++p)
        first[p + 1] =
            first[p] + (p < view.cells ? input_slots[p] : gradient_slots[p - view.cells]);
    Array<bool> live(first[pools]);
    Array<std::size_t> slot_of(pools * micro_batches);
    bool* const used = live.data();
    std::size_t* const input = slot_of.data();
    std::size_t* const gradient = input + view.cells * micro_batches;
    std::size_t const* const begin = first.data();
    for (std::size_t d = 0; d < view.devices; ++d)
        for (std::size_t i = view.begin[d]; i < view.begin[d + 1]; ++i) {
            Action const& a = view.actions[i];
            std::size_t const pair = a.cell * micro_batches + a.micro_batch;
            if (a.kind == Kind::receive_input || a.kind == Kind::receive_gradient) {
                bool const is_input = a.kind == Kind::receive_input;
                std::size_t const pool = is_input ? a.cell : view.cells + a.cell;
                std::size_t const s = begin[pool] + slot[i];
                if (s >= begin[pool + 1]) return {Problem::no_such_slot, d, i - view.begin[d], a};
                if (used[s]) return {Problem::overwritten, d, i - view.begin[d], a};
                used[s] = true;
                (is_input ? input : gradient)[pair] = s;
            } else if (a.kind == Kind::backward || a.kind == Kind::weight_gradient) {
                if (place[a.cell] & seen_input_received) used[input[pair]] = false;
                if (place[a.cell] & seen_gradient_received) used[gradient[pair]] = false;
            }
        }
    return {Problem::sound, 0, 0, {}, peak};
}

} // namespace detail

/// Proves programs with messages, of gradients before cell c only if a gradient `crosses[c]`: what
/// verify() proves of programs without, where an action that uses a tensor of another device now
/// stands behind its receive; every message sent once, behind what makes it, and received once;
/// with nothing buffered all programs come to their end, and the k-th receive of one device from
/// another is of what the other sends it k-th; no receive names a slot beyond its cell's or writes
/// into one that is still needed, and nothing is computed into the place of what is still to be
/// sent. Time and memory are linear in the number of actions.
[[gnu::cold]] GPIPE_INLINE constexpr Verdict verify(MessagePrograms const& lowered,
                                                    Array<bool> const& crosses) {
    ViewOf const owner(lowered.programs);
    ProgramsView const& view = *owner;
    if (Verdict const verdict = detail::verify_shape(view); !verdict) return verdict;
    if (crosses.size() != view.cells || lowered.slot.size() != view.size() ||
        lowered.input_slots.size() != view.cells || lowered.gradient_slots.size() != view.cells)
        return {Problem::shape};
    Array<unsigned char> place(view.cells);
    detail::places_with_messages(view, crosses.data(), place.data());
    Verdict verdict = detail::verify_each(view, place.data());
    if (verdict) verdict = detail::verify_meetings(view, verdict.peak);
    if (verdict) verdict = detail::verify_unsent(view, place.data(), verdict.peak);
    if (verdict)
        verdict = detail::verify_slots(view, place.data(), lowered.slot.data(),
                                       lowered.input_slots.data(), lowered.gradient_slots.data(),
                                       verdict.peak);
    return verdict;
}
/// With a gradient over every boundary.
[[gnu::cold]] GPIPE_INLINE constexpr Verdict verify(MessagePrograms const& lowered) {
    return verify(lowered, Array<bool>(lowered.programs.cells(), true));
}

} // namespace gpipe
