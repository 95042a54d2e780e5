#pragma once

#include <gpipe/core/host_device.hpp>
#include <gpipe/core/takes_copy.hpp>
#include <gpipe/core/type_name.hpp>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

GPIPE_CALLS_USERS_BEGIN
namespace gpipe {

namespace policy {
struct Optimizer;
} // namespace policy

/// Policy: the optimizer of a training. It is in the type because its state is part of the memory
/// plan.
template <class Functor> struct Optimizer {
    using policy_kind = policy::Optimizer;
    using functor = Functor; ///< the optimizer's type
};

/// What an optimizer is told with each tensor.
struct UpdateContext {
    /// Of this update, counted from 1: the t of Adam's bias correction. Of the training, unless
    /// load() has left out the tensor's state, or brought that alone: of what that has seen.
    std::uint64_t step = 1;
    float decay = 1; ///< this tensor's share of the weight decay (the layer's `decay[t]`)
    /// Its share of the learning rate: 1, unless a ParameterGroup says otherwise. With a rate of 0
    /// the parameter is to stay as it is, bit for bit, while the state goes on.
    float rate = 1;
    std::uint32_t layer = 0;  ///< position in the chain
    std::uint32_t tensor = 0; ///< which of the layer's parameter tensors
    std::uint64_t type = 0;   ///< type_id of the layer

