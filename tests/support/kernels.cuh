#pragma once

// Makes the layers of kernels.hpp launch kernels on device::Cuda.

#include "kernels.hpp"

#include <gpipe/gpipe.cuh>

#include <cstddef>

namespace toy::body {

template <class Body> __global__ void each_index(std::size_t count, Body body) {
    std::size_t const i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < count) body(i);
}

template <class Body>
void launch(gpipe::device::Cuda::Stream const& stream, std::size_t count, Body const& body) {
    // Blocks of few threads, so that small tensors have several, too.
    constexpr std::size_t threads = 32;
    auto const blocks = static_cast<unsigned>((count + threads - 1) / threads);
    gpipe::cuda::launch(stream, blocks, threads, 0, each_index<Body>, count, body);
}

} // namespace toy::body
