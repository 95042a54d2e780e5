// expect GPIPE_CONSTANT_UNDECLARED: gpipe: who works with gpipe::constant<C>\(context\) must declare it
// expect GPIPE_CONSTANT_WITHOUT_A_CALL: gpipe: gpipe::constant<C>\(context\) is for forward, backward and the loss
// expect GPIPE_CONSTANT_OF_NOBODY: gpipe: no layer of this training, nor its loss, declares the constants C
// expect GPIPE_CONSTANT_NOT_TRIVIAL: gpipe: what layer Index \(L\) calls Constants must be a class
// expect GPIPE_CONSTANT_NO_CLASS: gpipe: what layer Index \(L\) calls Constants must be a class
// expect GPIPE_CONSTANT_NO_DEFAULT: gpipe: what layer Index \(L\) calls Constants must be a class
// expect GPIPE_CONSTANT_OF_THE_LOSS: gpipe: what the loss \(L\) calls Constants must be a class
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>

#include <vector>

struct Temperature {
    float value = 1;
};
struct Other {
    int value = 0;
};
struct NotTrivial {
    std::vector<int> values;
};
struct NoDefault {
    explicit NoDefault(int);
    int value;
};

#if defined GPIPE_CONSTANT_NOT_TRIVIAL || defined GPIPE_CONSTANT_NO_CLASS ||                       \
    defined GPIPE_CONSTANT_NO_DEFAULT || defined GPIPE_CONSTANT_OF_THE_LOSS
#define NO_TRAINING
#endif

struct Reader : blank::Linear<4, 4> {
#if defined GPIPE_CONSTANT_NOT_TRIVIAL
    using Constants = gpipe::Constants<Temperature, NotTrivial>;
#elif defined GPIPE_CONSTANT_NO_CLASS
    using Constants = float;
#elif defined GPIPE_CONSTANT_NO_DEFAULT
    using Constants = NoDefault;
#else
    using Constants = Temperature;
#endif
    void initialize([[maybe_unused]] auto& context) const {
#ifdef GPIPE_CONSTANT_WITHOUT_A_CALL
        gpipe::constant<Temperature>(context);
#endif
    }
    void forward([[maybe_unused]] auto& context, auto, auto) const {
#if defined GPIPE_CONSTANT_UNDECLARED
        gpipe::constant<Other>(context);
#elif !defined NO_TRAINING
        gpipe::constant<Temperature>(context);
#endif
    }
};
struct Measures {
    using Target = gpipe::Tensor<float, 4>;
#ifdef GPIPE_CONSTANT_OF_THE_LOSS
    using Constants = NotTrivial;
#endif
    gpipe::LossValue<> operator()(auto&, auto, auto, auto) const { return {}; }
};

using Net = gpipe::Pipeline<Reader>;
using Train = gpipe::Training<Net, gpipe::Loss<Measures>>;
static_assert(sizeof(Train) > 0);
#ifndef NO_TRAINING
float set(Train& train) {
#ifdef GPIPE_CONSTANT_OF_NOBODY
    train.constant<Other>().value = 1;
#endif
    return train.constant<Temperature>().value = 2;
}
Train* made() { return new Train(Net{}, {}, {}, {.samples = 4}); }
#endif
