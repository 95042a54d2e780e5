#pragma once

#include <gpipe/chain/check_chain.hpp>

#include <array>
#include <cstddef>
#include <utility>

namespace gpipe {

/// A model: a chain of layers, each a type. `Items...` are layers, or `Repeat<n, Layers...>`; the
/// object holds their run-time members. What follows from the types alone is here as constants: L,
/// the tensors at every boundary, parameters, costs. Rejects at compile time an empty list, a layer
/// without what it needs, neighbours that do not fit, and a list in which only some layers declare
/// a cost.
template <class... Items> class Pipeline {
    using Chain = detail::Chain<Items...>;

  public:
    /// L, the number of layers.
    static constexpr std::size_t size = Chain::layers();
    /// The number of places at which a layer's type is written; `size` without Repeat.
    static constexpr std::size_t leaves = Chain::leaves();

    /// The type of layer `index`.
    template <std::size_t index>
    using Layer = detail::LayerAt<Chain, detail::layer_number<index, size>(), Items...>;
    using Input = typename Layer<0>::Input;          ///< what the first layer takes, of one sample
    using Output = typename Layer<size - 1>::Output; ///< what the last layer gives, of one sample

    /// Where the type of layer `index` is written.
    static constexpr std::size_t leaf_of(std::size_t index) {
        auto const position = Chain::position(index);
        std::size_t leaf = position.place;
        for (std::size_t i = 0; i < position.item; ++i) leaf += Chain::extents[i].group;
        return leaf;
    }

    /// Calls f(layer, leaf) for each layer in order.
    template <class F> static constexpr void for_each_layer(F f) {
        detail::for_each_layer(extents(), f);
    }
    /// The same for the first `most` repetitions in each Repeat.
    template <class F> static constexpr void for_first_layers(F f, std::size_t most) {
        detail::for_first_layers(extents(), f, most);
    }
    /// What those go by: how often what is written is repeated.
    static constexpr Part<detail::ItemExtent> extents() { return {Chain::extents, Chain::items}; }

    /// What is known of each leaf; Chain maps layers to leaves.
    static constexpr std::array<LayerInfo, leaves> leaf_info =
        Chain::template table<detail::InfoOf>();
    /// The skips of the chain, in the order of what is popped.
    static constexpr auto skips = detail::collected<SkipPair>(
        [](auto f) { detail::each_skip(leaf_info.data(), extents(), f); });
    /// The ends of its ties, see TiedTensor.
    static constexpr auto ties = detail::collected<TiedTensor>(
        [](auto f) { detail::each_tied(leaf_info.data(), extents(), f); });
    /// Its side inputs, in the order in which they are read first.
    static constexpr auto sides =
        detail::collected<SideInfo>([](auto f) { detail::each_side(leaf_info.data(), leaves, f); });
    /// The first layer whose type is written there.
    static constexpr std::size_t first_layer_of(std::size_t leaf) {
        return detail::layer_of(leaf, Chain::extents);
    }
    /// The functions of each leaf for a kind of stream, for the engine.
    template <class Stream>
    static constexpr std::array<LayerFunctions, leaves>
        leaf_functions = Chain::template table<detail::FunctionsOf<Stream>>();

    /// One value per leaf: Of::of<Layer>() of type Of::Value.
    template <class Of> static constexpr auto leaf_table() { return Chain::template table<Of>(); }

    /// One row per layer.
    static constexpr Array<LayerInfo> layers() {
        return detail::by_layer(extents(), leaf_info.data());
    }

    /// The work of one sample's forward, per layer; 1 each where no layer declares a cost.
    static constexpr Array<double> costs() {
        Array<LayerInfo> const rows = layers();
        return layer_costs(rows.data(), size);
    }

    /// Elements of all parameters; of tied ones once.
    static constexpr std::size_t parameters() {
        std::size_t total = 0;
        for_each_layer(
            [&](std::size_t, std::size_t leaf) { total += leaf_info[leaf].parameter_elements; });
        for (TiedTensor const& end : ties) total -= end.is_first ? 0 : end.elements;
        return total;
    }
    /// Bytes of all parameters, without padding; of tied ones once.
    static constexpr std::size_t parameter_bytes() {
        std::size_t total = 0;
        for_each_layer([&](std::size_t, std::size_t leaf) {
            GroupSizes const& sizes = leaf_info[leaf].parameters;
            for (std::size_t t = 0; t < sizes.count; ++t) total += sizes.bytes[t];
        });
        for (TiedTensor const& end : ties) total -= end.is_first ? 0 : end.bytes;
        return total;
    }

    constexpr Pipeline() = default;
    /// With the run-time members of the layers.
    constexpr explicit(sizeof...(Items) == 1) Pipeline(Items... values)
        : holder_(std::move(values)...) {}

    /// The objects behind the layers, one per leaf.
    std::array<void const*, leaves> leaf_objects() const {
        // The names of these functions hold one item each, not the whole list.
        using Get = void const* (*)(void const*, std::size_t);
        static constexpr Get gets[] = {&detail::ItemOf<Items>::layer...};
        void const* items[Chain::items];
        holder_.put_addresses(items);
        std::array<void const*, leaves> result{};
        std::size_t leaf = 0;
        for (std::size_t i = 0; i < Chain::items; ++i)
            for (std::size_t g = 0; g < Chain::extents[i].group; ++g)
                result[leaf++] = gets[i](items[i], g);
        return result;
    }

  private:
    detail::Holder<Items...> holder_;
};

/// @cond
namespace detail {
// Of parameters, so that it is made only where it is wanted.
template <class...> struct AnyPipeline { using type = Pipeline<AnyLayer>; };
} // namespace detail

// What a list with a mistake is, once the sentence about it has been said: that is then the only
// error, for this Pipeline goes on as one of a layer that fits everywhere.
template <class... Items>
    requires(!detail::check_chain<Items...>())
class Pipeline<Items...> : public detail::AnyPipeline<Items...>::type {
  public:
    constexpr Pipeline() = default;
    template <class First, class... Rest> constexpr explicit Pipeline(First&&, Rest&&...) {}
    template <std::size_t> using Layer = detail::AnyLayer;
};
/// @endcond

} // namespace gpipe
