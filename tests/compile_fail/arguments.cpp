// expect GPIPE_OTHER_NET: gpipe: what a Training is given first \(N\) is not the Net of its type
// expect GPIPE_OTHER_NET: CheckArguments<(gpipe::)?Pipeline<Own>, (gpipe::)?Pipeline<Own, .*|.*N=gpipe::Pipeline<Own>, Net=(gpipe::Pipeline<Own, gpipe::Repeat<2, Careless>|Net)
// expect GPIPE_OTHER_LOSS: gpipe: what a Training is given second \(F\) is not the functor of the Loss<...> in its type
// expect GPIPE_OTHER_LOSS: CheckArguments<.*, Own, .*|.*F=Own
// expect GPIPE_OTHER_OPTIMIZER: gpipe: what a Training is given third \(O\) is not the functor of the Optimizer<...> in its type, which without one is gpipe::SGD
// expect GPIPE_OTHER_OPTIMIZER_BESIDE_BRACES: gpipe: what a Training is given third \(O\) is not the functor of the Optimizer<...>
// expect GPIPE_OPTIMIZER_OF_OTHER_TYPES: gpipe: the optimizer \(O\) takes no parameters of this type \(T\), which the chain has
// expect GPIPE_OPTIMIZER_OF_OTHER_TYPES: CheckOptimizerOf<(OfFloats, double>|.*O=OfFloats, T=double)
// expect GPIPE_PARAMETERS_OF_NONE: gpipe: the chain has no layer of this number \(index\): they count from 0, those in a Repeat
// expect GPIPE_GRADIENTS_OF_NONE: gpipe: the chain has no layer of this number
// expect GPIPE_LAYER_OF_NONE: gpipe: the chain has no layer of this number
// expect GPIPE_CHANGES_NONE: gpipe: the chain has no layer of this number
// expect GPIPE_SAVES_UNDECLARED: gpipe: there is no such tensor: the layer does not declare it
// expect GPIPE_SCRATCH_UNDECLARED: gpipe: there is no such tensor: the layer does not declare it
// expect GPIPE_SCRATCH_DATA_UNDECLARED: gpipe: there is no such tensor: the layer does not declare it
// expect GPIPE_SAVED_SIZE_UNDECLARED: gpipe: there is no such tensor: the layer does not declare it
// expect GPIPE_WRONG_TRAINING_IN_BRACES: gpipe: the forward of layer Index .L. takes other arguments
// expect GPIPE_LIBRARY_OPTIMIZER_OF_OTHER_TYPES: gpipe: the optimizer \(O\) takes no parameters of this type \(T\), which the chain has \(the library's calculate in float and double
// expect GPIPE_LIBRARY_OPTIMIZER_OF_CONVERTING_TYPES: gpipe: the optimizer \(O\) takes no parameters of this type \(T\), which the chain has \(the library's calculate in float and double
// expect GPIPE_PARAMETERS_UNDECLARED: gpipe: there is no such tensor: the layer does not declare it
// expect GPIPE_NONE_IS_WRITTEN: gpipe: there is no such tensor: .* or it is gpipe::none, which accepts_none takes
// expect GPIPE_WITHOUT_OPTIMIZER: gpipe: a Training is given four things, in this order: the Net, the loss, the optimizer
// expect GPIPE_WITHOUT_OPTIONS: gpipe: a Training is given four things, in this order: the Net, the loss, the
// expect GPIPE_WITHOUT_LOSS: gpipe: a Training is given four things, in this order
// expect GPIPE_OPTIONS_FIRST: gpipe: a Training is given four things, in this order
// expect GPIPE_CHANGES_A_COPY: gpipe: change_layer<i>\(f\) and change_loss\(f\) call f with the layer, or loss \(Changed\), that is to be changed: f has to take it by reference
// expect GPIPE_CHANGES_A_COPY_OF_THE_LOSS: gpipe: change_layer<i>\(f\) and change_loss\(f\) call f with the layer
// expect GPIPE_READS_TO_CONST: gpipe: what is read is written to elements that are const
// expect GPIPE_READS_TO_WHAT_IS_GONE: gpipe: what is read is written to elements that are gone at once
// expect GPIPE_ASSIGNS_A_SAMPLE: gpipe: view\[sample\] = other assigns a view that is gone at once, not its elements
// expect GPIPE_ASSIGNS_ANOTHERS_SAMPLE: gpipe: view\[sample\] = other assigns a view that is gone at once, not its elements
// expect GPIPE_ASSIGNS_ALL: gpipe: view\[sample\] = other assigns a view that is gone at once, not its elements
#include <gpipe/gpipe.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

