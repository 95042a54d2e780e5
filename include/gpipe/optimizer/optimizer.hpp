#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpipe {

namespace policy {
struct Optimizer;
} // namespace policy

/// Policy: the optimizer of a training. It is in the type because its state is part of the memory
/// plan.
template <class Functor> struct Optimizer {
    using policy_kind = policy::Optimizer;
    using functor = Functor;
};

/// What an optimizer is told with each tensor.
struct UpdateContext {
    std::uint64_t step = 1; ///< of this update, counted from 1: the t of Adam's bias correction
    float decay = 1;        ///< this tensor's share of the weight decay (the layer's `decay[t]`)
};

/// One parameter tensor as an optimizer sees it: its elements, the mean gradient of the mini-batch,
/// and `states` arrays of the same length that belong to the optimizer (zero before the first
/// step).
template <class T, std::size_t states> struct UpdateTensor {
    T* parameter = nullptr;
    T const* gradient = nullptr;
    T* state[states ? states : 1] = {};
    std::size_t size = 0;
};

/// An optimizer: a copyable functor with `static constexpr std::size_t states` and
/// `void operator()(UpdateContext, UpdateTensor<T, states>) const noexcept`. It may not throw,
/// because updates run after the commit of a step.
template <class O>
concept OptimizerFunctor = std::copyable<O> && requires {
    std::integral_constant<std::size_t, O::states>{};
} && requires(O const optimizer, UpdateContext context, UpdateTensor<float, O::states> tensor) {
    { optimizer(context, tensor) }
    noexcept->std::same_as<void>;
};

} // namespace gpipe
