#pragma once

#include <gpipe/optimizer/optimizer.hpp>

#include <cmath>

namespace gpipe {

/// RMSProp (Tieleman and Hinton, 2012), as torch.optim.RMSprop with momentum:
/// s = alpha s + (1 - alpha) g^2; b = momentum b + g / (sqrt(s) + epsilon); p -= learning_rate b.
/// Two states (s, b): with the parameter, but without its gradient, the 12 bytes per fp32 parameter
/// of the GPipe paper's table 1. Without b where a Training is made with momentum 0; while momentum
/// is 0, b stays as it is.
struct RMSProp {
    static constexpr std::size_t states = 2; ///< numbers kept per parameter, at most: s and b
    float learning_rate = 1e-3f;             ///< size of a step
    float alpha = 0.99f;                     ///< share of the mean square that stays, from 0 to 1
    float momentum = 0;                      ///< share of the last step that is made again
    float epsilon = 1e-8f;                   ///< added to the root, against division by zero
    float weight_decay = 0;                  ///< L2: what of the parameter is added to the gradient

    /// The update of one element.
    template <class T> struct Rule {
        /// As above, in the type of the elements.
        ///@{
        T rate, keep, momentum, epsilon, decay;
        ///@}
        /// Writes the parameter and its states.
        GPIPE_HOST_DEVICE void operator()(T& p, T gradient, T& square, T& velocity) const {
            T const g = gradient + decay * p;
            square = keep * square + (T{1} - keep) * g * g;
            T step = g / (std::sqrt(square) + epsilon);
            if (momentum != 0) step = velocity = momentum * velocity + step; // else none may be
            p = rate == 0 ? p : p - rate * step;
        }
    };
    /// Its states, with this momentum.
    constexpr std::size_t chosen_states() const { return momentum != 0 ? 2 : 1; }
    /// Takes any momentum: for plans that hold for all.
    constexpr void choose_most() { momentum = 1; }
    /// What an update does to one element of the tensor that the context names.
    template <OptimizerRoot T> GPIPE_HOST_DEVICE Rule<T> rule(UpdateContext context) const {
        return {static_cast<T>(learning_rate * context.rate), static_cast<T>(alpha),
                static_cast<T>(momentum), static_cast<T>(epsilon),
                static_cast<T>(weight_decay * context.decay)};
    }
    /// Updates one tensor.
    template <OptimizerRoot T>
    void operator()(UpdateContext context, UpdateTensor<T, states> tensor) const noexcept {
        apply_to_all(*this, context, tensor);
    }
};

} // namespace gpipe
