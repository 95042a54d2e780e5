#pragma once

#include <gpipe/layer/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace gpipe {

/// What a layer's backward reads besides the gradient of its output; declared as
/// `static constexpr gpipe::Reads backward_reads = ...` (default: input). Its backward, and each of
/// its halves, takes exactly these, in this order: input, output, output gradient, input gradient
/// (which a weight gradient does not take). What is not read is not kept.
enum class Reads { neither, input, output, both };

namespace detail {

// The tensors that a layer declares under a name; none where it does not.
#define GPIPE_TENSORS(Name)                                                                        \
    template <class L, class = void> struct Name##Of { using type = Tensors<>; };                  \
    template <class L>                                                                             \
    struct Name##Of<L, std::void_t<typename L::Name>> : AsTensors<typename L::Name> {};
GPIPE_TENSORS(Parameters)
GPIPE_TENSORS(Saved)
GPIPE_TENSORS(Deferred)
GPIPE_TENSORS(Scratch)
GPIPE_TENSORS(Buffers)
GPIPE_TENSORS(Statistics)
GPIPE_TENSORS(Exchanged)
GPIPE_TENSORS(ExchangedGradient)
#undef GPIPE_TENSORS

template <class L>
concept has_buffers = requires {
    typename L::Buffers;
}
|| requires { typename L::Statistics; };
// Than parameters, whole ones.
template <class L>
concept has_other_tensors = has_buffers<L> || requires {
    typename L::Exchanged;
} || requires {
    typename L::ExchangedGradient;
};
// The whole tensors of a layer as contexts know them: for nearly all layers the parameters alone.
template <class Parameters, class Buffers, class Statistics, class Exchanged,
          class ExchangedGradient>
struct WithBuffers {};
template <class L> struct WholeOf : ParametersOf<L> {};
template <has_other_tensors L> struct WholeOf<L> {
    using type = WithBuffers<typename ParametersOf<L>::type, typename BuffersOf<L>::type,
                             typename StatisticsOf<L>::type, typename ExchangedOf<L>::type,
                             typename ExchangedGradientOf<L>::type>;
};
template <class Whole> struct PartsOf {
    using Parameters = Whole;
    using Buffers = Tensors<>;
    using Statistics = Tensors<>;
    using Exchanged = Tensors<>;
    using ExchangedGradient = Tensors<>;
};
template <class P, class B, class S, class E, class G> struct PartsOf<WithBuffers<P, B, S, E, G>> {
    using Parameters = P;
    using Buffers = B;
    using Statistics = S;
    using Exchanged = E;
    using ExchangedGradient = G;
};
template <class L> using parts_of = PartsOf<typename WholeOf<L>::type>;
template <class L>
inline constexpr bool gathers = TensorGroup<typename parts_of<L>::Statistics>::count > 0;
// Whether its replicas tell each other something within a micro-batch, forward and backward.
///@{
template <class L>
inline constexpr bool exchanges = TensorGroup<typename parts_of<L>::Exchanged>::count > 0;
template <class L>
inline constexpr bool exchanges_gradient =
    TensorGroup<typename parts_of<L>::ExchangedGradient>::count > 0;
///@}

template <class L> inline constexpr Reads declared_reads = Reads::input;
template <class L>
    requires requires { L::backward_reads; }
inline constexpr Reads declared_reads<L> = L::backward_reads;

template <class L> inline constexpr double cost_of = 1;
template <class L>
    requires requires { L::cost; }
inline constexpr double cost_of<L> = static_cast<double>(L::cost);

template <class L>
concept NamesInput = requires {
    typename L::Input;
}
&&is_tensors<typename L::Input>;
template <class L>
concept NamesOutput = requires {
    typename L::Output;
}
&&is_tensors<typename L::Output>;

// Whether a class has a member of that name, whatever it is: a second one makes it ambiguous.
#define GPIPE_NAMES(member)                                                                        \
    struct Also_##member {                                                                         \
        int member;                                                                                \
    };                                                                                             \
    template <class L> struct With_##member : L, Also_##member {};                                 \
    template <class L> inline constexpr bool names_##member = !requires {                          \
        &With_##member<L>::member;                                                                 \
    };                                                                                             \
    template <class L>                                                                             \
        requires(!std::is_class_v<L> || std::is_final_v<L>)                                        \
    inline constexpr bool names_##member<L> = false;
