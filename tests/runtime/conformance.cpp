// What the tests of torchgpipe (TG), fairscale's Pipe (FS) and PyTorch's Pipe (TP) pin down, as far
// as it concerns a pipeline on the CPU. Each test is named after one of their behaviours: A
// construction, B splitting, C order, D checkpointing, E random numbers, F errors, L balancing, M
// parity, N in-place. "[CT]": a mistake that does not compile here; see tests/compile_fail.

#include "support/net.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <doctest/doctest.h>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::SGD;
using gpipe::Tensor;
using gpipe::Tensors;
using gpipe::device::Host;
using toy::Phase;
using toy::Watch;
using toy::Watched;

using Real = double;
using Line = toy::Linear<Real, 1, 1>;
using Two = gpipe::Pipeline<toy::Linear<Real, 1, 2>, toy::Linear<Real, 2, 1>>;

template <class N, class Loss = toy::MeanSquare<Real, 1>, class O = SGD>
using Train = toy::Training<N, Loss, O, Host>;

template <class T>
typename T::Options options(std::size_t samples, std::size_t cells, std::size_t micro_batches,
                            gpipe::checkpoint::Dynamic checkpointing = {},
                            std::size_t threads = 2) {
    typename T::Options o;
    o.samples = samples;
    o.seed = 1;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.checkpointing = checkpointing;
    o.device.threads = threads;
    return o;
}

// The sum of all outputs: every gradient of them is 1.
template <std::size_t N> struct Sum {
    using Target = Tensor<Real>;
    gpipe::LossValue<> operator()(auto&, auto y, auto, gpipe::BatchView<Real, N> dy) const {
        gpipe::LossValue<> value;
        value.weight = 1; // per micro-batch; only the sum matters
        for (std::size_t i = 0; i < y.size(); ++i) {
            value.sum += y.data()[i];
            dy.data()[i] = 1;
        }
        return value;
    }
};

// Two tensors side by side, each with a weight.
struct Pair {
    using Input = Tensors<Tensor<Real, 1>, Tensor<Real, 1>>;
    using Output = Input;
    using Parameters = Tensors<Tensor<Real>, Tensor<Real>>;
    void initialize(auto& ctx) const {
        auto [v, w] = ctx.parameters();
        v[0] = 2;
        w[0] = 3;
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto [v, w] = ctx.parameters();
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            gpipe::get<0>(y)(s, 0) = v[0] * gpipe::get<0>(x)(s, 0);
            gpipe::get<1>(y)(s, 0) = w[0] * gpipe::get<1>(x)(s, 0);
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto [v, w] = ctx.parameters();
        auto [dv, dw] = ctx.gradients();
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            dv[0] += gpipe::get<0>(dy)(s, 0) * gpipe::get<0>(x)(s, 0);
            dw[0] += gpipe::get<1>(dy)(s, 0) * gpipe::get<1>(x)(s, 0);
            gpipe::get<0>(dx)(s, 0) = v[0] * gpipe::get<0>(dy)(s, 0);
            gpipe::get<1>(dx)(s, 0) = w[0] * gpipe::get<1>(dy)(s, 0);
        }
    }
};
struct AddPair {
    using Input = Pair::Output;
    using Output = Tensor<Real, 1>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            y(s, 0) = gpipe::get<0>(x)(s, 0) + gpipe::get<1>(x)(s, 0);
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            gpipe::get<0>(dx)(s, 0) = gpipe::get<1>(dx)(s, 0) = dy(s, 0);
    }
};

// t, t, t to (a + b + c, a b c), and the sum of both.
struct Three {
    using Input = Tensor<Real, 1>;
    using Output = Tensors<Tensor<Real, 1>, Tensor<Real, 1>, Tensor<Real, 1>>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            gpipe::get<0>(y)(s, 0) = gpipe::get<1>(y)(s, 0) = gpipe::get<2>(y)(s, 0) = x(s, 0);
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            dx(s, 0) = gpipe::get<0>(dy)(s, 0) + gpipe::get<1>(dy)(s, 0) + gpipe::get<2>(dy)(s, 0);
    }
};
struct SumAndProduct {
    using Input = Three::Output;
    using Output = Tensors<Tensor<Real, 1>, Tensor<Real, 1>>;
    void forward(auto& ctx, auto x, auto y) const {
        auto const& [a, b, c] = x;
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            gpipe::get<0>(y)(s, 0) = a(s, 0) + b(s, 0) + c(s, 0);
            gpipe::get<1>(y)(s, 0) = a(s, 0) * b(s, 0) * c(s, 0);
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto const& [a, b, c] = x;
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            Real const sum = gpipe::get<0>(dy)(s, 0), product = gpipe::get<1>(dy)(s, 0);
            gpipe::get<0>(dx)(s, 0) = sum + product * b(s, 0) * c(s, 0);
            gpipe::get<1>(dx)(s, 0) = sum + product * a(s, 0) * c(s, 0);
            gpipe::get<2>(dx)(s, 0) = sum + product * a(s, 0) * b(s, 0);
        }
    }
};

