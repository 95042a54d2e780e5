#pragma once

#include <cmath>
#include <cstddef>

namespace gpt {

/// Standard deviation of weights at the start: found, as that of embeddings at a width of 128, by
/// training on plays for a million characters.
inline constexpr double weight_deviation = 0.03;

/// Of embeddings of so many numbers. Their products have the same spread at any width, and so have
/// the logits of a head whose weights they are.
inline double embedding_deviation(std::size_t width) {
    return 0.08 * std::sqrt(128 / static_cast<double>(width));
}

/// Of the weights that write to the residual stream of a chain of `layers` layers: each layer adds
/// to it, so without this the deep layers of a long chain would see sums whose variance grows with
/// the depth. Scaled as GPT-2's (Radford et al., 2019); the GPipe paper scales by depth for the
/// same reason (section 5).
inline double residual_deviation(std::size_t layers) {
    return weight_deviation / std::sqrt(static_cast<double>(layers));
}

/// Fills a tensor with normal numbers of mean 0.
template <class View, class Random>
void fill_normal(View const& tensor, Random random, double deviation) {
    using T = typename View::element_type;
    for (T& element : tensor) element = static_cast<T>(random.normal(deviation));
}

} // namespace gpt
