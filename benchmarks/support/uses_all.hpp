#pragma once

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

} // namespace detail

/// A layer that writes all the room it has declared before it does anything else, in both
/// directions: then bytes that nothing writes are bytes that were planned for nothing.
template <class Layer> struct UsesAll : Layer {
    void initialize(auto& context) const { Layer::initialize(context); }
    void forward(auto& context, auto x, auto y) const {
        detail::fill(context.scratch());
        detail::fill(context.saved());
        Layer::forward(context, x, y);
    }
    void backward(auto& context, auto... tensors) const {
        detail::fill(context.scratch());
        Layer::backward(context, tensors...);
    }
};

} // namespace benchmark
