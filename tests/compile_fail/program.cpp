// A whole program with one mistake: whatever it goes on to do with the training, nothing else is
// said.
// expect GPIPE_SHAPE: gpipe: layer Index \(Left\) gives Output, but the next layer \(Right\) takes Input
// expect GPIPE_LAYER: gpipe: the backward of layer Index \(L\) takes one argument less: dx is missing
// expect GPIPE_NO_LOSS: gpipe: a Training needs a loss: gpipe::Loss<Functor> among its policies
// expect GPIPE_LOSS: gpipe: the operator\(\) of the loss \(L\) is not const
// expect GPIPE_CUT: gpipe: there are more cells \(K\) than layers \(Layers\)
// expect GPIPE_SEGMENT: gpipe: EverySegment<n> needs segments of at least one layer
#include <gpipe/gpipe.hpp>

#include <cstdio>

struct Scale {
    using Input = gpipe::Tensor<double>;
    using Output = Input;
    using Parameters = Input;
    void initialize(auto& ctx) const { ctx.parameters()[0] = 0.9f; }
    void forward(auto& ctx, auto x, auto y) const { y(0) = ctx.parameters()[0] * x(0); }
#ifdef GPIPE_LAYER
    void backward(auto& ctx, auto x, auto dy) const { ctx.gradients()[0] += dy(0) * x(0); }
#else
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        ctx.gradients()[0] += dy(0) * x(0);
        dx(0) = ctx.parameters()[0] * dy(0);
    }
#endif
};
struct Wide : Scale {
    using Input = gpipe::Tensor<double, 3>;
};
struct Weight {
    double factor = 1;
};
struct Squared {
    using Constants = Weight;
    using Target = gpipe::Tensor<double>;
    gpipe::LossValue<1> operator()(auto& ctx, auto y, auto target, auto dy)
#ifndef GPIPE_LOSS
        const
#endif
    {
        dy(0) = gpipe::constant<Weight>(ctx)->factor * (y(0) - target(0));
        return {dy(0) * dy(0) / 2, 1, {1}};
    }
};

#ifdef GPIPE_SHAPE
using Net = gpipe::Pipeline<Scale, Scale, Wide, Scale>;
#else
using Net = gpipe::Pipeline<Scale, Scale, Scale, Scale>;
#endif
#ifdef GPIPE_CUT
using Cut = gpipe::Cells<5>;
#else
using Cut = gpipe::Cells<2>;
#endif
#ifdef GPIPE_SEGMENT
using Checkpointing = gpipe::checkpoint::EverySegment<0>;
#else
using Checkpointing = gpipe::checkpoint::EverySegment<1>;
#endif
#ifdef GPIPE_NO_LOSS
using Train = gpipe::Training<Net, Cut, gpipe::MicroBatches<4>, Checkpointing>;
#else
using Train =
    gpipe::Training<Net, gpipe::Loss<Squared>, Cut, gpipe::MicroBatches<4>, Checkpointing>;
#endif
static_assert(Train::bubble() == gpipe::ratio(1, 5));
static_assert(Train::layer_count == 4 && Train::cell_count == 2 && Train::device_count == 2);
static_assert(Train::peak_bytes(0, 2) < 100'000);

void print_weights(Train& train) {
    for (std::size_t layer = 0; layer < 4; ++layer)
        for (double const w : train.parameter<double>(layer, 0)) std::printf("%g\n", w);
    train.parameters<0>()[0] = 2;
    std::printf("%g\n", double{train.parameters<1>()[0]});
}
void print_choices(Train const& train) {
    std::printf("%g\n", double{train.optimizer().learning_rate});
    [[maybe_unused]] Scale const third = train.layer<2>();
}
int main() {
    Train train{Net{}, Squared{}, gpipe::SGD{.learning_rate = 0.001f}, {.samples = 8, .seed = 3}};
    double const x[] = {1, 2, 3, 4}, target[] = {2, 4, 6, 8};
    double y[4];
    for (int i = 0; i < 30; ++i) {
        train.optimizer().learning_rate *= 0.9f;
        float const loss = train.step(x, target);
        train.constant<Weight>().factor = 0.5;
        train.accumulate(x, target);
        auto pending = train.start(x, target);
        std::printf("%g %g\n", double{loss}, pending.result().loss);
    }
    print_choices(train);
    train.predict(x, y);
    train.compute_gradients(x, target);
    std::printf("%g %zu\n", train.evaluate(x, target).loss, train.planned_bytes());
    print_weights(train);
}
