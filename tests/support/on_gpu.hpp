#pragma once

// What tests/gpu run on: GPUs where nvcc compiles them, else the double of the CUDA runtime, there
// with kernels if these are emulated.

#ifdef __CUDACC__
#include "kernels.cuh"
#elif defined GPIPE_EMULATES_KERNELS
#include "kernels.cuh"

#include "cuda_double/cuda_double.hpp"
#else
#include "declared.hpp"
#endif

#include <gpipe/device/cuda.hpp>

#include <cstddef>
#include <cstdint>

namespace toy {

#if defined __CUDACC__ || defined GPIPE_EMULATES_KERNELS
template <class L> using OnGpu = L;
template <class Loss> using LossOnGpu = Loss;
inline constexpr bool says_what_it_touches = false;
#else
template <class L> using OnGpu = Declared<L>;
template <class Loss> using LossOnGpu = DeclaredLoss<Loss>;
inline constexpr bool says_what_it_touches = true;
#endif
#ifdef __CUDACC__
/// Makes GPUs forget what was before; `order` chooses in what order the double does what it may.
struct Session {
    explicit Session(std::uint64_t = 0) {}
};
#else
struct Session : cuda_double::Session {
    explicit Session(std::uint64_t order = 0)
        : cuda_double::Session({.devices = 2, .seed = order, .protects = says_what_it_touches}) {}
};
#endif

/// Enqueues body(i) for i in [0, count), which write `size` numbers at `to`.
template <class Body, class T>
void launch_on(gpipe::device::Cuda::Stream const& stream, std::size_t count, Body body,
               [[maybe_unused]] T* to, [[maybe_unused]] std::size_t size) {
#if defined __CUDACC__ || defined GPIPE_EMULATES_KERNELS
    body::launch(stream, count, body);
#else
    Ranges ranges;
    ranges.add(to, size);
    Touches const now(std::move(ranges));
    body::launch(stream, count, body);
    stream.check_launch();
#endif
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
