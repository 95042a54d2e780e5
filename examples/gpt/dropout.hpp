#pragma once

#include <gpipe/layer/random.hpp>

#include <cstddef>
#include <cstdint>

namespace gpt {

/// Dropout (Srivastava et al., 2014): each element is zero with probability `rate`, a multiple of
/// 2^-16, and the others grow, so that the mean stays. The mask is never stored: backward and
/// recomputation draw the same random numbers again.
struct Dropout {
    float rate = 0;

    /// What the elements of row `row` of sample `sample` are multiplied with. A block of Philox
    /// makes eight of them.
    template <std::size_t width, class T>
    void factors(gpipe::SampleRandom const& random, std::size_t sample, std::size_t row,
                 T* __restrict factor) const {
        static_assert(width % 8 == 0, "gpt: dropout works on rows of a multiple of 8 elements");
        constexpr std::size_t blocks = width / 8;
        std::uint32_t words[4][blocks];
        for (std::size_t b = 0; b < blocks; ++b) {
            auto const bits = random.bits(sample, static_cast<std::uint32_t>(row * blocks + b));
            for (std::size_t w = 0; w < 4; ++w) words[w][b] = bits[w];
        }
        auto const threshold = static_cast<std::uint32_t>(rate * 65536.0f);
        T const kept = T{65536} / (T{65536} - static_cast<T>(threshold));
        for (std::size_t w = 0; w < 4; ++w)
            for (std::size_t b = 0; b < blocks; ++b) {
                factor[2 * w * blocks + b] = (words[w][b] & 0xFFFFu) < threshold ? T{0} : kept;
                factor[(2 * w + 1) * blocks + b] = (words[w][b] >> 16) < threshold ? T{0} : kept;
            }
    }
};

/// The end of a block: y = x + dropout(y + bias), for samples of `rows` rows.
template <std::size_t rows, std::size_t width, class Context, class T>
void add_residual(Context& context, Dropout dropout, T const* __restrict x,
                  T const* __restrict bias, T* __restrict y) {
    bool const drops = dropout.rate > 0 && context.training();
    auto const random = context.random();
    for (std::size_t sample = 0; sample < context.samples(); ++sample)
        for (std::size_t row = 0; row < rows; ++row, x += width, y += width) {
            if (drops) {
                T factor[width];
                dropout.factors<width>(random, sample, row, factor);
                for (std::size_t i = 0; i < width; ++i) y[i] = x[i] + factor[i] * (y[i] + bias[i]);
            } else {
                for (std::size_t i = 0; i < width; ++i) y[i] = x[i] + (y[i] + bias[i]);
            }
        }
}

/// Its backward: adds to the gradient of the bias and returns the gradient of what dropout was
/// given, which is dy itself where nothing is dropped, else written to `room`.
template <std::size_t rows, std::size_t width, class Context, class T>
T const* residual_backward(Context& context, Dropout dropout, T const* dy, T* __restrict room,
                           T* dbias) {
    bool const drops = dropout.rate > 0;
    auto const random = context.random();
    T bias_sum[width] = {};
    for (std::size_t sample = 0; sample < context.samples(); ++sample)
        for (std::size_t row = 0; row < rows; ++row) {
            std::size_t const at = (sample * rows + row) * width;
            if (drops) {
                T factor[width];
                dropout.factors<width>(random, sample, row, factor);
                for (std::size_t i = 0; i < width; ++i) room[at + i] = factor[i] * dy[at + i];
                for (std::size_t i = 0; i < width; ++i) bias_sum[i] += room[at + i];
            } else {
                for (std::size_t i = 0; i < width; ++i) bias_sum[i] += dy[at + i];
            }
        }
    for (std::size_t i = 0; i < width; ++i) dbias[i] += bias_sum[i];
    return drops ? room : dy;
}

} // namespace gpt
