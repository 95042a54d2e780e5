#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/core/exact_sum.hpp>
#include <gpipe/optimizer/optimizer.hpp>
#include <gpipe/runtime/work.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpipe {

struct UpdateRow;
/// What updates tensors (and says whether it does, or perhaps will) or sums the squares of their
/// gradients, of `count` rows that have this function, or adds another to a gradient: knows the
/// element type.
///@{
using UpdateFunction = bool (*)(UpdateCall const&, UpdateRow const* rows, std::size_t count);
using SquaresFunction = void (*)(SquaresCall const&, UpdateRow const* rows, std::size_t count);
using AddFunction = void (*)(AddCall const&, UpdateRow const&);
///@}

/// One parameter tensor with its gradient and optimizer state, as the engine updates it. Of a tied
/// one every end is a row, and names the first; the first on a device has the parameter, and its
/// state, which the others there point to and do not update.
struct UpdateRow {
    UpdateFunction update = nullptr;   ///< by the optimizer
    SquaresFunction squares = nullptr; ///< of the gradient
    AddFunction add = nullptr;         ///< to the gradient, of a tied tensor
    std::byte* parameter = nullptr;    ///< in its device's memory
    std::byte* gradient = nullptr;     ///< likewise
    std::byte* state = nullptr;        ///< arrays of its size, one slot each
    std::size_t elements = 0;          ///< of the tensor
    float decay = 1;                   ///< its share of weight decay
    std::uint32_t layer = 0;           ///< in the chain
    std::uint32_t number = 0;          ///< among the layer's parameter tensors
    std::uint64_t type = 0;            ///< type_id of the layer
    std::uint32_t states = ~0u;        ///< arrays planned: a chosen optimizer's, at most all
    std::uint64_t begun = 0;           ///< how many steps there were before its state began

    /// What the optimizer is told; `step`, of the training, counts from 1.
    GPIPE_HOST_DEVICE UpdateContext context(std::uint64_t step) const {
        return {step - begun, decay, 1, layer, number, type};
    }
    /// As the optimizer sees it. The gradient stands for arrays that are not planned, so that
    /// whoever looks at what he does not use looks at memory of this tensor.
    template <class T, std::size_t states>
    GPIPE_HOST_DEVICE UpdateTensor<T, states> tensor() const {
        UpdateTensor<T, states> result{
            reinterpret_cast<T*>(parameter), reinterpret_cast<T*>(gradient), {}, elements};
        if constexpr (states > 0)
            for (std::size_t s = 0; s < states; ++s)
                result.state[s] = reinterpret_cast<T*>(
                    s < this->states ? state + s * slot_bytes(elements * sizeof(T)) : gradient);
        return result;
    }
};

namespace detail {

// What elements are multiplied in: half the digits of a number would not hold every factor.
template <class T> using FactorOf = std::conditional_t<(sizeof(T) < sizeof(float)), float, T>;

template <class T> GPIPE_HOST_DEVICE T scaled(T value, FactorOf<T> factor) {
    if constexpr (std::is_same_v<FactorOf<T>, T>)
        return value *= factor, value;
    else
        return static_cast<T>(static_cast<FactorOf<T>>(value) * factor);
}

// From sums of scaled gradients to their mean: one after the other, for a product of both may be
// smaller than a float can be, and of powers of two the first rounds nothing.
template <class T> struct MeanFactor {
    FactorOf<T> unscale, scale;
    bool scaled; // whether they are

    GPIPE_HOST_DEVICE static MeanFactor of(StepState const& state) {
        return {static_cast<FactorOf<T>>(state.unscale), static_cast<FactorOf<T>>(state.scale),
                state.unscale != 1};
    }
    GPIPE_HOST_DEVICE T operator()(T sum) const {
        if (!scaled) return detail::scaled(sum, scale);
        if constexpr (std::is_same_v<FactorOf<T>, T>)
            return sum *= unscale, sum *= scale, sum;
        else
            return static_cast<T>(static_cast<FactorOf<T>>(sum) * unscale * scale);
    }
};

template <class T> void scale_gradient(ScaleCall const& call) {
    T* const gradient = reinterpret_cast<T*>(call.gradient);
    auto const factor = static_cast<FactorOf<T>>(call.state->loss_scale);
    for (std::size_t i = 0; i < call.elements; ++i) gradient[i] = scaled(gradient[i], factor);
}

template <class T> void sum_squares(SquaresCall const& call, UpdateRow const& row) {
    T const* const gradient = reinterpret_cast<T const*>(row.gradient);
    *call.result = call.exact ? add_squares_exactly(call.exact, gradient, row.elements)
                              : ordered_sum_of_squares(gradient, row.elements);
}

template <class T> void add_gradient(AddCall const& call, UpdateRow const& row) {
    T* const gradient = reinterpret_cast<T*>(row.gradient);
    T const* const other = reinterpret_cast<T const*>(call.other);
    for (std::size_t i = 0; i < row.elements; ++i) gradient[i] += other[i];
}

// If the step is committed, turns the sum of gradients into their mean and hands the tensor to the
// optimizer.
template <class T, class Optimizer>
bool update_tensor(UpdateCall const& call, UpdateRow const& row) {
    if (!call.state->committed) return false;
    T* const gradient = reinterpret_cast<T*>(row.gradient);
    auto const mean = MeanFactor<T>::of(*call.state);
    if (mean.scaled)
        for (std::size_t i = 0; i < row.elements; ++i) gradient[i] = mean(gradient[i]);
    else // by itself, for a loop without a branch
        for (std::size_t i = 0; i < row.elements; ++i)
            gradient[i] = scaled(gradient[i], mean.scale);
    if (!call.updates) return false;
    if constexpr (CheckOptimizerOf<Optimizer, T>::ok())
        (*static_cast<Optimizer const*>(call.optimizer))(row.context(call.state->step),
                                                         row.tensor<T, Optimizer::states>());
    return true;
}

} // namespace detail
} // namespace gpipe
