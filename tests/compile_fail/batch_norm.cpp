// expect GPIPE_NO_TENSOR: gpipe: BatchNorm<Sample> is for a gpipe::Tensor<T, channels, ...>
// expect GPIPE_NO_CHANNELS: gpipe: BatchNorm<Sample> is for a gpipe::Tensor<T, channels, ...>
#include <gpipe/layers/batch_norm.hpp>

#if defined(GPIPE_NO_TENSOR)
using Sample = float;
#elif defined(GPIPE_NO_CHANNELS)
using Sample = gpipe::Tensor<float>;
#else
using Sample = gpipe::Tensor<float, 3>;
#endif
template struct gpipe::BatchNorm<Sample>;
