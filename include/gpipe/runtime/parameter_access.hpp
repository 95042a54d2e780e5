#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/runtime/machine.hpp>

#include <cstddef>
#include <span>
#include <stdexcept>

namespace gpipe {

/// Parameter tensor `tensor` of layer `layer` in its device's memory, and its gradient.
struct ParameterAt {
    std::byte* parameter = nullptr;
    std::byte* gradient = nullptr;
    std::size_t bytes = 0;
};

/// Finds it. Throws std::out_of_range where there is none, and std::invalid_argument if its
/// elements cannot be of `element_size` bytes.
template <class Device>
ParameterAt parameter_at(Machine<Device> const& machine, std::size_t layer, std::size_t tensor,
                         std::size_t element_size) {
    Array<LayerInfo> const& layers = machine.model().infos;
    if (layer >= layers.size())
        detail::throw_error<std::out_of_range>("gpipe: there is no layer %zu, but %zu layers",
                                               layer, layers.size());
    GroupSizes const& sizes = layers[layer].parameters;
    if (tensor >= sizes.count)
        detail::throw_error<std::out_of_range>("gpipe: layer %zu has %zu parameter tensors", layer,
                                               sizes.count);
    if (sizes.bytes[tensor] % element_size != 0)
        detail::throw_error<std::invalid_argument>(
            "gpipe: parameter tensor %zu of layer %zu has elements of another type", tensor, layer);
    std::size_t offset = 0;
    for (std::size_t t = 0; t < tensor; ++t) offset += slot_bytes(sizes.bytes[t]);
    LayerMemory const& row = machine.layer(layer);
    return {row.parameters + offset, row.gradients + offset, sizes.bytes[tensor]};
}

/// The same for a copy of `values`, which must be as long as the tensor: else
/// std::invalid_argument.
template <class Device, class T>
ParameterAt parameter_for(Machine<Device> const& machine, std::size_t layer, std::size_t tensor,
                          std::span<T> values) {
    ParameterAt const at = parameter_at(machine, layer, tensor, sizeof(T));
    if (values.size_bytes() != at.bytes)
        detail::throw_error<std::invalid_argument>(
            "gpipe: parameter tensor %zu of layer %zu has %zu elements, not %zu", tensor, layer,
            at.bytes / sizeof(T), values.size());
    return at;
}

} // namespace gpipe
