// Layers of the library, of what they are not for.
// expect GPIPE_NO_TENSOR: gpipe: BatchNorm<Sample> is for a gpipe::Tensor<T, channels, ...>
// expect GPIPE_NO_CHANNELS: gpipe: BatchNorm<Sample> is for a gpipe::Tensor<T, channels, ...>
// expect GPIPE_NO_CHANNELS_IN_REPLICAS: gpipe: BatchNorm<Sample> is for a gpipe::Tensor<T, channels, ...>
// expect GPIPE_TWO_TENSORS: gpipe: GradientTap<Sample> is for one gpipe::Tensor
#include <gpipe/layers/gradient_tap.hpp>
#include <gpipe/layers/sync_batch_norm.hpp>

#if defined(GPIPE_NO_TENSOR)
using Sample = float;
#elif defined(GPIPE_NO_CHANNELS) || defined(GPIPE_NO_CHANNELS_IN_REPLICAS)
using Sample = gpipe::Tensor<float>;
#else
using Sample = gpipe::Tensor<float, 3>;
#endif
template struct gpipe::BatchNorm<Sample>;

#ifdef GPIPE_NO_CHANNELS_IN_REPLICAS
using OfReplicas = gpipe::Tensor<float>;
#else
using OfReplicas = gpipe::Tensor<float, 3>;
#endif
template struct gpipe::SyncBatchNorm<OfReplicas>;

#ifdef GPIPE_TWO_TENSORS
using Tapped = gpipe::Tensors<gpipe::Tensor<float, 3>, gpipe::Tensor<float>>;
#else
using Tapped = gpipe::Tensor<float>;
#endif
template struct gpipe::GradientTap<Tapped>;
