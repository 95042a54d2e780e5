#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/action.hpp>

#include <cstddef>
#include <string_view>

namespace gpipe {

/// What is wrong with a set of programs.
enum class Problem : unsigned char {
    sound,
    shape,   ///< devices, cells or programs are missing
    unended, ///< next_device() behind a device's program is missing, or actions are behind all
    no_such_device, ///< a cell on a device out of range
    idle_device,    ///< a device without a cell
    no_such_cell,   ///< a cell or micro-batch out of range
    wrong_device,   ///< an action of a cell that the device does not own
    unsupported,    ///< an action that has no place there
    twice,          ///< the same action again
    missing,        ///< an action that no program holds
    too_early,      ///< an action before another of its device that it needs
    too_late,       ///< a recompute behind its backward
    deadlock,       ///< the action waits for ever
};
/// How many there are.
inline constexpr std::size_t problem_count = 13;

/// It in words.
GPIPE_INLINE constexpr std::string_view sentence(Problem problem) {
    constexpr std::string_view sentences[problem_count] = {
        "the programs are sound",
        "the number of devices, cells or programs does not fit",
        "next_device() has to stand behind the program of every device, and nothing behind the "
        "last",
        "a cell is on a device that does not exist",
        "a device owns no cell",
        "an action names a cell or micro-batch that does not exist",
        "an action belongs to a cell of another device",
        "an action has no place in these programs",
        "an action stands in the programs twice",
        "an action is missing from the programs",
        "an action stands before another of its device that it needs",
        "a recompute stands behind its backward",
        "an action waits for ever: the programs deadlock",
    };
    return sentences[static_cast<std::size_t>(problem)];
}

/// The result of a proof: `problem` sound, or the first place at which it fails.
struct Verdict {
    Problem problem = Problem::sound; ///< the first that was met
    std::size_t device = 0;           ///< of that action
    std::size_t position = 0;         ///< in that device's program
    Action action{};                  ///< where it was met

    /// Whether the programs are sound.
    constexpr explicit operator bool() const { return problem == Problem::sound; }
};

} // namespace gpipe
