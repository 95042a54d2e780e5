// Parameters of two element types on one device, over the double of the CUDA runtime: tensors that
// are updated at once are of one type.
#include "support/enqueued.hpp"
#include "support/net.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

namespace {

using toy::Data;
using toy::Linear;
using toy::MeanSquare;

// y = x p, where p has numbers of another type.
template <class T, class P, std::size_t N> struct Scale {
    using Input = gpipe::Tensor<T, N>;
    using Output = gpipe::Tensor<T, N>;
    using Parameters = gpipe::Tensor<P, N>;

    void initialize(auto& ctx) const {
        P next = 1;
        for (P& p : ctx.parameters()) p = next += P(0.25);
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const p = ctx.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) y(s, i) = static_cast<T>(P(x(s, i)) * p[i]);
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto const p = ctx.parameters();
        auto const dp = ctx.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) {
                dp[i] += P(dy(s, i)) * P(x(s, i));
                dx(s, i) = static_cast<T>(P(dy(s, i)) * p[i]);
            }
    }
};

template <template <class> class On>
using NetOf = gpipe::Pipeline<On<Linear<float, 5, 4>>, On<Scale<float, double, 4>>,
                              On<Linear<float, 4, 6>>, On<Linear<float, 6, 3>>>;
template <class L> using Alone = L;

template <class Net, class Loss, class Device> std::vector<double> losses(std::size_t cells) {
    using Train = toy::Training<Net, Loss, gpipe::AdamW, Device>;
    typename Train::Options options;
    options.samples = 6;
    options.seed = 3;
    options.cells = cells;
    options.micro_batches = 3;
    options.clip_norm = 0.1;
    Train train(Net{}, {}, gpipe::AdamW{.learning_rate = 1e-2f}, options);
    Data<float> const data(6, 1);
    std::vector<double> result;
    for (int step = 0; step < 4; ++step)
        result.push_back(train.step(data.inputs, data.targets).loss);
    return result;
}

} // namespace

TEST_CASE(
    "P1 parameters of two element types on one device are clipped and updated as on the host") {
    using Loss = MeanSquare<float, 3>;
    auto const expected = losses<NetOf<Alone>, Loss, gpipe::device::Host>(1);
    CHECK(expected[3] < expected[0]);
    for (std::size_t const cells : {1u, 2u}) {
        CAPTURE(cells);
        cuda_double::Session const session({.devices = static_cast<int>(cells)});
        CHECK((losses<NetOf<toy::Enqueued>, toy::EnqueuedLoss<Loss>, gpipe::device::Cuda>(cells) ==
               expected));
    }
}