    /// Whether the tensor is one of a layer of type L. For the host: the name that a kernel's
    /// compiler gives L may be another.
    template <class L> constexpr bool of_layer() const { return type == type_id<L>; }
};

/// One parameter tensor as an optimizer sees it: its elements, the mean gradient of the mini-batch,
/// and `states` arrays of the same length that belong to the optimizer (zero before the first
/// step).
template <class T, std::size_t states> struct UpdateTensor {
    T* parameter = nullptr;      ///< its elements, to be updated
    T const* gradient = nullptr; ///< the mean over the mini-batch
    /// The optimizer's own arrays, as long as the parameter.
    T* state[states ? states : 1] = {};
    std::size_t size = 0; ///< elements of each of these arrays
};

/// The same with the first of its states only.
template <std::size_t fewer, class T, std::size_t states>
UpdateTensor<T, fewer> first_states(UpdateTensor<T, states> const& tensor) {
    static_assert(fewer <= states);
    UpdateTensor<T, fewer> result{tensor.parameter, tensor.gradient, {}, tensor.size};
    for (std::size_t s = 0; s < fewer; ++s) result.state[s] = tensor.state[s];
    return result;
}

namespace detail {

template <class Rule, class T, std::size_t states, std::size_t... Is>
GPIPE_HOST_DEVICE void apply_rule(Rule const& rule, UpdateTensor<T, states> const& tensor,
                                  std::size_t i, T gradient, std::index_sequence<Is...>) {
    T all[] = {tensor.parameter[i], tensor.state[Is][i]...};
    rule(all[0], gradient, all[1 + Is]...);
    tensor.parameter[i] = all[0];
    ((tensor.state[Is][i] = all[1 + Is]), ...);
}

} // namespace detail

/// Applies an optimizer's rule to element `i`, whose gradient this is. All is read before anything
/// is written: a GPU waits for its memory once.
template <class Rule, class T, std::size_t states>
GPIPE_HOST_DEVICE void apply_rule(Rule const& rule, UpdateTensor<T, states> const& tensor,
                                  std::size_t i, std::type_identity_t<T> gradient) {
    detail::apply_rule(rule, tensor, i, gradient, std::make_index_sequence<states>{});
}

/// An optimizer that treats every element alike says how: `rule<T>(UpdateContext)` returns a
/// functor (T& parameter, T gradient, T& state...) for one element, both GPIPE_HOST_DEVICE. GPUs
/// need that.
template <class O, class T>
concept HasRule = requires(O const optimizer, UpdateContext context) {
    optimizer.template rule<T>(context);
};

/// Whether the library's optimizers calculate in T: not if that comes to another type.
template <class T>
concept OptimizerNumber = requires(T x) {
    { x == 0 } -> std::convertible_to<bool>;
    requires std::is_same_v<std::remove_cvref_t<decltype(x * x - x / x)>, T>;
};
/// Whether those that take roots do.
template <class T>
concept OptimizerRoot = OptimizerNumber<T> && requires(T x) {
    { std::sqrt(x) } -> std::convertible_to<T>;
};

namespace detail {
template <class O, class T>
concept Updates = requires(O const optimizer, UpdateContext const context,
                           UpdateTensor<T, O::states> const tensor) {
    { optimizer(context, tensor) }
    noexcept->std::same_as<void>;
};
} // namespace detail

/// The rule on all elements, one after the other.
template <class O, class T, std::size_t states>
void apply_to_all(O const& optimizer, UpdateContext context,
                  UpdateTensor<T, states> tensor) noexcept {
    auto const rule = optimizer.template rule<T>(context);
    // Not apply_rule(): a rule that is for the host alone is none for kernels.
    auto const apply = [&]<std::size_t... Is>(std::size_t i, std::index_sequence<Is...>) {
        rule(tensor.parameter[i], tensor.gradient[i], tensor.state[Is][i]...);
    };
    for (std::size_t i = 0; i < tensor.size; ++i) apply(i, std::make_index_sequence<states>{});
}

/// An optimizer: a copyable functor with `static constexpr std::size_t states` and
/// `void operator()(UpdateContext, UpdateTensor<T, states>) const noexcept`. It may not throw,
/// because updates run after the commit of a step. If it has `void check_layers(std::size_t L)
/// const`, a Training calls that when it is made and before every step, with its number of layers,
/// and `void check_tensors(std::span<UpdateContext const>) const` when it is made, with what an
/// update will be told of each parameter tensor, frozen ones too, as far as it is known: they may
/// throw. If it has, itself, `std::size_t chosen_states() const`, a Training plans only so many of
/// its states, the first ones: as many as that says when it is made; later it may want fewer, not
/// more. The others are not its own: it neither reads nor writes them. (And `void choose_most()`
/// has it want all, for plans that hold for any.) Members that are called learning_rate,
/// weight_decay, momentum, alpha, epsilon, beta1 and beta2 have to be finite before every step, the
/// last three at least 0 and betas less than 1. Of the others any sign will do (but of RMSProp's
/// alpha, which is from 0 to 1): with a negative rate a loss is climbed.
template <class O>
concept OptimizerFunctor = std::copyable<O> && requires {
    std::integral_constant<std::size_t, O::states>{};
} && requires(O const optimizer, UpdateContext const context,
              UpdateTensor<float, O::states> const tensor) {
    { optimizer(context, tensor) }
    noexcept->std::same_as<void>;
};

namespace detail {

// Whether O says it itself: what it inherits is of the states of another.
template <class R, class C> std::type_identity<C> class_of(R (C::*)() const);
template <class O>
concept ChoosesStates = requires {
    requires std::is_same_v<typename decltype(class_of(&O::chosen_states))::type, O>;
};

} // namespace detail

/// How many arrays of state an optimizer has at construction: fewer than `states` if it has chosen.
template <class O> constexpr std::size_t states_of(O const& optimizer) {
    if constexpr (requires { requires O::states == O::grouped::states; })
        return states_of<typename O::grouped>(optimizer);
    else if constexpr (requires { requires O::states == O::hooked::states; })
        return states_of<typename O::hooked>(optimizer);
    else if constexpr (detail::ChoosesStates<O>)
        return optimizer.chosen_states();
    else
        return O::states;
}

namespace detail {

template <class O> constexpr std::string_view chosen_name(O const& optimizer) {
    if constexpr (requires { optimizer.chosen_name(); })
        return optimizer.chosen_name();
    else if constexpr (requires { typename O::grouped; }) // whose state it is
        return chosen_name<typename O::grouped>(optimizer);
    else if constexpr (requires { typename O::hooked; })
        return chosen_name<typename O::hooked>(optimizer);
    else
        return type_name<O>;
}

template <class O, std::size_t states>
concept CallsOptimizer = requires(O optimizer, UpdateContext const context,
                                  UpdateTensor<float, states> const tensor) {
    optimizer(context, tensor);
};

// What is wrong with an optimizer: the first of these.
enum class OptimizerFault {
    none,
    not_copyable,
    no_states,
    not_const,
    returns,
    throws,
    arguments,
    rule_takes,
    rule_copies
};
template <class T, std::size_t> using StateOf = T;
template <class O, class T, std::size_t... Is>
consteval OptimizerFault rule_fault(std::index_sequence<Is...>) {
    using Returned = std::remove_cvref_t<decltype(std::declval<O const&>().template rule<T>(
        std::declval<UpdateContext&>()))>;
    if constexpr (!std::is_invocable_v<Returned const&, T&, T const&, StateOf<T&, Is>...>)
        return OptimizerFault::rule_takes;
    else if constexpr (takes_copy<Returned, T, T, StateOf<T, Is>...>())
        return OptimizerFault::rule_copies;
    else
        return OptimizerFault::none;
}
template <class O> consteval OptimizerFault optimizer_fault() {
    if constexpr (!std::copyable<O>)
        return OptimizerFault::not_copyable;
    else if constexpr (!requires { std::integral_constant<std::size_t, O::states>{}; })
        return OptimizerFault::no_states;
    else if constexpr (OptimizerFunctor<O> && HasRule<O, float>)
        return rule_fault<O, float>(std::make_index_sequence<O::states>{});
    else if constexpr (OptimizerFunctor<O>)
        return OptimizerFault::none;
    else if constexpr (requires(O const o, UpdateContext const c,
                                UpdateTensor<float, O::states> const t) {
                           { o(c, t) } -> std::same_as<void>;
                       })
        return OptimizerFault::throws;
    else if constexpr (CallsOptimizer<O const, O::states>)
        return OptimizerFault::returns;
    else if constexpr (CallsOptimizer<O, O::states>)
        return OptimizerFault::not_const;
    else
        return OptimizerFault::arguments;
}

} // namespace detail

/// What a type must offer to be an optimizer.
template <class O> struct CheckOptimizer {
    static consteval bool ok() {
        using detail::OptimizerFault;
        constexpr OptimizerFault fault = detail::optimizer_fault<O>();
        static_assert(fault != OptimizerFault::not_copyable,
                      "gpipe: an optimizer must be copyable");
        static_assert(fault != OptimizerFault::no_states,
                      "gpipe: an optimizer must say how many arrays it keeps for each parameter "
                      "tensor: static constexpr std::size_t states");
        static_assert(fault != OptimizerFault::not_const,
                      "gpipe: the operator() of the optimizer (O) is not const: template <class T> "
                      "void operator()(gpipe::UpdateContext, gpipe::UpdateTensor<T, states>) const "
                      "noexcept");
        static_assert(fault != OptimizerFault::returns,
                      "gpipe: the operator() of the optimizer (O) returns something: template "
                      "<class T> void operator()(gpipe::UpdateContext, gpipe::UpdateTensor<T, "
                      "states>) const noexcept");
        static_assert(fault != OptimizerFault::arguments,
                      "gpipe: the operator() of the optimizer (O) takes other arguments: template "
                      "<class T> void operator()(gpipe::UpdateContext, gpipe::UpdateTensor<T, "
                      "states>) const noexcept");
        static_assert(fault != OptimizerFault::throws,
                      "gpipe: an optimizer may not throw, for updates run after the commit of a "
                      "step: declare its operator() noexcept");
        static_assert(fault != OptimizerFault::rule_takes,
                      "gpipe: the functor that rule<T>() of the optimizer (O) returns takes other "
                      "arguments: (T& parameter, T gradient, T& state...), of as many states as O "
                      "has");
        static_assert(fault != OptimizerFault::rule_copies,
                      "gpipe: the functor that rule<T>() of the optimizer (O) returns takes the "
                      "parameter by value, and would change a copy: (T& parameter, T gradient, T& "
                      "state...)");
        return fault == OptimizerFault::none;
    }
};

/// The same for parameters of a type T, which a chain has.
template <class O, class T> struct CheckOptimizerOf {
    static consteval bool ok() {
        constexpr bool takes = detail::Updates<O, T>;
        static_assert(takes, "gpipe: the optimizer (O) takes no parameters of this type (T), which "
                             "the chain has (the library's calculate in float and double, so make "
                             "those of 16 bits float): template <class T> void "
                             "operator()(gpipe::UpdateContext, gpipe::UpdateTensor<T, states>) "
                             "const noexcept");
        return takes;
    }
};

} // namespace gpipe
GPIPE_CALLS_USERS_END
