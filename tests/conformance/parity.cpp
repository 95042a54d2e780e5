// L to P: the same net however it is cut, and as it would be without a pipeline.

#include "support/conformance.hpp"
#include "support/skip_layers.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <doctest/doctest.h>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace {

using namespace conformance;

std::array<std::size_t, 2> cut_in_two(std::vector<double> const& costs) {
    std::size_t first[3];
    gpipe::Cells<gpipe::dynamic>::cut(costs.data(), costs.size(), 2, first);
    return {first[1], first[2] - first[1]};
}

} // namespace

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

TEST_CASE("P8 N1 N2 N3 a layer cannot write its input: it is const, and never the memory of its "
          "output") {
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

namespace {

struct Half;
struct Fetched;

// Four numbers: two go on, two to the layer after the next.
struct Split {
    using Input = Tensor<Real, 4>;
    using Output = Tensor<Real, 2>;
    using Stash = gpipe::Skip<Half, Tensor<Real, 2>>;
    void forward(auto& ctx, auto x, auto y) const {
        auto const other = gpipe::stash<Half>(ctx);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 2; ++i) y(s, i) = x(s, i), other(s, i) = x(s, 2 + i);
    }
    void backward(auto& ctx, auto, auto dy, auto dx) const {
        auto const other = gpipe::stash_gradient<Half>(ctx);
        for (std::size_t s = 0; s < dy.samples(); ++s)
            for (std::size_t i = 0; i < 2; ++i) dx(s, i) = dy(s, i), dx(s, 2 + i) = other(s, i);
    }
};
// What came by the one way, and w times what came by the other.
struct Other {
    using Input = Tensor<Real, 2>;
    using Output = Tensors<Tensor<Real, 2>, Tensor<Real, 2>>;
    using Parameters = Tensor<Real, 2, 2>;
    using Pop = gpipe::Skip<Half, Tensor<Real, 2>>;
    void initialize(auto& ctx) const {
        auto numbers = ctx.random(0);
        for (Real& w : ctx.parameters()) w = numbers.normal();
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const w = ctx.parameters();
        auto const z = gpipe::pop<Half>(ctx);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 2; ++i) {
                gpipe::get<0>(y)(s, i) = x(s, i);
                gpipe::get<1>(y)(s, i) = w(i, 0) * z(s, 0) + w(i, 1) * z(s, 1);
            }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto const w = ctx.parameters();
        auto const dw = ctx.gradients();
        auto const z = gpipe::pop<Half>(ctx);
        auto const dz = gpipe::pop_gradient<Half>(ctx);
        auto const& other = gpipe::get<1>(dy);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 2; ++i) {
                dx(s, i) = gpipe::get<0>(dy)(s, i);
                dz(s, i) = w(0, i) * other(s, 0) + w(1, i) * other(s, 1);
                for (std::size_t j = 0; j < 2; ++j) dw(i, j) += other(s, i) * z(s, j);
            }
    }
};
struct Concat {
    using Input = Other::Output;
    using Output = Tensor<Real, 4>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    void forward(auto&, auto x, auto y) const {
        for (std::size_t s = 0; s < y.samples(); ++s)
            for (std::size_t i = 0; i < 4; ++i)
                y(s, i) = i < 2 ? gpipe::get<0>(x)(s, i) : gpipe::get<1>(x)(s, i - 2);
    }
    void backward(auto&, auto dy, auto dx) const {
        for (std::size_t s = 0; s < dy.samples(); ++s)
            for (std::size_t i = 0; i < 4; ++i)
                (i < 2 ? gpipe::get<0>(dx)(s, i) : gpipe::get<1>(dx)(s, i - 2)) = dy(s, i);
    }
};

// Both what comes and what was fetched by a layer far below.
struct Fetch {
    using Input = Tensor<Real, 1>;
    using Output = Tensors<Input, Input>;
    using Pop = gpipe::Skip<toy::SkipTag<0>, Input>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    static constexpr bool backward_reads_pops = false;
    void forward(auto& ctx, auto x, auto y) const {
        auto const fetched = gpipe::pop<toy::SkipTag<0>>(ctx);
        for (std::size_t s = 0; s < x.samples(); ++s) {
            gpipe::get<0>(y)(s, 0) = x(s, 0);
            gpipe::get<1>(y)(s, 0) = fetched(s, 0);
        }
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        auto const fetched = gpipe::pop_gradient<toy::SkipTag<0>>(ctx);
        for (std::size_t s = 0; s < fetched.samples(); ++s) {
            dx(s, 0) = gpipe::get<0>(dy)(s, 0);
            fetched(s, 0) = gpipe::get<1>(dy)(s, 0);
        }
    }
};
// The sum of the first of two: all that is asked of them here.
struct SumOfFirst {
    using Target = Tensors<>;
    gpipe::LossValue<> operator()(auto&, auto y, auto, auto dy) const {
        gpipe::LossValue<> value{0, 1};
        auto const& first = gpipe::get<0>(y);
        for (std::size_t s = 0; s < first.samples(); ++s) {
            value.sum += first(s, 0);
            if constexpr (!gpipe::is_none<decltype(dy)>)
                gpipe::get<0>(dy)(s, 0) = gpipe::get<1>(dy)(s, 0) = 1;
        }
        return value;
    }
};
struct Relu : toy::Scale<Real, 1> {
    void forward(auto&, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s) y(s, 0) = std::max(x(s, 0), Real(0));
    }
};

} // namespace