#include <span>
#include <vector>

struct Plain : blank::Map<4> {};
struct Own : blank::Linear<4> {
    using Saved = blank::Floats<4>;
    using Scratch = blank::Floats<4>;
    static constexpr bool accepts_none = true;
    void forward(auto& ctx, auto x, auto y) const {
        ctx.saved()(0, 0) = 1;
        auto first = y[0];
#if defined(GPIPE_ASSIGNS_A_SAMPLE)
        ctx.saved()[0] = first;
#elif defined(GPIPE_ASSIGNS_ANOTHERS_SAMPLE)
        y[0] = x[0];
#elif defined(GPIPE_ASSIGNS_ALL)
        ctx.saved() = y;
#else
        first = y[x.samples() - 1];
#endif
        first[0] = x(0, 0);
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto const [w, b] = ctx.parameters();
        auto [dw, db] = ctx.gradients();
        dw[0] += w[0] * dy(0, 0);
        db[0] += b[0] * x(0, 0);
        ctx.scratch()(0, 0) = x(0, 0);
#ifndef GPIPE_NONE_IS_WRITTEN
        if constexpr (!gpipe::is_none<decltype(dx)>)
#endif
            dx(0, 0) = 0;
    }
};
struct Careless : Plain {
#if defined(GPIPE_SAVES_UNDECLARED)
    void forward(auto& ctx, auto, auto) const { ctx.saved()(0, 0) = 1; }
#elif defined(GPIPE_SCRATCH_UNDECLARED)
    void forward(auto& ctx, auto, auto) const { ctx.scratch()[0] = 1; }
#elif defined(GPIPE_SCRATCH_DATA_UNDECLARED)
    void forward(auto& ctx, auto, auto) const { *ctx.scratch().data() = 1; }
#elif defined(GPIPE_SAVED_SIZE_UNDECLARED)
    void forward(auto& ctx, auto, auto y) const { y(0, 0) = float(ctx.saved().size()); }
#elif defined(GPIPE_PARAMETERS_UNDECLARED)
    void forward(auto& ctx, auto, auto y) const { y(0, 0) = 2 * ctx.parameters()[0]; }
#endif
};
struct OfFloats {
    static constexpr std::size_t states = 0;
    void operator()(gpipe::UpdateContext, gpipe::UpdateTensor<float, 0>) const noexcept {}
};
template <class T> struct HasParameters : Plain {
    using Parameters = gpipe::Tensor<T, 4>;
    void initialize(auto&) const {}
};
#ifdef GPIPE_OPTIMIZER_OF_OTHER_TYPES
using Real = double;
#else
using Real = float;
#endif
using OnFloats = gpipe::Training<gpipe::Pipeline<HasParameters<Real>>, gpipe::Loss<blank::Loss<4>>,
                                 gpipe::Optimizer<OfFloats>>;

// As types of 16 bits are: there is a way to float, and nothing else.
struct Short {
    Short() = default;
    explicit Short(float) {}
    explicit operator float() const { return 0; }
    Short& operator+=(Short) { return *this; }
};
template <> struct gpipe::CarriesGradient<Short> : std::true_type {};
// These calculate, and what it comes to is another type.
struct Brief {
    Brief() = default;
    Brief(float) {}
    operator float() const { return 0; }
};
template <> struct gpipe::CarriesGradient<Brief> : std::true_type {};
#if defined(GPIPE_LIBRARY_OPTIMIZER_OF_OTHER_TYPES)
using Half = Short;
#elif defined(GPIPE_LIBRARY_OPTIMIZER_OF_CONVERTING_TYPES)
using Half = Brief;
#else
using Half = float;
#endif
using OnHalf = gpipe::Training<gpipe::Pipeline<HasParameters<Half>>, gpipe::Loss<blank::Loss<4>>,
                               gpipe::Optimizer<gpipe::Grouped<gpipe::AdamW>>>;

