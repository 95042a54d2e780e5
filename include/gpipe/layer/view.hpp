#pragma once

#include <gpipe/call/address.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/layer/none.hpp>
#include <gpipe/layer/optional.hpp>
#include <gpipe/layer/tensor_view.hpp>

#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace gpipe {

/// The views of several tensors, to be taken apart by `auto const [a, b] = ...` or by get<i>(). An
/// aggregate, because every layer is compiled through these: std::tuple costs a tenth of the time
/// of a chain of many layers. More than eight tensors do come as a std::tuple.
template <class... Ts> struct Views;
/// @cond
// clang-format off
template <class A, class B> struct Views<A, B> { A a; B b; };
template <class A, class B, class C> struct Views<A, B, C> { A a; B b; C c; };
template <class A, class B, class C, class D> struct Views<A, B, C, D> { A a; B b; C c; D d; };
template <class A, class B, class C, class D, class E>
struct Views<A, B, C, D, E> { A a; B b; C c; D d; E e; };
template <class A, class B, class C, class D, class E, class F>
struct Views<A, B, C, D, E, F> { A a; B b; C c; D d; E e; F f; };
template <class A, class B, class C, class D, class E, class F, class G>
struct Views<A, B, C, D, E, F, G> { A a; B b; C c; D d; E e; F f; G g; };
template <class A, class B, class C, class D, class E, class F, class G, class H>
struct Views<A, B, C, D, E, F, G, H> { A a; B b; C c; D d; E e; F f; G g; H h; };
// clang-format on
/// @endcond

/// The view of tensor `i` of several: by value, as for (float& w : get<0>(context.parameters()))
/// would otherwise look at views that are gone.
template <std::size_t i, class... Ts> constexpr auto get(Views<Ts...> const& views) {
    static_assert(i < sizeof...(Ts), "gpipe: there are not so many tensors");
    if constexpr (i == 0)
        return views.a;
    else if constexpr (i == 1)
        return views.b;
    else if constexpr (i == 2)
        return views.c;
    else if constexpr (i == 3)
        return views.d;
    else if constexpr (i == 4)
        return views.e;
    else if constexpr (i == 5)
        return views.f;
    else if constexpr (i == 6)
        return views.g;
    else
        return views.h;
}
/// The same of more than eight tensors.
template <std::size_t i, class... Ts> constexpr auto get(std::tuple<Ts...> const& views) {
    return std::get<i>(views);
}

