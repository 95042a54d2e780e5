#pragma once

#include <gpipe/call/call.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/host_device.hpp>
#include <gpipe/layer/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// What bytes hold that nobody has written yet, eight at a time over and over, and how many of them
/// are written at once: no fewer can be told from what was there.
struct Poison {
    std::uint64_t pattern = 0; ///< the first byte is the lowest
    std::size_t unit = 0;      ///< bytes; 0: nobody has to write them
    std::uint64_t salt = 0;    ///< times 1 to 31 it makes others of the same kind, by exclusive or
    std::uint64_t quiet = 0;   ///< what arithmetic sets in it, on a CPU: 0 where it is no NaN
};

/// That of such elements. Floating-point numbers are NaNs that arithmetic does not make: of 4 and 8
/// bytes signaling ones with a payload, of 2 bytes what is that in bfloat16, and in half one with a
/// payload. Integers, and other types, are as if they were floats, and large. Those of less than 4
/// bytes may well be anything: of them eight bytes are told that differ from each other and are in
/// a row; none of them is a bool, which is told by itself.
GPIPE_INLINE constexpr Poison poison_of(ElementInfo element) {
    constexpr std::uint64_t of_1 = 0x0101010101010101, of_2 = 0x0001000100010001,
                            of_4 = 0x0000000100000001;
    if (element.is_real && element.bytes == 2)
        return {0x7FA57FA57FA57FA5, 2, of_2, 0x0040004000400040};
    if (element.is_real && element.bytes == 8)
        return {0x7FF4A5A57FA5A5A5, 8, of_4, 0x0008000000000000};
    if (element.bytes < 4) return {0xE1963CA5780FD25A, element.is_bool ? 1u : 8u, of_1};
    return {0x7FA5A5A57FA5A5A5, element.bytes, of_4, element.is_real ? 0x0040000000400000u : 0u};
}

/// Bytes that a call may write, and those behind them in their slot, which nobody may. They begin
/// at a multiple of 8 bytes, and are one.
struct PoisonedBytes {
    std::byte* data = nullptr; ///< where they begin
    std::size_t bytes = 0;     ///< that the call may write
    std::size_t room = 0;      ///< with those behind
    Poison poison;             ///< what the first hold before
    std::uint64_t guard = 0;   ///< the pattern of those behind
};

/// What has become of them.
struct PoisonFinding {
    static constexpr std::uint64_t none = ~std::uint64_t{0}; ///< all is written
    std::uint64_t unwritten = none;                          ///< the first byte that is not
    bool computed = false;    ///< whether it comes of arithmetic with what was there, a sum say
    std::uint64_t beyond = 0; ///< bytes behind the end, up to the last that was
};

/// What debug mode does on a device, in the order of a stream.
struct PoisonWork {
    /// Fills bytes with what they are to hold.
    void (*fill)(StepFrame const& shared, PoisonedBytes const& bytes) = nullptr;
    /// Waits until it knows what has become of them.
    PoisonFinding (*find)(StepFrame const& shared, PoisonedBytes const& bytes) = nullptr;
};

namespace detail {

GPIPE_HOST_DEVICE constexpr std::byte byte_of(std::uint64_t pattern, std::size_t at) {
    return static_cast<std::byte>(pattern >> at % 8 * 8);
}
// What eight bytes hold before, from a multiple of 8 on.
GPIPE_HOST_DEVICE constexpr std::uint64_t word_before(PoisonedBytes const& all, std::size_t at) {
    if (at >= all.bytes) return all.guard;
    if (at + 8 <= all.bytes) return all.poison.pattern;
    std::uint64_t const behind = ~std::uint64_t{0} << (all.bytes - at) * 8;
    return (all.poison.pattern & ~behind) | (all.guard & behind);
}
// Whether the unit that begins there holds this.
GPIPE_HOST_DEVICE constexpr bool holds(PoisonedBytes const& all, std::size_t at,
                                       std::uint64_t pattern) {
    if (at + all.poison.unit > all.bytes) return false; // less than one is left
    for (std::size_t b = at; b < at + all.poison.unit; ++b)
        if (all.data[b] != byte_of(pattern, b)) return false;
    return true;
}
// Whether it comes of what was there, and nobody wrote.
GPIPE_HOST_DEVICE constexpr bool is_computed(PoisonedBytes const& all, std::size_t at) {
    return all.poison.quiet != 0 && holds(all, at, all.poison.pattern | all.poison.quiet);
}
// Whether nobody has written it.
GPIPE_HOST_DEVICE constexpr bool is_unwritten(PoisonedBytes const& all, std::size_t at) {
    return holds(all, at, all.poison.pattern) || is_computed(all, at);
}

GPIPE_INLINE void fill_poison(PoisonedBytes const& all) {
    for (std::size_t at = 0; at < all.room; at += 8) {
        std::uint64_t const word = word_before(all, at);
        std::memcpy(all.data + at, &word, 8);
    }
}
GPIPE_INLINE PoisonFinding find_poison(PoisonedBytes const& all) {
    PoisonFinding found;
    std::size_t at = 0;
    while (all.poison.unit > 0 && at < all.bytes && !is_unwritten(all, at)) at += all.poison.unit;
    if (all.poison.unit > 0 && at < all.bytes) {
        found.unwritten = at;
        found.computed = is_computed(all, at);
    }
    for (std::size_t last = all.room; last-- > all.bytes && found.beyond == 0;)
        if (all.data[last] != byte_of(all.guard, last)) found.beyond = last + 1 - all.bytes;
    return found;
}

} // namespace detail
} // namespace gpipe
GPIPE_RUNS_ONCE_END
