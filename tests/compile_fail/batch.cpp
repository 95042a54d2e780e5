// expect GPIPE_BATCH_OTHER_TYPE: gpipe: what is given for a tensor of a batch is no range of its elements
// expect GPIPE_BATCH_OTHER_TYPE: CheckRange<(gpipe::Tensor<float, 4>, double ?\[8\]|.*Given=double ?\[8)
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
struct Given {
    float targets[8] = {};
    double other[8] = {};
    std::vector<float> first = std::vector<float>(8);
    std::span<float const> second = first;
} given;
void step(Train& train) {
#if defined GPIPE_BATCH_OTHER_TYPE
    train.step({given.first, given.other}, given.targets);
#elif defined GPIPE_BATCH_POINTER
    train.step({given.first, given.second}, &given.targets[0]);
#elif defined GPIPE_BATCH_TOO_FEW
    train.step(given.first, given.targets);
#else
    train.step({given.first, given.second}, given.targets);
    gpipe::Batch<Train::Input> const batch{given.first, given.second};
    gpipe::Batch<Train::Target> other_targets = given.targets;
    gpipe::Batch<Train::Target> const again = other_targets;
    train.step(batch, again);
    struct Mine : gpipe::Batch<Train::Target> {
        using Base = gpipe::Batch<Train::Target>;
        using Base::Base;
    } const mine(given.targets);
    train.step(batch, mine);
#endif
}
