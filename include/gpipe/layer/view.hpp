#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/layer/tensor.hpp>

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace gpipe {

/// The absence of a tensor: handed to a layer in place of a gradient that nobody wants. A layer
/// that can do without an argument writes `if constexpr (gpipe::is_none<decltype(dx)>)`.
struct None {};
inline constexpr None none{};
template <class T> inline constexpr bool is_none = std::is_same_v<std::remove_cvref_t<T>, None>;

/// One tensor in memory, extents known, row-major: a parameter, or one sample of a BatchView.
/// A range of its elements; does not own them.
template <class T, std::size_t... Extents> class TensorView {
  public:
    using element_type = T;
    static constexpr std::size_t rank = sizeof...(Extents);

    constexpr explicit TensorView(T* data) : data_(data) {}
    template <class U>
        requires std::is_same_v<U const, T>
    constexpr TensorView(TensorView<U, Extents...> const& other) : data_(other.data()) {}

    constexpr T* data() const { return data_; }
    static constexpr std::size_t size() { return (std::size_t{1} * ... * Extents); }
    template <std::size_t index> static constexpr std::size_t extent() {
        return Tensor<std::remove_const_t<T>, Extents...>::extents[index];
    }
    constexpr T* begin() const { return data_; }
    constexpr T* end() const { return data_ + size(); }
    constexpr T& operator[](std::size_t i) const { return data_[i]; }

    /// The element at one index per extent.
    template <class... Indices>
        requires(sizeof...(Indices) == sizeof...(Extents))
    constexpr T& operator()(Indices... indices) const {
        std::size_t offset = 0;
        ((offset = offset * Extents + static_cast<std::size_t>(indices)), ...);
        return data_[offset];
    }

  private:
    T* data_;
};

/// The samples of one micro-batch of a tensor, contiguous: view[sample] is a TensorView,
/// view(sample, i, ...) an element. A range of all elements; does not own them.
template <class T, std::size_t... Extents> class BatchView {
  public:
    using element_type = T;
    using Sample = TensorView<T, Extents...>;

    constexpr BatchView(T* data, std::size_t samples) : data_(data), samples_(samples) {}
    template <class U>
        requires std::is_same_v<U const, T>
    constexpr BatchView(BatchView<U, Extents...> const& other)
        : data_(other.data()), samples_(other.samples()) {}

    constexpr T* data() const { return data_; }
    constexpr std::size_t samples() const { return samples_; }
    constexpr std::size_t size() const { return samples_ * Sample::size(); }
    constexpr T* begin() const { return data_; }
    constexpr T* end() const { return data_ + size(); }
    constexpr Sample operator[](std::size_t sample) const {
        return Sample{data_ + sample * Sample::size()};
    }
    template <class... Indices>
        requires(sizeof...(Indices) == sizeof...(Extents))
    constexpr T& operator()(std::size_t sample, Indices... indices) const {
        return (*this)[sample](indices...);
    }

  private:
    T* data_;
    std::size_t samples_;
};

/// Where the tensors of a group lie for one micro-batch: one after the other from `base`, each in a
/// slot for `capacity` samples; or, if `table` is set, wherever it points (the caller's own
/// arrays).
struct GroupAddress {
    std::byte* base = nullptr;
    std::byte* const* table = nullptr;
};

namespace detail {

enum class Access { read, write };

template <Access access, class T>
using accessed = std::conditional_t<access == Access::read, T const, T>;

template <Access access, class T, std::size_t... Es>
constexpr auto batch_view(Tensor<T, Es...>, std::byte* data, std::size_t samples) {
    return BatchView<accessed<access, T>, Es...>{reinterpret_cast<accessed<access, T>*>(data),
                                                 samples};
}
template <Access access, class T, std::size_t... Es>
constexpr auto tensor_view(Tensor<T, Es...>, std::byte* data) {
    return TensorView<accessed<access, T>, Es...>{reinterpret_cast<accessed<access, T>*>(data)};
}

// A gradient has the type of its tensor; a tensor that carries none has none.
template <Access access, class T, std::size_t... Es>
constexpr auto gradient_view(Tensor<T, Es...> tensor, std::byte* data, std::size_t samples) {
    if constexpr (CarriesGradient<T>::value)
        return batch_view<access>(tensor, data, samples);
    else
        return None{};
}

template <class Group> struct GroupViews;

template <class... Ts> struct GroupViews<Tensors<Ts...>> {
    // Applies `view(tensor, address)` to every tensor: the view itself for one, a tuple for
    // several. `bytes`: what each takes in a slot, for one sample.
    template <class View, std::size_t... Is>
    static constexpr auto each(GroupAddress address, std::size_t const* bytes, std::size_t capacity,
                               View view, std::index_sequence<Is...>) {
        if constexpr (sizeof...(Ts) == 0) {
            return None{};
        } else if constexpr (sizeof...(Ts) == 1) {
            return view(Ts{}..., address.table ? address.table[0] : address.base);
        } else {
            std::byte* at[sizeof...(Ts)];
            std::byte* next = address.base;
            for (std::size_t i = 0; i < sizeof...(Ts); ++i) {
                at[i] = address.table ? address.table[i] : next;
                if (!address.table) next += slot_bytes(bytes[i] * capacity);
            }
            return std::tuple{view(Ts{}, at[Is])...};
        }
    }
};

} // namespace detail

/// The views of a group of tensors for one micro-batch: a BatchView, a std::tuple of them for
/// several, None for no tensor.
template <class Group, detail::Access access>
constexpr auto batch_views(GroupAddress address, std::size_t samples, std::size_t capacity) {
    using Tensors = detail::as_tensors<Group>;
    return detail::GroupViews<Tensors>::each(
        address, TensorGroup<Tensors>::bytes.data(), capacity,
        [samples](auto tensor, std::byte* data) {
            return detail::batch_view<access>(tensor, data, samples);
        },
        std::make_index_sequence<TensorGroup<Tensors>::count>{});
}

/// The same for gradients; None for each tensor that carries none.
template <class Group, detail::Access access>
constexpr auto gradient_views(std::byte* base, std::size_t samples, std::size_t capacity) {
    using Tensors = detail::as_tensors<Group>;
    return detail::GroupViews<Tensors>::each(
        GroupAddress{base, nullptr}, TensorGroup<Tensors>::gradient_bytes.data(), capacity,
        [samples](auto tensor, std::byte* data) {
            return detail::gradient_view<access>(tensor, data, samples);
        },
        std::make_index_sequence<TensorGroup<Tensors>::count>{});
}

/// The views of a group of whole tensors (parameters and their gradients).
template <class Group, detail::Access access> constexpr auto tensor_views(std::byte* base) {
    using Tensors = detail::as_tensors<Group>;
    return detail::GroupViews<Tensors>::each(
        GroupAddress{base, nullptr}, TensorGroup<Tensors>::bytes.data(), 1,
        [](auto tensor, std::byte* data) { return detail::tensor_view<access>(tensor, data); },
        std::make_index_sequence<TensorGroup<Tensors>::count>{});
}

} // namespace gpipe
