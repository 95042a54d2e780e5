#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/type_list.hpp>
#include <gpipe/core/type_name.hpp>
#include <gpipe/layer/traits.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpipe {

/// A parameter tensor that is one with others (an embedding's table and the output's weights, after
/// Press and Wolf, 2017), known by a tag, any type: `using Tied = gpipe::Tie<Tag, tensor>` in each
/// of their layers, where `tensor` is its place among the layer's Parameters. All ends begin as the
/// first layer of the chain initializes it; their gradients are added up once per mini-batch, in
/// the order of the chain. A tag means the same everywhere, in a Repeat, too: there all repetitions
/// share the tensor.
template <class Tag, std::size_t tensor = 0> struct Tie {};

/// Several of them: `Ties<A>` and `A` mean the same.
template <class... Ts> struct Ties {};

/// An end of a tie, as a value.
struct TieInfo {
    std::string_view tag;     ///< its type's name
    std::string_view type;    ///< of the tensor, likewise
    std::uint32_t tensor = 0; ///< among the layer's parameters
    std::size_t elements = 0; ///< of it
    std::size_t bytes = 0;    ///< likewise
};

/// Ends of ties at a layer.
using TieEnds = Part<TieInfo>;

namespace detail {

template <class L>
concept ties_parameters = requires {
    typename L::Tied;
};

template <class Parameters, class T> struct TieOf {
    static constexpr bool fits = false;
    static constexpr TieInfo info() { return {}; }
};
template <class... Ps, class Tag, std::size_t place>
    requires(place < sizeof...(Ps))
struct TieOf<Tensors<Ps...>, Tie<Tag, place>> {
    using tag = Tag;
    using Tensor = typename List<Ps...>::template at<place>;
    static constexpr bool fits = true;
    static constexpr TieInfo info() {
        return {type_name<Tag>, type_name<Tensor>, place, Tensor::size, Tensor::bytes};
    }
};

// What a layer ties, of its parameters.
template <class Parameters, class T> struct TiesAmong;
template <class Parameters, class... Ts> struct TiesAmong<Parameters, Ties<Ts...>> {
    template <std::size_t end> using at = TieOf<Parameters, typename List<Ts...>::template at<end>>;

    static constexpr TieInfo infos[sizeof...(Ts) + 1] = {TieOf<Parameters, Ts>::info()...,
                                                         TieInfo{}};
    // Each of another of the layer's tensors.
    static constexpr bool fit() {
        for (std::size_t i = 0; i < sizeof...(Ts); ++i)
            for (std::size_t j = 0; j < i; ++j)
                if (infos[i].tensor == infos[j].tensor) return false;
        return (true && ... && TieOf<Parameters, Ts>::fits);
    }
    static constexpr TieEnds ends() { return {infos, sizeof...(Ts)}; }
};

template <ties_parameters L>
using ties_of =
    TiesAmong<typename ParametersOf<L>::type, typename AsPack<Ties, typename L::Tied>::type>;

} // namespace detail
} // namespace gpipe
