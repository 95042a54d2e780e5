#pragma once

#include <gpipe/core/host_device.hpp>
#include <gpipe/optimizer/optimizer.hpp>

#include <concepts>
#include <cstddef>
#include <span>

GPIPE_CALLS_USERS_BEGIN
namespace gpipe {

namespace detail {

// A hook that treats every element alike: of a context a functor T(T).
template <class F, class T>
concept HooksElements = requires(F const hook, UpdateContext context, T gradient) {
    { hook.template rule<T>(context)(gradient) } -> std::same_as<T>;
};
template <class F, class T>
concept NamesRule = requires(F const hook, UpdateContext context) {
    hook.template rule<T>(context);
};
// One that is called with all elements of a tensor.
template <class F, class T>
concept CallsHook = requires(F const hook, UpdateContext context, std::span<T> gradient) {
    hook(context, gradient);
};
template <class F, class T>
concept HooksTensors = requires(F const hook, UpdateContext context, std::span<T> gradient) {
    { hook(context, gradient) }
    noexcept->std::same_as<void>;
};

// The rule of an optimizer, on what the hook makes of the gradient.
template <class T, class Rule, class Change> struct HookedRule {
    Rule rule;
    Change change;

    template <class... States>
    GPIPE_HOST_DEVICE void operator()(T& parameter, T gradient, States&... states) const {
        rule(parameter, change(gradient), states...);
    }
};

} // namespace detail

/// What a type must offer to be a hook of gradients, for optimizer O.
template <class F, class O> struct CheckHook {
    static consteval bool ok() {
        constexpr bool by_element = detail::HooksElements<F, float>;
        constexpr bool by_tensor = detail::HooksTensors<F, float>;
        constexpr bool other_rule = detail::NamesRule<F, float> && !by_element;
        constexpr bool other_call = detail::CallsHook<F, float> && !by_tensor && !by_element;
        constexpr bool meets = !by_element || HasRule<O, float>;
        constexpr bool any = by_element || by_tensor || other_rule || other_call;
        static_assert(any,
                      "gpipe: a hook of gradients (F) has neither template <class T> "
                      "GPIPE_HOST_DEVICE auto rule(gpipe::UpdateContext) const, which returns a "
                      "functor T(T gradient) for one element, nor template <class T> void "
                      "operator()(gpipe::UpdateContext, std::span<T> gradient) const noexcept");
        static_assert(!other_rule,
                      "gpipe: the rule of a hook of gradients (F) must return a functor that takes "
                      "the gradient of one element, T, and returns what is to stand for it, T");
        static_assert(!other_call || other_rule,
                      "gpipe: a hook of gradients (F) may not throw, for updates run after the "
                      "commit of a step, and returns nothing: declare its operator() void and "
                      "noexcept");
        static_assert(meets, "gpipe: a hook of gradients by element stands in the rule of its "
                             "optimizer, but this one (O) has none: template <class T> auto "
                             "rule(gpipe::UpdateContext) const");
        return meets && (by_element || by_tensor) && !other_rule;
    }
};

/// Optimizer O, with hook F of every gradient before it updates:
///
///     Training<Net, ..., Optimizer<Hooked<AdamW, ClipByValue>>> train{
///         net, loss, {{.learning_rate = 3e-4f}, {.limit = 0.5f}}, options};
///     train.optimizer().hook.limit = 0.1f;
///
/// F gets the context of each update (layer, number of the tensor, type of the layer, step) and the
/// mean gradient, clipped by its norm where that is asked for. It has one of two forms:
///
/// - `template <class T> GPIPE_HOST_DEVICE auto rule(UpdateContext) const`, which returns a functor
///   T(T gradient) for one element: it runs within the loop or kernel of the update, on every
///   device. gradients() of a Training are what they would be without it.
/// - `template <class T> void operator()(UpdateContext, std::span<T> gradient) const noexcept` for
///   a tensor, to be changed or looked at, where the host updates (on a GPU there is no such
///   place). What it changes gradients() shows.
///
/// It is called once in each step that counts, for each tensor that learns: of tied ones on every
/// device that has them, as the first; where replicas have parts of the state
/// (shard::OptimizerState) by each with its part, and of tied ones for every end, else by each for
/// all; by the threads of several
/// devices at once; not by compute_gradients(). It is copied as O is: what it counts or writes it
/// has a pointer to. Hooked<Grouped<O>, F> is told of a tensor as it is, Grouped<Hooked<O, F>> with
/// its shares of rate and decay.
template <class O, class F> struct Hooked : O {
    static_assert(CheckHook<F, O>::ok() || true);    // one error, not two
    static constexpr std::size_t states = O::states; ///< those of O
    using hooked = O;                                ///< whose state it is, by name
    F hook{};                                        ///< may be changed between steps

    /// That of O, on what the hook makes of the gradient of the tensor that the context names.
    template <class T>
    GPIPE_HOST_DEVICE auto rule(UpdateContext context) const
        requires(HasRule<O, T>&& detail::HooksElements<F, T>) {
        auto own = O::template rule<T>(context);
        auto change = hook.template rule<T>(context);
        return detail::HookedRule<T, decltype(own), decltype(change)>{own, change};
    }
    /// Updates one tensor.
    template <class T>
    void operator()(UpdateContext context, UpdateTensor<T, states> tensor) const noexcept
        requires(detail::Updates<O, T>) {
        if constexpr (HasRule<Hooked, T>)
            apply_to_all(*this, context, tensor);
        else {
            // Constant for optimizers only: the step itself has just made it a mean.
            if constexpr (detail::HooksTensors<F, T>)
                hook(context, std::span<T>(const_cast<T*>(tensor.gradient), tensor.size));
            O::operator()(context, tensor);
        }
    }
};

/// A hook of gradients: each element within [-limit, limit]; what is no number stays none.
struct ClipByValue {
    float limit = 1; ///< at least 0

    /// Of one element.
    template <class T> struct Rule {
        T limit; ///< in the type of the elements
        /// Its gradient, clipped.
        GPIPE_HOST_DEVICE T operator()(T gradient) const {
            return gradient > limit ? limit : gradient < -limit ? -limit : gradient;
        }
    };
    /// The same of every tensor.
    template <class T> GPIPE_HOST_DEVICE Rule<T> rule(UpdateContext) const {
        return {static_cast<T>(limit)};
    }
};

} // namespace gpipe
GPIPE_CALLS_USERS_END