// A parameter for every element of every sample of the mini-batch: its gradient is the input
// gradient of what comes after.
template <std::size_t Samples, std::size_t N> struct Leaf {
    using Input = Tensor<Real, N>;
    using Output = Tensor<Real, N>;
    using Parameters = Tensor<Real, Samples, N>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    static constexpr bool accepts_none = true;
    void initialize(auto& ctx) const {
        for (Real& v : ctx.parameters()) v = 1;
    }
    void forward(auto& ctx, auto, auto y) const {
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i)
                y(s, i) = ctx.parameters()(ctx.first_sample() + s, i);
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) {
                ctx.gradients()(ctx.first_sample() + s, i) += dy(s, i);
                if constexpr (!gpipe::is_none<decltype(dx)>) dx(s, i) = 0;
            }
    }
};

// The sizes of the micro-batches that layer 0 saw.
std::vector<std::size_t> sizes_seen(std::size_t samples, std::size_t micro_batches) {
    Watch watch;
    watch.logs = true;
    using N = gpipe::Pipeline<Watched<Line>>;
    using T = Train<N>;
    T train(N(Watched<Line>(watch)), {}, {},
            options<T>(samples, 1, micro_batches, gpipe::checkpoint::Never{}));
    auto const data = toy::numbers<Real>(samples, 1);
    train.step(data, data);
    std::vector<std::size_t> sizes;
    for (toy::Call const& call : watch.log())
        if (call.phase == Phase::forward) sizes.push_back(call.samples);
    return sizes;
}

std::array<std::size_t, 2> cut_in_two(std::vector<double> const& costs) {
    std::size_t first[3];
    gpipe::Cells<gpipe::dynamic>::cut(costs.data(), costs.size(), 2, first);
    return {first[1], first[2] - first[1]};
}

} // namespace

TEST_CASE(
    "A1 parameters are reachable; balance, micro-batches and all else are readable as given") {
    using T = Train<Two>;
    toy::hand = {1, 1};
    T train(Two{}, {}, {}, options<T>(6, 2, 3));
    toy::hand.clear();
    CHECK(train.parameter<Real>(0, 0).size() == 2);
    CHECK(train.parameter<Real>(1, 1).size() == 1);
    CHECK(Two::parameters() == 2 + 2 + 2 + 1);
    CHECK(train.cells() == 2);
    CHECK(train.micro_batches() == 3);
    CHECK(train.samples() == 6);
    CHECK(train.seed() == 1);
    CHECK(train.plan().first[1] == 1);
}

TEST_CASE("A2 the layers have one order, whatever the balance") {
    static_assert(Two::size == 2);
    static_assert(std::is_same_v<Two::Layer<0>, toy::Linear<Real, 1, 2>>);
    static_assert(std::is_same_v<Two::Layer<1>, toy::Linear<Real, 2, 1>>);
    using T = Train<Two>;
    std::vector<std::vector<Real>> starts;
    for (std::size_t cells : {1, 2}) {
        T train(Two{}, {}, {}, options<T>(2, cells, 1));
        auto const a = train.parameter<Real>(0, 0);
        starts.emplace_back(a.begin(), a.end());
        CHECK_THROWS_AS(train.parameter<Real>(2, 0), std::out_of_range);
    }
    CHECK(starts[0] == starts[1]);
}

