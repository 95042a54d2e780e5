#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/schedule/verdict.hpp>
#include <gpipe/schedule/walk.hpp>

#include <cstddef>

namespace gpipe {

namespace detail {

// What an action needs of what its own (cell, micro-batch) has seen, and what it adds to that, in
// bits: forward 1, input gradient 2, weight gradient 4, recompute 8, output sent 16, input received
// 32, gradient sent 64, gradient received 128. A backward is both gradients.
inline constexpr unsigned char needed_bits[] = {32, 1, 129, 129, 2, 1, 0, 2, 0, 0, 0, 0, 0};
inline constexpr unsigned char added_bits[] = {1, 8, 6, 2, 4, 16, 32, 64, 128, 0, 0, 0, 0};
inline constexpr unsigned all_computed = 1 | 2 | 4;
inline constexpr unsigned recomputed = 8;

// What stands in a pair's way: the first rule that the action breaks. `has` is what its pair has
// seen, `place` what there can be for its cell, `neighbour` whether what it needs of a neighbouring
// cell on the same device has run.
constexpr Problem problem_of(Kind kind, unsigned has, unsigned place, bool neighbour) {
    unsigned const adds = added_bits[static_cast<std::size_t>(kind)];
    if (adds == 0 || (adds & ~place)) return Problem::unsupported;
    if (has & adds) return Problem::twice;
    if (needed_bits[static_cast<std::size_t>(kind)] & place & ~has) return Problem::too_early;
    if (kind == Kind::recompute && (has & 2)) return Problem::too_late;
    if (!neighbour) return Problem::too_early;
    return Problem::sound;
}

// An action of a cell whose pair has seen anything but `has`.
constexpr Action missing_of(std::size_t cell, std::size_t micro_batch, unsigned has) {
    constexpr Kind kinds[] = {Kind::forward,         Kind::input_gradient, Kind::weight_gradient,
                              Kind::recompute,       Kind::send_output,    Kind::receive_input,
                              Kind::send_gradient,   Kind::receive_gradient};
    std::size_t bit = 0;
    while (has >> bit & 1) ++bit;
    Action a = forward(cell, micro_batch);
    a.kind = kinds[bit];
    if (bit == 1 && !(has & 4)) a.kind = Kind::backward;
    return a;
}

// Whether there are devices, cells, and a cell on every device.
constexpr Verdict verify_shape(ProgramsView const& view) {
    if (view.devices == 0 || view.cells == 0 || view.micro_batches == 0) return {Problem::shape};
    Array<bool> owns(view.devices);
    for (std::size_t c = 0; c < view.cells; ++c) {
        if (view.device_of[c] >= view.devices) return {Problem::shape};
        owns[view.device_of[c]] = true;
    }
    for (std::size_t d = 0; d < view.devices; ++d)
        if (!owns[d]) return {Problem::idle_device, d};
    return {};
}

// Every action once, on the device that owns its cell, behind what it needs there. `place`, by
// cell: what there can be, as bits; what it names of messages must be there. Also counts what is in
// flight.
constexpr Verdict verify_each(ProgramsView const& view, unsigned char const* place) {
    std::size_t const cells = view.cells;
    std::size_t const micro_batches = view.micro_batches;
    Array<unsigned char> all_seen(cells * micro_batches);
    unsigned char* const seen = all_seen.data();
    std::size_t peak = 0;
    for (std::size_t d = 0; d < view.devices; ++d) {
        std::size_t in_flight = 0;
        for (std::size_t i = view.begin[d]; i < view.begin[d + 1]; ++i) {
            Action const& a = view.actions[i];
            if (a.cell >= cells || a.micro_batch >= micro_batches)
                return {Problem::no_such_cell, d, i - view.begin[d], a};
            if (view.device_of[a.cell] != d)
                return {Problem::wrong_device, d, i - view.begin[d], a};
            auto const kind = static_cast<std::size_t>(a.kind);
            std::size_t const pair = a.cell * micro_batches + a.micro_batch;
            bool const gradient = a.kind == Kind::backward || a.kind == Kind::input_gradient;
            bool const neighbour =
                a.kind == Kind::forward
                    ? a.cell == 0 || view.device_of[a.cell - 1] != d || (seen[pair - micro_batches] & 1)
                    : !gradient || a.cell + 1 == cells || view.device_of[a.cell + 1] != d ||
                          (seen[pair + micro_batches] & 2);
            if (!neighbour || added_bits[kind] == 0 || (added_bits[kind] & (seen[pair] | ~place[a.cell])) ||
                (needed_bits[kind] & place[a.cell] & ~seen[pair]) || (a.kind == Kind::recompute && (seen[pair] & 2)))
                return {problem_of(a.kind, seen[pair], place[a.cell], neighbour), d,
                        i - view.begin[d], a};
            seen[pair] = static_cast<unsigned char>(seen[pair] | added_bits[kind]);
            if (in_flight += a.kind == Kind::forward; in_flight > peak) peak = in_flight;
            in_flight -= a.kind == Kind::backward || a.kind == Kind::weight_gradient;
        }
    }
    for (std::size_t c = 0; c < cells; ++c)
        for (std::size_t m = 0; m < micro_batches; ++m) {
            unsigned const has = seen[c * micro_batches + m] | recomputed;
            std::size_t const d = view.device_of[c];
            if (has != (place[c] | recomputed))
                return {Problem::missing, d, view.begin[d + 1] - view.begin[d],
                        missing_of(c, m, has | (~place[c] & 255u))};
        }
    return {Problem::sound, 0, 0, {}, peak};
}

// The first device that did not come to its end.
constexpr Verdict verify_ends(ProgramsView const& view, std::size_t const* reached, std::size_t peak) {
    for (std::size_t d = 0; d < view.devices; ++d)
        if (reached[d] < view.begin[d + 1])
            return {Problem::deadlock, d, reached[d] - view.begin[d], view.actions[reached[d]]};
    return {Problem::sound, 0, 0, {}, peak};
}

} // namespace detail

[[gnu::cold]] constexpr Verdict verify(Programs const& programs) {
    ViewOf const owner(programs);
    ProgramsView const& view = *owner;
    if (Verdict const verdict = detail::verify_shape(view); !verdict) return verdict;
    Array<unsigned char> const place(view.cells, 15);
    Verdict const verdict = detail::verify_each(view, place.data());
    if (!verdict) return verdict;
    Array<std::size_t> const reached = walk(view, [](std::size_t, std::size_t) {});
    return detail::verify_ends(view, reached.data(), verdict.peak);
}

} // namespace gpipe
