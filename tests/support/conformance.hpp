#pragma once

// What tests of the conformance list train: chains of small layers over doubles, on the host.

#include "net.hpp"

#include <cstddef>

namespace conformance {

using gpipe::Adam;
using gpipe::SGD;
using gpipe::Tensor;
using gpipe::Tensors;
using gpipe::device::Host;
using toy::Phase;
using toy::Watch;
using toy::Watched;

using Real = double;
using Line = toy::Linear<Real, 1, 1>;
using Two = gpipe::Pipeline<toy::Linear<Real, 1, 2>, toy::Linear<Real, 2, 1>>;

template <class N, class Loss = toy::MeanSquare<Real, 1>, class O = SGD>
using Train = toy::Training<N, Loss, O, Host>;

template <class T>
typename T::Options options(std::size_t samples, std::size_t cells, std::size_t micro_batches,
                            gpipe::checkpoint::Dynamic checkpointing = {},
                            std::size_t threads = 2) {
    typename T::Options o;
    o.samples = samples;
    o.seed = 1;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.checkpointing = checkpointing;
    o.device.threads = threads;
    return o;
}

// The sum of all outputs: every gradient of them is 1.
template <std::size_t N> struct Sum {
    using Target = Tensor<Real>;
    gpipe::LossValue<> operator()(auto&, auto y, auto, gpipe::BatchView<Real, N> dy) const {
        gpipe::LossValue<> value;
        value.weight = 1; // per micro-batch; only the sum matters
        for (std::size_t i = 0; i < y.size(); ++i) {
            value.sum += y.data()[i];
            dy.data()[i] = 1;
        }
        return value;
    }
};

// Two tensors side by side, each with a weight.
struct Pair {
    using Input = Tensors<Tensor<Real, 1>, Tensor<Real, 1>>;
    using Output = Input;
    using Parameters = Tensors<Tensor<Real>, Tensor<Real>>;
    void initialize(auto& ctx) const {
        auto [v, w] = ctx.parameters();
        v[0] = 2;
        w[0] = 3;
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto [v, w] = ctx.parameters();
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            gpipe::get<0>(y)(s, 0) = v[0] * gpipe::get<0>(x)(s, 0);
            gpipe::get<1>(y)(s, 0) = w[0] * gpipe::get<1>(x)(s, 0);
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto [v, w] = ctx.parameters();
        auto [dv, dw] = ctx.gradients();
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            dv[0] += gpipe::get<0>(dy)(s, 0) * gpipe::get<0>(x)(s, 0);
            dw[0] += gpipe::get<1>(dy)(s, 0) * gpipe::get<1>(x)(s, 0);
            gpipe::get<0>(dx)(s, 0) = v[0] * gpipe::get<0>(dy)(s, 0);
            gpipe::get<1>(dx)(s, 0) = w[0] * gpipe::get<1>(dy)(s, 0);
        }
    }
};
struct AddPair {
    using Input = Pair::Output;
    using Output = Tensor<Real, 1>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            y(s, 0) = gpipe::get<0>(x)(s, 0) + gpipe::get<1>(x)(s, 0);
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            gpipe::get<0>(dx)(s, 0) = gpipe::get<1>(dx)(s, 0) = dy(s, 0);
    }
};

// A parameter for every element of every sample of the mini-batch: its gradient is the input
// gradient of what comes after.
template <std::size_t Samples, std::size_t N> struct Leaf {
    using Input = Tensor<Real, N>;
    using Output = Tensor<Real, N>;
    using Parameters = Tensor<Real, Samples, N>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    static constexpr bool accepts_none = true;
    void initialize(auto& ctx) const {
        for (Real& v : ctx.parameters()) v = 1;
    }
    void forward(auto& ctx, auto, auto y) const {
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i)
                y(s, i) = ctx.parameters()(ctx.first_sample() + s, i);
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) {
                ctx.gradients()(ctx.first_sample() + s, i) += dy(s, i);
                if constexpr (!gpipe::is_none<decltype(dx)>) dx(s, i) = 0;
            }
    }
};

} // namespace conformance
