#pragma once

namespace convnet {

// What the layers are made of, so that each of them is written once: what gpt/operations.hpp says,
// and of the object that `Operations::on(ctx)` gives
//
//   convolve(shape, samples, x, weights, y)                    writes y
//   convolve_input_gradient(shape, samples, weights, dy, dx)   writes dx
//   convolve_weight_gradient(shape, samples, x, dy, dw)        adds to dw
//
// whose handles are Operations::ConvolutionHandles, with a workspace that is planned for.
// An Operations::WorkspaceCheck, called with (shape, samples), throws if that is too small.

/// On the host, in host_convolutions.hpp.
struct HostOperations;
// On GPUs, in cuda_convolutions.cuh: CudaOperations.

} // namespace convnet
