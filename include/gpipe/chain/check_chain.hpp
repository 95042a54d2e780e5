#pragma once

#include <gpipe/chain/chain.hpp>
#include <gpipe/chain/check_layer.hpp>
#include <gpipe/chain/check_neighbours.hpp>

#include <cstddef>
#include <type_traits>

namespace gpipe {

template <class... Items> class Pipeline;

/// The sentence about a tensor that layer `Index` stashes or pops under Tag, a T, where the rest of
/// the chain does not go with it: `Other`, which stashes an OtherT.
template <SkipFault::Kind kind, std::size_t Index, class L, class Tag, std::size_t Other,
          class OtherLayer, class T, class OtherT>
struct CheckSkip {
    static consteval bool ok() {
        using Fault = SkipFault::Kind;
        static_assert(kind != Fault::never_popped,
                      "gpipe: layer Index (L) stashes a tensor under Tag, but no layer pops it "
                      "(of the same Repeat, if L is in one)");
        static_assert(kind != Fault::never_stashed,
                      "gpipe: layer Index (L) pops a tensor under Tag, but no layer stashes it "
                      "(of the same Repeat, if L is in one)");
        static_assert(kind != Fault::stashed_again,
                      "gpipe: layer Index (L) stashes a tensor under Tag, as layer Other "
                      "(OtherLayer) does: each has a tag of its own, or stands in a Repeat");
        static_assert(kind != Fault::popped_again,
                      "gpipe: layer Index (L) pops a tensor under Tag, as layer Other "
                      "(OtherLayer) does: what is stashed once is popped once");
        static_assert(kind != Fault::stashed_and_popped,
                      "gpipe: layer Index (L) both stashes and pops a tensor under Tag");
        static_assert(kind != Fault::popped_before,
                      "gpipe: layer Other (OtherLayer) pops a tensor under Tag before layer Index "
                      "(L) stashes it");
        static_assert(kind != Fault::other_tensor,
                      "gpipe: layer Index (L) pops a T under Tag, but layer Other (OtherLayer) "
                      "stashes an OtherT");
        return false;
    }
};

/// The sentence about a parameter tensor T that layer `Index` ties under Tag, where that is not one
/// with others, or the first of these is an OtherT.
template <TieFault::Kind kind, std::size_t Index, class L, class Tag, std::size_t First,
          class FirstLayer, class T, class OtherT>
struct CheckTie {
    static consteval bool ok() {
        using Fault = TieFault::Kind;
        static_assert(kind != Fault::alone,
                      "gpipe: layer Index (L) ties a parameter tensor under Tag, but no other "
                      "layer does");
        static_assert(kind != Fault::other_tensor,
                      "gpipe: layer Index (L) ties a T under Tag, but layer First (FirstLayer) an "
                      "OtherT");
        return false;
    }
};

/// The sentence about a side input that layer `Index` reads under Tag as a T, where another layer
/// reads an OtherT under it.
template <std::size_t Index, class L, class Tag, std::size_t First, class FirstLayer, class T,
          class OtherT, bool fits = false>
struct CheckSide {
    static consteval bool ok() {
        static_assert(fits, "gpipe: layer Index (L) reads a T as the side input Tag, but layer "
                            "First (FirstLayer) an OtherT");
        return fits;
    }
};

namespace detail {

template <std::size_t layers> struct CheckNotEmpty {
    static consteval bool ok() {
        static_assert(layers > 0, "gpipe: a Pipeline needs at least one layer");
        return layers > 0;
    }
};

template <std::size_t layers> struct CheckLayerCount {
    static consteval bool ok() {
        static_assert(layers <= 0xFFFFFFFF, "gpipe: the layers of this Pipeline, with all that "
                                            "Repeat repeats, are more than 2^32");
        return layers <= 0xFFFFFFFF;
    }
};

// One of a layer's ends, see SkipEnds.
template <class Stash, class Pop, std::size_t end> struct SkipOfEnds;
template <class... Ss, class... Ps, std::size_t end>
struct SkipOfEnds<Skips<Ss...>, Skips<Ps...>, end> {
    using type = typename List<Ss..., Ps...>::template at<end>;
};
template <class L, std::size_t end>
using SkipAt = typename SkipOfEnds<typename StashOf<L>::type, typename PopOf<L>::type, end>::type;

// The fault of a skip, whose ends are leaves.
template <class Shape, class... Items> consteval bool check_skip() {
    constexpr SkipFault fault = Shape::skip_fault();
    constexpr std::size_t index = layer_of(fault.leaf, Shape::extents);
    constexpr std::size_t other_index = layer_of(fault.other, Shape::extents);
    using L = LayerAt<Shape, index, Items...>;
    using Other = LayerAt<Shape, other_index, Items...>;
    using End = SkipOf<SkipAt<L, fault.end>>;
    return CheckSkip<
        fault.kind, index, L, typename End::tag, other_index, Other, typename End::Tensor,
        typename std::conditional_t<fault.kind == SkipFault::Kind::other_tensor,
                                    typename skips_of<Other>::template Stash<typename End::tag>,
                                    End>::Tensor>::ok();
}

// The same of a tie.
template <class Shape, class... Items> consteval bool check_tie() {
    constexpr TieFault fault = Shape::tie_fault();
    constexpr std::size_t index = layer_of(fault.leaf, Shape::extents);
    constexpr std::size_t first = layer_of(fault.first, Shape::extents);
    using L = LayerAt<Shape, index, Items...>;
    using First = LayerAt<Shape, first, Items...>;
    using End = typename ties_of<L>::template at<fault.end>;
    using FirstEnd = typename ties_of<First>::template at<fault.first_end>;
    return CheckTie<fault.kind, index, L, typename End::tag, first, First, typename End::Tensor,
                    typename FirstEnd::Tensor>::ok();
}

// The same of a side input.
template <class Shape, class... Items> consteval bool check_sides() {
    constexpr SideFault fault = Shape::side_fault();
    if constexpr (!fault.exists) {
        return true;
    } else {
        constexpr std::size_t index = layer_of(fault.leaf, Shape::extents);
        constexpr std::size_t first = layer_of(fault.first, Shape::extents);
        using L = LayerAt<Shape, index, Items...>;
        using First = LayerAt<Shape, first, Items...>;
        using End = typename SideTypes<sides_of<L>>::template at<fault.place>;
        using Others = SideTypes<sides_of<First>>;
        using FirstEnd = typename Others::template at<Others::template place<typename End::tag>()>;
        return CheckSide<index, L, typename End::tag, first, First, typename End::Tensor,
                         typename FirstEnd::Tensor>::ok();
    }
}

// Turns the first fault into its sentence. Whether there is none.
template <class... Items> consteval bool check_layers() {
    using Shape = Chain<Items...>;
    constexpr auto verdict = Shape::check();
    if constexpr (verdict.layer < Shape::layers())
        return CheckLayer<verdict.layer, LayerAt<Shape, verdict.layer, Items...>>::ok();
    else if constexpr (verdict.neighbours < Shape::layers())
        return CheckNeighbours<verdict.neighbours, LayerAt<Shape, verdict.neighbours, Items...>,
                               LayerAt<Shape, verdict.neighbours + 1, Items...>>::ok();
    else if constexpr (Shape::skip_fault().kind != SkipFault::Kind::nothing)
        return check_skip<Shape, Items...>();
    else if constexpr (Shape::tie_fault().kind != TieFault::Kind::nothing)
        return check_tie<Shape, Items...>();
    else if constexpr (verdict.cost < Shape::layers())
        return CheckCost<verdict.cost, LayerAt<Shape, verdict.cost, Items...>>::ok();
    else if constexpr (verdict.has_sides)
        return check_sides<Shape, Items...>();
    else
        return true;
}
template <class... Items> consteval bool check_chain() {
    if constexpr (sizeof...(Items) == 0)
        return CheckNotEmpty<sizeof...(Items)>::ok();
    else if constexpr (Chain<Items...>::repeats_nothing())
        return false;
    else if constexpr (!CheckLayerCount<Chain<Items...>::layers()>::ok())
        return false;
    else
        return check_layers<Items...>();
}

// Whether Net is a Pipeline, and one without a mistake.
template <class Net> inline constexpr bool is_pipeline = false;
template <class... Items> inline constexpr bool is_pipeline<Pipeline<Items...>> = true;
template <class Net> inline constexpr bool is_sound = false;
template <class... Items>
inline constexpr bool is_sound<Pipeline<Items...>> = check_chain<Items...>();

// What stands for a layer of a list that is none.
struct AnyLayer {
    using Input = Tensor<float>;
    using Output = Input;
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};

} // namespace detail
} // namespace gpipe
