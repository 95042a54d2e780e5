#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/action.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe::trace {

/// A colour in sRGB.
struct Colour {
    std::uint8_t red = 0;   ///< 0 to 255
    std::uint8_t green = 0; ///< 0 to 255
    std::uint8_t blue = 0;  ///< 0 to 255

    /// Member by member.
    friend constexpr bool operator==(Colour const&, Colour const&) = default;

    /// As grey, from 0 for black to 255 (ITU-R BT.601).
    constexpr int grey() const { return (299 * red + 587 * green + 114 * blue) / 1000; }
};

namespace detail {

// How light a kind of action is, from the lightest; without hue, these still tell kinds apart.
enum class Shade : std::uint8_t { forward, input_gradient, backward, weight_gradient };

GPIPE_INLINE constexpr Shade shade_of(Kind kind) {
    return kind == Kind::input_gradient    ? Shade::input_gradient
           : kind == Kind::backward        ? Shade::backward
           : kind == Kind::weight_gradient ? Shade::weight_gradient
                                           : Shade::forward;
}

constexpr std::size_t hues = 16;

// By hue and shade, in OKLCH (Ottosson, 2020): a lightness of 0.87, 0.745, 0.61 and 0.43, give or
// take 0.03 by hue, chosen so that neighbours stay apart under every common form of colour
// blindness. The second eight hues lie between the first.
inline constexpr std::uint32_t colours[hues][4] = {
    {0xc3dbfe, 0x84b2fa, 0x4e87de, 0x275295}, {0xe8c494, 0xcd9849, 0xa36e05, 0x614002},
    {0xcec1f7, 0xaa94e3, 0x8365c5, 0x4f3680}, {0xc9eab8, 0x96c67b, 0x639f3d, 0x386616},
    {0x95e0e8, 0x31becb, 0x0b919d, 0x00585f}, {0xfdbdb7, 0xe78a83, 0xc65651, 0x802a28},
    {0xfbccf4, 0xe099d6, 0xbd67b3, 0x7c3a75}, {0xabeed5, 0x5dcdaa, 0x0aa380, 0x076750},
    {0xb5cafd, 0x84a0eb, 0x5674cf, 0x2c4188}, {0xdddaa0, 0xb9b256, 0x91880a, 0x595403},
    {0xdfbceb, 0xc08cd3, 0x9c5bb2, 0x612f72}, {0xb1e5bf, 0x71c38b, 0x259d59, 0x066232},
    {0xc2e2ff, 0x73bdfa, 0x2993dd, 0x075c92}, {0xfed1aa, 0xe7a162, 0xc47210, 0x7d4601},
    {0xf7b7bc, 0xe1848d, 0xc04f60, 0x7b2434}, {0x91dbd1, 0x30baad, 0x078d83, 0x02544d},
};

// Part of the way, in hundredths, to white or to black.
GPIPE_INLINE constexpr Colour mixed(std::uint32_t colour, int white, int black) {
    auto const part = [&](int shift) {
        int const value = static_cast<int>(colour >> shift) & 0xFF;
        return static_cast<std::uint8_t>((value * (100 - white - black) + 255 * white) / 100);
    };
    return {part(16), part(8), part(0)};
}

} // namespace detail

/// The colour of an action in a picture: the hue says the micro-batch, the shade the kind. 64
/// micro-batches have colours of their own: after each sixteen the shades move a little. What ends
/// a step is grey: sums over replicas and ties dark, updates less so, the rest light.
GPIPE_INLINE constexpr Colour colour_of(Kind kind, std::size_t micro_batch) {
    if (adds_replicas(kind) || kind == Kind::reduce || kind == Kind::all_gather)
        return {0x4a, 0x4a, 0x4a};
    if (ends_step(kind) && kind != Kind::update) return {0xcc, 0xcc, 0xcc};
    if (kind > Kind::weight_gradient) return {0x9a, 0x9a, 0x9a};
    constexpr int white[] = {0, 14, 0, 24};
    constexpr int black[] = {0, 0, 10, 0};
    std::size_t const cycle = micro_batch / detail::hues % 4;
    return detail::mixed(detail::colours[micro_batch % detail::hues]
                                        [static_cast<std::size_t>(detail::shade_of(kind))],
                         white[cycle], black[cycle]);
}

} // namespace gpipe::trace
