#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/version.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

namespace gpipe::detail {

/// Costs are added as integers, so a sum does not depend on the order of its terms: layers of equal
/// cost tie exactly (ten times 0.1 would not, in doubles), the square of a cell's cost obeys the
/// quadrangle inequality exactly, and compile time and run time agree whatever the compiler
/// contracts or reorders.
using Units = std::uint64_t;

/// A square of units, and a sum of such squares.
__extension__ typedef unsigned __int128 SquaredUnits;

/// Writes sums[l], the cost of the layers before l in units, for l = 0 ... layers; returns the
/// largest cost of one layer.
///
/// The unit is a power of two that brings layers * (largest cost) to between 2^61 and 2^63, less
/// `spare` bits; what a cost has below one unit is cut off. Without any spare, nothing is lost of
/// integers while layers * (largest cost) is at most 2^61, nor, up to 1,023 layers, of costs above
/// 2^(bit_width(layers) - 10) of the largest.
/// Costs have to be finite and not negative; huge ones and denormals are as good as any.
GPIPE_INLINE constexpr Units prefix_sums(double const* costs, std::size_t layers, Units* sums,
                                         int spare = 0) {
    constexpr std::uint64_t magnitude = ~std::uint64_t{0} >> 1; // all but the sign: -0.0 is zero
    constexpr std::uint64_t hidden = std::uint64_t{1} << 52;
    // Bit patterns of doubles that are not negative are ordered as the doubles are.
    std::uint64_t top = 0;
    for (std::size_t l = 0; l < layers; ++l) {
        std::uint64_t const bits = std::bit_cast<std::uint64_t>(costs[l]) & magnitude;
        if (bits > top) top = bits;
    }
    // A cost is mantissa * 2^exponent, with a mantissa below 2^53 (denormals have exponent field 0,
    // mean 1, and are below 2^52). `room` brings the largest below 2^(63 - spare -
    // bit_width(layers)).
    int const room = 10 - static_cast<int>(std::bit_width(layers)) - spare;
    int const top_exponent = static_cast<int>(top >> 52);
    Units largest = 0;
    Units sum = 0;
    sums[0] = 0;
    for (std::size_t l = 0; l < layers; ++l) {
        std::uint64_t const bits = std::bit_cast<std::uint64_t>(costs[l]) & magnitude;
        Units units = bits;
        int shift = room - top_exponent + 1;
        if (bits >= hidden) {
            units = (bits & (hidden - 1)) | hidden;
            shift = room - top_exponent + static_cast<int>(bits >> 52);
        }
        if (shift >= 0) {
            units <<= shift;
        } else {
            units = shift > -64 ? units >> -shift : 0;
        }
        if (units > largest) largest = units;
        sum += units;
        sums[l + 1] = sum;
    }
    return largest;
}

} // namespace gpipe::detail
