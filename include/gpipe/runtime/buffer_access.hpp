#pragma once

#include <gpipe/chain/element.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/runtime/machine.hpp>
#include <gpipe/runtime/parameter_access.hpp>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace gpipe {

/// What a Training's layers have beside parameters, see LayerTraits::Buffers; between steps.
template <class Training, class Net> class Buffered {
  public:
    /// Copies buffer `tensor` of layer `layer` from any device's memory. Throws
    /// std::out_of_range where there is none, std::invalid_argument if its elements are of another
    /// type than T (std::byte stands for any), or not as many.
    template <class T>
        requires(!std::is_const_v<T>)
    void read_buffer(std::size_t layer, std::size_t tensor, std::span<T> to) {
        auto& machine = settled();
        std::byte* const at = checked(machine, layer, tensor, to);
        machine.copy(reinterpret_cast<std::byte*>(to.data()), at, to.size_bytes());
    }
    /// The same to it.
    template <class T>
    void write_buffer(std::size_t layer, std::size_t tensor, std::span<T const> from) {
        auto& machine = settled();
        static_cast<void>(detail::MachineAccess::of(static_cast<Training&>(*this))); // is written
        std::byte* const at = checked(machine, layer, tensor, from);
        machine.copy(at, reinterpret_cast<std::byte const*>(from.data()), from.size_bytes());
    }

    /// The same to what a std::span is made of: a vector, an array.
    template <class Range>
        requires detail::IsArray<Range>
    void read_buffer(std::size_t layer, std::size_t tensor, Range&& to) {
        read_buffer(layer, tensor, detail::written_span<Range>(to));
    }
    /// From such a one.
    template <class Range>
        requires detail::IsArray<Range>
    void write_buffer(std::size_t layer, std::size_t tensor, Range const& from) {
        write_buffer(layer, tensor, detail::read_span(from));
    }

  private:
    auto& settled() {
        auto& machine = detail::MachineAccess::machine(static_cast<Training&>(*this));
        machine.finish();
        return machine;
    }
    template <class Machine, class T>
    static std::byte* checked(Machine& machine, std::size_t layer, std::size_t tensor,
                              std::span<T> values) {
        check_layer(machine, layer);
        TensorTypes const types = elements_of<Net>()[layer].buffers;
        std::string const name(machine.model().infos[layer].name);
        if (tensor >= types.size())
            detail::throw_error<std::out_of_range>(
                "gpipe: there is no buffer %zu in layer %zu (%s): it has %zu", tensor, layer,
                name.c_str(), types.size());
        TensorType const& type = types[tensor];
        using Element = std::remove_const_t<T>;
        if (type.name != type_name<Element> && !std::is_same_v<Element, std::byte>)
            detail::throw_error<std::invalid_argument>(
                "gpipe: the elements of buffer %zu of layer %zu (%s) are of type %s, not %s",
                tensor, layer, name.c_str(), std::string(type.name).c_str(),
                std::string(type_name<Element>).c_str());
        if (values.size_bytes() != type.count * type.element.bytes)
            detail::throw_error<std::invalid_argument>(
                "gpipe: buffer %zu of layer %zu has %zu elements, not %zu", tensor, layer,
                type.count, values.size());
        std::byte* at = machine.layer(layer).buffers.buffers;
        for (std::size_t t = 0; t < tensor; ++t)
            at += slot_bytes(types[t].count * types[t].element.bytes);
        return at;
    }
};

} // namespace gpipe
