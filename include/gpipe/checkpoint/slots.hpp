#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/version.hpp>

#include <cstddef>
#include <stdexcept>

namespace gpipe::detail {

/// Bytes as slots, rounded up: what fits into the slots, fits into the bytes. A budget of fewer
/// bytes than slots has as many slots as bytes, and nothing is rounded. More bytes never make a
/// size larger in slots, so what fits into a budget, fits into a larger one.
struct Slots {
    std::size_t budget = 0; ///< in bytes
    std::size_t count = 0;

    constexpr Slots(std::size_t bytes, std::size_t most)
        : budget(bytes), count(bytes < most ? bytes : most) {}

    /// The least number of slots that hold bytes * times; one more than there are if none do.
    constexpr std::size_t of(std::size_t bytes, std::size_t times = 1) const {
        __extension__ typedef unsigned __int128 Wide;
        if (bytes == 0) return 0;
        if (times > budget / bytes) return count + 1;
        return static_cast<std::size_t>((static_cast<Wide>(bytes * times) * count + budget - 1) /
                                        budget);
    }
};

GPIPE_INLINE constexpr void check_slots(std::size_t slots) {
    if (slots == 0) throw std::invalid_argument("gpipe: a budget has at least one slot");
}

} // namespace gpipe::detail
