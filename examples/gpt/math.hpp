#pragma once

#include <gpipe/core/host_device.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

/// Element-wise work without calls and branches, so that compilers vectorise the loops around it:
/// otherwise it takes as long as the products. Kernels call the same functions: the bits are cast
/// by the compiler's own word for it, since std::bit_cast is none that a kernel may call.
namespace gpt {

/// What numbers that are kept as T are calculated in, and what is kept of them where 16 bits are
/// too few: parameters, their gradients, statistics and sums.
template <class T> using Real = std::conditional_t<(sizeof(T) < sizeof(float)), float, T>;
template <class T> GPIPE_HOST_DEVICE inline Real<T> real(T value) {
    return static_cast<Real<T>>(value);
}

/// Results of one functor.
template <class R> struct Two { R first, second; };

/// A number as it is, of whichever element it is.
struct Itself {
    template <class R> GPIPE_HOST_DEVICE R operator()(std::size_t, R value) const { return value; }
};

/// e^x. For float a polynomial (Cephes' expf, Moshier 1992: 2 units in the last place) with x held
/// within
/// [-60, 60], also where it is no number: beyond, nothing here can tell the result from 0, and
/// products with what is nearer to 0 would be denormal and slow. Other types, which only tests use,
/// get std::exp.
template <class T> GPIPE_HOST_DEVICE inline T exponential(T x) {
    if constexpr (std::is_same_v<T, float>) {
        // Held by its bits: of float comparisons g++ makes a second path through all that follows.
        auto bits = __builtin_bit_cast(std::int32_t, x); // const, it would crash nvcc 13.0
        std::int32_t const most = 0x42700000;            // 60
        std::int32_t const size = bits & 0x7FFFFFFF;
        x = __builtin_bit_cast(float, (size < most ? size : most) | (bits & ~0x7FFFFFFF));
        // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
        float const shifted = x * 1.44269504f + 0x1.8p23f;
        float const n = shifted - 0x1.8p23f;
        float const r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
        float p = 1.9875691500e-4f;
        p = p * r + 1.3981999507e-3f;
        p = p * r + 8.3334519073e-3f;
        p = p * r + 4.1665795894e-2f;
        p = p * r + 1.6666665459e-1f;
        p = p * r + 5.0000001201e-1f;
        p = p * r * r + r + 1.0f;
        return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, p) +
                                             (__builtin_bit_cast(std::uint32_t, shifted) << 23));
    } else {
        return std::exp(x);
    }
}

/// The GELU in its tanh form (Hendrycks and Gimpel, 2016): u/2 (1 + tanh(z/2)) = u / (1 + e^-z)
/// with z = 2 sqrt(2/pi) (u + 0.044715 u^3).
template <class T> GPIPE_HOST_DEVICE inline T gelu(T u) {
    T const z = T(1.5957691216057308) * (u + T(0.044715) * u * u * u);
    return u / (T{1} + exponential(-z));
}

/// The derivative of gelu at u.
template <class T> GPIPE_HOST_DEVICE inline T gelu_slope(T u) {
    T const z = T(1.5957691216057308) * (u + T(0.044715) * u * u * u);
    T const slope = T(1.5957691216057308) * (T{1} + T(3 * 0.044715) * u * u);
    T const s = T{1} / (T{1} + exponential(-z));
    return s + u * s * (T{1} - s) * slope;
}

/// Sums go over lanes, so that they vectorise in one fixed order.
inline constexpr std::size_t lanes = 16;

/// The sum of f(i) over i < n.
template <class F> GPIPE_HOST_DEVICE inline auto sum_over(std::size_t n, F f) {
    decltype(f(n)) lane[lanes] = {};
    std::size_t const whole = n / lanes * lanes;
    for (std::size_t i = 0; i < whole; i += lanes)
        for (std::size_t l = 0; l < lanes; ++l) lane[l] += f(i + l);
    for (std::size_t i = whole; i < n; ++i) lane[i - whole] += f(i);
    auto const halve = [&]<std::size_t width>(std::integral_constant<std::size_t, width>) {
        for (std::size_t l = 0; l < width; ++l) lane[l] += lane[l + width];
    };
    static_assert(lanes == 16);
    halve(std::integral_constant<std::size_t, 8>{});
    halve(std::integral_constant<std::size_t, 4>{});
    halve(std::integral_constant<std::size_t, 2>{});
    return lane[0] + lane[1];
}

/// The greatest of n numbers, n > 0; if one is none, it is none. Compared as integers of the same
/// order, which vectorises as a comparison of numbers, with its care for what is none, does not.
template <class T> GPIPE_HOST_DEVICE inline T most_of(T const* values, std::size_t n) {
    using Key = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
    constexpr auto sign = static_cast<Key>(sizeof(T) == 4 ? INT32_MIN : INT64_MIN);
    constexpr Key infinite = static_cast<Key>(sizeof(T) == 4 ? 0x7F800000 : 0x7FF0000000000000);
    auto const flip = [](Key key) { return key < 0 ? key ^ ~sign : key; };
    Key most = sign;
    for (std::size_t i = 0; i < n; ++i) {
        Key const bits = __builtin_bit_cast(Key, values[i]), size = bits & ~sign;
        Key const key = size > infinite ? size : flip(bits);
        most = key > most ? key : most;
    }
    return __builtin_bit_cast(T, flip(most));
}

} // namespace gpt
