#pragma once

#include <gpipe/layer/traits.hpp>
#include <gpipe/layer/view.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace benchmark {

namespace detail {

inline void fill(gpipe::None) {}
template <class T, std::size_t... Extents> void fill(gpipe::BatchView<T, Extents...> view) {
    std::fill(view.begin(), view.end(), T{1});
}
template <class... Ts> void fill(gpipe::Views<Ts...> const& views) {
    [&]<std::size_t... Is>(std::index_sequence<Is...>) { (fill(gpipe::get<Is>(views)), ...); }
    (std::index_sequence_for<Ts...>{});
}

template <class Layer> struct UsesAllInHalves : Layer {
    void initialize(auto& context) const { Layer::initialize(context); }
    void forward(auto& context, auto x, auto y) const {
        fill(context.scratch());
        fill(context.saved());
        Layer::forward(context, x, y);
    }
    void input_gradient(auto& context, auto... tensors) const {
        fill(context.scratch());
        fill(context.deferred());
        Layer::input_gradient(context, tensors...);
    }
    void weight_gradient(auto& context, auto... tensors) const {
        fill(context.scratch());
        Layer::weight_gradient(context, tensors...);
    }
};

} // namespace detail

/// A layer whose backward comes in halves, and whole if it likes, that writes all the room it has
/// declared before it does anything else: then bytes that nothing writes are bytes that were
/// planned for nothing.
template <class Layer> struct UsesAll : detail::UsesAllInHalves<Layer> {};
template <class Layer>
    requires(gpipe::detail::names_backward<Layer>)
struct UsesAll<Layer> : detail::UsesAllInHalves<Layer> {
    void backward(auto& context, auto... tensors) const {
        detail::fill(context.scratch());
        Layer::backward(context, tensors...);
    }
};

} // namespace benchmark
