#pragma once

#include "convnet/operations.hpp"
#include "gpt/initial.hpp"
#include "gpt/math.hpp"
#include "gpt/product.hpp"

#include <gpipe/core/host_device.hpp>
#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/traits.hpp>

#include <cmath>
#include <cstddef>

namespace convnet {

namespace detail {

template <class T> struct MeanOfChannel {
    std::size_t positions;
    T const* x;
    T* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        T sum{};
        for (std::size_t p = 0; p < positions; ++p) sum += x[i * positions + p];
        y[i] = sum / static_cast<T>(positions);
    }
};
template <class T> struct MeanOfChannelBackward {
    std::size_t positions;
    T const* dy;
    T* dx;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        dx[i] = dy[i / positions] / static_cast<T>(positions);
    }
};
template <class T> struct CopyBias {
    std::size_t size;
    T const* bias;
    T* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { y[i] = bias[i % size]; }
};

} // namespace detail

/// The mean of each channel over its positions.
template <class T, std::size_t channels, std::size_t side, class Operations = HostOperations>
struct MeanPool {
    static constexpr std::size_t positions = side * side;
    using Input = gpipe::Tensor<T, channels, side, side>;
    using Output = gpipe::Tensor<T, channels>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    static constexpr double cost = 24.0 * channels * positions;

    void forward(auto& ctx, auto x, auto y) const {
        Operations::on(ctx).for_each_index(y.size(),
                                           detail::MeanOfChannel<T>{positions, x.data(), y.data()});
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        Operations::on(ctx).for_each_index(
            dx.size(), detail::MeanOfChannelBackward<T>{positions, dy.data(), dx.data()});
    }
};

/// The last layer: y = W x + b, logits of one prediction. Weights begin as normal numbers by
/// fan-out, as those of convolutions.
template <class T, std::size_t width, std::size_t classes, class Operations = HostOperations>
struct Classify {
    using Input = gpipe::Tensor<T, width>;
    using Output = gpipe::Tensor<T, 1, classes>;
    using Parameters = gpipe::Tensors<gpipe::Tensor<T, classes, width>, gpipe::Tensor<T, classes>>;
    using Handles = typename Operations::Handles;
    static constexpr double cost = 2.0 * width * classes;
    static constexpr char const* parameter_names[] = {"weight", "bias"};

    void initialize(auto& ctx) const {
        gpt::fill_normal(get<0>(ctx.parameters()), ctx.random(0), std::sqrt(2.0 / classes));
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const on = Operations::on(ctx);
        auto const [weights, bias] = ctx.parameters();
        on.for_each_index(y.size(), detail::CopyBias<T>{classes, bias.data(), y.data()});
        on.multiply({x.samples(), classes, width}, gpt::rows_of(x.data(), width),
                    gpt::transpose_of(weights.data(), width), y.data(), classes, true);
    }
    void input_gradient(auto& ctx, auto, auto dy, auto dx) const {
        auto const weights = get<0>(ctx.parameters());
        Operations::on(ctx).multiply({dy.samples(), width, classes},
                                     gpt::rows_of(dy.data(), classes),
                                     gpt::rows_of(weights.data(), width), dx.data(), width);
    }
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        auto const on = Operations::on(ctx);
        auto const [dweights, dbias] = ctx.gradients();
        on.multiply({classes, width, x.samples()}, gpt::transpose_of(dy.data(), classes),
                    gpt::rows_of(x.data(), width), dweights.data(), width, true);
        on.sum_columns(x.samples(), classes, dbias.data(), true, gpt::Itself{}, dy.data());
    }
};

} // namespace convnet
