#pragma once

#include <gpipe/chain/element.hpp>
#include <gpipe/core/type_name.hpp>
#include <gpipe/layer/traits.hpp>
#include <gpipe/state/state_inline.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

namespace gpipe {

/// The names of a layer's parameter tensors in saved states and messages: declared as `static
/// constexpr char const* parameter_names[] = {"weight", "bias"}`, one per tensor; else they are
/// called 0, 1, ...
template <class L> inline constexpr bool names_parameters = requires { L::parameter_names; };

/// The names of a layer's buffers, likewise: declared as `static constexpr char const*
/// buffer_names[] = {"running_mean", "running_variance"}`; else they are called buffer.0, ...
template <class L> inline constexpr bool names_buffers = requires { L::buffer_names; };

/// One layer type as saved states know it.
struct LayerState : LayerElements {
    std::string_view type;                   ///< as the compiler writes it
    std::string_view const* names = nullptr; ///< of the parameters; none if they have numbers
    std::string_view const* buffer_names = nullptr; ///< likewise
};

namespace detail {

// Letters, digits and the like, so that no name looks like a pattern or a path.
GPIPE_STATE_INLINE constexpr bool plain_name(std::string_view name) {
    return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '-' || c == '.';
    });
}
template <std::size_t count>
constexpr bool plain_names(std::array<std::string_view, count> const& names) {
    for (std::size_t i = 0; i < count; ++i)
        if (!plain_name(names[i]) ||
            std::find(names.begin(), names.begin() + i, names[i]) != names.begin() + i)
            return false;
    return true;
}

// What they can stand in.
template <class Given>
concept ArrayOfNames = requires(Given const& given) {
    std::string_view(given[std::size(given)]);
};
// `count` of them.
template <std::size_t count, ArrayOfNames Given>
constexpr std::array<std::string_view, count> names_of(Given const& given) {
    std::array<std::string_view, count> names;
    for (std::size_t t = 0; t < count && t < std::size(given); ++t) names[t] = given[t];
    return names;
}
// What a layer says. (Not one template of the array: nvcc 13 writes that so that g++ refuses it.)
template <class L> struct NamesOf {
    static constexpr std::size_t count = TensorGroup<typename LayerTraits<L>::Parameters>::count;
    static constexpr bool one_each = std::size(L::parameter_names) == count;
    static constexpr std::array<std::string_view, count> value =
        names_of<count>(L::parameter_names);
    static constexpr bool fit = one_each && plain_names(value);
};
template <class L> struct BufferNamesOf {
    static constexpr std::size_t count = TensorGroup<typename L::Buffers>::count;
    static constexpr bool one_each = std::size(L::buffer_names) == count;
    static constexpr std::array<std::string_view, count> value = names_of<count>(L::buffer_names);
    static constexpr bool fit = one_each && plain_names(value);
};

// Whether what a layer says is a constant array of names.
template <class L>
concept NamesParameters = requires {
    typename std::bool_constant<(names_of<1>(L::parameter_names), true)>;
};
template <class L>
concept NamesBuffers = requires {
    typename std::bool_constant<(names_of<1>(L::buffer_names), true)>;
};

// Whether it is the prefix and the number behind that.
GPIPE_STATE_INLINE constexpr bool is_numbered(std::string_view name, std::string_view prefix,
                                              std::size_t number) {
    if (!name.starts_with(prefix)) return false;
    for (std::size_t i = name.size(); i > prefix.size(); number /= 10) {
        if (name[--i] != static_cast<char>('0' + number % 10)) return false;
        if (number < 10) return i == prefix.size();
    }
    return false;
}
// Whether a parameter and a buffer have one name; which have any is said, for the address of an
// array is no condition in constants where g++ looks for undefined behaviour.
GPIPE_STATE_INLINE constexpr bool share_a_name(LayerState const& layer, bool parameters,
                                               bool buffers) {
    for (std::size_t p = 0; p < layer.parameters.size(); ++p)
        for (std::size_t b = 0; b < layer.buffers.size(); ++b)
            if (parameters && buffers ? layer.names[p] == layer.buffer_names[b]
                : parameters          ? is_numbered(layer.names[p], "buffer.", b)
                : buffers             ? is_numbered(layer.buffer_names[b], "", p)
                                      : false)
                return true;
    return false;
}