TEST_CASE("P1 a constant cut that knows what runs again is the one that is found at construction, "
          "and changes no bit") {
    using Net = gpipe::Pipeline<gpipe::Repeat<12, Line>>;
    using Loss = gpipe::Loss<toy::MeanSquare<Real, 1>>;
    using gpipe::schedule::OneForwardOneBackward;
    using Constant = gpipe::Training<Net, Loss, gpipe::Cells<2>, gpipe::MicroBatches<16>,
                                     OneForwardOneBackward, gpipe::Optimizer<gpipe::Adam>>;
    using Chosen = gpipe::Training<Net, Loss, gpipe::Cells<gpipe::dynamic>,
                                   gpipe::MicroBatches<gpipe::dynamic>, gpipe::schedule::Dynamic,
                                   gpipe::checkpoint::Dynamic, gpipe::Optimizer<gpipe::Adam>>;
    Constant constant(Net{}, {}, {}, {.samples = 16, .seed = 1});
    Chosen::Options options;
    options.samples = 16;
    options.seed = 1;
    options.micro_batches = 16;
    options.schedule = OneForwardOneBackward{};
    options.cells = 2;
    Chosen chosen(Net{}, {}, {}, options);
    CHECK(constant.plan().first[1] == 5);
    CHECK(chosen.plan().first[1] == 5);
    options.checkpointing = gpipe::checkpoint::Never{};
    Chosen even(Net{}, {}, {}, options);
    CHECK(even.plan().first[1] == 6);
    auto const data = toy::numbers<Real>(16, 1);
    for (int step = 0; step < 3; ++step) {
        double const loss = constant.step(data, data).loss;
        CHECK(chosen.step(data, data).loss == loss);
        CHECK(even.step(data, data).loss == loss);
    }
    for (std::size_t layer = 0; layer < 12; ++layer)
        CHECK(constant.parameter<Real>(layer, 0)[0] == even.parameter<Real>(layer, 0)[0]);
}

TEST_CASE("A3 A4 a balance that does not sum to the layers, or has a zero entry, is refused") {
    // [CT] as a policy; at run time through the same functions. Without a balance layers are cut by
    // cost, so none can be missing.
    double const costs[] = {1, 1};
    std::size_t first[4];
    CHECK_THROWS_AS(gpipe::Balance<1>::cut(costs, 2, 1, first), std::invalid_argument);
    CHECK_THROWS_AS((gpipe::Balance<1, 2>::cut(costs, 2, 2, first)), std::invalid_argument);
    CHECK_THROWS_AS((gpipe::Balance<0, 2>::cut(costs, 2, 2, first)), std::invalid_argument);
    CHECK_NOTHROW((gpipe::Balance<1, 1>::cut(costs, 2, 2, first)));
    using T = Train<Two>;
    CHECK_THROWS_AS(T(Two{}, {}, {}, options<T>(2, 3, 1)), std::invalid_argument);
}

TEST_CASE("A5 no micro-batches at all") {
    // MicroBatches<0> [CT]; the option 0 means that the default is wanted.
    using T = Train<Two>;
    CHECK(T(Two{}, {}, {}, options<T>(2, 2, 0)).micro_batches() == 8);
}

TEST_CASE("A6 A7 more cells than threads is no mistake, and surplus threads are dropped") {
    // Upstream a stage needs a device of its own; here a device is a lane of work, and one thread
    // walks as many as there are.
    using N = gpipe::Pipeline<gpipe::Repeat<4, Line>>;
    using T = Train<N>;
    auto const data = toy::numbers<Real>(4, 1);
    T one(N{}, {}, {}, options<T>(4, 4, 2, {}, 1));
    CHECK(one.lanes() == 1);
    T three(N{}, {}, {}, options<T>(4, 3, 2, {}, 5));
    CHECK(three.lanes() == 3);
    CHECK(one.step(data, data).loss == three.step(data, data).loss);
}

TEST_CASE("A9 one micro-batch works with every checkpointing") {
    // A8, an unknown mode, is [CT].
    using T = Train<Two>;
    auto const data = toy::numbers<Real>(3, 1);
    for (toy::NamedCheckpointing const& c : toy::every_checkpointing()) {
        T train(Two{}, {}, {}, options<T>(3, 2, 1, c.policy));
        CHECK(train.step(data, data).weight == 3);
    }
}

TEST_CASE("A11 A12 the same layer twice is two layers, each with parameters of its own") {
    // Layers are values: there is no object that could be in the list twice, and none on two
    // devices (A13). A10, something that is no list of layers, is [CT].
    using N = gpipe::Pipeline<Line, Line>;
    using T = Train<N>;
    Line const layer;
    T train(N(layer, layer), {}, {}, options<T>(2, 2, 1));
    CHECK(train.parameter<Real>(0, 0).data() != train.parameter<Real>(1, 0).data());
    CHECK(train.parameter<Real>(0, 0)[0] != train.parameter<Real>(1, 0)[0]);
}

TEST_CASE("A15 a training cannot be moved or copied") {
    // Its layers and tables point into it. There are no casts either: the element type is a type.
    using T = Train<Two>;
    static_assert(!std::is_copy_constructible_v<T> && !std::is_move_constructible_v<T>);
    static_assert(!std::is_copy_assignable_v<T> && !std::is_move_assignable_v<T>);
    CHECK(std::is_copy_constructible_v<Two>);
}

