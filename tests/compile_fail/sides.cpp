// expect GPIPE_SIDE_UNDECLARED: gpipe: who works with gpipe::side<Tag>\(context\) must declare it
// expect GPIPE_SIDE_IN_LOSS: gpipe: gpipe::side<Tag>\(context\) is for the forward and backward of a layer
// expect GPIPE_SIDE_NO_TENSOR: gpipe: what layer Index \(L\) calls Side must be a gpipe::SideInput
// expect GPIPE_SIDE_IS_SKIP: gpipe: what layer Index \(L\) calls Side must be a gpipe::SideInput
// expect GPIPE_SIDE_TWICE: gpipe: what layer Index \(L\) calls Side must be a gpipe::SideInput
// expect GPIPE_SIDE_OTHER_TENSOR: gpipe: layer Index \(L\) reads a T as the side input Tag
// expect GPIPE_SIDE_OTHER_TENSOR: CheckSide<2, Second, .*gpipe::Tensor<int, 4>, gpipe::Tensor<int, 3>|Index=2, L=Second.*OtherT=(Ints|gpipe::Tensor<int, 3>)
// expect GPIPE_SIDE_OTHER_BATCH: gpipe: a batch is made of one range for each of its tensors
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>

struct Mask;
struct Other;
using Ints = gpipe::Tensor<int, 3>;

struct Reader : blank::Linear<4, 4> {
#if defined GPIPE_SIDE_NO_TENSOR
    using Side = gpipe::SideInput<Mask, gpipe::Tensors<Ints>>;
#elif defined GPIPE_SIDE_IS_SKIP
    using Side = gpipe::Skip<Mask, Ints>;
#elif defined GPIPE_SIDE_TWICE
    using Side = gpipe::SideInputs<gpipe::SideInput<Mask, Ints>, gpipe::SideInput<Mask, Ints>>;
#else
    using Side = gpipe::SideInput<Mask, Ints>;
#endif
    void forward([[maybe_unused]] auto& context, auto, auto) const {
#if defined GPIPE_SIDE_UNDECLARED
        gpipe::side<Other>(context);
#elif !defined GPIPE_SIDE_NO_TENSOR && !defined GPIPE_SIDE_IS_SKIP && !defined GPIPE_SIDE_TWICE
        gpipe::side<Mask>(context)(0, 2);
#endif
    }
};
struct Second : blank::Linear<4, 4> {
#ifdef GPIPE_SIDE_OTHER_TENSOR
    using Side = gpipe::SideInput<Mask, gpipe::Tensor<int, 4>>;
#else
    using Side = gpipe::SideInput<Mask, Ints>;
#endif
};
struct Measures {
    using Target = gpipe::Tensor<float, 4>;
    gpipe::LossValue<> operator()([[maybe_unused]] auto& context, auto, auto, auto) const {
#ifdef GPIPE_SIDE_IN_LOSS
        gpipe::side<Mask>(context);
#endif
        return {};
    }
};

using Net = gpipe::Pipeline<blank::Linear<4, 4>, Reader, Second>;
using Train = gpipe::Training<Net, gpipe::Loss<Measures>>;
static_assert(sizeof(Train) > 0);
#if !defined GPIPE_SIDE_NO_TENSOR && !defined GPIPE_SIDE_IS_SKIP && !defined GPIPE_SIDE_TWICE &&   \
    !defined GPIPE_SIDE_OTHER_TENSOR
float const inputs[8] = {}, targets[8] = {};
int const masks[6] = {};
void step(Train& train) {
#ifdef GPIPE_SIDE_OTHER_BATCH
    train.step(inputs, targets);
#else
    train.step({inputs, masks}, targets);
#endif
}
Train* made() { return new Train(Net{}, {}, {}, {.samples = 2}); }
#endif
