#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/host_device.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <type_traits>

namespace gpipe {

/// The one order in which the library's reductions add, on every device: `sum_blocks(count)` blocks
/// of `sum_threads` threads take the elements in turn, so that thread t of block b adds elements i,
/// i + s, i + 2 s, ... in ascending order, where i = b * sum_threads + t and s is the number of all
/// threads. In a block, thread t < 128 then adds what thread t + 128 has, t < 64 that of t + 64,
/// and so on to thread 0. The sums of the blocks are added likewise, by one block. All in double.
/// The order depends on the count only: on no GPU, no launch and no timing.
inline constexpr std::size_t sum_threads = 256;
/// However many elements there are.
inline constexpr std::size_t most_sum_blocks = 512;
/// The blocks that take so many elements.
GPIPE_INLINE constexpr std::size_t sum_blocks(std::size_t count) {
    constexpr std::size_t elements = sum_threads * 8; // at least, before there is another block
    std::size_t const blocks = (count + elements - 1) / elements;
    return blocks < most_sum_blocks ? blocks : most_sum_blocks;
}

namespace detail {

// Types of 16 bits become float, and so double, without rounding.
template <class T> using SumElement = std::conditional_t<std::is_floating_point_v<T>, T, float>;

struct AddValue {
    template <class T> GPIPE_HOST_DEVICE double operator()(double sum, T x) const {
        return sum + x;
    }
};
// Rounded once, whatever the compiler would have made of a product and a sum: that of a float is
// exact in double, so there is nothing to fuse, and no call of a library.
struct AddSquare {
    template <class T> GPIPE_HOST_DEVICE double operator()(double sum, T x) const {
        double const exact = x;
        if constexpr (sizeof(T) <= sizeof(float))
            return sum + exact * exact;
        else
            return std::fma(exact, exact, sum);
    }
};

// What one thread adds.
template <class Add, class T>
GPIPE_HOST_DEVICE double thread_sum(T const* data, std::size_t count, std::size_t first,
                                    std::size_t stride) {
    double sum = 0;
    for (std::size_t i = first; i < count; i += stride)
        sum = Add{}(sum, static_cast<SumElement<T>>(data[i]));
    return sum;
}

// What one block adds: the kernel, all threads at once, for elements that lie side by side are
// theirs. Those without an element have 0, which changes no sum.
template <class Add, std::size_t threads = sum_threads, class T>
double block_sum(T const* data, std::size_t count, std::size_t block, std::size_t blocks) {
    double sums[threads] = {};
    std::size_t const first = block * threads;
    std::size_t const left = count > first ? count - first : 1;
    std::size_t const used = left < threads ? std::bit_ceil(left) : threads;
    for (std::size_t row = first; row < count; row += blocks * threads) {
        std::size_t const here = count - row < threads ? count - row : threads;
        for (std::size_t t = 0; t < here; ++t)
            sums[t] = Add{}(sums[t], static_cast<SumElement<T>>(data[row + t]));
    }
    for (std::size_t half = used / 2; half > 0; half /= 2)
        for (std::size_t t = 0; t < half; ++t) sums[t] += sums[t + half];
    return sums[0];
}
template <class Add, class T> double ordered_sum(T const* data, std::size_t count) {
    std::size_t const blocks = sum_blocks(count);
    double sums[most_sum_blocks];
    for (std::size_t b = 0; b < blocks; ++b) sums[b] = block_sum<Add>(data, count, b, blocks);
    return block_sum<AddValue>(sums, blocks, 0, 1);
}

} // namespace detail

/// The sum of `count` numbers of the host's memory, in the order of sum_threads.
template <class T> double ordered_sum(T const* data, std::size_t count) {
    return detail::ordered_sum<detail::AddValue>(data, count);
}
/// The sum of their squares, each added without rounding it first.
template <class T> double ordered_sum_of_squares(T const* data, std::size_t count) {
    return detail::ordered_sum<detail::AddSquare>(data, count);
}
GPIPE_INSTANTIATE(double ordered_sum_of_squares(float const*, std::size_t));
GPIPE_INSTANTIATE(double ordered_sum_of_squares(double const*, std::size_t));

} // namespace gpipe
