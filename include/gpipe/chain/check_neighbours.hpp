#pragma once

#include <gpipe/layer/optional.hpp>
#include <gpipe/layer/traits.hpp>

#include <cstddef>

namespace gpipe {

/// That layer `Index` declares a cost like the others: all layers of a chain do, or none.
template <std::size_t Index, class L> struct CheckCost {
    static consteval bool ok() {
        constexpr bool declares = LayerTraits<L>::has_cost;
        static_assert(declares, "gpipe: some layers of the chain declare a cost, layer Index (L) "
                                "does not: declare it on all or on none (of a type that is not "
                                "yours: struct Mine : L { static constexpr double cost = ...; })");
        return declares;
    }
};

namespace detail {

// The type itself, whatever its name in a layer: nvcc would print that.
template <class T> struct Spelt;
template <class T, std::size_t... Es> struct Spelt<Tensor<T, Es...>> {
    using type = Tensor<T, Es...>;
};
template <class Tag, class T> struct Spelt<Optional<Tag, T>> {
    using type = Optional<Tag, typename Spelt<T>::type>;
};
template <class... Ts> struct Spelt<Tensors<Ts...>> {
    using type = Tensors<typename Spelt<Ts>::type...>;
};

} // namespace detail

/// That what layer `Index` gives is what the next layer takes.
template <std::size_t Index, class Left, class Right,
          class Output = typename detail::Spelt<typename Left::Output>::type,
          class Input = typename detail::Spelt<typename Right::Input>::type>
struct CheckNeighbours {
    static consteval bool ok() {
        static_assert(detail::same_tensors<Output, Input>,
                      "gpipe: layer Index (Left) gives Output, but the next layer (Right) takes "
                      "Input");
        return detail::same_tensors<Output, Input>;
    }
};

/// That a gradient reaches layer `Index`, which has parameters: layer `Barrier` above it gives a
/// tensor that carries none (of integers), so the parameters would stay as they were initialized.
template <std::size_t Index, class L, std::size_t Barrier, class BarrierLayer>
struct CheckTrainable {
    static consteval bool ok() {
        static_assert(Index > Barrier,
                      "gpipe: layer Index (L) has Parameters, but no gradient reaches it: the "
                      "output of layer Barrier (BarrierLayer) carries none");
        return Index > Barrier;
    }
};

namespace detail {

// Turns the first layer of a Pipeline that could not learn into its sentence.
template <class Net> consteval bool check_trainable() {
    struct Verdict {
        std::size_t layer = Net::size;
        std::size_t barrier = 0;
    };
    constexpr Verdict verdict = [] {
        Verdict found;
        std::size_t first = Net::size;
        auto const look = [&](std::size_t layer, std::size_t leaf) {
            auto const& info = Net::leaf_info[leaf];
            if (info.learns() && first == Net::size) first = layer;
            if (info.output_carries_gradient || first == Net::size || found.layer < Net::size)
                return;
            found = {first, layer};
        };
        Net::for_first_layers(look, 2); // a barrier may lie below the learner in its own Repeat
        return found;
    }();
    if constexpr (verdict.layer < Net::size)
        return CheckTrainable<verdict.layer, typename Net::template Layer<verdict.layer>,
                              verdict.barrier, typename Net::template Layer<verdict.barrier>>::ok();
    else
        return true;
}

} // namespace detail
} // namespace gpipe
