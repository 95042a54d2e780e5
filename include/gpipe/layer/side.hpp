#pragma once

#include <gpipe/call/step_sides.hpp>
#include <gpipe/core/type_list.hpp>
#include <gpipe/core/type_name.hpp>
#include <gpipe/layer/tensor.hpp>

#include <cstddef>
#include <type_traits>

namespace gpipe {

/// A tensor of the mini-batch that enters the chain where it is read, whatever lies in front (a
/// mask, positions), known by a tag, any type: `using Side = gpipe::SideInput<Tag, Tensor<...>>` in
/// each layer that reads it. T: one tensor, of one sample, everywhere the same. The caller gives it
/// once, behind the tensors that the first layer takes, side inputs in the order in which layers
/// read them first: that is Training::Input. Nothing flows back to it.
template <class Tag, class T> struct SideInput {};

/// Several of them: `SideInputs<A>` and `A` mean the same.
template <class... Ss> struct SideInputs {};

namespace detail {

template <class S> struct SideOf {
    static constexpr bool fits = false;
    static constexpr SideInfo info() { return {}; }
};
template <class Tag, class T>
    requires is_tensor<T>
struct SideOf<SideInput<Tag, T>> {
    using tag = Tag;
    using Tensor = T;
    static constexpr bool fits = true;
    static constexpr SideInfo info() {
        return {&type_mark<Tag>, type_name<Tag>, type_name<T>, T::bytes, 0, 0, optional_id<T>};
    }
};

template <class L, class = void> struct SidesOf { using type = SideInputs<>; };
template <class L>
struct SidesOf<L, std::void_t<typename L::Side>> : AsPack<SideInputs, typename L::Side> {};
template <class L> using sides_of = typename SidesOf<L>::type;

// What a layer reads, as a type that contexts carry.
template <class Sides> struct SideTypes;
template <> struct SideTypes<SideInputs<>> {
    static constexpr bool fit() { return true; }
    static constexpr SideEnds ends() { return {}; }
    template <class Tag> static constexpr bool has = false;
};
template <class... Ss> struct SideTypes<SideInputs<Ss...>> {
    static constexpr SideInfo infos[sizeof...(Ss)] = {SideOf<Ss>::info()...};
    static constexpr SideEnds ends() { return {infos, sizeof...(Ss)}; }
    template <std::size_t place> using at = SideOf<typename List<Ss...>::template at<place>>;
    // Each of another tag.
    static constexpr bool fit() {
        for (std::size_t i = 0; i < sizeof...(Ss); ++i)
            for (std::size_t j = 0; j < i; ++j)
                if (infos[i].tag == infos[j].tag) return false;
        return (SideOf<Ss>::fits && ...);
    }

    template <class Tag>
    static constexpr bool has = (false || ... || std::is_same_v<Tag, typename SideOf<Ss>::tag>);
    template <class Tag> static constexpr std::size_t place() {
        return first_true({std::is_same_v<Tag, typename SideOf<Ss>::tag>...});
    }
};

} // namespace detail

/// The side input of this tag for the samples of a micro-batch, in a layer's forward, its
/// recomputation and its backward (or halves): a BatchView of const elements.
template <class Tag, class Context> auto side(Context const& context) {
    constexpr bool is_call = requires { typename Context::Sides; };
    static_assert(is_call, "gpipe: gpipe::side<Tag>(context) is for the forward and backward of a "
                           "layer; a loss has targets");
    if constexpr (is_call) {
        using Sides = typename Context::Sides;
        constexpr bool declared = Sides::template has<Tag>;
        static_assert(declared, "gpipe: who works with gpipe::side<Tag>(context) must declare it: "
                                "using Side = gpipe::SideInput<Tag, gpipe::Tensor<...>>");
        if constexpr (declared) {
            using Which = typename Sides::template at<Sides::template place<Tag>()>;
            return context.template side<typename Which::Tensor>(&detail::type_mark<Tag>);
        }
    }
}

} // namespace gpipe
