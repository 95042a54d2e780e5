// expect GPIPE_OPTIONAL_ALWAYS_THERE: gpipe: gpipe::none is given for a tensor that is always there
// expect GPIPE_OPTIONAL_NEIGHBOUR: gpipe: layer Index \(Left\) gives Output, but the next layer \(Right\) takes Input
// expect GPIPE_OPTIONAL_SAVED: gpipe: a gpipe::Optional stands in Input and Output, skips
// expect GPIPE_OPTIONAL_PARAMETERS: gpipe: a gpipe::Optional stands in Input and Output, skips
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>

struct Mask;
using X = gpipe::Tensor<float, 4>;
using Hint = gpipe::Optional<Mask, X>;

struct First {
    using Input = gpipe::Tensors<X, Hint>;
    using Output = Input;
#if defined GPIPE_OPTIONAL_SAVED
    using Saved = Hint;
#else
    using Saved = X;
#endif
#if defined GPIPE_OPTIONAL_PARAMETERS
    using Parameters = Hint;
#else
    using Parameters = X;
#endif
    void initialize(auto& context) const { context.parameters(); }
    void forward(auto& context, auto, auto) const { context.saved(); }
    void backward(auto&, auto, auto, auto) const {}
};
struct Second : First {
#ifdef GPIPE_OPTIONAL_NEIGHBOUR
    using Input = gpipe::Tensors<X, X>;
#endif
    using Output = X;
};
struct Measures {
    using Target = X;
    gpipe::LossValue<> operator()(auto&, auto, auto, auto) const { return {}; }
};

using Train = gpipe::Training<gpipe::Pipeline<First, Second>, gpipe::Loss<Measures>>;
static_assert(sizeof(Train) > 0);
#ifndef GPIPE_OPTIONAL_NEIGHBOUR
float const inputs[8] = {}, targets[8] = {};
void step(Train& train) {
#ifdef GPIPE_OPTIONAL_ALWAYS_THERE
    train.step({gpipe::none, inputs}, targets);
#else
    train.step({inputs, gpipe::none}, targets);
#endif
}
Train* made() { return new Train({}, {}, {}, {.samples = 2}); }
#endif
