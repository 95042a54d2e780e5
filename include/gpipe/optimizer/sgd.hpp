#pragma once

#include <gpipe/optimizer/optimizer.hpp>

namespace gpipe {

/// Stochastic gradient descent with momentum, as torch.optim.SGD (dampening 0):
/// d = g + weight_decay p; v = momentum v + d; p -= learning_rate v. Nesterov's (1983; Sutskever et
/// al., 2013): p -= learning_rate (d + momentum v). One state (v), none where a Training is made
/// with momentum 0; while momentum is 0, v stays as it is.
struct SGD {
    static constexpr std::size_t states = 1; ///< numbers kept per parameter, at most: v
    float learning_rate = 1e-2f;             ///< size of a step
    float momentum = 0;                      ///< share of the last step that is made again
    float weight_decay = 0;                  ///< L2: what of the parameter is added to the gradient
    bool nesterov = false;                   ///< whether the momentum is Nesterov's

    /// The update of one element.
    template <class T> struct Rule {
        /// As above, in the type of the elements.
        ///@{
        T rate, momentum, decay;
        ///@}
        bool ahead; ///< Nesterov's
        /// Writes the parameter and its state.
        GPIPE_HOST_DEVICE void operator()(T& p, T gradient, T& velocity) const {
            T step = gradient + decay * p;
            if (momentum != 0) { // else there may be no velocity
                velocity = momentum * velocity + step;
                step = ahead ? step + momentum * velocity : velocity;
            }
            p = rate == 0 ? p : p - rate * step;
        }
    };
    /// Its states, with this momentum.
    constexpr std::size_t chosen_states() const { return momentum != 0; }
    /// Takes any momentum: for plans that hold for all.
    constexpr void choose_most() { momentum = 1; }
    /// What an update does to one element of the tensor that the context names.
    template <OptimizerNumber T> GPIPE_HOST_DEVICE Rule<T> rule(UpdateContext context) const {
        return {static_cast<T>(learning_rate * context.rate), static_cast<T>(momentum),
                static_cast<T>(weight_decay * context.decay), nesterov};
    }
    /// Updates one tensor.
    template <OptimizerNumber T>
    void operator()(UpdateContext context, UpdateTensor<T, states> tensor) const noexcept {
        apply_to_all(*this, context, tensor);
    }
};

} // namespace gpipe
