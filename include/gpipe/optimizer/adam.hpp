#pragma once

#include <gpipe/optimizer/optimizer.hpp>

#include <cmath>

namespace gpipe {

namespace detail {

// Adam's update of one element; `shrink` is what the parameter is multiplied with first (AdamW),
// `decay` what is added to the gradient (Adam with L2).
template <class T> struct AdamRule {
    T rate, beta1, beta2, scale, epsilon, shrink, decay;

    template <class O>
    GPIPE_HOST_DEVICE AdamRule(O const& o, UpdateContext context, T shrink_by, T decay_by)
        : beta1(static_cast<T>(o.beta1)), beta2(static_cast<T>(o.beta2)),
          epsilon(static_cast<T>(o.epsilon)), shrink(shrink_by), decay(decay_by) {
        auto const t = static_cast<double>(context.step);
        rate = static_cast<T>(static_cast<double>(o.learning_rate * context.rate) /
                              (1 - std::pow(static_cast<double>(o.beta1), t)));
        scale = static_cast<T>(1 / std::sqrt(1 - std::pow(static_cast<double>(o.beta2), t)));
    }
    GPIPE_HOST_DEVICE void operator()(T& p, T gradient, T& m, T& v) const {
        T const g = gradient + decay * p;
        m = beta1 * m + (T{1} - beta1) * g;
        v = beta2 * v + (T{1} - beta2) * g * g;
        p = rate == 0 ? p : shrink * p - rate * m / (std::sqrt(v) * scale + epsilon);
    }
};

} // namespace detail

/// Adam (Kingma and Ba, 2015) with bias correction; weight_decay is L2, added to the gradient. Two
/// states.
struct Adam {
    static constexpr std::size_t states = 2; ///< numbers kept per parameter: mean and mean square
    float learning_rate = 1e-3f;             ///< size of a step
    float beta1 = 0.9f;                      ///< share of the mean gradient that stays
    float beta2 = 0.999f;                    ///< share of the mean square that stays
    float epsilon = 1e-8f;                   ///< added to the root, against division by zero
    float weight_decay = 0;                  ///< L2: what of the parameter is added to the gradient

    /// What an update does to one element of the tensor that the context names.
    template <OptimizerRoot T> GPIPE_HOST_DEVICE auto rule(UpdateContext context) const {
        return detail::AdamRule<T>(*this, context, T{1},
                                   static_cast<T>(weight_decay * context.decay));
    }
    /// Updates one tensor.
    template <OptimizerRoot T>
    void operator()(UpdateContext context, UpdateTensor<T, states> tensor) const noexcept {
        apply_to_all(*this, context, tensor);
    }
};

/// AdamW (Loshchilov and Hutter, 2019): Adam whose weight decay is apart from the gradient,
/// p *= 1 - learning_rate weight_decay before the step. Two states.
struct AdamW {
    static constexpr std::size_t states = 2; ///< numbers kept per parameter: mean and mean square
    float learning_rate = 1e-3f;             ///< size of a step
    float beta1 = 0.9f;                      ///< share of the mean gradient that stays
    float beta2 = 0.999f;                    ///< share of the mean square that stays
    float epsilon = 1e-8f;                   ///< added to the root, against division by zero
    float weight_decay = 1e-2f; ///< what of the parameter goes per unit of learning rate

    /// What an update does to one element of the tensor that the context names.
    template <OptimizerRoot T> GPIPE_HOST_DEVICE auto rule(UpdateContext context) const {
        return detail::AdamRule<T>(
            *this, context,
            static_cast<T>(1 - double{learning_rate * context.rate} * weight_decay * context.decay),
            T{0});
    }
    /// Updates one tensor.
    template <OptimizerRoot T>
    void operator()(UpdateContext context, UpdateTensor<T, states> tensor) const noexcept {
        apply_to_all(*this, context, tensor);
    }
};

} // namespace gpipe
