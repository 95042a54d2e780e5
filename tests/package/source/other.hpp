#pragma once

#include <gpipe/gpipe.hpp>

#include <cstddef>

struct Scale { // y = w x
    using Input = gpipe::Tensor<float>;
    using Output = Input;
    using Parameters = Input;
    void initialize(auto& ctx) const { ctx.parameters()[0] = 0.5f + ctx.random(0).uniform(0); }
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s) y(s) = ctx.parameters()[0] * x(s);
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        for (std::size_t s = 0; s < x.samples(); ++s)
            ctx.gradients()[0] += dy(s) * x(s), dx(s) = ctx.parameters()[0] * dy(s);
    }
};
struct Squared {
    using Target = gpipe::Tensor<float>;
    gpipe::LossValue<> operator()(auto&, auto y, auto target, auto dy) const {
        double sum = 0;
        for (std::size_t s = 0; s < y.samples(); ++s)
            dy(s) = 2 * (y(s) - target(s)), sum += dy(s) * dy(s) / 4;
        return {sum, double(y.samples())};
    }
};
using Net = gpipe::Pipeline<Scale, Scale, Scale, Scale>;
using Train = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<4>, gpipe::Loss<Squared>,
                              gpipe::Optimizer<gpipe::AdamW>>;

double loss_elsewhere(float const (&inputs)[8], float const (&targets)[8]);
