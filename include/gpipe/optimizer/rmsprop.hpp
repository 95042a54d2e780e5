#pragma once

#include <gpipe/optimizer/optimizer.hpp>

#include <cmath>

namespace gpipe {

/// RMSProp (Tieleman and Hinton, 2012), as torch.optim.RMSprop with momentum:
/// s = alpha s + (1 - alpha) g^2; b = momentum b + g / (sqrt(s) + epsilon); p -= learning_rate b.
/// Two states (s, b): with the parameter and its gradient left out, the 12 bytes per fp32 parameter
/// of the GPipe paper's table 1.
struct RMSProp {
    static constexpr std::size_t states = 2;
    float learning_rate = 1e-3f;
    float alpha = 0.99f;
    float momentum = 0;
    float epsilon = 1e-8f;
    float weight_decay = 0;

    template <class T>
    void operator()(UpdateContext context, UpdateTensor<T, states> tensor) const noexcept {
        auto const rate = static_cast<T>(learning_rate);
        auto const keep = static_cast<T>(alpha);
        auto const add = T{1} - keep;
        auto const mu = static_cast<T>(momentum);
        auto const eps = static_cast<T>(epsilon);
        auto const decay = static_cast<T>(weight_decay * context.decay);
        for (std::size_t i = 0; i < tensor.size; ++i) {
            T const g = tensor.gradient[i] + decay * tensor.parameter[i];
            T const s = keep * tensor.state[0][i] + add * g * g;
            T const b = mu * tensor.state[1][i] + g / (std::sqrt(s) + eps);
            tensor.state[0][i] = s;
            tensor.state[1][i] = b;
            tensor.parameter[i] -= rate * b;
        }
    }
};

} // namespace gpipe
