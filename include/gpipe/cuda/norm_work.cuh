#pragma once

#include <gpipe/cuda/for_each_index.cuh>
#include <gpipe/device/cuda.hpp>
#include <gpipe/layers/batch_norm.hpp>

#include <algorithm>
#include <cstddef>

#include <cuda_runtime.h>

namespace gpipe {

namespace detail {

static_assert((sum_lanes & (sum_lanes - 1)) == 0, "by halves");

// The two sums over a channel's elements, by the threads of a block, which all get them.
template <class F> __device__ TwoSums sum_of_block(Channels const& shape, std::size_t c, F f) {
    __shared__ double a[sum_lanes], b[sum_lanes];
    std::size_t const t = threadIdx.x;
    TwoSums own;
    for (std::size_t i = t; i < shape.elements(); i += sum_lanes) own = own + f(shape.at(c, i), i);
    __syncthreads(); // the sums before have been read
    a[t] = own.a;
    b[t] = own.b;
    for (std::size_t half = sum_lanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) {
            a[t] += a[t + half];
            b[t] += b[t + half];
        }
    }
    __syncthreads();
    return {a[0], b[0]};
}
template <class T>
__device__ Moments moments_of_block(Channels const& shape, T const* x, std::size_t c) {
    auto const count = static_cast<double>(shape.elements());
    double const mean = sum_of_block(shape, c, SumElements<T>{x}).a / count;
    return moments_of(count, mean, sum_of_block(shape, c, SumDistances<T>{x, mean}));
}

// A block for each channel.
template <class T> __global__ void moments_kernel(Channels shape, T const* x, StatisticsRows to) {
    Moments const moments = moments_of_block(shape, x, blockIdx.x);
    if (threadIdx.x == 0) to.set(blockIdx.x, moments);
}
// Several blocks for each channel.
template <class T, class P, class F>
__global__ void normalize_kernel(Channels shape, T const* x, T* y, P const* scale, P const* shift,
                                 F normal_of_channel) {
    std::size_t const c = blockIdx.x;
    Normal const normal = normal_of_channel(c);
    double const factor = static_cast<double>(scale[c]), offset = static_cast<double>(shift[c]);
    std::size_t const stride = std::size_t{gridDim.y} * blockDim.x;
    for (std::size_t i = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x; i < shape.elements();
         i += stride) {
        std::size_t const at = shape.at(c, i);
        y[at] = element_of<T>(normal(static_cast<double>(x[at])) * factor + offset);
    }
}
template <class T>
__device__ Normal normal_in(Channels const& shape, T const* x, std::size_t c, OfSamples of) {
    return normal_of(moments_of_block(shape, x, c), of.epsilon);
}
template <class T>
__device__ Normal normal_in(Channels const&, T const*, std::size_t c, OfRunning of) {
    return of(c);
}
// A block for each channel.
template <class T, class P, class M>
__global__ void norm_backward_kernel(Channels shape, T const* x, T const* dy, T* dx, P const* scale,
                                     P* dscale, P* dshift, M moments) {
    std::size_t const c = blockIdx.x;
    double const count = count_of(shape, moments);
    Normal const normal = normal_in(shape, x, c, moments);
    TwoSums const sums = sum_of_block(shape, c, SumGradients<T>{x, dy, normal});
    if (threadIdx.x == 0) {
        dshift[c] += static_cast<P>(sums.a);
        dscale[c] += static_cast<P>(sums.b);
    }
    if (!dx) return;
    auto const gradient = input_gradient(x, dy, dx, scale[c], normal, sums, count);
    for (std::size_t i = threadIdx.x; i < shape.elements(); i += blockDim.x)
        gradient(shape.at(c, i), i);
}

// Of several replicas, in two steps: see NormLoops.
template <class T, class F>
__global__ void gradient_sums_kernel(Channels shape, T const* x, T const* dy, F normal_of_channel,
                                     StatisticsRows to) {
    std::size_t const c = blockIdx.x;
    TwoSums const sums = sum_of_block(shape, c, SumGradients<T>{x, dy, normal_of_channel(c)});
    if (threadIdx.x != 0) return;
    to(0, c) = sums.a;
    to(1, c) = sums.b;
}
template <class T, class P, class M, class S>
__global__ void input_gradients_kernel(Channels shape, T const* x, T const* dy, T* dx,
                                       P const* scale, M moments, S sums_of_channel) {
    std::size_t const c = blockIdx.x;
    auto const gradient =
        input_gradient(x, dy, dx, scale[c], moments(c), sums_of_channel(c), moments.all(c).count);
    std::size_t const stride = std::size_t{gridDim.y} * blockDim.x;
    for (std::size_t i = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x; i < shape.elements();
         i += stride)
        gradient(shape.at(c, i), i);
}

template <class F> struct PreparedAlready {
    F f;
    __device__ F operator()() const { return f; }
};

/// The work of a BatchNorm as kernels. Sums are in one order: nothing depends on timing.
template <> struct NormWork<device::Cuda::Stream> {
    cudaStream_t stream;

    explicit NormWork(device::Cuda::Stream const& on) : stream(on) {}

    template <class F> void each(std::size_t count, F f) const {
        cuda::for_each_index(stream, count, PreparedAlready<F>{f});
    }
    template <class T>
    void moments(Channels const& shape, T const* x, StatisticsRows const& to) const {
        cuda::launch(stream, static_cast<unsigned>(shape.channels), sum_lanes, 0, moments_kernel<T>,
                     shape, x, to);
    }
    template <class T, class P, class F>
    void normalize(Channels const& shape, T const* x, T* y, P const* scale, P const* shift,
                   F normal_of_channel) const {
        cuda::launch(stream, blocks(shape), threads, 0, normalize_kernel<T, P, F>, shape, x, y,
                     scale, shift, normal_of_channel);
    }
    template <class T, class P, class M>
    void backward(Channels const& shape, T const* x, T const* dy, T* dx, P const* scale, P* dscale,
                  P* dshift, M moments) const {
        cuda::launch(stream, static_cast<unsigned>(shape.channels), sum_lanes, 0,
                     norm_backward_kernel<T, P, M>, shape, x, dy, dx, scale, dscale, dshift,
                     moments);
    }
    template <class T, class F>
    void gradient_sums(Channels const& shape, T const* x, T const* dy, F normal_of_channel,
                       StatisticsRows const& to) const {
        cuda::launch(stream, static_cast<unsigned>(shape.channels), sum_lanes, 0,
                     gradient_sums_kernel<T, F>, shape, x, dy, normal_of_channel, to);
    }
    template <class T, class P, class M, class S>
    void input_gradients(Channels const& shape, T const* x, T const* dy, T* dx, P const* scale,
                         M moments, S sums_of_channel) const {
        cuda::launch(stream, blocks(shape), threads, 0, input_gradients_kernel<T, P, M, S>, shape,
                     x, dy, dx, scale, moments, sums_of_channel);
    }

  private:
    static constexpr unsigned threads = 256;
    // Several for each channel.
    static dim3 blocks(Channels const& shape) {
        constexpr std::size_t most = 64;
        return {static_cast<unsigned>(shape.channels),
                static_cast<unsigned>(std::min((shape.elements() + threads - 1) / threads, most))};
    }
};

} // namespace detail

} // namespace gpipe
