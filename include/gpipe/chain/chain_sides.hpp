#pragma once

#include <gpipe/chain/info.hpp>
#include <gpipe/layer/side.hpp>

#include <cstddef>
#include <utility>

namespace gpipe {

/// A layer that reads a side input as another tensor than the first that reads it.
struct SideFault {
    bool exists = false;   ///< whether there is one
    std::size_t leaf = 0;  ///< that reads it
    std::size_t place = 0; ///< see SideEnds
    std::size_t first = 0; ///< leaf that reads it first
};

namespace detail {

// Calls f(SideInfo) for each side input of a chain, in the order in which leaves read them first.
template <class F> constexpr SideFault each_side(LayerInfo const* infos, std::size_t leaves, F f) {
    SideFault fault;
    for (std::size_t leaf = 0; leaf < leaves; ++leaf)
        for (std::size_t place = 0; place < infos[leaf].sides.size(); ++place) {
            SideInfo info = infos[leaf].sides[place];
            std::size_t first = 0;
            while (!has(infos[first].sides, info.tag)) ++first;
            if (first == leaf) {
                info.leaf = leaf;
                info.place = place;
                f(info);
                continue;
            }
            SideInfo const* other = infos[first].sides.data();
            while (other->tag != info.tag) ++other;
            if (other->tensor != info.tensor && !fault.exists) fault = {true, leaf, place, first};
        }
    return fault;
}

// What the caller gives of a sample: what the first layer takes, then the side inputs.
template <class Net, std::size_t count = Net::sides.size()> struct InputsOf {
    template <std::size_t side> static constexpr std::size_t layer() {
        return Net::first_layer_of(Net::sides[side].leaf);
    }
    template <std::size_t side>
    using At =
        typename SideTypes<sides_of<typename Net::template Layer<layer<side>()>>>::template at<
            Net::sides[side].place>::Tensor;
    template <class... Ts, std::size_t... sides>
    static Tensors<Ts..., At<sides>...> all(Tensors<Ts...>, std::index_sequence<sides...>);
    using type =
        decltype(all(as_tensors<typename Net::Input>{}, std::make_index_sequence<count>{}));
};
template <class Net> struct InputsOf<Net, 0> { using type = typename Net::Input; };
template <class Net> using inputs_of = typename InputsOf<Net>::type;

} // namespace detail
} // namespace gpipe
