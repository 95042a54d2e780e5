// Layers that want a gradient by themselves: that of a chain's inputs, and of what is between
// frozen layers. On streams: cuda_double/gradient_tap.cpp; the kernels: gpu/gradient_tap.cu.
#include "support/ways.hpp"

#include <gpipe/check_gradients.hpp>
#include <gpipe/layers/gradient_tap.hpp>
#include <gpipe/profile.hpp>
#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Backward;
using toy::Remote;
using Real = float;

template <std::size_t n> using Tap = gpipe::GradientTap<gpipe::Tensor<Real, n>>;
using Net =
    gpipe::Pipeline<Tap<5>, toy::Linear<Real, 5, 6>, toy::Tanh<Real, 6>, Tap<6>,
                    toy::Dropout<Real, 6>, toy::Linear<Real, 6, 6>, toy::Linear<Real, 6, 3>>;
/// y = x, and counts its backwards.
struct Heard {
    using Input = gpipe::Tensor<Real, 6>;
    using Output = Input;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    static constexpr bool accepts_none = true;
    int* backwards = nullptr;

    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = x.data()[i];
    }
    void backward(auto&, auto dy, auto dx) const {
        if (backwards) ++*backwards;
        if constexpr (!gpipe::is_none<decltype(dx)>)
            for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = dy.data()[i];
    }
};
using Loss = toy::MeanSquare<Real, 3>;
template <class Device> using Train = toy::Training<Net, Loss, Adam, Device>;
using Plain = toy::Reference<Net, Loss, Adam>;
constexpr std::size_t samples = 13, micro_batches = 4;

// All that flows through the taps of a net in two steps.
struct Flown {
    std::vector<Real> inputs = std::vector<Real>(samples * 5),
                      inside = std::vector<Real>(samples * 6);
    friend bool operator==(Flown const&, Flown const&) = default;
};
template <class T> std::vector<Flown> flown(T& train, auto set, bool parts = false) {
    std::vector<Flown> all;
    for (std::size_t const size : {samples, std::size_t{3}, samples}) {
        toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
        Flown flow;
        set(train, flow);
        if (parts && size == samples) { // the samples of a part come first
            toy::Data<Real> part(6), rest(7);
            part.inputs.assign(data.inputs.begin(), data.inputs.begin() + 30);
            part.targets.assign(data.targets.begin(), data.targets.begin() + 18);
            rest.inputs.assign(data.inputs.begin() + 30, data.inputs.end());
            rest.targets.assign(data.targets.begin() + 18, data.targets.end());
            train.accumulate(part.inputs, part.targets);
            (void)train.step(rest.inputs, rest.targets);
        } else {
            (void)train.step(data.inputs, data.targets);
        }
        all.push_back(flow);
    }
    return all;
}
template <class T> void set(T& train, Flown& flow) {
    train.template change_layer<0>([&](Tap<5>& tap) { tap.to = flow.inputs.data(); });
    train.template change_layer<3>([&](Tap<6>& tap) { tap.to = flow.inside.data(); });
}
void set_plain(Plain& plain, Flown& flow) {
    plain.layer<0>().to = flow.inputs.data();
    plain.layer<3>().to = flow.inside.data();
}
template <class T> typename T::Options options(std::size_t cells) {
    return {.samples = samples, .seed = 7, .cells = cells, .micro_batches = micro_batches};
}

} // namespace

TEST_CASE_TEMPLATE("P1 what flows through taps is the same for every schedule, checkpointing and "
                   "cut, and nothing else changes",
                   Device, Host, Remote) {
    std::vector<Flown> expected[2], in_parts[2];
    for (bool const descends : {false, true}) {
        auto const order = descends ? Backward::descending : Backward::ascending;
        Plain plain(Net{}, {}, Adam{1e-2f}, 7, micro_batches, order);
        expected[descends] = flown(plain, set_plain);
        Plain other(Net{}, {}, Adam{1e-2f}, 7, micro_batches, order);
        in_parts[descends] = flown(other, set_plain, true);
    }
    toy::each_training<Device>(4, Net::size, micro_batches, 157, [&](toy::Way<Device> const& way) {
        auto o = way.chosen(options<Train<Device>>(way.cells));
        if (way.number % 3 == 1) o.loss_scale = gpipe::LossScale::dynamic(256, 2, 0.5, 1);
        o.debug = way.number % 3 == 2;
        Train<Device> train(Net{}, {}, Adam{1e-2f}, o);
        bool const parts = way.number % 2;
        CHECK((flown(train, set<Train<Device>>, parts) ==
               (parts ? in_parts : expected)[way.descends()]));
        CHECK(train.used_bytes() == train.planned_bytes());
    });
}

