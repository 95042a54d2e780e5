#pragma once

#include "convnet/operations.hpp"

#include <gpipe/core/host_device.hpp>
#include <gpipe/layer/skip.hpp>
#include <gpipe/layer/stash.hpp>
#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/traits.hpp>

#include <cstddef>

namespace convnet {

namespace detail {

template <class T> struct Copy {
    T const* from;
    T* to;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { to[i] = from[i]; }
};
template <class T> struct CopyTwice {
    T const* from;
    T* to;
    T* other;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { to[i] = other[i] = from[i]; }
};
template <class T> struct Add {
    T const* a;
    T const* b;
    T* sum;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { sum[i] = a[i] + b[i]; }
};
template <class T> struct AddAndRectify {
    T const* a;
    T const* b;
    T* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        T const sum = a[i] + b[i];
        y[i] = sum < 0 ? T{0} : sum; // what is no number stays so
    }
};
template <class T> struct AddAndRectifyBackward {
    T const* y;
    T const* dy;
    T* da;
    T* db;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        da[i] = db[i] = y[i] > 0 ? dy[i] : T{0};
    }
};

} // namespace detail

/// y = x, which is stashed, too: where the two ways of a residual block part.
template <class Tag, class Shape, class Operations = HostOperations> struct Fork {
    using T = typename Shape::Element;
    using Input = Shape;
    using Output = Shape;
    using Stash = gpipe::Skip<Tag, Shape>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    /// Memory's traffic, as of the other layers without a product: as long as so many operations of
    /// a convolution (gpipe::profile).
    static constexpr double cost = 24.0 * Shape::size;

    void forward(auto& ctx, auto x, auto y) const {
        Operations::on(ctx).for_each_index(
            x.size(), detail::CopyTwice<T>{x.data(), y.data(), gpipe::stash<Tag>(ctx).data()});
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        Operations::on(ctx).for_each_index(
            dy.size(),
            detail::Add<T>{dy.data(), gpipe::stash_gradient<Tag>(ctx).data(), dx.data()});
    }
};

/// Stashes x and goes on with what an earlier layer has stashed: from the end of a block's main way
/// to the begin of a shortcut that has layers of its own.
template <class PopTag, class StashTag, class From, class To, class Operations = HostOperations>
struct Exchange {
    using T = typename From::Element;
    using Input = From;
    using Output = To;
    using Pop = gpipe::Skip<PopTag, To>;
    using Stash = gpipe::Skip<StashTag, From>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    static constexpr bool backward_reads_pops = false;
    static constexpr double cost = 16.0 * (From::size + To::size);

    void forward(auto& ctx, auto x, auto y) const {
        auto const on = Operations::on(ctx);
        on.for_each_index(x.size(), detail::Copy<T>{x.data(), gpipe::stash<StashTag>(ctx).data()});
        on.for_each_index(y.size(), detail::Copy<T>{gpipe::pop<PopTag>(ctx).data(), y.data()});
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        auto const on = Operations::on(ctx);
        on.for_each_index(dy.size(),
                          detail::Copy<T>{dy.data(), gpipe::pop_gradient<PopTag>(ctx).data()});
        on.for_each_index(dx.size(),
                          detail::Copy<T>{gpipe::stash_gradient<StashTag>(ctx).data(), dx.data()});
    }
};

/// y = max(x + z, 0), z what an earlier layer has stashed: the end of a residual block.
template <class Tag, class Shape, class Operations = HostOperations> struct Join {
    using T = typename Shape::Element;
    using Input = Shape;
    using Output = Shape;
    using Pop = gpipe::Skip<Tag, Shape>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::output;
    static constexpr bool backward_reads_pops = false;
    static constexpr bool recompute_is_cheap = true;
    static constexpr double cost = 30.0 * Shape::size;

    void forward(auto& ctx, auto x, auto y) const {
        Operations::on(ctx).for_each_index(
            x.size(), detail::AddAndRectify<T>{x.data(), gpipe::pop<Tag>(ctx).data(), y.data()});
    }
    void backward(auto& ctx, auto y, auto dy, auto dx) const {
        Operations::on(ctx).for_each_index(
            dy.size(), detail::AddAndRectifyBackward<T>{y.data(), dy.data(), dx.data(),
                                                        gpipe::pop_gradient<Tag>(ctx).data()});
    }
};

} // namespace convnet
