#pragma once

// The layers of kernels.hpp on the double of the CUDA runtime: the same bodies, launched there. A
// kernel says what memory it may touch: all that the call it is launched by was given.

#include "enqueued.hpp"
#include "kernels.hpp"

#include <cstddef>
#include <string>
#include <utility>

namespace toy {

/// Of the call that goes on.
inline Ranges const* touched = nullptr;
class Touches {
  public:
    explicit Touches(Ranges ranges) : ranges_(std::move(ranges)) { touched = &ranges_; }
    Touches(Touches const&) = delete;
    Touches& operator=(Touches const&) = delete;
    ~Touches() { touched = nullptr; }

  private:
    Ranges ranges_;
};

namespace detail {

template <class L> struct DeclaredForward : L {
    using L::L;

    void forward(auto& context, auto x, auto y) const {
        Touches const now(of_layer(context, x, y));
        L::forward(context, x, y);
    }
};
template <class L, bool = gpipe::detail::names_backward<L>>
struct DeclaredWhole : DeclaredForward<L> {
    using DeclaredForward<L>::DeclaredForward;
    template <class Context, class... Tensors>
    void backward(Context& context, Tensors... tensors) const requires requires(L const& layer) {
        layer.backward(context, tensors...);
    }
    {
        Ranges ranges = of_layer(context, tensors...);
        ranges.add(context.gradients());
        Touches const now(std::move(ranges));
        L::backward(context, tensors...);
    }
};
template <class L> struct DeclaredWhole<L, false> : DeclaredForward<L> {
    using DeclaredForward<L>::DeclaredForward;
};
template <class L, bool = gpipe::splits_backward<L>> struct DeclaredHalves : DeclaredWhole<L> {
    using DeclaredWhole<L>::DeclaredWhole;
    template <class Context, class... Tensors>
    void input_gradient(Context& context, Tensors... tensors) const requires
        requires(L const& layer) {
        layer.input_gradient(context, tensors...);
    }
    {
        Ranges ranges = of_layer(context, tensors...);
        ranges.add(context.deferred());
        Touches const now(std::move(ranges));
        L::input_gradient(context, tensors...);
    }
    template <class Context, class... Tensors>
    void weight_gradient(Context& context, Tensors... tensors) const requires
        requires(L const& layer) {
        layer.weight_gradient(context, tensors...);
    }
    {
        Ranges ranges = of_layer(context, tensors...);
        ranges.add(context.deferred());
        ranges.add(context.gradients());
        Touches const now(std::move(ranges));
        L::weight_gradient(context, tensors...);
    }
};
template <class L> struct DeclaredHalves<L, false> : DeclaredWhole<L> {
    using DeclaredWhole<L>::DeclaredWhole;
};

} // namespace detail

template <class L> struct Declared : detail::DeclaredHalves<L> {
    using detail::DeclaredHalves<L>::DeclaredHalves;
};

template <class Loss> struct DeclaredLoss : Loss {
    void operator()(auto& context, auto y, auto target, auto dy) const {
        Touches const now(of_loss(context, y, target, dy));
        Loss::operator()(context, y, target, dy);
    }
};

namespace body {

template <class Body>
void launch(gpipe::device::Cuda::Stream const& stream, std::size_t count, Body const& body) {
    static_cast<void>(cuda_double::launch(
        stream,
        [count, body] {
            for (std::size_t i = 0; i < count; ++i) body(i);
        },
        touched->reads, touched->writes, std::string(gpipe::type_name<Body>)));
}

} // namespace body
} // namespace toy