struct Different : Plain {
#ifdef GPIPE_WRONG_TRAINING_IN_BRACES
    void forward() const {}
#endif
};
using Wrong = gpipe::Training<gpipe::Pipeline<Different>, gpipe::Loss<blank::Loss<4>>,
                              gpipe::Optimizer<gpipe::Adam>>;

using Net = gpipe::Pipeline<Own, gpipe::Repeat<2, Careless>>;
using Train = gpipe::Training<Net, gpipe::Loss<blank::Loss<4>>>;

void use(Train& train);
void use(Train& train) {
#if defined(GPIPE_PARAMETERS_OF_NONE)
    (void)train.parameters<3>();
#elif defined(GPIPE_GRADIENTS_OF_NONE)
    (void)train.gradients<3>();
#elif defined(GPIPE_LAYER_OF_NONE)
    (void)train.layer<3>();
#elif defined(GPIPE_CHANGES_NONE)
    train.change_layer<3>([](auto&) {});
#else
    (void)train.parameters<0>();
    (void)train.gradients<0>();
    (void)train.layer<2>();
#if defined(GPIPE_CHANGES_A_COPY)
    train.change_layer<2>([](Careless) {});
#elif defined(GPIPE_CHANGES_A_COPY_OF_THE_LOSS)
    train.change_loss([](blank::Loss<4>) {});
#else
    train.change_layer<2>([](auto&) {});
    train.change_layer<2>([](auto&&) {});
    train.change_loss([](blank::Loss<4>&) noexcept {});
#endif
    std::vector<float> elements(16);
#if defined(GPIPE_READS_TO_CONST)
    train.read_parameter(0, 0, std::span<float const>(elements));
#elif defined(GPIPE_READS_TO_WHAT_IS_GONE)
    train.read_parameter(0, 0, std::vector<float>(16));
#else
    train.read_parameter(0, 0, elements);
    train.read_parameter(0, 0, std::span(elements));
    train.read_gradient(0, 0, elements);
#endif
    train.write_parameter(0, 0, elements);
    train.write_parameter(0, 0, std::span(elements));
    train.write_parameter(0, 0, std::span<float const>(elements));
#endif
}

int main() {
    [[maybe_unused]] blank::Loss<4> const loss;
    [[maybe_unused]] gpipe::SGD const sgd;
    [[maybe_unused]] Train::Options const options{.samples = 4};
#if defined(GPIPE_OTHER_NET)
    Train train{gpipe::Pipeline<Own>{}, loss, sgd, options};
#elif defined(GPIPE_OTHER_LOSS)
    Train train{Net{}, Own{}, sgd, options};
#elif defined(GPIPE_OTHER_OPTIMIZER)
    Train train{Net{}, loss, gpipe::Adam{}, options};
#elif defined(GPIPE_OTHER_OPTIMIZER_BESIDE_BRACES)
    Train train{{}, {}, gpipe::Adam{}, {.samples = 4}};
#elif defined(GPIPE_WITHOUT_OPTIMIZER)
    Train train{Net{}, loss, {.samples = 4}};
#elif defined(GPIPE_WITHOUT_OPTIONS)
    Train train{{}, {}, sgd};
#elif defined(GPIPE_WITHOUT_LOSS)
    Train train{Net{}, {.samples = 4}};
#elif defined(GPIPE_OPTIONS_FIRST)
    Train train{Net{}, loss, options, sgd};
#else
    Train train{Net{}, loss, {}, options};
    Train other{{}, {}, sgd, {.samples = 4}};
    use(other);
#endif
    use(train);
    OnFloats of_floats{{}, loss, {}, {.samples = 4}};
    OnHalf of_half{{}, loss, gpipe::Grouped<gpipe::AdamW>{}, {.samples = 4}};
    Wrong wrong{{}, {}, {.learning_rate = 0.5f}, {.samples = 4, .device = {.threads = 1}}};
    float const one[4] = {};
    wrong.step(one, one);
    wrong.step({one}, {one});
}
