#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/core/host_device.hpp>
#include <gpipe/core/ordered_sum.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gpipe {

/// The words of a sum of numbers that are not negative in which nothing is rounded, so that it is
/// the same in whatever order, and in whatever parts, they are added. They are integers: word i
/// counts 2^(32 i) times the smallest double, and has room for what 2^32 numbers bring; the last
/// counts numbers that were not finite. (The long accumulator of Kulisch, Computer Arithmetic and
/// Validity, 2008.)
inline constexpr std::size_t exact_words = 68; // for a double's 2098 bits, a carry and that count

namespace detail {

// What a number adds to three words: of one that is not finite the last of all.
struct ExactDigits {
    std::size_t at = exact_words - 3;
    std::uint64_t digit[3] = {0, 0, 1};
};
GPIPE_HOST_DEVICE constexpr ExactDigits exact_digits(double value) {
    std::uint64_t const bits = __builtin_bit_cast(std::uint64_t, value);
    std::uint64_t const exponent = bits >> 52 & 0x7ff;
    if (exponent == 0x7ff) return {};
    std::uint64_t const hidden = exponent > 0, low = ~std::uint32_t{0};
    std::uint64_t const mantissa = (bits & ((std::uint64_t{1} << 52) - 1)) | hidden << 52;
    std::uint64_t const place = exponent - hidden; // of its last bit
    std::uint64_t const first = (mantissa & low) << place % 32;
    std::uint64_t const second = (mantissa >> 32 << place % 32) + (first >> 32);
    return {static_cast<std::size_t>(place / 32), {first & low, second & low, second >> 32}};
}

// The elements of a slot of memory, which 32 threads share: of no more is a sum rounded.
template <class T> inline constexpr std::size_t slot_elements = slot_alignment / sizeof(T);
inline constexpr std::size_t slot_threads = 32;

} // namespace detail

/// Adds to words the squares of elements that lie in slots, the last of which may be partly filled:
/// those of a slot are added up as by 32 threads, see sum_threads, and then exactly. Returns what
/// the slots' sums come to in order.
template <class T>
double add_squares_exactly(std::uint64_t* words, T const* data, std::size_t count) {
    constexpr std::size_t most = detail::slot_elements<T>;
    double total = 0;
    for (std::size_t i = 0; i < count; i += most) {
        double const sum = detail::block_sum<detail::AddSquare, detail::slot_threads>(
            data + i, std::min(count - i, most), 0, 1);
        detail::ExactDigits const digits = detail::exact_digits(sum);
        for (std::size_t d = 0; d < 3; ++d) words[digits.at + d] += digits.digit[d];
        total += sum;
    }
    return total;
}
GPIPE_INSTANTIATE(double add_squares_exactly(std::uint64_t*, float const*, std::size_t));
GPIPE_INSTANTIATE(double add_squares_exactly(std::uint64_t*, double const*, std::size_t));

/// What sums come to together, rounded once, of which `rows` times `columns` follow each other, the
/// rows in steps of `stride` words: infinite if a number was not finite.
GPIPE_HOST_DEVICE inline double exact_value(std::uint64_t const* words, std::size_t rows,
                                            std::size_t stride, std::size_t columns) {
    auto const all = [=](std::size_t i) {
        std::uint64_t sum = 0;
        for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t c = 0; c < columns; ++c)
                sum += words[r * stride + c * exact_words + i];
        return sum;
    };
    if (all(exact_words - 1) > 0) return HUGE_VAL;
    std::uint64_t carry = 0, low = 0; // `low`: whether a digit below the third is not 0
    std::uint64_t digit[3] = {};      // the highest so far that are not 0, the first above all
    std::uint64_t last[2] = {};       // the digits before this one
    std::uint64_t below = 0;          // those before, together
    std::size_t top = 0;
    for (std::size_t i = 0; i + 1 < exact_words; ++i) {
        carry += all(i);
        std::uint64_t const here = carry & ~std::uint32_t{0};
        carry >>= 32;
        if (here > 0) {
            top = i;
            low = below;
            digit[0] = here;
            digit[1] = last[0];
            digit[2] = last[1];
        }
        below |= last[1];
        last[1] = last[0];
        last[0] = here;
    }
    if (digit[0] == 0) return 0;
    // Its 64 highest bits, the last of which tells whether there are more: rounded once.
    std::uint64_t value = digit[0] << 32 | digit[1], rest = digit[2] << 32 | (low > 0);
    int exponent = 32 * (static_cast<int>(top) - 1) - 1074;
    for (; value >> 63 == 0; --exponent) {
        value = value << 1 | rest >> 63;
        rest <<= 1;
    }
    return std::ldexp(static_cast<double>(value | (rest > 0)), exponent);
}

} // namespace gpipe
