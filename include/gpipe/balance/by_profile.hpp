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

// The sizes of so many cells, of which the most expensive is as cheap as possible.
GPIPE_INLINE constexpr Array<std::size_t> by_cost(Array<double> const& costs, std::size_t cells) {
    check_cells(costs.size(), cells); // before as much memory is asked for
    Array<std::size_t> first(cells + 1), sizes(cells);
    cut_by_bottleneck(costs.data(), costs.size(), cells, first.data());
    for (std::size_t k = 0; k < cells; ++k) sizes[k] = first[k + 1] - first[k];
    return sizes;
}

GPIPE_INLINE constexpr Array<std::size_t> by_time(ProfileView const& profile, std::size_t cells) {
    Array<double> costs(profile.layers.size());
    for (std::size_t i = 0; i < costs.size(); ++i)
        costs[i] = profile.layers[i].forward + profile.layers[i].backward;
    return by_cost(costs, cells);
}

GPIPE_INLINE constexpr Array<std::size_t> by_size(ProfileView const& profile, std::size_t cells,
                                                  double param_scale) {
    Array<double> costs(profile.layers.size());
    for (std::size_t i = 0; i < costs.size(); ++i) {
        LayerProfile const& layer = profile.layers[i];
        costs[i] = static_cast<double>(layer.output + layer.saved) +
                   static_cast<double>(layer.parameters) * param_scale;
    }
    return by_cost(costs, cells);
}

} // namespace detail
/// @endcond

/// How many layers each of so many cells has where the most expensive, by the seconds of its
/// layers' forward and backward, is as cheap as possible.
GPIPE_INLINE std::vector<std::size_t> by_time(ProfileView const& profile, std::size_t cells) {
    Array<std::size_t> const sizes = detail::by_time(profile, cells);
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
    Array<std::size_t> const sizes = detail::by_size(profile, cells, options.param_scale);
    return {sizes.begin(), sizes.end()};
}

/// @cond
namespace detail {

struct ByTimes {
    static constexpr auto sizes(ProfileView const& profile, std::size_t cells) {
        return by_time(profile, cells);
    }
};
template <std::size_t param_scale> struct BySizes {
    static constexpr auto sizes(ProfileView const& profile, std::size_t cells) {
        return by_size(profile, cells, static_cast<double>(param_scale));
    }
};

// The Balance of what By says; of a profile that is stale, once that is said, another cut.
template <class Net, std::size_t samples, auto const& profile, std::size_t K, class By>
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
                auto const found = By::sizes(profile, K);
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
using ByTime = decltype(detail::cut_by<Net, samples, profile, K, detail::ByTimes>());
/// The same of by_size().
template <class Net, std::size_t samples, auto const& profile, std::size_t K,
          std::size_t param_scale = 2>
using BySize = decltype(detail::cut_by<Net, samples, profile, K, detail::BySizes<param_scale>>());

} // namespace gpipe::balance
