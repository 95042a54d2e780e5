// Mixed precision: activations and their gradients in bf16, parameters, their gradients and all
// sums in float. Two devices of a pipeline share a GPU; what crosses from one to the other takes
// half the bytes. Learns whether two signs differ.
#include "support/options.hpp"

#include <gpipe/gpipe.cuh>

#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include <cuda_bf16.h>

using Bf16 = __nv_bfloat16; // as many bits of exponent as float: losses need no scaling

// y = tanh(w x + b)
template <int in, int out, class T>
__global__ void dense(float const* w, float const* b, T const* x, Bf16* y) {
    int const sample = blockIdx.x, o = threadIdx.x;
    float sum = b[o];
    for (int i = 0; i < in; ++i) sum += w[o * in + i] * float(x[sample * in + i]);
    y[sample * out + o] = Bf16(tanhf(sum));
}
__device__ float before_tanh(Bf16 y, Bf16 dy) { return (1 - float(y) * float(y)) * float(dy); }

template <int in, int out, class T> // one thread per output: no two add to the same number
__global__ void dense_parameters(T const* x, Bf16 const* y, Bf16 const* dy, float* dw, float* db,
                                 int samples) {
    int const o = threadIdx.x;
    for (int sample = 0; sample < samples; ++sample) {
        float const d = before_tanh(y[sample * out + o], dy[sample * out + o]);
        for (int i = 0; i < in; ++i) dw[o * in + i] += d * float(x[sample * in + i]);
        db[o] += d;
    }
}
template <int in, int out, class T>
__global__ void dense_input(float const* w, Bf16 const* y, Bf16 const* dy, T* dx) {
    int const sample = blockIdx.x, i = threadIdx.x;
    float sum = 0;
    for (int o = 0; o < out; ++o)
        sum += w[o * in + i] * before_tanh(y[sample * out + o], dy[sample * out + o]);
    dx[sample * in + i] = T(sum);
}
template <class T, int in, int out> struct Dense {
    using Input = gpipe::Tensor<T, in>;
    using Output = gpipe::Tensor<Bf16, out>;
    using Parameters = gpipe::Tensors<gpipe::Tensor<float, out, in>, gpipe::Tensor<float, out>>;
    static constexpr auto backward_reads = gpipe::Reads::both;

    void initialize(auto& context) const { // in the host's memory
        auto random = context.random(0);
        auto const [w, b] = context.parameters();
        for (float& weight : w) weight = float(random.normal(1 / std::sqrt(in)));
    }
    void forward(auto& context, auto x, auto y) const {
        auto const [w, b] = context.parameters();
        gpipe::cuda::launch(context.stream(), int(x.samples()), out, 0, dense<in, out, T>, w.data(),
                            b.data(), x.data(), y.data());
    }
    void backward(auto& context, auto x, auto y, auto dy, auto dx) const {
        auto const [w, b] = context.parameters();
        auto const [dw, db] = context.gradients();
        int const samples = int(x.samples());
        gpipe::cuda::launch(context.stream(), 1, out, 0, dense_parameters<in, out, T>, x.data(),
                            y.data(), dy.data(), dw.data(), db.data(), samples);
        gpipe::cuda::launch(context.stream(), samples, in, 0, dense_input<in, out, T>, w.data(),
                            y.data(), dy.data(), dx.data());
    }
};

__global__ void square(Bf16 const* y, float const* target, Bf16* dy, double* value, int samples) {
    value[0] = 0;
    value[1] = samples;
    for (int i = 0; i < samples; ++i) {
        float const d = float(y[i]) - target[i];
        value[0] += d * d;
        dy[i] = Bf16(2 * d);
    }
}
struct Squared {
    using Target = gpipe::Tensor<float, 1>;
    void operator()(auto& context, auto y, auto target, auto dy) const {
        gpipe::cuda::launch(context.stream(), 1, 1, 0, square, y.data(), target.data(), dy.data(),
                            context.value().data(), int(context.samples()));
    }
};

int main(int argc, char** argv) try {
    support::Options options("mixed_precision",
                             "Trains with activations in bf16 on a GPU: whether two signs differ.");
    if (auto const status = options.parse(argc, argv)) return *status;
    using Net = gpipe::Pipeline<Dense<float, 2, 16>, Dense<Bf16, 16, 1>>;
    using Train =
        gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<2>, gpipe::Loss<Squared>,
                        gpipe::Optimizer<gpipe::Adam>, gpipe::device::Cuda>;
    Train train{Net{}, {}, {.learning_rate = 0.02f}, {.samples = 4, .device = {gpipe::gpus(0, 0)}}};
    std::vector<float> const x{-1, -1, -1, 1, 1, -1, 1, 1}, target{-0.5f, 0.5f, 0.5f, -0.5f};
    float loss = 0;
    for (int step = 0; step < 200; ++step) loss = train.step(x, target);
    std::vector<Bf16> y(4);
    train.predict(x, y);
    std::printf("loss %.4f, y = %.2f %.2f %.2f %.2f\n", loss, float(y[0]), float(y[1]), float(y[2]),
                float(y[3]));
} catch (std::exception const& error) {
    std::fprintf(stderr, "mixed_precision: %s\n", error.what());
    return 1;
}
