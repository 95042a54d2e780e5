#pragma once

#include <gpipe/layer/tensor.hpp>
#include <gpipe/layers/batch_norm.hpp>

#include <cstddef>

namespace convnet {

/// Batch normalisation of each channel, whose running statistics move once per mini-batch.
template <class T, std::size_t channels, std::size_t side>
struct Norm : gpipe::BatchNorm<gpipe::Tensor<T, channels, side, side>> {
    /// Its passes in double take as long as so many operations of a convolution (gpipe::profile).
    static constexpr double cost = 90.0 * channels * side * side;
};

} // namespace convnet