GPIPE_NAMES(initialize)
GPIPE_NAMES(forward)
GPIPE_NAMES(backward)
GPIPE_NAMES(input_gradient)
GPIPE_NAMES(weight_gradient)
#undef GPIPE_NAMES

} // namespace detail

/// Whether the backward of layer L comes in two halves: `input_gradient`, which the cell before
/// waits for, and `weight_gradient`, which nobody does. Under a schedule that runs them apart a
/// layer without halves runs its whole backward in the place of the first.
template <class L>
inline constexpr bool splits_backward =
    detail::names_input_gradient<L> || detail::names_weight_gradient<L>;

/// Whether the backward of a layer, or a loss, takes `gpipe::none` in place of the gradient that it
/// would write, where nobody wants that; declared as `static constexpr bool accepts_none = true`.
/// It must be declared because `auto dx` accepts anything; without it such a gradient goes to
/// scratch.
template <class L> inline constexpr bool accepts_none = requires {
    requires static_cast<bool>(L::accepts_none);
};

/// Whether what layer L leaves for its backward is large for the little work that its forward is
/// (softmax, dropout, an activation function); declared as `static constexpr bool
/// recompute_is_cheap = true`. checkpoint::Selective runs such layers again and keeps all others.
template <class L> inline constexpr bool recompute_is_cheap = requires {
    requires static_cast<bool>(L::recompute_is_cheap);
};

/// Whether layer L is to have the gradient of its output in every step, although neither it nor
/// anything below it may learn: declared as `static constexpr bool wants_gradient = true`.
template <class L> inline constexpr bool wants_gradient = requires {
    requires static_cast<bool>(L::wants_gradient);
};

/// Whether layer L has a forward and no backward: declared as `static constexpr bool only_evaluates
/// = true`. It is for an Inference, or for the layers of a Training below which nothing learns: no
/// gradient passes it.
template <class L> inline constexpr bool only_evaluates = requires {
    requires static_cast<bool>(L::only_evaluates);
};

/// Whether layer L keeps its parameters as they are: declared as `static constexpr bool frozen =
/// true`, or by gpipe::Frozen. They have no gradients and no optimizer state; nothing flows
/// backward below the lowest layer that learns. Of the halves of its backward the second never
/// runs; where it has none, what it adds to its gradients goes to scratch.
template <class L> inline constexpr bool is_frozen = requires {
    requires static_cast<bool>(L::frozen);
};

/// Layer L, frozen. See TrainingOptions::frozen for what is chosen at construction.
template <class L> struct Frozen : L {
    static constexpr bool frozen = true; ///< see is_frozen
    Frozen() = default;
    /// As that layer is.
    explicit Frozen(L layer) : L(static_cast<L&&>(layer)) {}
};

/// Which parameter tensors of layer L stay as they are while others learn, a bit each: declared as
/// `using FrozenTensors = std::index_sequence<0, 2>`, their numbers below 64, or by
/// gpipe::FrozenParameters. They have no optimizer state and no memory for gradients but what their
/// device's layers share; a backward may ask `context.wants_gradient(tensor)` first, and what it
/// adds to theirs all the same is lost. See TrainingOptions::frozen_parameters for what is chosen
/// at construction.
template <class L> inline constexpr std::uint64_t frozen_tensors = 0;
/// Where it is declared.
template <class L>
    requires requires { typename L::FrozenTensors; }
inline constexpr std::uint64_t frozen_tensors<L> =
    []<std::size_t... tensors>(std::index_sequence<tensors...>) {
    return (std::uint64_t{0} | ... | (std::uint64_t{1} << tensors % 64));
}
(typename L::FrozenTensors{});