TEST_CASE("A16 the cells can be looked into, and layers have names") {
    auto const layers = Two::layers();
    CHECK(std::string(layers[0].name).find("Linear<double, 1") != std::string::npos);
    CHECK(layers[1].parameters.count == 2);
    using T = Train<Two>;
    T train(Two{}, {}, {}, options<T>(2, 2, 1));
    CHECK(train.plan().first.size() == 3);
    CHECK(train.programs().size(0) > 0);
    // A17, A18: placement by hand is the balance; layers are not pinned one by one. A19: there is
    // nothing to initialize first, as every test here shows.
}

TEST_CASE("B1 two samples in two micro-batches are one each, in order, and come back in order") {
    CHECK(sizes_seen(2, 2) == std::vector<std::size_t>{1, 1});
    using N = gpipe::Pipeline<toy::Scale<Real, 1>, toy::Scale<Real, 1>>;
    using T = Train<N>;
    T train(N{}, {}, {}, options<T>(2, 2, 2));
    std::vector<Real> const inputs{4, 7};
    std::vector<Real> outputs(2);
    train.predict(inputs, outputs);
    CHECK(outputs == inputs);
}

TEST_CASE("B2 7 samples in 4 micro-batches are 2, 2, 2 and 1") {
    CHECK(sizes_seen(7, 4) == std::vector<std::size_t>{2, 2, 2, 1});
}

TEST_CASE("B3 2 samples in 4 micro-batches are 2 micro-batches") {
    CHECK(sizes_seen(2, 4) == std::vector<std::size_t>{1, 1});
}

TEST_CASE("B4 a batch of one tensor has one, of a group as many, and none changes that") {
    static_assert(gpipe::Batch<Tensor<float, 3>>::count == 1);
    static_assert(gpipe::Batch<Tensors<Tensor<float, 3>>>::count == 1);
    static_assert(gpipe::Batch<Pair::Input>::count == 2);
    std::vector<float> const values(12);
    CHECK(gpipe::Batch<Tensor<float, 3>>(values).samples("inputs") == 4);
}

TEST_CASE("B5 both tensors of a pair get gradients, through every boundary") {
    using N = gpipe::Pipeline<Pair, Pair, AddPair>;
    using T = Train<N, Sum<1>>;
    std::vector<Real> const a{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, b(10, 1.0), none(10);
    for (std::size_t cells : {1, 2, 3})
        for (toy::NamedCheckpointing const& c : toy::every_checkpointing()) {
            T train(N{}, {}, SGD{0.0f}, options<T>(10, cells, 2, c.policy));
            auto const result = train.step({a, b}, none);
            CHECK(result.weight == 2);
            CHECK(result.loss * 2 == 2 * 2 * 55 + 3 * 3 * 10);
            for (std::size_t layer : {0, 1}) {
                CHECK(train.gradient<Real>(layer, 0)[0] * 2 == 2 * 55);
                CHECK(train.gradient<Real>(layer, 1)[0] * 2 == 3 * 10);
            }
        }
}

TEST_CASE("B10 B11 tensors that hold different numbers of samples are refused") {
    // B6 to B9: what does not fit a layer's types is [CT]. What upstream passes along as integers
    // and strings are tensors of integers (see D6) or run-time members of a layer, which every
    // micro-batch sees whole (B12).
    using N = gpipe::Pipeline<Pair, AddPair>;
    using T = Train<N, Sum<1>>;
    T train(N{}, {}, {}, options<T>(6, 2, 5));
    std::vector<Real> const three(3), four(4);
    CHECK_THROWS_AS(train.step({three, four}, three), std::invalid_argument);
    CHECK_NOTHROW(train.step({three, three}, three));
}

TEST_CASE("B14 t, t, t to their sum and product to the sum of both is 3 t + t^3") {
    // B13, a mini-batch on another device, needs a second kind of memory.
    using N = gpipe::Pipeline<Leaf<4, 1>, Three, SumAndProduct, AddPair>;
    using T = Train<N, Sum<1>>;
    std::vector<Real> const t{1, 1, 1, 1};
    for (toy::NamedCheckpointing const& c : toy::every_checkpointing()) {
        T train(N{}, {}, SGD{0.0f}, options<T>(4, 4, 2, c.policy));
        for (std::size_t s = 0; s < 4; ++s) train.parameter<Real>(0, 0)[s] = Real(s + 1);
        std::vector<Real> outputs(4);
        train.predict(t, outputs);
        train.step(t, t);
        for (std::size_t s = 0; s < 2; ++s) // a prediction of four samples, two per micro-batch
            for (std::size_t i : {s, s + 2}) {
                Real const v = Real(i + 1);
                CHECK(outputs[i] == 3 * v + v * v * v);
                CHECK(train.gradient<Real>(0, 0)[i] * 2 == 3 + 3 * v * v);
            }
    }
}

TEST_CASE("C1 the clock of the forwards: micro-batch m is in cell k at clock m + k") {
    for (auto [m, n] :
         {std::pair<std::size_t, std::size_t>{1, 1}, {1, 3}, {3, 1}, {3, 3}, {4, 2}}) {
        auto const programs = gpipe::schedule::GPipe::programs(n, m);
        auto const times = gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost);
        std::int64_t last = 0;
        for (std::size_t i = 0; i < programs.size(); ++i)
            if (programs[i].kind == gpipe::Kind::forward) {
                CHECK(times.start[i] == std::int64_t(programs[i].micro_batch + programs[i].cell));
                last = std::max(last, times.end[i]);
            }
        CHECK(last == std::int64_t(m + n - 1));
        // Inside a clock, ascending cells.
        auto const order = gpipe::linear_order(programs);
        for (std::size_t r = 1; r < order.size(); ++r)
            if (times.start[order[r - 1]] == times.start[order[r]])
                CHECK(programs[order[r - 1]].cell < programs[order[r]].cell);
    }
    // C2: cells run free; the counters hold nobody back but whoever needs something.
}

