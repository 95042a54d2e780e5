#pragma once

#include <gpipe/chain/layer_fault.hpp>

#include <cstddef>

namespace gpipe {

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
        static_assert(fault != LayerFault::is_several,
                      "gpipe: layer Index (L) is a Repeat in a Repeat, or a Pipeline: a chain is a "
                      "list of layers and of Repeats of layers, no deeper, and Frozen is a layer");
        static_assert(fault != LayerFault::is_final,
                      "gpipe: layer Index (L) must not be final: which functions it has is seen by "
                      "deriving from it");
        static_assert(fault != LayerFault::no_input,
                      "gpipe: layer Index (L) must name its input: using Input = "
                      "gpipe::Tensor<...> or gpipe::Tensors<...>, the shape of one sample");
        static_assert(fault != LayerFault::no_output,
                      "gpipe: layer Index (L) must name its output: using Output = "
                      "gpipe::Tensor<...> or gpipe::Tensors<...>, the shape of one sample");

        static_assert(fault != LayerFault::numbers,
                      "gpipe: what layer Index (L) says by frozen, accepts_none, only_evaluates, "
                      "wants_gradient, recompute_is_cheap or backward_reads_pops is a static "
                      "constexpr bool, by backward_reads a static constexpr gpipe::Reads, by cost "
                      "a static constexpr number of 0 or more, by decay[] a static constexpr array "
                      "of numbers");
        static_assert(fault != LayerFault::no_tensors,
                      "gpipe: what layer Index (L) calls Parameters, Buffers, Statistics, Saved, "
                      "Deferred, Scratch, Exchanged or ExchangedGradient must be a "
                      "gpipe::Tensor<...>, or gpipe::Tensors<...> of several");

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
        static_assert(fault != LayerFault::initializes_nothing,
                      "gpipe: layer Index (L) has an initialize, but declares neither Parameters "
                      "nor Buffers that it would write");
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
        static_assert(fault != LayerFault::decay_entries,
                      "gpipe: decay[] of layer Index (L) must have one entry for each of the "
                      "layer's parameter tensors, and no more");
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