/// Layer L with these of its parameter tensors frozen, by number.
template <class L, std::size_t... tensors> struct FrozenParameters : L {
    using FrozenTensors = std::index_sequence<tensors...>; ///< see frozen_tensors
    FrozenParameters() = default;
    /// As that layer is.
    explicit FrozenParameters(L layer) : L(static_cast<L&&>(layer)) {}
};

/// What a layer's type says of itself, with the defaults filled in: tensors as Tensors<...>, none
/// where nothing is declared.
template <class L> struct LayerTraits {
    using Input = detail::as_tensors<typename L::Input>;       ///< of a sample
    using Output = detail::as_tensors<typename L::Output>;     ///< of a sample
    using Parameters = typename detail::ParametersOf<L>::type; ///< to be trained
    using Saved = typename detail::SavedOf<L>::type; ///< of a sample, kept from forward to backward
    /// Of a sample, left by the input gradient for the weight gradient.
    using Deferred = typename detail::DeferredOf<L>::type;
    using Scratch = typename detail::ScratchOf<L>::type; ///< of a sample, room for one call
    /// What is no parameter, and moves once per mini-batch: running statistics, say. As whole
    /// tensors; initialize() writes them, forward and backward read them in `context.buffers()`,
    /// and `void update_buffers(auto& context, auto statistics, auto buffers) const` moves them at
    /// the end of a step that counts.
    using Buffers = typename detail::parts_of<L>::Buffers;
    /// What a forward finds out about its micro-batch for that: whole tensors, which it writes to
    /// `context.statistics()`. Those of the mini-batch begin with zeros, and `void
    /// merge_statistics(auto& context, auto sum, auto part) const` adds those of each micro-batch
    /// that has samples to them, in ascending order, and then those of each replica; nothing of a
    /// recomputation or an evaluation.
    using Statistics = typename detail::parts_of<L>::Statistics;
    /// What replicas tell each other of a micro-batch before its forward, in training: whole
    /// tensors, which `void exchange(auto& context, auto x, auto part) const` writes. Forward, its
    /// recomputation and backward find those of replica r in `context.exchanged(r)`; of one that
    /// has no samples in the micro-batch they are zeros. With one replica it is called all the
    /// same.
    using Exchanged = typename detail::parts_of<L>::Exchanged;
    /// Likewise before its backward, or its input gradient: `void exchange_gradient(auto& context,
    /// ..., auto dy, auto part) const`, which takes what the backward takes and `part` in place of
    /// dx. Backward and input gradient find them in `context.exchanged_gradient(r)`.
    using ExchangedGradient = typename detail::parts_of<L>::ExchangedGradient;

    /// Whether its weight gradient reads what its input gradient leaves.
    static constexpr bool defers = TensorGroup<Deferred>::count > 0;

    static constexpr Reads backward_reads = detail::declared_reads<L>; ///< what backward takes
    /// Whether backward reads it.
    ///@{
    static constexpr bool reads_input =
        backward_reads == Reads::input || backward_reads == Reads::both;
    static constexpr bool reads_output =
        backward_reads == Reads::output || backward_reads == Reads::both;
    ///@}

    static constexpr bool has_cost = requires { L::cost; }; ///< whether it is declared
    /// The work of one sample's forward, in the unit of the other layers'; 1 by default.
    static constexpr double cost = detail::cost_of<L>;

    static constexpr bool has_decay = requires { L::decay; }; ///< whether it is declared
    /// The share of the optimizer's weight decay that parameter tensor `t` takes: declared as
    /// `static constexpr float decay[] = {1, 0}`, one entry per parameter tensor; 1 by default.
    static constexpr float decay(std::size_t t) {
        if constexpr (has_decay) {
            auto const& shares = L::decay; // clang 14 does not know the bound of L::decay here
            return static_cast<float>(shares[t]);
        } else
            return t < TensorGroup<Parameters>::count ? 1.0f : 0.0f;
    }
};

} // namespace gpipe
