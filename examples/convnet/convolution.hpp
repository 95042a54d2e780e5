#pragma once

#include "convnet/convolution_shape.hpp"
#include "convnet/operations.hpp"
#include "gpt/initial.hpp"

#include <gpipe/layer/tensor.hpp>

#include <cmath>
#include <cstddef>

namespace convnet {

/// A convolution by square kernels without a bias, for a norm comes behind it. Its weights begin as
/// normal numbers by fan-out (He et al., 2015).
template <class T, std::size_t channels, std::size_t side, std::size_t outputs, std::size_t kernel,
          std::size_t stride, class Operations = HostOperations>
struct Convolution {
    static constexpr ConvolutionShape shape{channels, side, outputs, kernel, stride};
    static constexpr std::size_t result = shape.result();

    using Input = gpipe::Tensor<T, channels, side, side>;
    using Output = gpipe::Tensor<T, outputs, result, result>;
    using Parameters = gpipe::Tensor<T, outputs, channels, kernel, kernel>;
    using Handles = typename Operations::ConvolutionHandles;
    static constexpr double cost = shape.operations();
    static constexpr char const* parameter_names[] = {"weight"};

    void initialize(auto& ctx) const {
        constexpr double fan_out = outputs * kernel * kernel;
        gpt::fill_normal(ctx.parameters(), ctx.random(0), std::sqrt(2 / fan_out));
    }
    void forward(auto& ctx, auto x, auto y) const {
        Operations::on(ctx).convolve(shape, x.samples(), x.data(), ctx.parameters().data(),
                                     y.data());
    }
    void input_gradient(auto& ctx, auto, auto dy, auto dx) const {
        Operations::on(ctx).convolve_input_gradient(shape, dy.samples(), ctx.parameters().data(),
                                                    dy.data(), dx.data());
    }
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        Operations::on(ctx).convolve_weight_gradient(shape, x.samples(), x.data(), dy.data(),
                                                     ctx.gradients().data());
    }
};

} // namespace convnet
