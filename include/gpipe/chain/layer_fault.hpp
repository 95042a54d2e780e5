#pragma once

#include <gpipe/chain/item.hpp>
#include <gpipe/chain/layer_fits.hpp>

#include <cstddef>
#include <type_traits>

namespace gpipe {

template <class... Items> class Pipeline;

namespace detail {

// What is wrong with a layer: the first of these. Looked for only once layer_fits() says that
// something is.
enum class LayerFault {
    no_class,
    is_several,
    is_final,
    no_input,
    no_output,
    numbers,
    no_tensors,
    forward_missing,
    forward_not_const,
    forward_returns,
    forward_arguments,
    backward_missing,
    backward_not_const,
    backward_returns,
    backward_short,
    backward_refuses_none,
    backward_arguments,
    halves,
    defers_nothing,
    initialize_missing,
    initialize_not_const,
    initialize_arguments,
    initializes_nothing,
    merge,
    update_buffers,
    no_buffers,
    exchange,
    exchange_gradient,
    parameters_without_gradient,
    decay_entries,
    skips,
    ties,
    frozen,
    constants,
    sides,
};

template <class> inline constexpr bool is_several = false;
template <std::size_t n, class... Ls> inline constexpr bool is_several<Repeat<n, Ls...>> = true;
template <class... Items> inline constexpr bool is_several<Pipeline<Items...>> = true;
template <class L> inline constexpr bool is_several<Frozen<L>> = is_several<L>;

// Calls of a layer, const or not, whatever they return.
struct CallForward {
    template <class L, class C, class... As>
    auto operator()(L& layer, C& context, As... arguments) const
        -> decltype(layer.forward(context, static_cast<As&&>(arguments)...));
};
struct CallBackward {
    template <class L, class C, class... As>
    auto operator()(L& layer, C& context, As... arguments) const
        -> decltype(layer.backward(context, static_cast<As&&>(arguments)...));
};
struct CallInitialize {
    template <class L, class... As>
    auto operator()(L& layer, As&... arguments) const -> decltype(layer.initialize(arguments...));
};
template <class Call, class L, class... As>
concept Calls = requires(Call call, L layer, As... arguments) {
    call(layer, arguments...);
};

// Which of four faults a function has that cannot be called as it must be.
struct FunctionFaults {
    LayerFault missing, not_const, returns, arguments;
};
template <class Call, class L, class... As>
consteval LayerFault fault_of(bool named, FunctionFaults faults) {
    if (!named) return faults.missing;
    if (Calls<Call, L const, As...>) return faults.returns;
    if (Calls<Call, L, As...>) return faults.not_const;
    return faults.arguments;
}

template <class L, class... Read> consteval LayerFault backward_fault(List<Read...>) {
    using C = BackwardContextOf<L, AnyStream>;
    using DY = OutputGradientViews<L>;
    using DX = InputGradientViews<L>;
    if (has_backward<L, DX>()) return LayerFault::backward_refuses_none;
    LayerFault const fault = fault_of<CallBackward, L, C, Read..., DY, DX>(
        names_backward<L>, {LayerFault::backward_missing, LayerFault::backward_not_const,
                            LayerFault::backward_returns, LayerFault::backward_arguments});
    return fault == LayerFault::backward_arguments && Calls<CallBackward, L, C, Read..., DY>
               ? LayerFault::backward_short
               : fault;
}

template <class L> consteval LayerFault layer_fault() {
    if constexpr (!std::is_class_v<L> || !std::is_copy_constructible_v<L>)
        return LayerFault::no_class;
    else if constexpr (is_several<L>)
        return LayerFault::is_several;
    else if constexpr (std::is_final_v<L>)
        return LayerFault::is_final;
    else if constexpr (!NamesInput<L>)
        return LayerFault::no_input;
    else if constexpr (!NamesOutput<L>)
        return LayerFault::no_output;
    else if constexpr (!numbers_fit<L>())
        return LayerFault::numbers;
    else if constexpr (!groups_are_tensors<L>())
        return LayerFault::no_tensors;
    else if constexpr (!WritesOutput<L>)
        return fault_of<CallForward, L, ForwardContextOf<L, AnyStream>, InputViews<L>,
                        OutputViews<L>>(
            names_forward<L>, {LayerFault::forward_missing, LayerFault::forward_not_const,
                               LayerFault::forward_returns, LayerFault::forward_arguments});
    else if constexpr (!backward_fits<L>())
        return backward_fault<L>(views_read<L>{});
    else if constexpr (!halves_fit<L>())
        return splits_backward<L> ? LayerFault::halves : LayerFault::defers_nothing;
    else if constexpr (!initialize_fits<L>() && !initializes<L>)
        return LayerFault::initializes_nothing;
    else if constexpr (!initialize_fits<L>())
        return fault_of<CallInitialize, L, InitializeContextOf<L>>(
            names_initialize<L>,
            {LayerFault::initialize_missing, LayerFault::initialize_not_const,
             LayerFault::initialize_arguments, LayerFault::initialize_arguments});
    else if constexpr (!merge_fits<L>())
        return LayerFault::merge;
    else if constexpr (!update_buffers_fits<L>())
        return TensorGroup<typename BuffersOf<L>::type>::count > 0 ? LayerFault::update_buffers
                                                                   : LayerFault::no_buffers;
    else if constexpr (!exchange_fits<L>())
        return LayerFault::exchange;
    else if constexpr (!exchange_gradient_fits<L>())
        return LayerFault::exchange_gradient;
    else if constexpr (!parameters_learn<L>())
        return LayerFault::parameters_without_gradient;
    else if constexpr (!decay_fits<L>())
        return LayerFault::decay_entries;
    else if constexpr (!skips_of<L>::fit)
        return LayerFault::skips;
    else if constexpr (!ties_fit<L>())
        return LayerFault::ties;
    else if constexpr (!frozen_fits<L>())
        return LayerFault::frozen;
    else if constexpr (!constants_fit<L>())
        return LayerFault::constants;
    else
        return LayerFault::sides;
}
template <class L> consteval Reads reads_of() {
    if constexpr (std::is_class_v<L>)
        if constexpr (numbers_fit<L>()) return declared_reads<L>;
    return Reads::input;
}

} // namespace detail

} // namespace gpipe
