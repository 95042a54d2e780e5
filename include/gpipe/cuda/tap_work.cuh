#pragma once

#include <gpipe/cuda/for_each_index.cuh>
#include <gpipe/device/cuda.hpp>
#include <gpipe/layers/gradient_tap.hpp>

#include <cstddef>

namespace gpipe::detail {

template <class T> struct UnscaleElement {
    T const* from;
    T* to;
    double scale;

    __device__ void operator()(std::size_t i) const {
        to[i] = static_cast<T>(static_cast<double>(from[i]) / scale);
    }
};
template <class T> struct PrepareUnscale {
    T const* from;
    T* to;
    StepState const* state;

    __device__ UnscaleElement<T> operator()() const { return {from, to, state->loss_scale}; }
};

/// The work of a GradientTap on a stream.
template <> struct TapWork<device::Cuda::Stream> {
    cudaStream_t stream;

    explicit TapWork(device::Cuda::Stream const& on) : stream(on) {}

    template <class T> void copy(T const* from, T* to, std::size_t count) const {
        cuda::check("cudaMemcpyAsync",
                    cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDeviceToDevice, stream));
    }
    template <class T>
    void unscale(T const* from, T* to, std::size_t count, StepState const* state) const {
        cuda::for_each_index(stream, count, PrepareUnscale<T>{from, to, state});
    }
};

} // namespace gpipe::detail