TEST_CASE("C3 backward order follows needs: recomputed before its backward, later cells first") {
    // C4 needs a GPU. C5, C6: there is no graph to put edges into; an evaluation makes nothing (see
    // P3).
    using A = Watched<toy::Saver<Real, 1>>;
    using N = gpipe::Pipeline<Watched<Line>, A, A>;
    Watch watch;
    watch.logs = true;
    using T = Train<N>;
    toy::hand = {2, 1};
    T train(N{Watched<Line>(watch), A(watch), A(watch)}, {}, {},
            options<T>(1, 2, 1, gpipe::checkpoint::Always{}));
    toy::hand.clear();
    std::vector<Real> const one{1};
    train.step(one, one);
    auto const at = [&](std::size_t layer, Phase phase) {
        auto const& log = watch.log();
        auto const found = std::find_if(log.begin(), log.end(), [&](toy::Call const& call) {
            return call.layer == layer && call.phase == phase;
        });
        CHECK(found != log.end());
        return found - log.begin();
    };
    CHECK(at(1, Phase::forward) < at(2, Phase::forward));
    CHECK(at(2, Phase::forward) < at(2, Phase::recompute));
    CHECK(at(2, Phase::recompute) < at(2, Phase::backward));
    CHECK(at(2, Phase::backward) < at(1, Phase::backward));
    // The recompute of the cell before needs no gradient: it may run earlier than upstream, in the
    // bubble.
    CHECK(at(1, Phase::recompute) < at(1, Phase::backward));
    CHECK(watch.log().size() == 3 + 3 + 3);
}

TEST_CASE("D1 of two micro-batches 2, 1 or 0 are recomputed under always, except-last and never") {
    // In the first of two cells; in the last, except-last puts a forward off instead of running it
    // twice.
    using S = Watched<toy::Saver<Real, 1>>;
    using N = gpipe::Pipeline<Watched<Line>, S, S, Watched<Line>>;
    std::size_t const first[] = {0, 1, 2}, last[] = {0, 0, 2};
    for (std::size_t c = 0; c < 3; ++c) {
        Watch watch;
        using T = Train<N>;
        toy::hand = {2, 2};
        T train(N{Watched<Line>(watch), S(watch), S(watch), Watched<Line>(watch)}, {}, {},
                options<T>(4, 2, 2, toy::checkpointings[c].policy));
        toy::hand.clear();
        auto const data = toy::numbers<Real>(4, 1);
        train.step(data, data);
        CHECK(watch.count(1, Phase::recompute) == first[c]);
        CHECK(watch.count(2, Phase::recompute) == last[c]);
        CHECK(watch.count(2, Phase::forward) == 2);
        // D2, D3: evaluation neither recomputes nor keeps anything.
        watch.reset();
        watch.logs = true;
        train.evaluate(data, data);
        for (toy::Call const& call : watch.log()) {
            CHECK(call.phase == Phase::evaluate);
            CHECK(!call.saving);
        }
    }
}

