// Mixed precision: activations and their gradients in bf16, or with --half in half, parameters,
// their gradients and all sums in float. Two devices of a pipeline share a GPU; what crosses from
// one to the other takes half the bytes. Learns whether two signs differ.
//
// bf16 has as many bits of exponent as float. In half small gradients become zero: they are
// multiplied by a scale that is found on the way, where steps that overflow are skipped.
#include "support/options.hpp"

#include <gpipe/gpipe.cuh>

#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// y = tanh(w x + b), x and y of type T and Short.
template <int in, int out, class T, class Short>
__global__ void dense(float const* w, float const* b, T const* x, Short* y) {
    int const sample = blockIdx.x, o = threadIdx.x;
    float sum = b[o];
    for (int i = 0; i < in; ++i) sum += w[o * in + i] * float(x[sample * in + i]);
    y[sample * out + o] = Short(tanhf(sum));
}
template <class Short> __device__ float before_tanh(Short y, Short dy) {
    return (1 - float(y) * float(y)) * float(dy);
}

// One thread per output: no two add to the same number.
template <int in, int out, class T, class Short>
__global__ void dense_parameters(T const* x, Short const* y, Short const* dy, float* dw, float* db,
                                 int samples) {
    int const o = threadIdx.x;
    for (int sample = 0; sample < samples; ++sample) {
        float const d = before_tanh(y[sample * out + o], dy[sample * out + o]);
        for (int i = 0; i < in; ++i) dw[o * in + i] += d * float(x[sample * in + i]);
        db[o] += d;
    }
}
template <int in, int out, class T, class Short>
__global__ void dense_input(float const* w, Short const* y, Short const* dy, T* dx) {
    int const sample = blockIdx.x, i = threadIdx.x;
    float sum = 0;
    for (int o = 0; o < out; ++o)
        sum += w[o * in + i] * before_tanh(y[sample * out + o], dy[sample * out + o]);
    dx[sample * in + i] = T(sum);
}
template <class T, int in, class Short, int out> struct Dense {
    using Input = gpipe::Tensor<T, in>;
    using Output = gpipe::Tensor<Short, out>;
    using Parameters = gpipe::Tensors<gpipe::Tensor<float, out, in>, gpipe::Tensor<float, out>>;
    static constexpr auto backward_reads = gpipe::Reads::both;

    void initialize(auto& context) const { // in the host's memory
        auto random = context.random(0);
        auto const [w, b] = context.parameters();
        for (float& weight : w) weight = float(random.normal(1 / std::sqrt(in)));
    }
    void forward(auto& context, auto x, auto y) const {
        auto const [w, b] = context.parameters();
        gpipe::cuda::launch(context.stream(), int(x.samples()), out, 0, dense<in, out, T, Short>,
                            w.data(), b.data(), x.data(), y.data());
    }
    void backward(auto& context, auto x, auto y, auto dy, auto dx) const {
        auto const [w, b] = context.parameters();
        auto const [dw, db] = context.gradients();
        int const samples = int(x.samples());
        gpipe::cuda::launch(context.stream(), 1, out, 0, dense_parameters<in, out, T, Short>,
                            x.data(), y.data(), dy.data(), dw.data(), db.data(), samples);
        gpipe::cuda::launch(context.stream(), samples, in, 0, dense_input<in, out, T, Short>,
                            w.data(), y.data(), dy.data(), dx.data());
    }
};

template <class Short>
__global__ void square(Short const* y, float const* target, Short* dy, double* value, int samples) {
    value[0] = 0;
    value[1] = samples;
    for (int i = 0; i < samples; ++i) {
        float const d = float(y[i]) - target[i];
        value[0] += d * d;
        dy[i] = Short(2 * d);
    }
}
template <class Short> struct Squared {
    using Target = gpipe::Tensor<float, 1>;
    void operator()(auto& context, auto y, auto target, auto dy) const {
        gpipe::cuda::launch(context.stream(), 1, 1, 0, square<Short>, y.data(), target.data(),
                            dy.data(), context.value().data(), int(context.samples()));
    }
};

template <class Short> void learn(gpipe::LossScale scale) {
    using Net = gpipe::Pipeline<Dense<float, 2, Short, 16>, Dense<Short, 16, Short, 1>>;
    using Train =
        gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<2>, gpipe::Loss<Squared<Short>>,
                        gpipe::Optimizer<gpipe::Adam>, gpipe::device::Cuda>;
    typename Train::Options options;
    options.samples = 4;
    options.loss_scale = scale;
    options.device = {gpipe::gpus(0, 0)};
    Train train{Net{}, {}, {.learning_rate = 0.02f}, options};
    std::vector<float> const x{-1, -1, -1, 1, 1, -1, 1, 1}, target{-0.5f, 0.5f, 0.5f, -0.5f};
    float loss = 0;
    int skipped = 0;
    for (int step = 0; step < 200; ++step) {
        auto const result = train.step(x, target);
        loss = float(result.loss);
        skipped += result.skipped();
    }
    std::vector<Short> y(4);
    train.predict(x, y);
    std::printf("loss %.4f, y = %.2f %.2f %.2f %.2f", loss, float(y[0]), float(y[1]), float(y[2]),
                float(y[3]));
    if (scale.scales()) std::printf("; %d steps skipped, scale %g", skipped, train.loss_scale());
    std::printf("\n");
}

int main(int argc, char** argv) try {
    bool in_half = false;
    support::Options options("mixed_precision",
                             "Trains with activations in 16 bits on a GPU: whether two signs "
                             "differ.");
    options.flag("half", "half with a dynamic loss scale, in place of bf16", in_half);
    if (auto const status = options.parse(argc, argv)) return *status;
    if (in_half)
        learn<__half>(gpipe::LossScale::dynamic(1 << 18));
    else
        learn<__nv_bfloat16>({});
} catch (std::exception const& error) {
    std::fprintf(stderr, "mixed_precision: %s\n", error.what());
    return 1;
}