TEST_CASE("the gradient of the inputs is what differences of the loss are") {
    using T = toy::Training<
        gpipe::Pipeline<gpipe::GradientTap<gpipe::Tensor<double, 5>>, toy::Linear<double, 5, 6>,
                        toy::Tanh<double, 6>, toy::Linear<double, 6, 3>>,
        toy::MeanSquare<double, 3>, gpipe::SGD, Host>;
    T train({}, {}, {}, options<T>(3));
    toy::Data<double> data(samples);
    std::vector<double> gradient(samples * 5);
    train.change_layer<0>([&](auto& tap) { tap.to = gradient.data(); });
    (void)train.compute_gradients(data.inputs, data.targets);
    double const step = 1e-6;
    for (std::size_t i = 0; i < data.inputs.size(); i += 7) {
        double const value = data.inputs[i];
        data.inputs[i] = value + step;
        auto const up = train.evaluate(data.inputs, data.targets);
        data.inputs[i] = value - step;
        auto const down = train.evaluate(data.inputs, data.targets);
        data.inputs[i] = value;
        double const difference = (up.loss * up.weight - down.loss * down.weight) / (2 * step);
        CHECK(gradient[i] == doctest::Approx(difference).epsilon(1e-6));
    }
    CHECK(gpipe::check_gradients(train, data.inputs, data.targets).passed());
}

TEST_CASE("checks and profiles of a layer leave the array of a tap as it was") {
    using Front = gpipe::GradientTap<gpipe::Tensor<Real, 3>>;
    using Tapped = gpipe::Pipeline<Front, toy::Linear<Real, 3, 3>>;
    Tapped net;
    gpipe::Training<Tapped, gpipe::Loss<toy::MeanSquare<Real, 3>>> train(net, {}, {},
                                                                         {.samples = 1});
    std::vector<Real> const inputs = toy::numbers<Real>(3, 1), targets = toy::numbers<Real>(3, 2);
    std::vector<Real> gradient(3); // of one sample: a check makes three of it
    train.change_layer<0>([&](Front& tap) { tap.to = gradient.data(); });
    train.step(inputs, targets);
    std::vector<Real> const before = gradient;
    CHECK(before != std::vector<Real>(3));
    CHECK(gpipe::check_gradients(train, inputs, targets).passed());
    CHECK(gradient == before);
    gpipe::profile(Tapped(train.layer<0>(), {}), {.samples = 2, .rounds = 1});
    CHECK(gradient == before);
}

TEST_CASE("P9 a gradient flows as far as the lowest tap or learner, and no further") {
    static_assert(gpipe::wants_gradient<Tap<5>> && !gpipe::wants_gradient<toy::Tanh<Real, 6>>);
    using Below =
        gpipe::Pipeline<toy::Linear<Real, 5, 6>, Heard, Tap<6>, Heard, toy::Linear<Real, 6, 3>>;
    using T = toy::Training<Below, Loss, Adam, Host>;
    toy::Data<Real> const data(samples);
    std::vector<std::vector<Real>> flown;
    for (std::vector<std::size_t> const& frozen :
         std::vector<std::vector<std::size_t>>{{}, {0}, {0, 4}}) {
        auto o = options<T>(2);
        o.frozen = frozen;
        T train({}, {}, Adam{1e-2f}, o);
        int below = 0, above = 0;
        std::vector<Real> gradient(samples * 6);
        train.change_layer<1>([&](Heard& layer) { layer.backwards = &below; });
        train.change_layer<3>([&](Heard& layer) { layer.backwards = &above; });
        train.change_layer<2>([&](Tap<6>& tap) { tap.to = gradient.data(); });
        (void)train.step(data.inputs, data.targets);
        CHECK(above == int{micro_batches});
        CHECK(below == (frozen.empty() ? int{micro_batches} : 0));
        flown.push_back(gradient);
    }
    CHECK(flown[0] != std::vector<Real>(samples * 6));
    CHECK(flown[1] == flown[0]);
    CHECK(flown[2] == flown[0]);
}

TEST_CASE("replicas write their parts of one array") {
    using T = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<micro_batches>,
                              gpipe::Loss<Loss>, gpipe::Optimizer<Adam>,
                              gpipe::schedule::OneForwardOneBackward, gpipe::Replicas<2>>;
    T::Options o;
    o.samples = 7;
    o.seed = 7;
    T train(Net{}, {}, Adam{1e-2f}, o);
    Plain plain(Net{}, {}, Adam{1e-2f}, 7, micro_batches, Backward::ascending, 2);
    CHECK(flown(train, set<T>) == flown(plain, set_plain));
}
