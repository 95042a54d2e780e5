#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/offloads.hpp>
#include <gpipe/schedule/walk.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace gpipe {

/// How the tensors of a boundary get from one device to the next.
enum class Link : std::uint8_t {
    shared, ///< one writes where the other reads
    copied, ///< from memory to memory, on a stream of the sender
    staged, ///< through the host's memory: the sender copies there, the receiver from there
};

/// What has to have run before an action starts, beside its predecessor in the program.
struct Needs {
    std::size_t action[3] = {no_action, no_action,
                             no_action}; ///< up to three; the others no_action

    /// Throws std::length_error beyond three.
    constexpr void add(std::size_t needed) {
        for (std::size_t& entry : action) {
            if (entry == needed) return;
            if (entry == no_action) {
                entry = needed;
                return;
            }
        }
        throw std::length_error("gpipe: an action with more than three needs");
    }
};

/// Programs as they are walked: each action carries what it needs, and transfers are actions, too.
/// A program is then what one stream does: first those of the devices, as they were, then those of
/// the streams that copy. Actions of the devices keep their indices.
struct Lowered {
    Programs programs;         ///< one per stream
    Array<Needs> needs;        ///< by action
    Array<std::size_t> device; ///< by program: whose stream that is

    /// How many there are.
    constexpr std::size_t streams() const { return programs.devices(); }
    /// Those that compute: the first of the streams.
    constexpr std::size_t devices() const {
        std::size_t count = 0;
        while (count < device.size() && device[count] == count) ++count;
        return count;
    }
    /// The programs of these alone, as they were.
    constexpr Programs computing() const {
        Programs result(devices(), programs.cells(), programs.micro_batches(), programs.size());
        for (std::size_t c = 0; c < programs.cells(); ++c) result.place(c, programs.device_of(c));
        for (std::size_t d = 0; d < result.devices(); ++d) {
            for (Action const& a : programs.program(d)) result.add(a);
            result.next_device();
        }
        return result;
    }
};

/// Without transfers: every need is the action of the neighbouring cell.
[[gnu::cold]] GPIPE_INLINE constexpr Lowered lower(Programs const& programs) {
    Lowered result{programs, Array<Needs>(programs.size()), Array<std::size_t>(programs.devices())};
    for (std::size_t d = 0; d < programs.devices(); ++d) result.device[d] = d;
    walk(programs, [&](std::size_t i, std::size_t needed) {
        if (needed != no_action) result.needs[i].add(needed);
    });
    return result;
}

namespace detail {

// The streams that copy for a device: a direction that has nothing to do does not hold up the
// other.
enum class Copies : std::uint8_t {
    outputs_out,
    gradients_out,
    outputs_in,
    gradients_in,
    offloads,
    fetches
};
inline constexpr std::size_t copy_kinds = 6;

// Which of them a copy is for.
GPIPE_INLINE constexpr std::size_t copy_stream(Action const& a, Programs const& programs) {
    auto const which =
        static_cast<std::size_t>(a.kind == Kind::send_output        ? Copies::outputs_out
                                 : a.kind == Kind::send_gradient    ? Copies::gradients_out
                                 : a.kind == Kind::receive_input    ? Copies::outputs_in
                                 : a.kind == Kind::receive_gradient ? Copies::gradients_in
                                 : a.kind == Kind::offload          ? Copies::offloads
                                                                    : Copies::fetches);
    return programs.device_of(a.cell) * copy_kinds + which;
}

} // namespace detail