TEST_CASE("D4 parameters behind an input without a gradient have theirs, checkpointed or not") {
    using N = gpipe::Pipeline<toy::Scale<Real, 1>, Line>;
    using T = Train<N, Sum<1>>;
    std::vector<Real> const x{1, 2, 3, 4};
    for (toy::NamedCheckpointing const& c : toy::every_checkpointing()) {
        T train(N({2.0}, {}), {}, SGD{0.0f}, options<T>(4, 2, 2, c.policy));
        train.step(x, x);
        CHECK(train.gradient<Real>(1, 0)[0] * 2 == 2 * (1 + 2 + 3 + 4));
    }
}

TEST_CASE("D6 integers pass through a checkpointed boundary, and no gradient flows to them") {
    // That none does is a static_assert in toy::Tag and toy::Carry.
    using N =
        gpipe::Pipeline<Leaf<4, 1>, toy::Tag<Real, 1>, toy::Carry<Real, 1>, toy::Untag<Real, 1>>;
    using T = Train<N, Sum<1>>;
    std::vector<Real> const x(4);
    T train(N{}, {}, SGD{0.0f}, options<T>(4, 4, 2, gpipe::checkpoint::Always{}));
    train.parameter<Real>(0, 0)[1] = -1;
    train.step(x, x);
    // Carry's weights are 0.75 for tag 0 and 1.25 for tag 1.
    for (std::size_t s = 0; s < 4; ++s)
        CHECK(train.gradient<Real>(0, 0)[s] * 2 == (s == 1 ? 0.75 : 1.25));
    CHECK(train.gradient<Real>(2, 0)[0] * 2 == -1);
    CHECK(train.gradient<Real>(2, 0)[1] * 2 == 3);
}

TEST_CASE("D7 a chain of identities under always gives back its input") {
    // Input and output never share memory here: a layer need not mind.
    using N = gpipe::Pipeline<gpipe::Repeat<3, toy::Scale<Real, 4>>>;
    using T = Train<N, toy::MeanSquare<Real, 4>>;
    T train(N{}, {}, {}, options<T>(5, 3, 2, gpipe::checkpoint::Always{}));
    auto const x = toy::numbers<Real>(20, 1);
    std::vector<Real> y(20);
    train.predict(x, y);
    CHECK(y == x);
    CHECK(train.step(x, x).loss == 0);
}

TEST_CASE("E1 with dropout the input gradient is the same with and without checkpointing") {
    using N = gpipe::Pipeline<Leaf<3, 3>, toy::Dropout<Real, 3>, toy::Dropout<Real, 3>>;
    using T = Train<N, Sum<3>>;
    std::vector<std::vector<Real>> gradients;
    std::vector<Real> const x(9), t(3);
    for (toy::NamedCheckpointing const& c : toy::every_checkpointing())
        for (std::size_t cells : {1, 2}) {
            T train(N({}, {0.5f}, {0.25f}), {}, {}, options<T>(3, cells, 1, c.policy));
            train.step(x, t);
            auto const g = train.gradient<Real>(0, 0);
            gradients.emplace_back(g.begin(), g.end());
            CHECK(std::count(g.begin(), g.end(), 0.0) > 0);
            CHECK(std::count(g.begin(), g.end(), 0.0) < 9);
        }
    for (auto const& g : gradients) CHECK(g == gradients[0]);
}

namespace {

// Keeps the outputs that it sees.
struct Keeps : Sum<10> {
    std::vector<Real>* outputs = nullptr;
    gpipe::LossValue<> operator()(auto& ctx, auto y, auto t, gpipe::BatchView<Real, 10> dy) const {
        std::copy(y.begin(), y.end(), outputs->begin() + std::ptrdiff_t(10 * ctx.first_sample()));
        return Sum<10>::operator()(ctx, y, t, dy);
    }
};

} // namespace

TEST_CASE(
    "E2 through two cells of a hundred dropouts zeros of the output are zeros of the gradient") {
    using Many = gpipe::Repeat<100, toy::Dropout<Real, 10>>;
    using Watcher = Watched<toy::Scale<Real, 10>>;
    using N = gpipe::Pipeline<Leaf<10, 10>, Many, Many, Watcher>;
    using T = Train<N, Keeps>;
    toy::Dropout<Real, 10> const rare{0.001f};
    std::vector<Real> const x(100), t(10);
    std::vector<Real> outputs(100, -1.0);
    auto o = options<T>(10, 2, 10, gpipe::checkpoint::Always{});
    T train(N({}, Many(rare), Many(rare), {}), {{}, &outputs}, {}, o);
    train.step(x, t);
    std::size_t zeros = 0;
    for (std::size_t i = 0; i < 100; ++i) {
        CHECK((outputs[i] == 0) == (train.gradient<Real>(0, 0)[i] == 0));
        zeros += outputs[i] == 0;
    }
    CHECK(zeros > 5);
    CHECK(zeros < 40);
}

