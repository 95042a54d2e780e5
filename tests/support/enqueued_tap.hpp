#pragma once

// Taps on the double of the CUDA runtime.

#include "enqueued.hpp"

#include <gpipe/device/cuda.hpp>
#include <gpipe/layers/gradient_tap.hpp>

#include <cstddef>
#include <utility>

/// In place of kernels: what the layers do is enqueued as a whole.
template <>
struct gpipe::detail::TapWork<gpipe::device::Cuda::Stream> : gpipe::detail::TapWork<int> {
    explicit TapWork(gpipe::device::Cuda::Stream const&) : TapWork<int>(0) {}
};

namespace toy {

/// With what it touches beside its tensors.
template <class Sample> struct Enqueued<gpipe::GradientTap<Sample>> : gpipe::GradientTap<Sample> {
    using Tap = gpipe::GradientTap<Sample>;

    void forward(auto& context, auto x, auto y) const {
        auto const call = [](Tap const& tap, auto& c, auto... all) { tap.Tap::forward(c, all...); };
        put(context, of_layer(context, x, y), call, x, y);
    }
    void backward(auto& context, auto dy, auto dx) const {
        auto const call = [](Tap const& tap, auto& c, auto... all) {
            tap.Tap::backward(c, all...);
        };
        Ranges ranges = of_layer(context, dy, dx);
        if (this->to) ranges.add(this->to + context.first_sample() * Sample::size, dy.size());
        put(context, std::move(ranges), call, dy, dx);
    }

  private:
    template <class Context, class Call, class... Tensors>
    void put(Context& context, Ranges ranges, Call call, Tensors... tensors) const {
        detail::Enqueues::call(static_cast<Tap const&>(*this), context, std::move(ranges), "a tap",
                               call, tensors...);
    }
};

} // namespace toy
