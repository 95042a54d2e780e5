#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/core/type_name.hpp>
#include <gpipe/runtime/machine.hpp>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace gpipe {

namespace detail {

// What a std::span is made of: one, a vector, an array.
template <class Range>
concept IsArray = requires(Range& range) {
    std::span(range);
};
// Its elements, or those of type T, where the caller has said that.
template <class T, class Range>
using SpanElement =
    std::conditional_t<std::is_void_v<T>,
                       std::remove_reference_t<decltype(std::span(std::declval<Range&>())[0])>, T>;
template <class T, class Range> auto read_span(Range const& range) {
    return std::span<std::remove_const_t<SpanElement<T, Range const>> const>(range);
}
template <class T, class Range> auto written_span(std::remove_reference_t<Range>& range) {
    using Element = SpanElement<T, std::remove_reference_t<Range>>;
    constexpr bool lasts =
        std::is_lvalue_reference_v<Range> || std::ranges::enable_borrowed_range<Range>;
    static_assert(lasts, "gpipe: what is read is written to elements that are gone at once");
    constexpr bool is_const = std::is_const_v<Element>;
    static_assert(!is_const, "gpipe: what is read is written to elements that are const");
    if constexpr (is_const)
        return std::span<std::byte>();
    else
        return std::span<Element>(range);
}

// That the host finds what the device has where it is.
template <class Device> struct CheckViews {
    static consteval bool ok() {
        static_assert(HostReadable<Device>, "gpipe: the host cannot read what is in this device's "
                                            "memory: read_parameter(layer, tensor, span), "
                                            "write_parameter() and read_gradient() copy it");
        return HostReadable<Device>;
    }
};

} // namespace detail

/// Parameter tensor `tensor` of layer `layer` in its device's memory, and its gradient.
struct ParameterAt {
    std::byte* parameter = nullptr; ///< its first element
    std::byte* gradient = nullptr;  ///< likewise
    std::size_t bytes = 0;          ///< of each
};

/// Throws std::out_of_range where there is no such layer.
template <class Device> void check_layer(Machine<Device> const& machine, std::size_t layer) {
    std::size_t const layers = machine.model().infos.size();
    if (layer >= layers)
        detail::throw_error<std::out_of_range>(
            "gpipe: there is no layer %zu: the layers of the pipeline are 0 to %zu", layer,
            layers - 1);
}

/// Finds it. Throws std::out_of_range where there is none, and std::invalid_argument if its
/// elements are not of type T; std::byte stands for any.
template <class T, class Device>
ParameterAt parameter_at(Machine<Device> const& machine, std::size_t layer, std::size_t tensor) {
    check_layer(machine, layer);
    LayerInfo const& info = machine.model().infos[layer];
    GroupSizes const& sizes = info.parameters;
    std::string const name(info.name);
    if (tensor >= sizes.count)
        detail::throw_error<std::out_of_range>(
            "gpipe: there is no parameter tensor %zu in layer %zu (%s): it has %zu", tensor, layer,
            name.c_str(), sizes.count);
    std::string_view const type = machine.model().layers[layer].updates[tensor].type;
    if (type != type_name<T> && !std::is_same_v<T, std::byte>)
        detail::throw_error<std::invalid_argument>(
            "gpipe: the elements of parameter tensor %zu of layer %zu (%s) are of type %s, not %s",
            tensor, layer, name.c_str(), std::string(type).c_str(),
            std::string(type_name<T>).c_str());
    LayerMemory const& row = machine.layer(layer);
    return {row.parameters[tensor], row.gradients[tensor], sizes.bytes[tensor]};
}

/// The machine, if the layer is not frozen, and so has gradients; else throws
/// std::invalid_argument.
template <class Device> Machine<Device>& not_frozen(Machine<Device>& machine, std::size_t layer) {
    check_layer(machine, layer);
    LayerInfo const& info = machine.model().infos[layer];
    if (info.frozen)
        detail::throw_error<std::invalid_argument>(
            "gpipe: layer %zu (%s) is frozen: it has no gradients", layer,
            std::string(info.name).c_str());
    return machine;
}

/// The same of one of its parameter tensors, if there is such a one.
template <class Device>
Machine<Device>& not_frozen(Machine<Device>& machine, std::size_t layer, std::size_t tensor) {
    not_frozen(machine, layer);
    LayerInfo const& info = machine.model().infos[layer];
    if (tensor < info.parameters.count && !info.learns(tensor))
        detail::throw_error<std::invalid_argument>(
            "gpipe: parameter tensor %zu of layer %zu (%s) is frozen: it has no gradient", tensor,
            layer, std::string(info.name).c_str());
    return machine;
}

/// The same for a copy of `values`, which must be as long as the tensor: else
/// std::invalid_argument.
template <class Device, class T>
ParameterAt parameter_for(Machine<Device> const& machine, std::size_t layer, std::size_t tensor,
                          std::span<T> values) {
    ParameterAt const at = parameter_at<std::remove_const_t<T>>(machine, layer, tensor);
    if (values.size_bytes() != at.bytes)
        detail::throw_error<std::invalid_argument>(
            "gpipe: parameter tensor %zu of layer %zu has %zu elements, not %zu", tensor, layer,
            at.bytes / sizeof(T), values.size());
    return at;
}

/// Where array `array` is of what the optimizer has for it, as many elements of type T. Throws
/// std::out_of_range where the optimizer has not so many, std::logic_error where replicas have
/// parts of them.
template <class Device, class T>
std::byte* optimizer_state_for(Machine<Device>& machine, std::size_t layer, std::size_t tensor,
                               std::size_t array, std::span<T> values) {
    ParameterAt const at = parameter_for(not_frozen(machine, layer, tensor), layer, tensor, values);
    std::size_t const states = machine.model().states;
    if (array >= states)
        detail::throw_error<std::out_of_range>(
            "gpipe: there is no array %zu of optimizer state: the optimizer has %zu for each "
            "parameter tensor",
            array, states);
    Tables const& tables = machine.engine().tables();
    if (tables.replicas.any() && tables.replicas.replication.shards)
        throw std::logic_error("gpipe: each replica has a part of the optimizer's state: save() "
                               "writes it whole");
    UpdateRow const* row = tables.updates.begin();
    while (row->parameter != at.parameter) ++row;
    return row->state + array * slot_bytes(at.bytes);
}

} // namespace gpipe