/// Puts transfers in where the boundary before cell c is no Link::shared: `links[c]`, and whether
/// a gradient `crosses[c]`; and copies to and from slower memory where a cell `offloads[c]` (empty:
/// none), see Offloads. A stream copies in `order` (linear_order(programs)), which every program
/// follows, so that no two streams can wait for each other.
[[gnu::cold]] GPIPE_INLINE constexpr Lowered
lower(Programs const& programs, Array<Link> const& links, Array<bool> const& crosses,
      Array<std::size_t> const& order, Array<bool> const& offloads = {}) {
    std::size_t const cells = programs.cells();
    std::size_t const devices = programs.devices();
    Offloads const moves = choose_offloads(programs, offloads);
    // All copies in that order.
    Array<Action> copies(5 * programs.size());
    std::size_t count = 0;
    for (std::size_t const i : order) {
        Action const& a = programs[i];
        auto const send = [&](Kind out, Kind in, std::size_t boundary, std::uint32_t to) {
            if (links[boundary] == Link::shared) return;
            copies[count++] = {out, a.cell, a.micro_batch};
            if (links[boundary] == Link::staged) copies[count++] = {in, to, a.micro_batch};
        };
        if (a.kind == Kind::forward && a.cell + 1 < cells)
            send(Kind::send_output, Kind::receive_input, a.cell + 1, a.cell + 1);
        if (gives_gradient(a.kind) && a.cell > 0 && crosses[a.cell])
            send(Kind::send_gradient, Kind::receive_gradient, a.cell, a.cell - 1);
        if (a.kind == Kind::forward && moves.moved(a.cell, a.micro_batch))
            copies[count++] = {Kind::offload, a.cell, a.micro_batch};
        if (Action const* const reversal = moves.behind(i))
            copies[count++] = {Kind::fetch, reversal->cell, reversal->micro_batch};
    }

    // What copies there can be says which streams there are: the same in training and without.
    Array<bool> used(devices * detail::copy_kinds);
    std::size_t streams = devices;
    auto const use = [&](Kind kind, std::size_t cell) {
        used[detail::copy_stream({kind, static_cast<std::uint32_t>(cell)}, programs)] = true;
    };
    for (std::size_t c = 1; c < cells; ++c) {
        if (links[c] == Link::shared) continue;
        use(Kind::send_output, c - 1);
        if (crosses[c]) use(Kind::send_gradient, c);
        if (links[c] == Link::copied) continue;
        use(Kind::receive_input, c);
        if (crosses[c]) use(Kind::receive_gradient, c - 1);
    }
    for (std::size_t c = 0; c < offloads.size(); ++c) {
        if (!offloads[c]) continue;
        use(Kind::offload, c);
        use(Kind::fetch, c);
    }
    for (bool const stream : used) streams += stream;
    if (streams == devices) return lower(programs);
    Lowered result{Programs(streams, cells, programs.micro_batches(), programs.size() + count),
                   Array<Needs>(programs.size() + count), Array<std::size_t>(streams)};
    for (std::size_t c = 0; c < cells; ++c) result.programs.place(c, programs.device_of(c));
    for (std::size_t d = 0; d < devices; ++d) {
        for (Action const& a : programs.program(d)) result.programs.add(a);
        result.programs.next_device();
        result.device[d] = d;
    }
    std::size_t stream = devices;
    for (std::size_t s = 0; s < used.size(); ++s) {
        if (!used[s]) continue;
        for (std::size_t t = 0; t < count; ++t)
            if (detail::copy_stream(copies[t], programs) == s) result.programs.add(copies[t]);
        result.programs.next_device();
        result.device[stream++] = s / detail::copy_kinds;
    }

    // Where each action is.
    constexpr auto kinds = static_cast<std::size_t>(Kind::update) + 1;
    Array<std::size_t> at(kinds * cells * programs.micro_batches(), no_action);
    auto const place = [&](Kind kind, std::size_t cell, std::size_t m) -> std::size_t& {
        return at[(static_cast<std::size_t>(kind) * cells + cell) * programs.micro_batches() + m];
    };
    for (std::size_t i = 0; i < result.programs.size(); ++i) {
        Action const& a = result.programs[i];
        Kind const kind = gives_gradient(a.kind) ? Kind::backward : a.kind;
        place(kind, a.cell, a.micro_batch) = i;
    }
    for (std::size_t i = 0; i < result.programs.size(); ++i) {
        Action const& a = result.programs[i];
        std::size_t const c = a.cell;
        auto const need = [&](Kind kind, std::size_t cell) {
            result.needs[i].add(place(kind, cell, a.micro_batch));
        };
        if (a.kind == Kind::forward && c > 0) {
            if (links[c] == Link::shared) need(Kind::forward, c - 1);
            if (links[c] == Link::copied) need(Kind::send_output, c - 1);
            if (links[c] == Link::staged) need(Kind::receive_input, c);
        }
        if (gives_gradient(a.kind) && c + 1 < cells) {
            Link const link = crosses[c + 1] ? links[c + 1] : Link::shared;
            if (link == Link::shared) need(Kind::backward, c + 1);
            if (link == Link::copied) need(Kind::send_gradient, c + 1);
            if (link == Link::staged) need(Kind::receive_gradient, c);
        }
        if (moves.reverses(i)) need(Kind::fetch, c);
        if (a.kind == Kind::offload) need(Kind::forward, c);
        if (a.kind == Kind::fetch) {
            need(Kind::offload, c);
            result.needs[i].add(moves.trigger(c, a.micro_batch));
        }
        if (a.kind == Kind::send_output) need(Kind::forward, c);
        if (a.kind == Kind::receive_input) need(Kind::send_output, c - 1);
        if (a.kind == Kind::send_gradient) need(Kind::backward, c);
        if (a.kind == Kind::receive_gradient) need(Kind::send_gradient, c + 1);
    }
    return result;
}

} // namespace gpipe