TEST_CASE("O7 a graph of cells, linear to two linears and their concatenation, learns, and what it "
          "gives is that of one cell; samples keep their order") {
    // The second linear's half goes past the first one's cell.
    using N =
        gpipe::Pipeline<toy::Linear<Real, 4, 4>, Split, toy::Linear<Real, 2, 2>, Other, Concat>;
    using T = Train<N, toy::MeanSquare<Real, 4>>;
    auto const x = toy::numbers<Real>(4 * 8, 1), t = toy::numbers<Real>(4 * 8, 2);
    std::vector<std::vector<double>> losses;
    for (std::vector<std::size_t> const& cut : {std::vector<std::size_t>{5}, {2, 1, 1, 1}}) {
        toy::hand = cut;
        T train(N{}, {}, SGD{1e-2f}, options<T>(8, cut.size(), 4));
        toy::hand.clear();
        CHECK(train.plan().lowered.edges.size() == (cut.size() == 1 ? 0 : 4));
        losses.push_back({train.step(x, t).loss, train.step(x, t).loss});
        CHECK(losses.back()[1] < losses.back()[0]);
    }
    CHECK(losses[0] == losses[1]);

    using R = gpipe::Pipeline<Relu, Relu>;
    Train<R> train(R{}, {}, {}, options<Train<R>>(8, 2, 4));
    std::vector<Real> outputs(8);
    train.predict(std::vector<Real>{1, -1, 2, -2, 3, -3, 4, -4}, outputs);
    CHECK(outputs == std::vector<Real>{1, 0, 2, 0, 3, 0, 4, 0});
}

TEST_CASE(
    "Lingvo P1 sixteen equal layers, cut by hand or not: one norm of gradients, and what runs "
    "again is told apart from the forward of each micro-batch") {
    using Layer = Watched<toy::Linear<Real, 2, 2>>;
    using N = gpipe::Pipeline<gpipe::Repeat<16, Layer>>;
    using T = Train<N, toy::MeanSquare<Real, 2>>;
    auto const x = toy::numbers<Real>(2 * 16, 1), t = toy::numbers<Real>(2 * 16, 2);
    Watch watch;
    auto const norm = [&](std::vector<std::size_t> const& cut, std::size_t cells,
                          std::size_t micro_batches) {
        auto o = options<T>(16, cells, micro_batches, gpipe::checkpoint::Always{});
        o.finite_gradients = true;
        toy::hand = cut;
        T train(N(gpipe::Repeat<16, Layer>(Layer(watch))), {}, {}, o);
        toy::hand.clear();
        watch.reset();
        double const result = train.step(x, t).gradient_norm;
        for (std::size_t layer = 0; layer < 16; ++layer) {
            CHECK(watch.count(layer, Phase::forward) == micro_batches);
            CHECK(watch.count(layer, Phase::backward) == micro_batches);
        }
        CHECK(watch.count(1, Phase::recompute) == micro_batches);
        return result;
    };
    double const whole = norm({}, 1, 1), split = norm({}, 1, 8);
    CHECK(whole > 0);
    CHECK(split == doctest::Approx(whole).epsilon(1e-12));
    for (std::size_t cells : {2, 4}) CHECK(norm({}, cells, 8) == split);
    CHECK(norm({10, 6}, 2, 8) == split);
    CHECK(norm({5, 3, 6, 2}, 4, 8) == split);
}

TEST_CASE("Lingvo P3 what is fetched in the first cell is an output of the last, of all samples") {
    using N = gpipe::Pipeline<Line, toy::Copy<Real, 1, 0>, Line, Line, Fetch>;
    using T = Train<N, SumOfFirst>;
    auto const x = toy::numbers<Real>(7, 1);
    for (std::size_t cells : {1, 3, 5}) {
        T train(N{}, {}, {}, options<T>(7, cells, 3));
        std::vector<Real> outputs(7), fetched(7);
        train.predict({x}, {outputs, fetched});
        Real const weight = train.parameter<Real>(0, 0)[0], bias = train.parameter<Real>(0, 1)[0];
        for (std::size_t s = 0; s < 7; ++s) {
            CHECK(fetched[s] == bias + weight * x[s]);
            CHECK(outputs[s] != fetched[s]);
        }
    }
}

TEST_CASE("Lingvo P5 an encoder whose output every layer of a decoder takes: the same values on 1, "
          "2 and 2 unequal cells, in 1 and 2 micro-batches") {
    using N = gpipe::Pipeline<toy::Linear<Real, 3, 3>, toy::Tanh<Real, 3>, toy::Copy<Real, 3, 0>,
                              toy::Swap<Real, 3, 0, 1>, toy::Swap<Real, 3, 1, 2>,
                              toy::Times<Real, 3, 2>, toy::Linear<Real, 3, 3>>;
    using T = Train<N, toy::MeanSquare<Real, 3>>;
    auto const x = toy::numbers<Real>(3 * 6, 1), t = toy::numbers<Real>(3 * 6, 2);
    std::vector<double> first;
    for (std::size_t micro_batches : {1, 2}) {
        std::vector<std::vector<double>> losses;
        for (std::vector<std::size_t> const& cut : {std::vector<std::size_t>{7}, {4, 3}, {3, 4}}) {
            toy::hand = cut;
            T train(N{}, {}, SGD{1e-2f}, options<T>(6, cut.size(), micro_batches));
            toy::hand.clear();
            losses.push_back({train.step(x, t).loss, train.step(x, t).loss});
        }
        CHECK(losses == std::vector<std::vector<double>>(3, losses[0]));
        CHECK(losses[0][1] != losses[0][0]);
        first.push_back(losses[0][1]);
    }
    CHECK(first[1] == doctest::Approx(first[0]).epsilon(1e-12));
}
