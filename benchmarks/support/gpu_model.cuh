#pragma once

#include <gpipe/gpipe.cuh>

namespace benchmark {

/// An event that measures time, and may lie in a graph.
class TimedEvent {
  public:
    TimedEvent() { gpipe::cuda::check("cudaEventCreate", cudaEventCreate(&event_)); }
    TimedEvent(TimedEvent const&) = delete;
    TimedEvent& operator=(TimedEvent const&) = delete;
    ~TimedEvent() { gpipe::cuda::detail::forget(cudaEventDestroy(event_)); }

    void record(cudaStream_t stream) {
        cudaStreamCaptureStatus status{};
        gpipe::cuda::check("cudaStreamIsCapturing", cudaStreamIsCapturing(stream, &status));
        unsigned const flags = status == cudaStreamCaptureStatusActive ? cudaEventRecordExternal
                                                                       : cudaEventRecordDefault;
        gpipe::cuda::check("cudaEventRecordWithFlags",
                           cudaEventRecordWithFlags(event_, stream, flags));
    }
    /// Microseconds between two that have been reached.
    static double between(TimedEvent const& begin, TimedEvent const& end) {
        float milliseconds = 0;
        gpipe::cuda::check("cudaEventElapsedTime",
                           cudaEventElapsedTime(&milliseconds, begin.event_, end.event_));
        return 1e3 * milliseconds;
    }

  private:
    cudaEvent_t event_ = nullptr;
};

/// Notes on the GPU when the first forward of a step begins and when its last backward has ended.
struct Probe {
    TimedEvent begin, end;
    double microseconds() const { return TimedEvent::between(begin, end); }
};

/// What every kernel of a model does to a number: `iterations` dependent operations.
struct Work {
    int iterations = 1;
    float slope = 1; ///< the derivative of all of them

    static constexpr float factor = 0.9999999f;
    __device__ float operator()(float v) const {
        for (int i = 0; i < iterations; ++i) v = fmaf(v, factor, 1e-7f);
        return v;
    }
};

namespace kernel {

constexpr int width = 1024; ///< numbers of a sample
constexpr int threads = 128;
constexpr int blocks = width / threads; ///< few: kernels of several streams fit on a GPU at once

/// One thread per weight, so that no two add to one number.
static __global__ void forward(Work work, int samples, float const* w, float const* x, float* y) {
    int const n = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    for (int i = n; i < samples * width; i += width) y[i] = w[n] * work(x[i]);
}
static __global__ void backward(Work work, int samples, float const* w, float const* x,
                                float const* dy, float* dw, float* dx) {
    int const n = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    float sum = 0;
    for (int i = n; i < samples * width; i += width) {
        sum += dy[i] * work(x[i]);
        if (dx) dx[i] = w[n] * work.slope * dy[i];
    }
    dw[n] += sum;
}
/// Half the squared distance: one block, which adds in one order.
static __global__ void loss(int samples, float const* y, float const* target, float* dy,
                            double* value) {
    __shared__ double sums[threads];
    double sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < samples * width; i += threads) {
        float const d = y[i] - target[i];
        sum += d * d / 2;
        if (dy) dy[i] = d;
    }
    sums[threadIdx.x] = sum;
    for (int half = threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x > 0) return;
    value[0] = sums[0];
    value[1] = samples;
}

} // namespace kernel

/// One small kernel forward, one backward.
struct GpuLayer {
    using Input = gpipe::Tensor<float, kernel::width>;
    using Output = Input;
    using Parameters = Input;
    static constexpr bool accepts_none = true;
    Work work;
    Probe* probe = nullptr;

    void initialize(auto& context) const {
        for (float& w : context.parameters()) w = 1;
    }
    void forward(auto& context, auto x, auto y) const {
        if (probe && context.layer() == 0 && context.first_sample() == 0 && context.training())
            probe->begin.record(context.stream());
        gpipe::cuda::launch(context.stream(), kernel::blocks, kernel::threads, 0, kernel::forward,
                            work, static_cast<int>(x.samples()), context.parameters().data(),
                            x.data(), y.data());
    }
    void backward(auto& context, auto x, auto dy, auto dx) const {
        float* to = nullptr;
        if constexpr (!gpipe::is_none<decltype(dx)>) to = dx.data();
        gpipe::cuda::launch(context.stream(), kernel::blocks, kernel::threads, 0, kernel::backward,
                            work, static_cast<int>(x.samples()), context.parameters().data(),
                            x.data(), dy.data(), context.gradients().data(), to);
        if (probe && context.layer() == 0 && context.first_sample() == 0)
            probe->end.record(context.stream());
    }
};

struct GpuLoss {
    using Target = gpipe::Tensor<float, kernel::width>;

    void operator()(auto& context, auto y, auto target, auto dy) const {
        gpipe::cuda::launch(context.stream(), 1, kernel::threads, 0, kernel::loss,
                            static_cast<int>(context.samples()), y.data(), target.data(), dy.data(),
                            context.value().data());
    }
};

} // namespace benchmark
