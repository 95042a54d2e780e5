#pragma once

#include <gpipe/layer/context.hpp>

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace gpipe {

/// A stand-in for a device's stream, for checks that no device is known for.
struct AnyStream {};

namespace detail {

template <class L> using InputViews = BatchViews<typename L::Input, Access::read>;
template <class L> using OutputViews = BatchViews<typename L::Output, Access::write>;
template <class L> using OutputReadViews = BatchViews<typename L::Output, Access::read>;
template <class L> using InputGradientViews = GradientViews<typename L::Input, Access::write>;
template <class L> using OutputGradientViews = GradientViews<typename L::Output, Access::read>;

template <class L>
concept WritesOutput = requires(L const layer, ForwardContextOf<L, AnyStream> context) {
    {
        layer.forward(context, std::declval<InputViews<L>>(), std::declval<OutputViews<L>>())
        } -> std::same_as<void>;
};

// Each form of backward, for a given view of the input gradient (None where none is wanted).
template <class L, class DX> consteval bool has_backward() {
    using C = BackwardContextOf<L, AnyStream>;
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

// The halves of a backward as objects, to be called with what Reads says and `tail`.
struct CallInputGradient {
    template <class L, class C, class... As>
    auto operator()(L const& layer, C& context, As... arguments) const
        -> decltype(layer.input_gradient(context, arguments...)) {
        return layer.input_gradient(context, arguments...);
    }
};
struct CallWeightGradient {
    template <class L, class C, class... As>
    auto operator()(L const& layer, C& context, As... arguments) const
        -> decltype(layer.weight_gradient(context, arguments...)) {
        return layer.weight_gradient(context, arguments...);
    }
};
template <class Call, class L, class C, class... As>
concept CallsHalf = requires(L const layer, C context, As... arguments) {
    { Call{}(layer, context, arguments...) } -> std::same_as<void>;
};
template <class Call, class L, class C, class... Tail> consteval bool has_half() {
    using X = InputViews<L>;
    using Y = OutputReadViews<L>;
    if constexpr (LayerTraits<L>::backward_reads == Reads::neither)
        return CallsHalf<Call, L, C, Tail...>;
    else if constexpr (LayerTraits<L>::backward_reads == Reads::input)
        return CallsHalf<Call, L, C, X, Tail...>;
    else if constexpr (LayerTraits<L>::backward_reads == Reads::output)
        return CallsHalf<Call, L, C, Y, Tail...>;
    else
        return CallsHalf<Call, L, C, X, Y, Tail...>;
}
template <class L, class DX> consteval bool has_input_gradient() {
    return has_half<CallInputGradient, L, InputGradientContextOf<L, AnyStream>,
                    OutputGradientViews<L>, DX>();
}
template <class L> consteval bool has_weight_gradient() {
    return has_half<CallWeightGradient, L, WeightGradientContextOf<L, AnyStream>,
                    OutputGradientViews<L>>();
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
template <class L> consteval Reads reads_of() {
    if constexpr (has_boundaries<L>)
        return LayerTraits<L>::backward_reads;
    else
        return Reads::input;
}
template <class L> consteval bool backward_fits() {
    if constexpr (has_boundaries<L>) {
        if constexpr (splits_backward<L> && !names_backward<L>)
            return true; // its halves will do
        else if constexpr (TensorGroup<typename L::Output>::carries_gradient)
            return has_backward<L, InputGradientViews<L>>() &&
                   (!accepts_none<L> || has_backward<L, None>());
        else
            return true; // never called
    } else {
        return true;
    }
}
template <class L> consteval bool halves_fit() {
    if constexpr (has_boundaries<L>) {
        if constexpr (splits_backward<L>)
            return has_input_gradient<L, InputGradientViews<L>>() &&
                   (!accepts_none<L> || has_input_gradient<L, None>()) && has_weight_gradient<L>();
        else
            return TensorGroup<typename DeferredOf<L>::type>::count == 0;
    } else {
        return true;
    }
}
template <class L> consteval bool initialize_fits() {
    if constexpr (has_boundaries<L>) {
        if constexpr (TensorGroup<typename LayerTraits<L>::Parameters>::count > 0)
            return requires(L const l, InitializeContextOf<L> c) {
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
        // A range: nvcc warns of a comparison with a count that is zero.
        for (std::size_t bytes : TensorGroup<typename LayerTraits<L>::Parameters>::gradient_bytes)
            if (bytes == 0) return false;
    }
    return true;
}
template <class L> consteval bool cheapness_fits() {
    if constexpr (requires { L::recompute_is_cheap; })
        return std::is_same_v<decltype(L::recompute_is_cheap), bool const>;
    else
        return true;
}
template <class L> consteval bool layer_fits() {
    if constexpr (has_boundaries<L> && std::is_copy_constructible_v<L> && !std::is_final_v<L>)
        return forward_fits<L>() && backward_fits<L>() && halves_fit<L>() && initialize_fits<L>() &&
               parameters_learn<L>() && cheapness_fits<L>();
    else
        return false;
}

} // namespace detail

/// What a type must offer to be layer `Index` of a chain; a struct so that the compiler's first
/// line names the index and the type.
template <std::size_t Index, class L> struct CheckLayer {
    static constexpr Reads reads = detail::reads_of<L>();
    static_assert(std::is_class_v<L> && std::is_copy_constructible_v<L>,
                  "gpipe: a layer must be a copyable class");
    static_assert(!std::is_final_v<L>,
                  "gpipe: a layer must not be final: which functions it has is seen by deriving "
                  "from it");
    static_assert(detail::NamesInput<L>,
                  "gpipe: a layer must name its input: using Input = gpipe::Tensor<...> or "
                  "gpipe::Tensors<...>, the shape of one sample");
    static_assert(detail::NamesOutput<L>,
                  "gpipe: a layer must name its output: using Output = gpipe::Tensor<...> or "
                  "gpipe::Tensors<...>, the shape of one sample");

    static_assert(detail::forward_fits<L>(),
                  "gpipe: a layer needs: void forward(auto& context, auto x, auto y) const; x is a "
                  "view of const elements");
    static_assert(reads != Reads::input || detail::backward_fits<L>(),
                  "gpipe: a layer needs: void backward(auto& context, auto x, auto dy, auto dx) "
                  "const; backward_reads says what it takes besides dy and dx (default: x)");
    static_assert(reads != Reads::neither || detail::backward_fits<L>(),
                  "gpipe: a layer needs: void backward(auto& context, auto dy, auto dx) const; its "
                  "backward_reads is gpipe::Reads::neither");
    static_assert(reads != Reads::output || detail::backward_fits<L>(),
                  "gpipe: a layer needs: void backward(auto& context, auto y, auto dy, auto dx) "
                  "const; its backward_reads is gpipe::Reads::output");
    static_assert(reads != Reads::both || detail::backward_fits<L>(),
                  "gpipe: a layer needs: void backward(auto& context, auto x, auto y, auto dy, "
                  "auto dx) const; its backward_reads is gpipe::Reads::both");
    static_assert(!splits_backward<L> || detail::halves_fit<L>(),
                  "gpipe: the halves of a layer's backward are both: void input_gradient(auto& "
                  "context, ..., auto dy, auto dx) const and void weight_gradient(auto& context, "
                  "..., auto dy) const; ... is what backward_reads says (default: auto x)");
    static_assert(splits_backward<L> || detail::halves_fit<L>(),
                  "gpipe: Deferred is what a layer's input_gradient leaves for its "
                  "weight_gradient, and this layer has neither");
    static_assert(detail::initialize_fits<L>(),
                  "gpipe: a layer with Parameters needs: void initialize(auto& context) const");
    static_assert(detail::parameters_learn<L>(),
                  "gpipe: Parameters must be tensors of elements that carry a gradient");
    static_assert(detail::cheapness_fits<L>(),
                  "gpipe: recompute_is_cheap says of a layer whether it is: static constexpr bool "
                  "recompute_is_cheap = true");
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

/// That a gradient reaches layer `Index`, which has parameters: layer `Barrier` above it gives a
/// tensor that carries none (of integers), so the parameters would stay as they were initialized.
template <std::size_t Index, class L, std::size_t Barrier, class BarrierLayer>
struct CheckTrainable {
    static constexpr bool ok = Index > Barrier;
    static_assert(ok, "gpipe: layer Index (L) has Parameters, but no gradient reaches it: the "
                      "output of layer Barrier (BarrierLayer) carries none");
};

namespace detail {

// Turns the first layer of a Pipeline that could not learn into its sentence.
template <class Net> consteval bool check_trainable() {
    struct Verdict {
        std::size_t layer = Net::size;
        std::size_t barrier = 0;
    };
    constexpr Verdict verdict = [] {
        Verdict found;
        std::size_t first = Net::size;
        auto const look = [&](std::size_t layer, std::size_t leaf) {
            auto const& info = Net::leaf_info[leaf];
            if (info.parameters.count > 0 && first == Net::size) first = layer;
            if (info.output_carries_gradient || first == Net::size || found.layer < Net::size)
                return;
            found = {first, layer};
        };
        Net::for_first_layers(look, 2); // a barrier may lie below the learner in its own Repeat
        return found;
    }();
    if constexpr (verdict.layer < Net::size)
        return CheckTrainable<verdict.layer, typename Net::template Layer<verdict.layer>,
                              verdict.barrier, typename Net::template Layer<verdict.barrier>>::ok;
    else
        return true;
}

} // namespace detail
} // namespace gpipe
