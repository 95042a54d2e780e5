#pragma once

#include <gpipe/layer/context.hpp>

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace gpipe {

/// A stand-in for a device's stream, for checks that no device is known for.
struct AnyStream {};

namespace detail {

template <class L>
using InputViews = decltype(batch_views<typename L::Input, Access::read>(GroupAddress{}, 1, 1));
template <class L>
using OutputViews = decltype(batch_views<typename L::Output, Access::write>(GroupAddress{}, 1, 1));
template <class L>
using OutputReadViews =
    decltype(batch_views<typename L::Output, Access::read>(GroupAddress{}, 1, 1));
template <class L>
using InputGradientViews =
    decltype(gradient_views<typename L::Input, Access::write>(nullptr, 1, 1));
template <class L>
using OutputGradientViews =
    decltype(gradient_views<typename L::Output, Access::read>(nullptr, 1, 1));

// Calls backward with exactly what the layer reads.
template <class L, class Context, class X, class Y, class DY, class DX>
constexpr void call_backward(L const& layer, Context& context, X x, Y y, DY dy,
                             DX dx) requires(LayerTraits<L>::backward_reads == Reads::neither) {
    static_cast<void>(x), static_cast<void>(y);
    layer.backward(context, dy, dx);
}
template <class L, class Context, class X, class Y, class DY, class DX>
constexpr void call_backward(L const& layer, Context& context, X x, Y y, DY dy,
                             DX dx) requires(LayerTraits<L>::backward_reads == Reads::input) {
    static_cast<void>(y);
    layer.backward(context, x, dy, dx);
}
template <class L, class Context, class X, class Y, class DY, class DX>
constexpr void call_backward(L const& layer, Context& context, X x, Y y, DY dy,
                             DX dx) requires(LayerTraits<L>::backward_reads == Reads::output) {
    static_cast<void>(x);
    layer.backward(context, y, dy, dx);
}
template <class L, class Context, class X, class Y, class DY, class DX>
constexpr void call_backward(L const& layer, Context& context, X x, Y y, DY dy,
                             DX dx) requires(LayerTraits<L>::backward_reads == Reads::both) {
    layer.backward(context, x, y, dy, dx);
}

template <class L>
concept WritesOutput = requires(L const layer, ForwardContext<L, AnyStream> context) {
    {
        layer.forward(context, std::declval<InputViews<L>>(), std::declval<OutputViews<L>>())
        } -> std::same_as<void>;
};

// Each form of backward, for a given view of the input gradient (None where none is wanted).
template <class L, class DX> consteval bool has_backward() {
    using C = BackwardContext<L, AnyStream>;
    using X = InputViews<L>;
    using Y = OutputReadViews<L>;
    using DY = OutputGradientViews<L>;
    if constexpr (LayerTraits<L>::backward_reads == Reads::neither)
        return requires(L const l, C c, DY dy, DX dx) {
            { l.backward(c, dy, dx) } -> std::same_as<void>;
        };
    else if constexpr (LayerTraits<L>::backward_reads == Reads::input)
        return requires(L const l, C c, X x, DY dy, DX dx) {
            { l.backward(c, x, dy, dx) } -> std::same_as<void>;
        };
    else if constexpr (LayerTraits<L>::backward_reads == Reads::output)
        return requires(L const l, C c, Y y, DY dy, DX dx) {
            { l.backward(c, y, dy, dx) } -> std::same_as<void>;
        };
    else
        return requires(L const l, C c, X x, Y y, DY dy, DX dx) {
            { l.backward(c, x, y, dy, dx) } -> std::same_as<void>;
        };
}

template <class L>
inline constexpr bool has_boundaries = std::is_class_v<L>&& NamesInput<L>&& NamesOutput<L>;

// Each is true where an earlier check already says what is missing.
template <class L> consteval bool forward_fits() {
    if constexpr (has_boundaries<L>)
        return WritesOutput<L>;
    else
        return true;
}
template <class L> consteval bool backward_fits() {
    if constexpr (has_boundaries<L>) {
        if constexpr (TensorGroup<typename L::Output>::carries_gradient)
            return has_backward<L, InputGradientViews<L>>();
        else
            return true; // never called
    } else {
        return true;
    }
}
template <class L> consteval bool initialize_fits() {
    if constexpr (has_boundaries<L>) {
        if constexpr (TensorGroup<typename LayerTraits<L>::Parameters>::count > 0)
            return requires(L const l, InitializeContext<L> c) {
                { l.initialize(c) } -> std::same_as<void>;
            };
        else
            return true;
    } else {
        return true;
    }
}
template <class L> consteval bool parameters_learn() {
    if constexpr (has_boundaries<L>) {
        using Group = TensorGroup<typename LayerTraits<L>::Parameters>;
        for (std::size_t t = 0; t < Group::count; ++t)
            if (Group::gradient_bytes[t] == 0) return false;
    }
    return true;
}
template <class L> consteval bool layer_fits() {
    if constexpr (has_boundaries<L> && std::is_copy_constructible_v<L>)
        return forward_fits<L>() && backward_fits<L>() && initialize_fits<L>() &&
               parameters_learn<L>();
    else
        return false;
}

} // namespace detail

/// Whether backward of L takes `gpipe::none` for the gradient of its input.
template <class L>
inline constexpr bool accepts_no_input_gradient = detail::has_backward<L, None>();

/// What a type must offer to be layer `Index` of a chain; a struct so that the compiler's first
/// line names the index and the type.
template <std::size_t Index, class L> struct CheckLayer {
    static_assert(std::is_class_v<L> && std::is_copy_constructible_v<L>,
                  "gpipe: a layer must be a copyable class");
    static_assert(detail::NamesInput<L>,
                  "gpipe: a layer must name its input: using Input = gpipe::Tensor<...> or "
                  "gpipe::Tensors<...>, the shape of one sample");
    static_assert(detail::NamesOutput<L>,
                  "gpipe: a layer must name its output: using Output = gpipe::Tensor<...> or "
                  "gpipe::Tensors<...>, the shape of one sample");

    static_assert(detail::forward_fits<L>(),
                  "gpipe: a layer needs: void forward(auto& context, auto x, auto y) const; x is a "
                  "view of const elements");
    static_assert(detail::backward_fits<L>(),
                  "gpipe: a layer needs: void backward(auto& context, auto x, auto dy, auto dx) "
                  "const; instead of x it takes what backward_reads names");
    static_assert(detail::initialize_fits<L>(),
                  "gpipe: a layer with Parameters needs: void initialize(auto& context) const");
    static_assert(detail::parameters_learn<L>(),
                  "gpipe: Parameters must be tensors of elements that carry a gradient");
    static constexpr bool ok = true;
};

/// That layer `Index` declares a cost like the others: all layers of a chain do, or none.
template <std::size_t Index, class L> struct CheckCost {
    static constexpr bool ok = LayerTraits<L>::has_cost;
    static_assert(ok, "gpipe: some layers of the chain declare a cost, layer Index (L) does not: "
                      "declare it on all or on none");
};

/// That what layer `Index` gives is what the next layer takes.
template <std::size_t Index, class Left, class Right> struct CheckNeighbours {
    static constexpr bool ok = [] {
        if constexpr (detail::NamesOutput<Left> && detail::NamesInput<Right>)
            return std::is_same_v<detail::as_tensors<typename Left::Output>,
                                  detail::as_tensors<typename Right::Input>>;
        else
            return true; // CheckLayer says what is missing
    }();
    static_assert(ok,
                  "gpipe: the output of layer Index (Left) is not the input of the next (Right)");
};

} // namespace gpipe
