#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/core/checked.hpp>
#include <gpipe/core/type_list.hpp>

#include <array>
#include <cstddef>
#include <type_traits>

namespace gpipe {

/// What a Tensor may be.
template <class T, std::size_t... Extents> struct CheckTensor {
    static consteval bool ok() {
        constexpr bool holds =
            std::is_trivially_copyable_v<T> && !std::is_const_v<T> && !std::is_volatile_v<T>;
        static_assert(holds,
                      "gpipe: the element of a Tensor must be trivially copyable, and not const");
        constexpr bool positive = ((Extents > 0) && ...);
        static_assert(positive, "gpipe: every extent of a Tensor must be positive");
        constexpr bool aligned = alignof(T) <= slot_alignment;
        static_assert(aligned, "gpipe: the element of a Tensor is aligned to more than 256 bytes: "
                               "every tensor begins at a multiple of those, and of no more");
        constexpr bool addressable =
            checked_product(checked_product({Extents...}), sizeof(T)) <= most_bytes;
        static_assert(addressable,
                      "gpipe: the extents of this Tensor multiply to more bytes than memory "
                      "has addresses");
        return holds && positive && aligned && addressable;
    }
};

/// The shape and element type of one tensor, as a type. As a layer's input, output, saved or
/// scratch tensor it describes one sample, and a micro-batch adds a leading extent; as a parameter
/// it is whole. No extents: one element.
template <class T, std::size_t... Extents> struct Tensor {
    static_assert(CheckTensor<T, Extents...>::ok() || true); // one error, not two

    using Element = T;                                      ///< the type of an element
    static constexpr std::size_t rank = sizeof...(Extents); ///< how many extents there are
    /// The extents, the slowest first: tensors are row-major.
    static constexpr std::array<std::size_t, rank> extents{Extents...};
    /// Elements.
    static constexpr std::size_t size = checked_product({Extents...});
    /// Bytes of all elements, without padding.
    static constexpr std::size_t bytes = checked_product(size, sizeof(T));
};

/// Several tensors, in order. `Tensors<A>` and `A` mean the same wherever a layer names its types.
template <class... Ts> struct Tensors {};

/// Whether a tensor of these elements carries a gradient: floating-point elements do, integers do
/// not. Specialise it for a floating-point type of your own.
template <class T> struct CarriesGradient : std::is_floating_point<T> {};

/// What debug mode knows of a tensor's elements.
struct ElementInfo {
    std::size_t bytes = 0; ///< of one
    bool is_real = false;  ///< whether they carry a gradient
    bool is_bool = false;  ///< whether they are true or false
    /// Of a tensor that may be absent: one address per tag, see gpipe::Optional.
    void const* optional = nullptr;
};
/// Of elements of type T.
template <class T>
inline constexpr ElementInfo element_info{sizeof(T), CarriesGradient<T>::value,
                                          std::is_same_v<T, bool>, nullptr};

namespace detail {

// See gpipe::Optional; null of a tensor that is always there.
template <class T> inline constexpr void const* optional_id = nullptr;
template <class T> constexpr ElementInfo element_info_of() {
    ElementInfo info = element_info<typename T::Element>;
    info.optional = optional_id<T>;
    return info;
}

template <class T> inline constexpr bool is_tensor = false;
template <class T, std::size_t... Es> inline constexpr bool is_tensor<Tensor<T, Es...>> = true;

template <class T> inline constexpr bool is_tensors = is_tensor<T>;
template <class... Ts> inline constexpr bool is_tensors<Tensors<Ts...>> = (is_tensor<Ts> && ...);

// A, Tensors<A>, Tensors<A, B> and void in one form.
template <class T> struct AsTensors { using type = Tensors<T>; };
template <class... Ts> struct AsTensors<Tensors<Ts...>> { using type = Tensors<Ts...>; };
template <> struct AsTensors<void> { using type = Tensors<>; };
template <class T> using as_tensors = typename AsTensors<T>::type;
template <class A, class B>
inline constexpr bool same_tensors = std::is_same_v<as_tensors<A>, as_tensors<B>>;

} // namespace detail

/// @cond
/// What can be known of a group of tensors without a value: T is a Tensor, Tensors<...> or void.
template <class T> struct TensorGroup : TensorGroup<detail::as_tensors<T>> {};

template <class... Ts> struct TensorGroup<Tensors<Ts...>> {
    static constexpr std::size_t count = sizeof...(Ts);
    /// Bytes of each tensor (of one sample, where the group belongs to a sample).
    static constexpr std::array<std::size_t, count> bytes{Ts::bytes...};
    /// The same of their gradients: 0 for a tensor that carries none.
    static constexpr std::array<std::size_t, count> gradient_bytes{
        (CarriesGradient<typename Ts::Element>::value ? Ts::bytes : 0)...};
    static constexpr std::array<ElementInfo, count> elements_of{detail::element_info_of<Ts>()...};
    static constexpr std::size_t elements = (std::size_t{0} + ... + Ts::size);
    static constexpr bool carries_gradient =
        (false || ... || CarriesGradient<typename Ts::Element>::value);

    template <std::size_t index> using at = typename List<Ts...>::template at<index>;
};
/// @endcond

} // namespace gpipe
