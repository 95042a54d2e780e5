#pragma once

#include <gpipe/balance/balance.hpp>
#include <gpipe/balance/layer_profile.hpp>

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

/// Balances of what layers were found to take, as torchgpipe's balance_by_time and balance_by_size:
/// for Options::balance, or in a type.
namespace gpipe::balance {

/// @cond
namespace detail {

// What cuts weigh of a layer.
struct TimeOf {
    constexpr double operator()(LayerProfile const& layer) const {
        return layer.forward + layer.backward;
    }
};
struct BytesOf {
    double param_scale;
    constexpr double operator()(LayerProfile const& layer) const {
        return static_cast<double>(layer.output + layer.saved) +
               static_cast<double>(layer.parameters) * param_scale;
    }
};

// The sizes of so many cells, of which the most expensive is as cheap as possible.
template <class CostOf>
constexpr Array<std::size_t> sizes_by(CostOf const& cost_of, ProfileView const& profile,
                                      std::size_t cells) {
    std::size_t const layers = profile.layers.size();
    check_cells(layers, cells); // before as much memory is asked for
    Array<double> costs(layers);
    for (std::size_t i = 0; i < layers; ++i) costs[i] = cost_of(profile.layers[i]);
    Array<std::size_t> first(cells + 1), sizes(cells);
    cut_by_bottleneck(costs.data(), layers, cells, first.data());
    for (std::size_t k = 0; k < cells; ++k) sizes[k] = first[k + 1] - first[k];
    return sizes;
}

} // namespace detail
/// @endcond

/// How many layers each of so many cells has where the most expensive, by the seconds of its
/// layers' forward and backward, is as cheap as possible.
GPIPE_INLINE std::vector<std::size_t> by_time(ProfileView const& profile, std::size_t cells) {
    Array<std::size_t> const sizes = detail::sizes_by(detail::TimeOf{}, profile, cells);
    return {sizes.begin(), sizes.end()};
}

/// How by_size() weighs.
struct SizeOptions {
    /// How many times its bytes a parameter takes, with its gradient and optimizer state: 2, as
    /// torchgpipe has it, for an optimizer without state, such as SGD without momentum; 3 for SGD
    /// with momentum, and for RMSProp without; 4 for Adam and AdamW.
    double param_scale = 2;
};
/// The same by the bytes of each layer: its output and what it saves, of a micro-batch, and its
/// parameters.
GPIPE_INLINE std::vector<std::size_t> by_size(ProfileView const& profile, std::size_t cells,
                                              SizeOptions options = {}) {
    Array<std::size_t> const sizes =
        detail::sizes_by(detail::BytesOf{options.param_scale}, profile, cells);
    return {sizes.begin(), sizes.end()};
}

/// @cond
namespace detail {

// The Balance of what CostOf{numbers...} says; of a profile that is stale, once that is said,
// another cut.
template <class Net, std::size_t samples, auto const& profile, std::size_t K, class CostOf,
          std::size_t... numbers>
consteval auto cut_by() {
    constexpr bool same = profile.chain == chain_number(Net::layers().data(), Net::size);
    if constexpr (K == 0 || K > Net::size) // which a Training refuses
        return Cells<K>{};
    else if constexpr (!CheckProfile<profile.layers.size(), Net::size, profile.samples, samples,
                                     same>::ok())
        return Cells<K>{};
    else
        return []<std::size_t... ks>(std::index_sequence<ks...>) {
            constexpr auto sizes = [] {
                std::array<std::size_t, K> result{};
                auto const found = sizes_by(CostOf{static_cast<double>(numbers)...}, profile, K);
                for (std::size_t k = 0; k < K; ++k) result[k] = found[k];
                return result;
            }();
            return Balance<sizes[ks]...>{};
        }
    (std::make_index_sequence<K>{});
}

} // namespace detail
/// @endcond

/// Policy: the Balance<...> of by_time() for K cells, of a constant profile of Net for
/// micro-batches of so many samples. A stale one does not compile.
template <class Net, std::size_t samples, auto const& profile, std::size_t K>
using ByTime = decltype(detail::cut_by<Net, samples, profile, K, detail::TimeOf>());
/// The same of by_size().
template <class Net, std::size_t samples, auto const& profile, std::size_t K,
          std::size_t param_scale = 2>
using BySize = decltype(detail::cut_by<Net, samples, profile, K, detail::BytesOf, param_scale>());

} // namespace gpipe::balance
