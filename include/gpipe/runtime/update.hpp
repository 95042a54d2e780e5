#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/optimizer/optimizer.hpp>

#include <cstddef>

namespace gpipe {

struct UpdateRow;
using UpdateFunction = void (*)(void const* optimizer, UpdateContext, UpdateRow const&,
                                double scale);

/// One parameter tensor with its gradient and optimizer state, as the engine updates it.
struct UpdateRow {
    UpdateFunction update = nullptr;
    std::byte* parameter = nullptr;
    std::byte* gradient = nullptr;
    std::byte* state = nullptr; ///< `states` arrays, one slot each
    std::size_t elements = 0;
    float decay = 1;
};

namespace detail {

// Turns the sum of gradients into their mean and hands the tensor to the optimizer.
template <class T, class Optimizer>
void update_tensor(void const* optimizer, UpdateContext context, UpdateRow const& row,
                   double scale) {
    T* const gradient = reinterpret_cast<T*>(row.gradient);
    T const factor = static_cast<T>(scale);
    for (std::size_t i = 0; i < row.elements; ++i) gradient[i] *= factor;
    UpdateTensor<T, Optimizer::states> tensor{
        reinterpret_cast<T*>(row.parameter), gradient, {}, row.elements};
    for (std::size_t s = 0; s < Optimizer::states; ++s)
        tensor.state[s] =
            reinterpret_cast<T*>(row.state + s * slot_bytes(row.elements * sizeof(T)));
    context.decay = row.decay;
    (*static_cast<Optimizer const*>(optimizer))(context, tensor);
}

} // namespace detail
} // namespace gpipe
