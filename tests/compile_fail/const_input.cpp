// What a layer's own code does wrong, the compiler says at the line that does it.
// expect GPIPE_N1_N2_N3_FORWARD_WRITES_INPUT: read-only|cannot assign to|modifiable lvalue
// expect GPIPE_BACKWARD_WRITES_INPUT: read-only|cannot assign to|modifiable lvalue
// expect GPIPE_BACKWARD_WRITES_OUTPUT_GRADIENT: read-only|cannot assign to|modifiable lvalue
// expect GPIPE_FORWARD_WRITES_PARAMETERS: read-only|cannot assign to|modifiable lvalue
// expect GPIPE_BACKWARD_WRITES_SAVED: read-only|cannot assign to|modifiable lvalue
// expect GPIPE_LOSS_WRITES_OUTPUT: read-only|cannot assign to|modifiable lvalue
// expect GPIPE_POINTER: (invalid conversion|cannot initialize a variable|cannot be used to initialize)
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>

// The control writes what it may write.
struct Layer : blank::Linear<4> {
    using Saved = blank::Floats<4>;
    void forward(auto& context, auto x, auto y) const {
        auto [weights, bias] = context.parameters();
        y(0, 1) = x(0, 1) * weights(1, 1) + bias(1);
        context.saved()(0, 1) = y(0, 1);
#if defined(GPIPE_N1_N2_N3_FORWARD_WRITES_INPUT)
        x(0, 1) = 0;
#elif defined(GPIPE_FORWARD_WRITES_PARAMETERS)
        bias(1) = 0;
#elif defined(GPIPE_POINTER)
        float* const first = x.data();
        *first = 0;
#endif
    }
    void backward(auto& context, auto x, auto dy, auto dx) const {
        auto [d_weights, d_bias] = context.gradients();
        d_weights(1, 1) += x(0, 1) * dy(0, 1);
        d_bias(1) += dy(0, 1);
        dx(0, 1) = dy(0, 1) + context.saved()(0, 1);
#if defined(GPIPE_BACKWARD_WRITES_INPUT)
        x(0, 1) = 0;
#elif defined(GPIPE_BACKWARD_WRITES_OUTPUT_GRADIENT)
        dy(0, 1) = 0;
#elif defined(GPIPE_BACKWARD_WRITES_SAVED)
        context.saved()(0, 1) = 0;
#endif
    }
};
struct Square {
    using Target = blank::Floats<4>;
    gpipe::LossValue<> operator()(auto&, auto y, auto target, auto dy) const {
        dy(0, 1) = 2 * (y(0, 1) - target(0, 1));
#if defined(GPIPE_LOSS_WRITES_OUTPUT)
        y(0, 1) = 0;
#endif
        return {};
    }
};

using Train = gpipe::Training<gpipe::Pipeline<Layer, Layer>, gpipe::Loss<Square>>;
template class gpipe::Training<gpipe::Pipeline<Layer, Layer>, gpipe::Loss<Square>>;