namespace {

struct Throws {
    using Input = Tensor<Real, 1>;
    using Output = Tensor<Real, 1>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    void forward(auto&, auto, auto) const { throw std::length_error("a layer's own words"); }
    void backward(auto&, auto, auto) const {}
};

} // namespace

TEST_CASE("F1 F2 pass, pass, throw: the exception arrives with its own type, and nothing hangs") {
    using N = gpipe::Pipeline<Line, Line, Throws>;
    using T = Train<N>;
    auto const data = toy::numbers<Real>(3, 1);
    for (std::size_t threads : {1, 2, 3}) {
        T train(N{}, {}, {}, options<T>(3, 3, 3, {}, threads));
        for (int again = 0; again < 50; ++again)
            CHECK_THROWS_WITH_AS(train.step(data, data), "a layer's own words", std::length_error);
        CHECK(train.failure()->layer == 2);
    }
}

TEST_CASE("F3 pass, pass, count, throw: what stands before the failure is done, what stands behind "
          "is not begun once it is known") {
    // The order is that of clocks: upstream's failing clock completes, and the next never starts.
    using N = gpipe::Pipeline<Line, Line, Watched<Line>, Throws>;
    using T = Train<N>;
    auto const data = toy::numbers<Real>(3, 1);
    for (std::size_t threads : {1, 2, 4})
        for (int again = 0; again < 50; ++again) {
            Watch watch;
            T train(N({}, {}, Watched<Line>(watch), {}), {}, {},
                    options<T>(3, 4, 3, gpipe::checkpoint::Never{}, threads));
            CHECK_THROWS_AS(train.step(data, data), std::length_error);
            std::size_t const count = watch.count(2, Phase::forward);
            CHECK(count >= 2);
            CHECK(count <= 3); // another thread may have begun the third before the failure
            if (threads == 1) CHECK(count == 2);
            CHECK(watch.count(2, Phase::backward) == 0);
        }
    // F4, F5: workers and their joining are in devices.cpp. F6 does not apply.
}

TEST_CASE("F7 whether the caller trains or evaluates holds on every thread") {
    using N = gpipe::Pipeline<gpipe::Repeat<4, Watched<Line>>>;
    using T = Train<N>;
    Watch watch;
    watch.logs = true;
    T train(N(gpipe::Repeat<4, Watched<Line>>(Watched<Line>(watch))), {}, {},
            options<T>(4, 4, 4, {}, 4));
    auto const data = toy::numbers<Real>(4, 1);
    for (bool training : {true, false, true}) {
        watch.reset();
        if (training)
            train.step(data, data);
        else
            train.evaluate(data, data);
        CHECK(watch.log().size() >= 16);
        for (toy::Call const& call : watch.log()) CHECK(call.training == training);
    }
}

TEST_CASE(
    "L1 costs 1 to 6 in two cells are 4 and 2 layers; equal costs, none at all too, are 1 and 1") {
    CHECK(cut_in_two({1, 2, 3, 4, 5, 6}) == std::array<std::size_t, 2>{4, 2});
    CHECK(cut_in_two({0, 0}) == std::array<std::size_t, 2>{1, 1});
    std::size_t first[8];
    double const one[] = {1};
    using Cut = gpipe::Cells<gpipe::dynamic>;
    CHECK_THROWS_AS(gpipe::check_cells(1, 0), std::invalid_argument);
    CHECK_THROWS_AS(gpipe::check_cells(1, 2), std::invalid_argument);
    CHECK_THROWS_AS(gpipe::check_cells(0, 1), std::invalid_argument);
    Cut::cut(one, 1, 1, first);
    CHECK(first[1] == 1);
    // L2 to L5, L7: unit/profile.cpp.
}

TEST_CASE("L6 a chain may be cut at a boundary of several tensors") {
    using N = gpipe::Pipeline<Pair, Pair, AddPair>;
    using T = Train<N, Sum<1>>;
    std::vector<Real> const a{1, 2, 3}, b{4, 5, 6};
    std::vector<double> losses;
    for (std::size_t cells : {1, 2, 3}) {
        T train(N{}, {}, SGD{1e-3f}, options<T>(3, cells, 2));
        train.step({a, b}, a);
        losses.push_back(train.step({a, b}, a).loss);
    }
    CHECK(losses[0] == losses[1]);
    CHECK(losses[0] == losses[2]);
}

