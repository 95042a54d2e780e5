#pragma once

#include "convnet/operations.hpp"

#include <gpipe/core/host_device.hpp>
#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/traits.hpp>

#include <cstddef>

namespace convnet {

namespace detail {

template <class T> struct Rectify {
    T const* x;
    T* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        y[i] = x[i] < 0 ? T{0} : x[i]; // what is no number stays so
    }
};
template <class T> struct RectifyBackward {
    T const* y;
    T const* dy;
    T* dx;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { dx[i] = y[i] > 0 ? dy[i] : T{0}; }
};

} // namespace detail

/// y = max(x, 0).
template <class Shape, class Operations = HostOperations> struct Relu {
    using T = typename Shape::Element;
    using Input = Shape;
    using Output = Shape;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::output;
    static constexpr bool recompute_is_cheap = true;
    static constexpr double cost = 22.0 * Shape::size;

    void forward(auto& ctx, auto x, auto y) const {
        Operations::on(ctx).for_each_index(x.size(), detail::Rectify<T>{x.data(), y.data()});
    }
    void backward(auto& ctx, auto y, auto dy, auto dx) const {
        Operations::on(ctx).for_each_index(
            dy.size(), detail::RectifyBackward<T>{y.data(), dy.data(), dx.data()});
    }
};

} // namespace convnet
