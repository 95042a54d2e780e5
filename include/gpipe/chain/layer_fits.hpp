#pragma once

#include <gpipe/layer/context.hpp>
#include <gpipe/layer/tie.hpp>

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace gpipe {

/// A stand-in for a device's stream, for checks that no device is known for.
struct AnyStream {};

namespace detail {

template <class L> using InputViews = BatchViews<typename L::Input, Access::read>;
template <class L> using OutputViews = BatchViews<typename L::Output, Access::write>;
template <class L> using OutputReadViews = BatchViews<typename L::Output, Access::read>;
template <class L> using InputGradientViews = GradientViews<typename L::Input, Access::write>;
template <class L> using OutputGradientViews = GradientViews<typename L::Output, Access::read>;

// Whether what a layer says by numbers are constants of their type: without `static` they would say
// something else, or nothing.
#define GPIPE_FITS(member, ...)                                                                    \
    if constexpr (requires { L::member; })                                                         \
        if constexpr (!requires { typename __VA_ARGS__; }) return false;
template <class L> consteval bool numbers_fit() {
    GPIPE_FITS(frozen, std::bool_constant<L::frozen>)
    GPIPE_FITS(accepts_none, std::bool_constant<L::accepts_none>)
    GPIPE_FITS(only_evaluates, std::bool_constant<L::only_evaluates>)
    GPIPE_FITS(wants_gradient, std::bool_constant<L::wants_gradient>)
    GPIPE_FITS(recompute_is_cheap, std::bool_constant<L::recompute_is_cheap>)
    GPIPE_FITS(backward_reads_pops, std::bool_constant<L::backward_reads_pops>)
    GPIPE_FITS(backward_reads, std::enable_if_t<(L::backward_reads <= Reads::both)>)
    GPIPE_FITS(cost, std::enable_if_t<(L::cost >= 0)>)
    // Not its values: clang 14 does not know those of an array in a class template.
    GPIPE_FITS(decay,
               std::enable_if_t<std::is_const_v<std::remove_reference_t<decltype(L::decay[0])>>>)
    return true;
}
#undef GPIPE_FITS

template <class L>
concept WritesOutput = requires(L const layer, ForwardContextOf<L, AnyStream> context) {
    {
        layer.forward(context, std::declval<InputViews<L>>(), std::declval<OutputViews<L>>())
        } -> std::same_as<void>;
};

// The views of what a backward says that it reads.
template <class L, Reads = declared_reads<L>> struct ViewsRead {
    using type = List<InputViews<L>, OutputReadViews<L>>;
};
template <class L> struct ViewsRead<L, Reads::neither> { using type = List<>; };
template <class L> struct ViewsRead<L, Reads::input> { using type = List<InputViews<L>>; };
template <class L> struct ViewsRead<L, Reads::output> { using type = List<OutputReadViews<L>>; };
template <class L> using views_read = typename ViewsRead<L>::type;

// Its backward, for a given view of the input gradient (None where none is wanted).
template <class L, class DX, class... Read> consteval bool has_backward(List<Read...>) {
    return requires(L const layer, BackwardContextOf<L, AnyStream> context,
                    OutputGradientViews<L> const dy, DX const dx) {
        { layer.backward(context, std::declval<Read>()..., dy, dx) } -> std::same_as<void>;
    };
}
template <class L, class DX> consteval bool has_backward() {
    return has_backward<L, DX>(views_read<L>{});
}

// The halves of a backward as objects, to be called with what Reads says and more.
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
struct CallExchangeGradient {
    template <class L, class C, class... As>
    auto operator()(L const& layer, C& context, As... arguments) const
        -> decltype(layer.exchange_gradient(context, arguments...)) {
        return layer.exchange_gradient(context, arguments...);
    }
};
template <class Call, class L, class C, class... As>
concept CallsHalf = requires(L const layer, C context, As... arguments) {
    { Call{}(layer, context, arguments...) } -> std::same_as<void>;
};
template <class Call, class L, class C, class Read, class... More>
inline constexpr bool has_half = false;
template <class Call, class L, class C, class... Read, class... More>
inline constexpr bool has_half<Call, L, C, List<Read...>, More...> =
    CallsHalf<Call, L, C, Read..., OutputGradientViews<L>, More...>;
template <class L, class DX>
inline constexpr bool has_input_gradient =
    has_half<CallInputGradient, L, InputGradientContextOf<L, AnyStream>, views_read<L>, DX>;
template <class L>
inline constexpr bool has_weight_gradient =
    has_half<CallWeightGradient, L, WeightGradientContextOf<L, AnyStream>, views_read<L>>;

template <class L>
inline constexpr bool has_boundaries = std::is_class_v<L>&& NamesInput<L>&& NamesOutput<L>;

// A function is not asked about what it is never called with: where its type is deduced, the answer
// is an error in its body.
template <class L> consteval bool backward_fits() {
    if constexpr (only_evaluates<L> || (splits_backward<L> && !names_backward<L>))
        return true; // it has none, or its halves will do
    else if constexpr (!TensorGroup<typename L::Output>::carries_gradient)
        return true; // never called
    else if constexpr (accepts_none<L>)
        return has_backward<L, InputGradientViews<L>>() && has_backward<L, None>();
    else
        return has_backward<L, InputGradientViews<L>>();
}
template <class L> consteval bool halves_fit() {
    if constexpr (splits_backward<L> && accepts_none<L>)
        return has_input_gradient<L, InputGradientViews<L>> && has_input_gradient<L, None> &&
               has_weight_gradient<L>;
    else if constexpr (splits_backward<L>)
        return has_input_gradient<L, InputGradientViews<L>> && has_weight_gradient<L>;
    else
        return TensorGroup<typename DeferredOf<L>::type>::count == 0;
}
// Whether there is anything to initialize.
template <class L>
inline constexpr bool initializes = TensorGroup<typename LayerTraits<L>::Parameters>::count > 0 ||
                                    TensorGroup<typename BuffersOf<L>::type>::count > 0;
template <class L> consteval bool initialize_fits() {
    if constexpr (initializes<L>) return requires(L const l, InitializeContextOf<L> c) {
            { l.initialize(c) } -> std::same_as<void>;
        };
    else // a misspelt Parameters would go unnoticed
        return !names_initialize<L> || requires { typename L::Parameters; }
    || requires { typename L::Buffers; }
    || requires { typename L::Statistics; };
}
template <class L> consteval bool merge_fits() {
    if constexpr (gathers<L>)
        return requires(L const l, BufferContext<AnyStream> const c,
                        WholeViews<typename L::Statistics, Access::write> sum,
                        WholeViews<typename L::Statistics, Access::read> part) {
            { l.merge_statistics(c, sum, part) } -> std::same_as<void>;
        };
    else
        return true;
}
template <class L> consteval bool update_buffers_fits() {
    if constexpr (TensorGroup<typename BuffersOf<L>::type>::count > 0)
        return requires(L const l, BufferContext<AnyStream> const c,
                        WholeViews<typename StatisticsOf<L>::type, Access::read> statistics,
                        WholeViews<typename L::Buffers, Access::write> buffers) {
            { l.update_buffers(c, statistics, buffers) } -> std::same_as<void>;
        };
    else
        return !gathers<L>;
}
template <class L> consteval bool exchange_fits() {
    if constexpr (exchanges<L>)
        return requires(L const l, ExchangeContextOf<L, AnyStream> c, InputViews<L> x,
                        WholeViews<typename L::Exchanged, Access::write> part) {
            { l.exchange(c, x, part) } -> std::same_as<void>;
        };
    else
        return true;
}
template <class L> consteval bool exchange_gradient_fits() {
    if constexpr (exchanges_gradient<L>)
        return has_half<CallExchangeGradient, L, BackwardContextOf<L, AnyStream>, views_read<L>,
                        WholeViews<typename L::ExchangedGradient, Access::write>>;
    else
        return true;
}
template <class L> consteval bool parameters_learn() {
    // A range: nvcc warns of a comparison with a count that is zero.
    for (std::size_t bytes : TensorGroup<typename LayerTraits<L>::Parameters>::gradient_bytes)
        if (bytes == 0) return false;
    return true;
}
// A share of decay for each parameter tensor, and no more: whether an entry is there, for clang 14
// does not know the bound of an array in a class template.
template <class L> consteval bool decay_fits() {
    constexpr std::size_t count = TensorGroup<typename LayerTraits<L>::Parameters>::count;
    if constexpr (LayerTraits<L>::has_decay && count > 0) {
        [[maybe_unused]] constexpr auto& named = L::decay; // else nvcc may find no values
        return requires { typename std::bool_constant<(LayerTraits<L>::decay(count - 1), true)>; }
        &&!requires { typename std::bool_constant<(LayerTraits<L>::decay(count), true)>; };
    } else
        return true;
}
template <class L> consteval bool ties_fit() {
    if constexpr (ties_parameters<L>)
        return ties_of<L>::fit();
    else
        return true;
}
template <std::size_t... tensors>
consteval bool are_below(std::index_sequence<tensors...>, std::size_t end) {
    return ((tensors < end && tensors < 64) && ...);
}
template <class L> consteval bool frozen_fits() {
    constexpr std::size_t count = TensorGroup<typename LayerTraits<L>::Parameters>::count;
    if constexpr (requires { L::FrozenTensors; }) // numbers, where a type says them
        return false;
    else if constexpr (!requires { typename L::FrozenTensors; })
        return true;
    else if constexpr (requires { are_below(typename L::FrozenTensors{}, count); })
        return are_below(typename L::FrozenTensors{}, count);
    else
        return false;
}
// One question in place of six: for nearly all layers the answer is that they have none.
template <class L> consteval bool rare_members_fit() {
    if constexpr (
        has_other_tensors<L> || is_given_more<L> || requires { typename L::FrozenTensors; } ||
        requires { L::FrozenTensors; })
        return merge_fits<L>() && update_buffers_fits<L>() && exchange_fits<L>() &&
               exchange_gradient_fits<L>() && given_fits<L>() && frozen_fits<L>();
    else
        return true;
}
// Whether what it keeps, by whatever name, is tensors.
template <class L> consteval bool groups_are_tensors() {
    return is_tensors<typename ParametersOf<L>::type> && is_tensors<typename SavedOf<L>::type> &&
           is_tensors<typename DeferredOf<L>::type> && is_tensors<typename ScratchOf<L>::type> &&
           is_tensors<typename BuffersOf<L>::type> && is_tensors<typename StatisticsOf<L>::type> &&
           is_tensors<typename ExchangedOf<L>::type> &&
           is_tensors<typename ExchangedGradientOf<L>::type>;
}

template <class L> consteval bool layer_fits() {
    if constexpr (!has_boundaries<L> || !std::is_copy_constructible_v<L> || std::is_final_v<L>)
        return false;
    else if constexpr (!numbers_fit<L>() || !groups_are_tensors<L>())
        return false;
    else
        return WritesOutput<L> && backward_fits<L>() && halves_fit<L>() && initialize_fits<L>() &&
               parameters_learn<L>() && decay_fits<L>() && skips_of<L>::fit && ties_fit<L>() &&
               rare_members_fit<L>();
}

} // namespace detail

} // namespace gpipe