namespace detail {

enum class Access { read, write };

// The views of one tensor. A gradient has the type of its tensor; a tensor that carries none has
// none.
template <class T, Access access> struct ViewsOf;
template <class T, std::size_t... Es, Access access> struct ViewsOf<Tensor<T, Es...>, access> {
    using Element = std::conditional_t<access == Access::read, T const, T>;
    using Whole = TensorView<Element, Es...>;
    using Batch = BatchView<Element, Es...>;
    using Gradient = std::conditional_t<CarriesGradient<T>::value, Batch, None>;
};
template <class Tag, class T, std::size_t... Es, Access access>
struct ViewsOf<Optional<Tag, Tensor<T, Es...>>, access> : ViewsOf<Tensor<T, Es...>, access> {
    using Batch = OptionalView<std::conditional_t<access == Access::read, T const, T>, Es...>;
    using Gradient = std::conditional_t<CarriesGradient<T>::value, Batch, None>;
};

// Every layer's bodies are compiled through what follows: few levels, no loop and no branch where
// there is one tensor, offsets as constants where they are known.

template <class View> constexpr View batch_view(std::byte* data, std::size_t samples) {
    if constexpr (is_none<View>)
        return View{};
    else
        return View{reinterpret_cast<typename View::element_type*>(data), samples};
}

// The views of a group as one: None, the view itself, several.
template <class... Ts> struct Together {
    using type = std::conditional_t<(sizeof...(Ts) > 8), std::tuple<Ts...>, Views<Ts...>>;
};
template <> struct Together<> { using type = None; };
template <class T> struct Together<T> { using type = T; };
template <class... Ts> using together = typename Together<Ts...>::type;

template <class View> constexpr View whole_view(std::byte* data) {
    return View{reinterpret_cast<typename View::element_type*>(data)};
}

// `bytes`: what each tensor takes in a slot, for one sample.
template <class... Ts, std::size_t count>
constexpr together<Ts...> group_views([[maybe_unused]] GroupAddress address,
                                      [[maybe_unused]] std::array<std::size_t, count> const& bytes,
                                      [[maybe_unused]] std::size_t samples,
                                      [[maybe_unused]] std::size_t capacity) {
    if constexpr (count == 0) {
        return {};
    } else if constexpr (count == 1) {
        return batch_view<Ts...>(address.base, samples);
    } else {
        std::size_t i = 0;
        std::size_t offset = 0;
        auto const advance = [&] {
            std::byte* const at = address.table ? address.table[i] : address.base + offset;
            offset += slot_bytes(bytes[i++] * capacity);
            return at;
        };
        return {batch_view<Ts>(advance(), samples)...};
    }
}

template <class Group, Access access> struct GroupViews;
template <class... Ts, Access access> struct GroupViews<Tensors<Ts...>, access> {
    using Sizes = TensorGroup<Tensors<Ts...>>;
    using Batch = together<typename ViewsOf<Ts, access>::Batch...>;
    using Gradient = together<typename ViewsOf<Ts, access>::Gradient...>;
    using Whole = together<typename ViewsOf<Ts, access>::Whole...>;

    static constexpr Batch batch(GroupAddress at, std::size_t samples, std::size_t capacity) {
        return group_views<typename ViewsOf<Ts, access>::Batch...>(at, Sizes::bytes, samples,
                                                                   capacity);
    }
    static constexpr Gradient gradient(std::byte* base, std::size_t samples, std::size_t capacity) {
        return group_views<typename ViewsOf<Ts, access>::Gradient...>(
            {base, nullptr}, Sizes::gradient_bytes, samples, capacity);
    }
    static constexpr Whole whole(std::byte* base) {
        static_assert(always_there<Tensors<Ts...>>() || true); // one error, not two
        return whole(base, std::index_sequence_for<Ts...>{});
    }
    static constexpr Whole whole_at(std::byte* const* table) {
        static_assert(always_there<Tensors<Ts...>>() || true); // one error, not two
        return whole_at(table, std::index_sequence_for<Ts...>{});
    }

  private:
    template <std::size_t... Is>
    static constexpr Whole whole([[maybe_unused]] std::byte* base, std::index_sequence<Is...>) {
        [[maybe_unused]] constexpr auto offsets = slot_offsets(Sizes::bytes);
        return {whole_view<typename ViewsOf<Ts, access>::Whole>(base + offsets[Is])...};
    }
    template <std::size_t... Is>
    static constexpr Whole whole_at([[maybe_unused]] std::byte* const* table,
                                    std::index_sequence<Is...>) {
        return {whole_view<typename ViewsOf<Ts, access>::Whole>(table[Is])...};
    }
};

// What the functions below return, by name: no overload to resolve for every layer.
template <class Group, Access access>
using BatchViews = typename GroupViews<as_tensors<Group>, access>::Batch;
template <class Group, Access access>
using GradientViews = typename GroupViews<as_tensors<Group>, access>::Gradient;
template <class Group, Access access>
using WholeViews = typename GroupViews<as_tensors<Group>, access>::Whole;

} // namespace detail

/// The views of a group of tensors for one micro-batch: a BatchView, Views of them for
/// several, None for no tensor.
template <class Group, detail::Access access>
constexpr detail::BatchViews<Group, access> batch_views(GroupAddress address, std::size_t samples,
                                                        std::size_t capacity) {
    return detail::GroupViews<detail::as_tensors<Group>, access>::batch(address, samples, capacity);
}

/// The same for gradients; None for each tensor that carries none.
template <class Group, detail::Access access>
constexpr detail::GradientViews<Group, access> gradient_views(std::byte* base, std::size_t samples,
                                                              std::size_t capacity) {
    return detail::GroupViews<detail::as_tensors<Group>, access>::gradient(base, samples, capacity);
}

/// The views of a group of whole tensors from there on.
template <class Group, detail::Access access>
constexpr detail::WholeViews<Group, access> tensor_views(std::byte* base) {
    return detail::GroupViews<detail::as_tensors<Group>, access>::whole(base);
}

/// The same of tensors that lie wherever `table` points: of parameters, or their gradients.
template <class Group, detail::Access access>
constexpr detail::WholeViews<Group, access> parameter_views(std::byte* const* table) {
    return detail::GroupViews<detail::as_tensors<Group>, access>::whole_at(table);
}

} // namespace gpipe
