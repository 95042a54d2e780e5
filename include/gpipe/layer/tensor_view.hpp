#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/layer/tensor.hpp>

#include <cstddef>
#include <stdexcept>
#include <type_traits>
#include <utility>

/// @file
/// Views of tensors. Where GPIPE_CHECK_INDICES is defined, in all of a program's files (CMake:
/// -DGPIPE_CHECK_INDICES=ON), an index that is not below its extent, of an absent tensor any,
/// throws std::out_of_range on the host: in a layer's function that is an error of the step with
/// its place. What data(), begin() and end() point to is not looked at.

namespace gpipe {

namespace detail {

template <class Index>
[[gnu::always_inline]] constexpr std::size_t checked(Index index,
                                                     [[maybe_unused]] std::size_t extent) {
#if defined GPIPE_CHECK_INDICES && !defined __CUDA_ARCH__
    if (static_cast<std::size_t>(index) >= extent)
        throw_error<std::out_of_range>("gpipe: a view is asked for index %lld of an extent of %zu",
                                       static_cast<long long>(index), extent);
#endif
    return static_cast<std::size_t>(index);
}

// For its sentence alone.
template <class Other> struct NoElements {
    static_assert(sizeof(Other) == 0,
                  "gpipe: view[sample] = other assigns a view that is gone at once, not its "
                  "elements: copy them by std::copy, or a loop");
};

} // namespace detail

/// One tensor in memory, extents known, row-major: a parameter, or one sample of a BatchView.
/// A range of its elements; does not own them.
template <class T, std::size_t... Extents> class TensorView {
  public:
    using element_type = T; ///< T, const where the layer may only read
    static constexpr std::size_t rank = sizeof...(Extents); ///< how many extents there are

    /// Of elements that lie at `data`, row-major.
    constexpr explicit TensorView(T* data) : data_(data) {}
    constexpr TensorView(TensorView const&) = default; ///< of the same elements
    /// A view that writes is one that reads.
    template <class U>
        requires std::is_same_v<U const, T>
    constexpr TensorView(TensorView<U, Extents...> const& other) : data_(other.data()) {}
    /// From now on a view of these.
    constexpr TensorView& operator=(TensorView const&) & = default;
    /// Of what is gone at once: a sentence.
    template <class Other> constexpr detail::NoElements<Other> operator=(Other const&) &&;

    /// As std::span.
    ///@{
    constexpr T* data() const { return data_; }
    static constexpr std::size_t size() { return (std::size_t{1} * ... * Extents); }
    constexpr T* begin() const { return data_; }
    constexpr T* end() const { return data_ + size(); }
    constexpr T& operator[](std::size_t i) const { return data_[detail::checked(i, size())]; }
    ///@}
    /// The extent at place `index`.
    template <std::size_t index> static constexpr std::size_t extent() {
        return Tensor<std::remove_const_t<T>, Extents...>::extents[index];
    }

    /// The element at one index per extent.
    template <class... Indices> constexpr T& operator()(Indices... indices) const {
        constexpr bool one_each = sizeof...(Indices) == sizeof...(Extents);
        static_assert(one_each, "gpipe: an element of a sample's tensor is at one index per extent "
                                "(Extents): view(i, ...)");
        std::size_t offset = 0;
        if constexpr (one_each)
            ((offset = offset * Extents + detail::checked(indices, Extents)), ...);
        return data_[offset];
    }

  private:
    T* data_;
};

/// The samples of one micro-batch of a tensor, contiguous: view[sample] is a TensorView,
/// view(sample, i, ...) an element. A range of all elements; does not own them.
template <class T, std::size_t... Extents> class BatchView {
  public:
    using element_type = T;                   ///< const for views that only read
    using Sample = TensorView<T, Extents...>; ///< what view[sample] is

    /// Of `samples` samples, one after the other.
    constexpr BatchView(T* data, std::size_t samples) : data_(data), samples_(samples) {}
    constexpr BatchView(BatchView const&) = default; ///< of the same elements
    /// A view of const elements from one that could write.
    template <class U>
        requires std::is_same_v<U const, T>
    constexpr BatchView(BatchView<U, Extents...> const& other)
        : data_(other.data()), samples_(other.samples()) {}
    /// From now on a view of these.
    constexpr BatchView& operator=(BatchView const&) & = default;
    /// Of what is gone at once: a sentence.
    template <class Other> constexpr detail::NoElements<Other> operator=(Other const&) &&;

    constexpr T* data() const { return data_; }                ///< of the first sample
    constexpr std::size_t samples() const { return samples_; } ///< how many
    constexpr std::size_t size() const { return samples_ * Sample::size(); } ///< all elements
    constexpr T* begin() const { return data_; }                             ///< of all elements
    constexpr T* end() const { return data_ + size(); }                      ///< likewise
    /// One of the samples.
    constexpr Sample operator[](std::size_t sample) const {
        return Sample{data_ + detail::checked(sample, samples_) * Sample::size()};
    }
    /// Element (i, ...) of a sample.
    template <class... Indices>
    constexpr T& operator()(std::size_t sample, Indices... indices) const {
        constexpr bool one_each = sizeof...(Indices) == sizeof...(Extents);
        static_assert(one_each, "gpipe: an element of a micro-batch's tensor is at its sample and "
                                "one index per extent (Extents): view(sample, i, ...)");
        std::size_t offset = detail::checked(sample, samples_);
        if constexpr (one_each)
            ((offset = offset * Extents + detail::checked(indices, Extents)), ...);
        return data_[offset];
    }

  private:
    T* data_;
    std::size_t samples_;
};

/// The samples of a tensor that may be absent: see Optional. A BatchView that is true if the tensor
/// is there.
template <class T, std::size_t... Extents> class OptionalView : public BatchView<T, Extents...> {
  public:
    using BatchView<T, Extents...>::BatchView;
    /// A view of const elements from one that could write.
    template <class U>
        requires std::is_same_v<U const, T>
    constexpr OptionalView(OptionalView<U, Extents...> const& other)
        : BatchView<T, Extents...>(other) {}
    constexpr OptionalView(OptionalView const&) = default; ///< of the same elements
    /// From now on a view of these.
    constexpr OptionalView& operator=(OptionalView const&) & = default;

    /// Whether the tensor is there.
    constexpr explicit operator bool() const { return this->data() != nullptr; }
};

/// @cond
namespace detail {

template <class V> inline constexpr bool is_view = false;
template <class T, std::size_t... Es> inline constexpr bool is_view<TensorView<T, Es...>> = true;
template <class T, std::size_t... Es> inline constexpr bool is_view<BatchView<T, Es...>> = true;
template <class T, std::size_t... Es> inline constexpr bool is_view<OptionalView<T, Es...>> = true;

} // namespace detail
/// @endcond

/// One view is taken apart as several are, by `auto const [w] = context.parameters()` or get<0>().
template <std::size_t i, class View>
    requires detail::is_view<View>
constexpr View get(View const& view) {
    static_assert(i == 0, "gpipe: there is one tensor");
    return view;
}

} // namespace gpipe

/// @cond
template <class View>
    requires gpipe::detail::is_view<View>
struct std::tuple_size<View> : std::integral_constant<std::size_t, 1> {
};
template <class View>
    requires gpipe::detail::is_view<View>
struct std::tuple_element<0, View> {
    using type = View;
};
/// @endcond
