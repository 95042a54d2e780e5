#pragma once

#include <gpipe/chain/chain.hpp>
#include <gpipe/chain/check_layer.hpp>
#include <gpipe/chain/check_neighbours.hpp>
#include <gpipe/chain/check_side.hpp>
#include <gpipe/chain/check_skip.hpp>
#include <gpipe/chain/check_tie.hpp>

#include <cstddef>

namespace gpipe {

template <class... Items> class Pipeline;

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

// The fault of a skip, whose ends are leaves.
template <class Shape, class... Items> consteval bool check_skip() {
    constexpr SkipFault fault = Shape::skip_fault();
    constexpr std::size_t index = layer_of(fault.leaf, Shape::extents);
    constexpr std::size_t other_index = layer_of(fault.other, Shape::extents);
    using L = LayerAt<Shape, index, Items...>;
    using Other = LayerAt<Shape, other_index, Items...>;
    using S = SkipAt<L, fault.end>;
    return CheckSkip<fault.kind, index, L, typename SkipOf<S>::tag, other_index, Other,
                     typename SkipOf<S>::Tensor>::ok();
}

// The same of a tie.
template <class Shape, class... Items> consteval bool check_tie() {
    constexpr TieFault fault = Shape::tie_fault();
    constexpr std::size_t index = layer_of(fault.leaf, Shape::extents);
    constexpr std::size_t first = layer_of(fault.first, Shape::extents);
    using L = LayerAt<Shape, index, Items...>;
    using End = typename ties_of<L>::template at<fault.end>;
    return CheckTie<fault.kind, index, L, typename End::tag, first, LayerAt<Shape, first, Items...>,
                    typename End::Tensor>::ok();
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
        using End = typename SideTypes<sides_of<L>>::template at<fault.place>;
        return CheckSide<index, L, typename End::tag, first, LayerAt<Shape, first, Items...>,
                         typename End::Tensor>::ok();
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