TEST_CASE(
    "M1 linears 1-2-4-2-1, 8 samples, 4 micro-batches: gradients are those of one mini-batch") {
    using N = gpipe::Pipeline<toy::Linear<Real, 1, 2>, toy::Linear<Real, 2, 4>,
                              toy::Linear<Real, 4, 2>, toy::Linear<Real, 2, 1>>;
    using T = Train<N>;
    auto const x = toy::numbers<Real>(8, 1), t = toy::numbers<Real>(8, 2);
    toy::Reference<N, toy::MeanSquare<Real, 1>, SGD> whole(N{}, {}, {}, 1, 1,
                                                           toy::Backward::ascending);
    double const loss = whole.step(x, t);
    toy::hand = {2, 2};
    T train(N{}, {}, {}, options<T>(8, 2, 4));
    toy::hand.clear();
    // Another M adds in another order: equal up to rounding (P1 promises bits at equal M only).
    CHECK(train.step(x, t).loss == doctest::Approx(loss));
    for (std::size_t layer = 0; layer < 4; ++layer)
        for (std::size_t tensor = 0; tensor < 2; ++tensor) {
            auto const bytes = whole.gradient(layer, tensor);
            std::vector<Real> expected(bytes.size() / sizeof(Real));
            std::memcpy(expected.data(), bytes.data(), bytes.size());
            auto const gradient = train.gradient<Real>(layer, tensor);
            for (std::size_t i = 0; i < expected.size(); ++i)
                CHECK(gradient[i] == doctest::Approx(expected[i]).epsilon(1e-12));
        }
}

TEST_CASE(
    "M3 outputs are those of the plain model in every bit, before and after steps of SGD with "
    "momentum") {
    // M2 is the same on GPUs. One layer's parameters at three places of the chain: not part of this
    // library yet.
    using N =
        gpipe::Pipeline<toy::Linear<float, 5, 7>, toy::Tanh<float, 7>, toy::Linear<float, 7, 7>,
                        toy::Tanh<float, 7>, toy::Linear<float, 7, 3>>;
    using T = Train<N, toy::MeanSquare<float, 3>>;
    toy::Data<float> const data(8);
    SGD const sgd{.learning_rate = 1e-2f, .momentum = 0.9f, .weight_decay = 1e-3f};
    for (toy::NamedCheckpointing const& c : toy::every_checkpointing())
        for (std::size_t micro_batches : {1, 4}) {
            toy::Reference<N, toy::MeanSquare<float, 3>, SGD> plain(N{}, {}, sgd, 1, micro_batches,
                                                                    toy::Backward::descending);
            T train(N{}, {}, sgd, options<T>(8, 3, micro_batches, c.policy));
            for (int step = 0; step < 3; ++step) {
                std::vector<float> outputs(8 * 3);
                train.predict(data.inputs, outputs);
                auto const expected = plain.predict(data.inputs);
                CHECK(std::memcmp(outputs.data(), expected.data(), expected.size()) == 0);
                CHECK(train.step(data.inputs, data.targets).loss ==
                      plain.step(data.inputs, data.targets));
            }
        }
}

namespace {

// Looks at what it is given.
struct Looks : toy::Scale<Real, 1> {
    void forward(auto& ctx, auto x, auto y) const {
        static_assert(std::is_const_v<typename decltype(x)::element_type>);
        static_assert(!std::is_const_v<typename decltype(y)::element_type>);
        CHECK(static_cast<void const*>(x.data()) != static_cast<void const*>(y.data()));
        toy::Scale<Real, 1>::forward(ctx, x, y);
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        static_assert(std::is_const_v<typename decltype(dy)::element_type>);
        toy::Scale<Real, 1>::backward(ctx, dy, dx);
    }
};

} // namespace

TEST_CASE(
    "N1 N2 N3 a layer cannot write its input: it is const, and never the memory of its output") {
    // Writing it is [CT]: P8.
    using N = gpipe::Pipeline<Line, Looks, Line>;
    using T = Train<N>;
    auto const data = toy::numbers<Real>(6, 1);
    auto const before = data;
    for (std::size_t cells : {1, 2, 3}) {
        T train(N{}, {}, {}, options<T>(6, cells, 3, gpipe::checkpoint::Always{}, 1));
        train.step(data, data);
        CHECK(data == before);
    }
}
