#pragma once

#include <gpipe/optimizer/optimizer.hpp>

#include <cmath>

namespace gpipe {

namespace detail {

// Adam's update; `shrink` is what the parameter is multiplied with first (AdamW), `decay` what is
// added to the gradient (Adam with L2).
template <class T, class O>
void adam_update(O const& o, UpdateContext context, UpdateTensor<T, 2> tensor, T shrink,
                 T decay) noexcept {
    auto const t = static_cast<double>(context.step);
    auto const beta1 = static_cast<T>(o.beta1);
    auto const beta2 = static_cast<T>(o.beta2);
    auto const rate = static_cast<T>(static_cast<double>(o.learning_rate) /
                                     (1 - std::pow(static_cast<double>(o.beta1), t)));
    auto const scale = static_cast<T>(1 / std::sqrt(1 - std::pow(static_cast<double>(o.beta2), t)));
    auto const epsilon = static_cast<T>(o.epsilon);
    T* const p = tensor.parameter;
    T* const m = tensor.state[0];
    T* const v = tensor.state[1];
    for (std::size_t i = 0; i < tensor.size; ++i) {
        T const g = tensor.gradient[i] + decay * p[i];
        m[i] = beta1 * m[i] + (T{1} - beta1) * g;
        v[i] = beta2 * v[i] + (T{1} - beta2) * g * g;
        p[i] = shrink * p[i] - rate * m[i] / (std::sqrt(v[i]) * scale + epsilon);
    }
}

} // namespace detail

/// Adam (Kingma and Ba, 2015) with bias correction; weight_decay is L2, added to the gradient. Two
/// states.
struct Adam {
    static constexpr std::size_t states = 2;
    float learning_rate = 1e-3f;
    float beta1 = 0.9f;
    float beta2 = 0.999f;
    float epsilon = 1e-8f;
    float weight_decay = 0;

    template <class T>
    void operator()(UpdateContext context, UpdateTensor<T, states> tensor) const noexcept {
        detail::adam_update(*this, context, tensor, T{1},
                            static_cast<T>(weight_decay * context.decay));
    }
};

/// AdamW (Loshchilov and Hutter, 2019): Adam whose weight decay is apart from the gradient,
/// p *= 1 - learning_rate weight_decay before the step. Two states.
struct AdamW {
    static constexpr std::size_t states = 2;
    float learning_rate = 1e-3f;
    float beta1 = 0.9f;
    float beta2 = 0.999f;
    float epsilon = 1e-8f;
    float weight_decay = 1e-2f;

    template <class T>
    void operator()(UpdateContext context, UpdateTensor<T, states> tensor) const noexcept {
        detail::adam_update(*this, context, tensor,
                            static_cast<T>(1 - learning_rate * weight_decay * context.decay), T{0});
    }
};

} // namespace gpipe
