// The shortest honest program of a CUDA user: a layer of one's own with two kernels, trained over
// two devices of a pipeline that share a GPU. Learns to scale five numbers by 0, 1, 2, 3, 4.
// nvcc -std=c++20 -arch=native -Iinclude -Iexamples examples/{custom_layer.cu,support/options.cpp}
#include "support/options.hpp"

#include <gpipe/gpipe.cuh>

#include <cstdio>
#include <exception>
#include <vector>

constexpr int N = 5;

__global__ void scale(float const* w, float const* x, float* y, int count) {
    int const i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = w[i % N] * x[i];
}
__global__ void scale_back(float const* w, float const* x, float const* dy, float* dw, float* dx,
                           int samples) {
    int const n = threadIdx.x; // one thread per weight: no two add to the same number
    for (int i = n; i < samples * N; i += N) {
        dw[n] += dy[i] * x[i];
        dx[i] = w[n] * dy[i];
    }
}
struct Scale {
    using Input = gpipe::Tensor<float, N>;
    using Output = gpipe::Tensor<float, N>;
    using Parameters = gpipe::Tensor<float, N>;

    void initialize(auto& context) const {
        for (float& w : context.parameters()) w = 1; // in the host's memory
    }
    void forward(auto& context, auto x, auto y) const {
        int const count = static_cast<int>(x.size());
        gpipe::cuda::launch(context.stream(), (count + 127) / 128, 128, 0, scale,
                            context.parameters().data(), x.data(), y.data(), count);
    }
    void backward(auto& context, auto x, auto dy, auto dx) const {
        gpipe::cuda::launch(context.stream(), 1, N, 0, scale_back, context.parameters().data(),
                            x.data(), dy.data(), context.gradients().data(), dx.data(),
                            static_cast<int>(x.samples()));
    }
};

__global__ void square(float const* y, float const* target, float* dy, double* value, int samples) {
    double sum = 0;
    for (int i = 0; i < samples * N; ++i) {
        float const d = y[i] - target[i];
        sum += d * d;
        dy[i] = 2 * d;
    }
    value[0] = sum;
    value[1] = samples;
}
struct Squared {
    using Target = gpipe::Tensor<float, N>;
    void operator()(auto& context, auto y, auto target, auto dy) const {
        gpipe::cuda::launch(context.stream(), 1, 1, 0, square, y.data(), target.data(), dy.data(),
                            context.value().data(), static_cast<int>(context.samples()));
    }
};

int main(int argc, char** argv) try {
    support::Options options(
        "custom_layer",
        "Trains a layer of its own on a GPU: to scale five numbers by 0, 1, 2, 3, 4.");
    if (auto const status = options.parse(argc, argv)) return *status;
    using Net = gpipe::Pipeline<Scale, Scale>;
    using Train =
        gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<4>, gpipe::Loss<Squared>,
                        gpipe::Optimizer<gpipe::SGD>, gpipe::device::Cuda>;
    Train train{Net{}, {}, {.learning_rate = 0.05f}, {.samples = 8, .device = {gpipe::gpus(0, 0)}}};
    std::vector<float> x(8 * N, 1), t(8 * N);
    for (int i = 0; i < 8 * N; ++i) t[i] = static_cast<float>(i % N);
    float loss = 0;
    for (int step = 0; step < 200; ++step) loss = train.step(x, t);
    std::vector<float> y(8 * N);
    train.predict(x, y);
    std::printf("loss %.4f, y = %.2f %.2f %.2f %.2f %.2f\n", loss, y[0], y[1], y[2], y[3], y[4]);
} catch (std::exception const& error) {
    std::fprintf(stderr, "custom_layer: %s\n", error.what());
    return 1;
}
