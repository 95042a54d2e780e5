#pragma once

#include <gpipe/chain/layer_fits.hpp>

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace gpipe {

namespace detail {

// What is wrong with a layer: the first of these. Looked for only once layer_fits() says that
// something is.
enum class LayerFault {
    no_class,
    is_final,
    no_input,
    no_output,
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
    merge,
    update_buffers,
    no_buffers,
    exchange,
    exchange_gradient,
    parameters_without_gradient,
    decay_short,
    cheapness,
    skips,
    ties,
    frozen,
    constants,
    sides,
};

// Calls of a layer, const or not, whatever they return.
struct CallForward {
    template <class L, class... As>
    auto operator()(L& layer, As&... arguments) const -> decltype(layer.forward(arguments...));
};
struct CallBackward {
    template <class L, class... As>
    auto operator()(L& layer, As&... arguments) const -> decltype(layer.backward(arguments...));
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

// The faults of a backward, which takes these and then dx.
template <class L, class... As> consteval LayerFault fault_of_backward() {
    using C = BackwardContextOf<L, AnyStream>;
    using DX = InputGradientViews<L>;
    if (has_backward<L, DX>()) return LayerFault::backward_refuses_none;
    LayerFault const fault = fault_of<CallBackward, L, C, As..., DX>(
        names_backward<L>, {LayerFault::backward_missing, LayerFault::backward_not_const,
                            LayerFault::backward_returns, LayerFault::backward_arguments});
    return fault == LayerFault::backward_arguments && Calls<CallBackward, L, C, As...>
               ? LayerFault::backward_short
               : fault;
}
template <class L> consteval LayerFault backward_fault() {
    using X = InputViews<L>;
    using Y = OutputReadViews<L>;
    using DY = OutputGradientViews<L>;
    if constexpr (declared_reads<L> == Reads::neither)
        return fault_of_backward<L, DY>();
    else if constexpr (declared_reads<L> == Reads::input)
        return fault_of_backward<L, X, DY>();
    else if constexpr (declared_reads<L> == Reads::output)
        return fault_of_backward<L, Y, DY>();
    else
        return fault_of_backward<L, X, Y, DY>();
}

template <class L> consteval LayerFault layer_fault() {
    if constexpr (!std::is_class_v<L> || !std::is_copy_constructible_v<L>)
        return LayerFault::no_class;
    else if constexpr (std::is_final_v<L>)
        return LayerFault::is_final;
    else if constexpr (!NamesInput<L>)
        return LayerFault::no_input;
    else if constexpr (!NamesOutput<L>)
        return LayerFault::no_output;
    else if constexpr (!WritesOutput<L>)
        return fault_of<CallForward, L, ForwardContextOf<L, AnyStream>, InputViews<L>,
                        OutputViews<L>>(
            names_forward<L>, {LayerFault::forward_missing, LayerFault::forward_not_const,
                               LayerFault::forward_returns, LayerFault::forward_arguments});
    else if constexpr (!backward_fits<L>())
        return backward_fault<L>();
    else if constexpr (!halves_fit<L>())
        return splits_backward<L> ? LayerFault::halves : LayerFault::defers_nothing;
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
        return LayerFault::decay_short;
    else if constexpr (!cheapness_fits<L>())
        return LayerFault::cheapness;
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
    if constexpr (std::is_class_v<L>) return declared_reads<L>;
    return Reads::input;
}

} // namespace detail

/// The sentence about layer `Index`, which lacks what a layer must offer. A function, not a class,
/// says it: clang leaves out what stands behind a failed assertion in a class, and goes on to
/// complain of that.
template <std::size_t Index, class L> struct CheckLayer {
    static consteval bool ok() {
        using detail::LayerFault;
        constexpr LayerFault fault = detail::layer_fault<L>();
        constexpr Reads reads = detail::reads_of<L>();
        constexpr bool takes = fault != LayerFault::backward_arguments;

        static_assert(fault != LayerFault::no_class,
                      "gpipe: layer Index (L) is no copyable class, as a layer must be");
        static_assert(fault != LayerFault::is_final,
                      "gpipe: layer Index (L) must not be final: which functions it has is seen by "
                      "deriving from it");
        static_assert(fault != LayerFault::no_input,
                      "gpipe: layer Index (L) must name its input: using Input = "
                      "gpipe::Tensor<...> or gpipe::Tensors<...>, the shape of one sample");
        static_assert(fault != LayerFault::no_output,
                      "gpipe: layer Index (L) must name its output: using Output = "
                      "gpipe::Tensor<...> or gpipe::Tensors<...>, the shape of one sample");

        static_assert(fault != LayerFault::forward_missing,
                      "gpipe: layer Index (L) has no forward: void forward(auto& context, auto x, "
                      "auto y) const");
        static_assert(fault != LayerFault::forward_not_const,
                      "gpipe: the forward of layer Index (L) is not const: void forward(auto& "
                      "context, auto x, auto y) const");
        static_assert(fault != LayerFault::forward_returns,
                      "gpipe: the forward of layer Index (L) returns something: it writes y and "
                      "returns void");
        static_assert(fault != LayerFault::forward_arguments,
                      "gpipe: the forward of layer Index (L) takes other arguments, or is private: "
                      "void forward(auto& context, auto x, auto y) const; x is a view of const "
                      "elements");

        static_assert(fault != LayerFault::backward_missing,
                      "gpipe: layer Index (L) has no backward: void backward(auto& context, auto "
                      "x, auto dy, auto dx) const, or its halves input_gradient and "
                      "weight_gradient");
        static_assert(fault != LayerFault::backward_not_const,
                      "gpipe: the backward of layer Index (L) is not const: void backward(auto& "
                      "context, ..., auto dy, auto dx) const");
        static_assert(fault != LayerFault::backward_returns,
                      "gpipe: the backward of layer Index (L) returns something: it writes dx and "
                      "returns void");
        static_assert(fault != LayerFault::backward_short,
                      "gpipe: the backward of layer Index (L) takes one argument less: dx is "
                      "missing, or what backward_reads says that it reads (default: x): void "
                      "backward(auto& context, ..., auto dy, auto dx) const");
        static_assert(fault != LayerFault::backward_refuses_none,
                      "gpipe: layer Index (L) declares accepts_none, but its backward does not "
                      "take gpipe::none for dx");
        static_assert(takes || reads != Reads::input,
                      "gpipe: the backward of layer Index (L) takes other arguments, or is "
                      "private: void backward(auto& context, auto x, auto dy, auto dx) const; "
                      "backward_reads says what it takes besides dy and dx (default: x)");
        static_assert(takes || reads != Reads::neither,
                      "gpipe: the backward of layer Index (L) takes other arguments, or is "
                      "private: void backward(auto& context, auto dy, auto dx) const; its "
                      "backward_reads is gpipe::Reads::neither");
        static_assert(takes || reads != Reads::output,
                      "gpipe: the backward of layer Index (L) takes other arguments, or is "
                      "private: void backward(auto& context, auto y, auto dy, auto dx) const; its "
                      "backward_reads is gpipe::Reads::output");
        static_assert(takes || reads != Reads::both,
                      "gpipe: the backward of layer Index (L) takes other arguments, or is "
                      "private: void backward(auto& context, auto x, auto y, auto dy, auto dx) "
                      "const; its backward_reads is gpipe::Reads::both");
        static_assert(fault != LayerFault::halves,
                      "gpipe: the backward of layer Index (L) has two halves: void "
                      "input_gradient(auto& context, ..., auto dy, auto dx) const and void "
                      "weight_gradient(auto& context, ..., auto dy) const; ... is what "
                      "backward_reads says (default: auto x)");
        static_assert(fault != LayerFault::defers_nothing,
                      "gpipe: Deferred is what a layer's input_gradient leaves for its "
                      "weight_gradient, and layer Index (L) has neither");

        static_assert(fault != LayerFault::initialize_missing,
                      "gpipe: layer Index (L) has Parameters or Buffers, but no initialize: void "
                      "initialize(auto& context) const");
        static_assert(fault != LayerFault::initialize_not_const,
                      "gpipe: the initialize of layer Index (L) is not const: void "
                      "initialize(auto& context) const");
        static_assert(fault != LayerFault::initialize_arguments,
                      "gpipe: the initialize of layer Index (L) takes other arguments, returns "
                      "something or is private: void initialize(auto& context) const");
        static_assert(fault != LayerFault::merge,
                      "gpipe: layer Index (L) declares Statistics, so it must have: void "
                      "merge_statistics(auto& context, auto sum, auto part) const; part is a view "
                      "of const elements");
        static_assert(fault != LayerFault::update_buffers,
                      "gpipe: layer Index (L) declares Buffers, so it must have: void "
                      "update_buffers(auto& context, auto statistics, auto buffers) const; "
                      "statistics are views of const elements, or gpipe::none");
        static_assert(fault != LayerFault::no_buffers,
                      "gpipe: layer Index (L) declares Statistics, but no Buffers that they would "
                      "move");
        static_assert(fault != LayerFault::exchange,
                      "gpipe: layer Index (L) declares what replicas tell each other as Exchanged, "
                      "so it must have: void exchange(auto& context, auto x, auto part) const; x "
                      "is a view of const elements");
        static_assert(fault != LayerFault::exchange_gradient,
                      "gpipe: layer Index (L) declares ExchangedGradient, so it must have: void "
                      "exchange_gradient(auto& context, ..., auto dy, auto part) const; ... is "
                      "what backward_reads says (default: auto x)");
        static_assert(fault != LayerFault::parameters_without_gradient,
                      "gpipe: the Parameters of layer Index (L) must be tensors of elements that "
                      "carry a gradient");
        static_assert(fault != LayerFault::decay_short,
                      "gpipe: decay[] of layer Index (L) has fewer entries than the layer has "
                      "parameter tensors: one each");
        static_assert(fault != LayerFault::cheapness,
                      "gpipe: recompute_is_cheap says of layer Index (L) whether it is: static "
                      "constexpr bool recompute_is_cheap = true");
        static_assert(fault != LayerFault::skips,
                      "gpipe: what layer Index (L) stashes or pops must be a gpipe::Skip<Tag, "
                      "gpipe::Tensor<...>>, or gpipe::Skips<...> of several");
        static_assert(fault != LayerFault::ties,
                      "gpipe: what layer Index (L) calls Tied must be a gpipe::Tie<Tag, tensor>, "
                      "or gpipe::Ties<...> of several, each of another of its parameter tensors, "
                      "which count from 0");
        static_assert(fault != LayerFault::frozen,
                      "gpipe: what layer Index (L) calls FrozenTensors must be a "
                      "std::index_sequence of numbers of its parameter tensors, below 64");
        static_assert(fault != LayerFault::constants,
                      "gpipe: what layer Index (L) calls Constants must be a class, or "
                      "gpipe::Constants<...> of several, each trivially copyable and default "
                      "constructible");
        static_assert(fault != LayerFault::sides,
                      "gpipe: what layer Index (L) calls Side must be a gpipe::SideInput<Tag, "
                      "gpipe::Tensor<...>>, or gpipe::SideInputs<...> of several, each of another "
                      "tag");
        return false;
    }
};

} // namespace gpipe
