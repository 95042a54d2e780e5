#pragma once

#include <gpipe/optimizer/optimizer.hpp>

namespace gpipe {

/// Stochastic gradient descent with momentum, as torch.optim.SGD (dampening 0, no Nesterov):
/// v = momentum v + (g + weight_decay p); p -= learning_rate v. One state (v).
struct SGD {
    static constexpr std::size_t states = 1;
    float learning_rate = 1e-2f;
    float momentum = 0;
    float weight_decay = 0;

    template <class T>
    void operator()(UpdateContext context, UpdateTensor<T, states> tensor) const noexcept {
        auto const rate = static_cast<T>(learning_rate);
        auto const mu = static_cast<T>(momentum);
        auto const decay = static_cast<T>(weight_decay * context.decay);
        for (std::size_t i = 0; i < tensor.size; ++i) {
            T const g = tensor.gradient[i] + decay * tensor.parameter[i];
            T const v = mu * tensor.state[0][i] + g;
            tensor.state[0][i] = v;
            tensor.parameter[i] -= rate * v;
        }
    }
};

} // namespace gpipe
