// expect GPIPE_BATCH_OTHER_TYPE: gpipe: what is given for a tensor of a batch is no range of its elements
// expect GPIPE_BATCH_POINTER: gpipe: what is given for a tensor of a batch is no range of its elements
// expect GPIPE_BATCH_TOO_FEW: gpipe: a batch is made of one range for each of its tensors
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>

#include <span>
#include <vector>

struct Pair : blank::Linear<4, 4> {
    using Input = gpipe::Tensors<gpipe::Tensor<float, 4>, gpipe::Tensor<float, 4>>;
};
struct Measures {
    using Target = gpipe::Tensor<float, 4>;
    gpipe::LossValue<> operator()(auto&, auto, auto, auto) const { return {}; }
};
using Net = gpipe::Pipeline<Pair, blank::Linear<4, 4>>;
using Train = gpipe::Training<Net, gpipe::Loss<Measures>>;
float targets[8] = {};
void step(Train& train, std::vector<float>& first, std::span<float const> second, float const* all,
          double const (&other)[8]) {
    static_cast<void>(all), static_cast<void>(other);
#if defined GPIPE_BATCH_OTHER_TYPE
    train.step({first, other}, targets);
#elif defined GPIPE_BATCH_POINTER
    train.step({first, second}, all);
#elif defined GPIPE_BATCH_TOO_FEW
    train.step(first, targets);
#else
    train.step({first, second}, targets);
    Train::Input* const none = nullptr;
    static_cast<void>(none);
    gpipe::Batch<Train::Input> const batch{first, second};
    gpipe::Batch<Train::Target> other_targets = targets;
    gpipe::Batch<Train::Target> const again = other_targets;
    train.step(batch, again);
#endif
}
