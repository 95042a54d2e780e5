#pragma once

#include "convnet/convolution_shape.hpp"

#include <algorithm>
#include <cstddef>

namespace convnet {

/// A convolution as the definition has it: for types that no library takes, and to compare with.
struct ConvolutionLoops {
    ConvolutionShape shape;
    std::size_t samples;

    template <class T> void forward(T const* x, T const* weights, T* y) const {
        std::fill(y, y + samples * shape.output_size(), T{});
        each([=](std::size_t in, std::size_t w, std::size_t out) { y[out] += x[in] * weights[w]; });
    }
    template <class T> void input_gradient(T const* weights, T const* dy, T* dx) const {
        std::fill(dx, dx + samples * shape.input_size(), T{});
        each([=](std::size_t in, std::size_t w, std::size_t out) {
            dx[in] += dy[out] * weights[w];
        });
    }
    /// Adds to dw.
    template <class T> void weight_gradient(T const* x, T const* dy, T* dw) const {
        each([=](std::size_t in, std::size_t w, std::size_t out) { dw[w] += dy[out] * x[in]; });
    }

  private:
    // Calls f(place in the input, in the weights, in the output) for every product.
    template <class F> void each(F f) const {
        auto const [channels, side, outputs, kernel, stride] = shape;
        std::size_t const padding = shape.padding(), result = shape.result();
        for (std::size_t s = 0; s < samples; ++s)
            for (std::size_t o = 0; o < outputs; ++o)
                for (std::size_t c = 0; c < channels; ++c)
                    for (std::size_t ky = 0; ky < kernel; ++ky)
                        for (std::size_t kx = 0; kx < kernel; ++kx)
                            for (std::size_t oy = 0; oy < result; ++oy)
                                for (std::size_t ox = 0; ox < result; ++ox) {
                                    // one row and column of padding wraps around below 0
                                    std::size_t const y = oy * stride + ky - padding;
                                    std::size_t const x = ox * stride + kx - padding;
                                    if (y < side && x < side)
                                        f(((s * channels + c) * side + y) * side + x,
                                          ((o * channels + c) * kernel + ky) * kernel + kx,
                                          ((s * outputs + o) * result + oy) * result + ox);
                                }
    }
};

} // namespace convnet
