#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/schedule/walk.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe {

/// What is wrong with a set of programs.
enum class Problem : unsigned char {
    sound,
    shape,        ///< devices, cells or programs are missing
    no_such_cell, ///< a cell or micro-batch out of range
    wrong_device, ///< an action of a cell that the device does not own
    twice,        ///< the same forward or backward again
    missing,      ///< a forward or backward that no program holds
    too_early,    ///< a backward or recompute before its own forward
    unsupported,  ///< an action that this proof knows no rule for
    deadlock,     ///< the action waits for ever
};

constexpr std::string_view sentence(Problem problem) {
    constexpr std::string_view sentences[] = {
        "the programs are sound",
        "the number of devices, cells or programs does not fit",
        "an action names a cell or micro-batch that does not exist",
        "an action belongs to a cell of another device",
        "an action stands in the programs twice",
        "an action is missing from the programs",
        "an action stands before the forward that it needs",
        "an action has no place in a schedule's programs",
        "an action waits for ever: the programs deadlock",
    };
    return sentences[static_cast<std::size_t>(problem)];
}

/// The result of a proof: `problem` sound, or the first place at which it fails.
struct Verdict {
    Problem problem = Problem::sound;
    std::size_t device = 0;
    std::size_t position = 0; ///< in that device's program
    Action action{};

    constexpr explicit operator bool() const { return problem == Problem::sound; }
};

/// Proves that programs of forwards, recomputes and backwards train every micro-batch once: each
/// forward and backward of each (cell, micro-batch) exactly once and on the device that owns the
/// cell; each backward and recompute behind its own forward; and, walking all programs at once with
/// every wait for the neighbouring cell, that all of them come to their end. Time and memory are
/// linear in the number of actions.
[[gnu::cold]] constexpr Verdict verify(Programs const& programs) {
    std::size_t const cells = programs.cells();
    std::size_t const micro_batches = programs.micro_batches();
    std::size_t const pairs = cells * micro_batches;
    if (programs.devices() == 0 || cells < programs.devices() || micro_batches == 0)
        return {Problem::shape};

    // Each action once, in its place. seen: bit 0 forward, bit 1 input gradient, bit 2 weight
    // gradient; a backward is both of these.
    Array<unsigned char> seen(pairs);
    for (std::size_t d = 0; d < programs.devices(); ++d) {
        for (std::size_t i = programs.begin(d); i < programs.end(d); ++i) {
            Action const& a = programs[i];
            std::size_t const position = i - programs.begin(d);
            if (a.cell >= cells || a.micro_batch >= micro_batches)
                return {Problem::no_such_cell, d, position, a};
            if (programs.device_of(a.cell) != d) return {Problem::wrong_device, d, position, a};
            unsigned char& bits = seen[a.cell * micro_batches + a.micro_batch];
            if (a.kind == Kind::forward) {
                if (bits & 1) return {Problem::twice, d, position, a};
                bits = static_cast<unsigned char>(bits | 1);
            } else if (gives_gradient(a.kind)) {
                if (bits & 2) return {Problem::twice, d, position, a};
                if (!(bits & 1)) return {Problem::too_early, d, position, a};
                bits = static_cast<unsigned char>(bits | (a.kind == Kind::backward ? 6 : 2));
            } else if (a.kind == Kind::weight_gradient) {
                if (bits & 4) return {Problem::twice, d, position, a};
                if (!(bits & 2)) return {Problem::too_early, d, position, a};
                bits = static_cast<unsigned char>(bits | 4);
            } else if (a.kind == Kind::recompute) {
                if (!(bits & 1) || (bits & 2)) return {Problem::too_early, d, position, a};
            } else {
                return {Problem::unsupported, d, position, a};
            }
        }
    }
    for (std::size_t p = 0; p < pairs; ++p)
        if (seen[p] != 7) {
            std::size_t const cell = p / micro_batches;
            std::size_t const m = p % micro_batches;
            return {Problem::missing, programs.device_of(cell),
                    programs.size(programs.device_of(cell)),
                    seen[p] & 2   ? weight_gradient(cell, m)
                    : seen[p] & 1 ? backward(cell, m)
                                  : forward(cell, m)};
        }

    Array<std::size_t> const reached = walk(programs, [](std::size_t, std::size_t) {});
    for (std::size_t d = 0; d < programs.devices(); ++d)
        if (reached[d] < programs.end(d))
            return {Problem::deadlock, d, reached[d] - programs.begin(d), programs[reached[d]]};
    return {};
}

} // namespace gpipe
