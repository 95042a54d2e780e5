#pragma once

// What tests/gpu run on: GPUs where nvcc compiles them, else the double of the CUDA runtime.

#ifdef __CUDACC__
#include "kernels.cuh"
#else
#include "declared.hpp"
#endif

#include <gpipe/device/cuda.hpp>

#include <cstddef>
#include <cstdint>

namespace toy {

#ifdef __CUDACC__
template <class L> using OnGpu = L;
template <class Loss> using LossOnGpu = Loss;
/// Makes GPUs forget what was before; `order` chooses in what order the double does what it may.
struct Session {
    explicit Session(std::uint64_t = 0) {}
};
#else
template <class L> using OnGpu = Declared<L>;
template <class Loss> using LossOnGpu = DeclaredLoss<Loss>;
struct Session : cuda_double::Session {
    explicit Session(std::uint64_t order = 0)
        : cuda_double::Session({.devices = 2, .seed = order}) {}
};
#endif

/// Enqueues body(i) for i in [0, count), which write `size` numbers at `to`.
template <class Body, class T>
void launch_on(gpipe::device::Cuda::Stream const& stream, std::size_t count, Body body,
               [[maybe_unused]] T* to, [[maybe_unused]] std::size_t size) {
#ifndef __CUDACC__
    Ranges ranges;
    ranges.add(to, size);
    Touches const now(std::move(ranges));
#endif
    launch(stream, count, body);
    stream.check_launch();
}

namespace detail {

template <class Net> struct NetOnGpu;
template <class... Layers> struct NetOnGpu<gpipe::Pipeline<Layers...>> {
    using type = gpipe::Pipeline<OnGpu<Layers>...>;
};

} // namespace detail

template <class T, bool dropout>
using KernelNet = typename detail::NetOnGpu<kernel::Net<T, dropout>>::type;
template <class T, class Optimizer>
using CudaTrain = Training<KernelNet<T, true>, LossOnGpu<kernel::MeanSquare<T, 3>>, Optimizer,
                           gpipe::device::Cuda>;

} // namespace toy