// For Pipeline::leaf_table.
struct StateOfLayer {
    using Value = LayerState;
    template <class L> static constexpr Value of() {
        constexpr LayerElements elements = ElementsOf::of<L>();
        constexpr auto is_known = [](TensorType const& type) { return type.dtype != Dtype::other; };
        constexpr bool known =
            std::all_of(elements.parameters.begin(), elements.parameters.end(), is_known) &&
            std::all_of(elements.buffers.begin(), elements.buffers.end(), is_known);
        static_assert(known, "gpipe: a parameter or buffer has elements of a type that files do "
                             "not know: specialise gpipe::DtypeOf for it");
        if constexpr (names_fit<L>()) {
            constexpr bool differ =
                !share_a_name(named<L>(elements), names_parameters<L>, names_buffers<L>);
            static_assert(differ,
                          "gpipe: a parameter and a buffer of this layer have one name: those of "
                          "parameter_names (else 0, 1, ...) must differ from those of buffer_names "
                          "(else buffer.0, buffer.1, ...)");
        }
        return named<L>(elements);
    }

  private:
    template <class L> static consteval bool names_fit() {
        bool fit = true;
        constexpr bool parameters = !names_parameters<L> || NamesParameters<L>;
        static_assert(parameters, "gpipe: parameter_names of this layer must be a constant array: "
                                  "static constexpr char const* parameter_names[] = {...}");
        constexpr bool buffers = !names_buffers<L> || NamesBuffers<L>;
        static_assert(buffers, "gpipe: buffer_names of this layer must be a constant array: "
                               "static constexpr char const* buffer_names[] = {...}");
        if constexpr (NamesParameters<L>) {
            using Names = NamesOf<L>;
            static_assert(Names::one_each, "gpipe: parameter_names of this layer must have one "
                                           "name for each of its parameter tensors");
            static_assert(!Names::one_each || Names::fit,
                          "gpipe: parameter_names of this layer must differ, and have letters, "
                          "digits, '.', '_' and '-' only");
            fit = Names::fit;
        }
        if constexpr (NamesBuffers<L>) {
            using Names = BufferNamesOf<L>;
            static_assert(Names::one_each, "gpipe: buffer_names of this layer must have one name "
                                           "for each of its buffers");
            static_assert(!Names::one_each || Names::fit,
                          "gpipe: buffer_names of this layer must differ, and have letters, "
                          "digits, '.', '_' and '-' only");
            fit = fit && Names::fit;
        }
        return fit && parameters && buffers;
    }
    template <class L> static constexpr LayerState named(LayerElements const& elements) {
        LayerState state{elements, type_name<L>, nullptr, nullptr};
        if constexpr (NamesParameters<L>) state.names = NamesOf<L>::value.data();
        if constexpr (NamesBuffers<L>) state.buffer_names = BufferNamesOf<L>::value.data();
        return state;
    }
};

} // namespace detail

/// A type's own name, without namespaces and template arguments, which compilers write differently:
/// "Linear" of "gpt::Linear<float, 4ul>".
GPIPE_STATE_INLINE std::string bare_name(std::string_view type) {
    std::string name;
    std::size_t depth = 0;
    for (std::size_t i = 0; i < type.size(); ++i) {
        char const c = type[i];
        if (c == '<' || c == '(' || c == '{') ++depth;
        if (depth == 0 && c == ':') name.clear();
        if (depth == 0 && c != ':') name += c;
        if ((c == '>' || c == ')' || c == '}') && depth > 0) --depth;
    }
    return name;
}

} // namespace gpipe
