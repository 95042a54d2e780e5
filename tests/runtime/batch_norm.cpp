// BatchNorm as torchgpipe's tests of its deferred one pin it down (behaviours K), and its moments.
// That no cut, schedule, policy, device or replica changes a bit of it: buffers.cpp, replicas.cpp;
// its backward against differences: buffers.cpp, too.
#include "support/net.hpp"

#include <gpipe/check_gradients.hpp>
#include <gpipe/layers/batch_norm.hpp>
#include <gpipe/layers/sync_batch_norm.hpp>
#include <gpipe/profile.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace {

using gpipe::RunningStatistics;
using gpipe::device::Host;

// The textbook, for a micro-batch; no running statistics.
template <std::size_t C, std::size_t P> struct Textbook {
    using Input = gpipe::Tensor<double, C, P>;
    using Output = Input;
    using Parameters = gpipe::Tensors<gpipe::Tensor<double, C>, gpipe::Tensor<double, C>>;
    void initialize(auto& ctx) const {
        for (double& v : get<0>(ctx.parameters())) v = 1;
    }
    static auto moments(auto const& x, std::size_t c) {
        double const n = static_cast<double>(x.samples() * P);
        double mean = 0, variance = 0;
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t p = 0; p < P; ++p) mean += x(s, c, p) / n;
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t p = 0; p < P; ++p) variance += std::pow(x(s, c, p) - mean, 2) / n;
        return std::pair(mean, std::sqrt(variance + 1e-5));
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto [scale, shift] = ctx.parameters();
        for (std::size_t c = 0; c < C; ++c) {
            auto const [mean, deviation] = moments(x, c);
            for (std::size_t s = 0; s < x.samples(); ++s)
                for (std::size_t p = 0; p < P; ++p)
                    y(s, c, p) = (x(s, c, p) - mean) / deviation * scale[c] + shift[c];
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto const scale = get<0>(ctx.parameters());
        auto [dscale, dshift] = ctx.gradients();
        double const n = static_cast<double>(x.samples() * P);
        for (std::size_t c = 0; c < C; ++c) {
            auto const [mean, deviation] = moments(x, c);
            double sum = 0, weighted = 0;
            for (std::size_t s = 0; s < x.samples(); ++s)
                for (std::size_t p = 0; p < P; ++p) {
                    sum += dy(s, c, p);
                    weighted += dy(s, c, p) * (x(s, c, p) - mean) / deviation;
                }
            dshift[c] += sum;
            dscale[c] += weighted;
            for (std::size_t s = 0; s < x.samples(); ++s)
                for (std::size_t p = 0; p < P; ++p)
                    dx(s, c, p) =
                        scale[c] / deviation *
                        (dy(s, c, p) - sum / n - (x(s, c, p) - mean) / deviation * weighted / n);
        }
    }
};

// The same by a mean and a deviation that are known.
template <std::size_t C, std::size_t P> struct Known : Textbook<C, P> {
    double mean[C] = {}, deviation[C] = {};

    void forward(auto& ctx, auto x, auto y) const {
        auto [scale, shift] = ctx.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t c = 0; c < C; ++c)
                for (std::size_t p = 0; p < P; ++p)
                    y(s, c, p) = (x(s, c, p) - mean[c]) / deviation[c] * scale[c] + shift[c];
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto const scale = get<0>(ctx.parameters());
        auto [dscale, dshift] = ctx.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t c = 0; c < C; ++c)
                for (std::size_t p = 0; p < P; ++p) {
                    dshift[c] += dy(s, c, p);
                    dscale[c] += dy(s, c, p) * (x(s, c, p) - mean[c]) / deviation[c];
                    dx(s, c, p) = dy(s, c, p) * scale[c] / deviation[c];
                }
    }
};

// a[c] x + b[c], so that what a norm gives to the layer below is seen.
template <std::size_t C, std::size_t P> struct Spread {
    using Input = gpipe::Tensor<double, C, P>;
    using Output = Input;
    using Parameters = gpipe::Tensor<double, C, P>;
    void initialize(auto& ctx) const {
        auto numbers = ctx.random(0);
        for (double& v : ctx.parameters()) v = numbers.uniform(0.5, 1.5);
    }
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i)
            y.data()[i] = ctx.parameters().data()[i % (C * P)] * x.data()[i];
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        for (std::size_t i = 0; i < x.size(); ++i) {
            dx.data()[i] = ctx.parameters().data()[i % (C * P)] * dy.data()[i];
            ctx.gradients().data()[i % (C * P)] += x.data()[i] * dy.data()[i];
        }
    }
};
template <std::size_t C, std::size_t P> struct Distance {
    using Target = gpipe::Tensor<double, C, P>;
    gpipe::LossValue<> operator()(auto&, auto y, auto target, auto dy) const {
        gpipe::LossValue<> value;
        value.weight = static_cast<double>(y.samples());
        for (std::size_t i = 0; i < y.size(); ++i) {
            double const d = y.data()[i] - target.data()[i];
            value.sum += d * d;
            if constexpr (!gpipe::is_none<decltype(dy)>) dy.data()[i] = 2 * d;
        }
        return value;
    }
};
template <class Norm, std::size_t C, std::size_t P>
using Net = gpipe::Pipeline<Spread<C, P>, Norm, Spread<C, P>>;
template <class Norm, std::size_t C, std::size_t P>
using Train = toy::Training<Net<Norm, C, P>, Distance<C, P>, gpipe::SGD, Host>;
template <class T>
typename T::Options options(std::size_t cells, std::size_t micro_batches,
                            std::size_t samples = 16) {
    typename T::Options o;
    o.samples = samples;
    o.cells = cells;
    o.micro_batches = micro_batches;
    return o;
}

using Alone = gpipe::BatchNorm<gpipe::Tensor<double, 3, 4>>;
using PerBatch = gpipe::BatchNorm<gpipe::Tensor<double, 3, 4>, RunningStatistics::micro_batch>;
template <class Norm>
using TrainAlone = toy::Training<gpipe::Pipeline<Norm>, Distance<3, 4>, gpipe::SGD, Host>;

// Channels of other sizes, samples of other offsets.
std::vector<double> batch(std::size_t samples, std::uint32_t seed) {
    auto x = toy::numbers<double>(samples * 12, seed);
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = (x[i] + std::ldexp(1.0, static_cast<int>(i / 12 % 16))) *
               std::pow(10.0, static_cast<double>(i / 4 % 3));
    return x;
}
struct Statistics {
    double mean = 0, biased = 0, unbiased = 0;
};
// Of a channel in samples [first, last).
Statistics of(std::vector<double> const& x, std::size_t c, std::size_t first, std::size_t last) {
    long double sum = 0, squares = 0;
    auto const n = static_cast<long double>(4 * (last - first));
    auto const each = [&](auto f) {
        for (std::size_t s = first; s < last; ++s)
            for (std::size_t p = 0; p < 4; ++p) f(x[12 * s + 4 * c + p]);
    };
    each([&](double v) { sum += v; });
    each([&](double v) { squares += (v - sum / n) * (v - sum / n); });
    return {static_cast<double>(sum / n), static_cast<double>(squares / n),
            static_cast<double>(squares / (n > 1 ? n - 1 : n))};
}
template <class T> struct Running {
    std::vector<double> mean = std::vector<double>(3), variance = mean;
    std::int64_t moves[1] = {};
    explicit Running(T& train, std::size_t layer = 0) {
        train.read_buffer(layer, 0, std::span(mean));
        train.read_buffer(layer, 1, std::span(variance));
        train.read_buffer(layer, 2, std::span<std::int64_t>(moves));
    }
};
doctest::Approx near(double value) { return doctest::Approx(value).epsilon(1e-12); }

} // namespace

TEST_CASE("K1 K4 outputs and all gradients are those of plain normalisation, micro-batch by "
          "micro-batch, of one and of four") {
    for (std::size_t const micro_batches : {1, 4})
        for (std::size_t const cells : {1, 3}) {
            using Norm = gpipe::BatchNorm<gpipe::Tensor<double, 3, 4>>;
            using Plain = Textbook<3, 4>;
            Train<Norm, 3, 4> train({}, {}, gpipe::SGD{0.01f},
                                    options<Train<Norm, 3, 4>>(cells, micro_batches));
            Train<Plain, 3, 4> plain({}, {}, gpipe::SGD{0.01f},
                                     options<Train<Plain, 3, 4>>(1, micro_batches));
            for (std::uint32_t step = 0; step < 3; ++step) {
                auto const x = toy::numbers<double>(16 * 12, step);
                auto const target = toy::numbers<double>(16 * 12, step + 7);
                CHECK(train.step(x, target).loss == near(plain.step(x, target).loss));
                for (std::size_t layer = 0; layer < 3; ++layer)
                    for (std::size_t t = 0; t < plain.tensors(layer); ++t) {
                        auto const own = train.gradient<double>(layer, t);
                        auto const other = plain.gradient<double>(layer, t);
                        for (std::size_t i = 0; i < own.size(); ++i)
                            CHECK(own[i] - other[i] == doctest::Approx(0).epsilon(1e-11));
                    }
            }
            CHECK(train.used_bytes() == train.planned_bytes());
        }
}

TEST_CASE(
    "K2 K3 running statistics move once, by those of all samples, whatever the micro-batches, "
    "partial ones and none, and whatever runs again; with momentum, and as plain average") {
    for (double const momentum : {0.1, -1.0})
        for (bool const biased : {false, true})
            for (std::size_t const micro_batches : {1, 2, 4, 16})
                for (auto const& checkpointing : toy::checkpointings) {
                    using T = TrainAlone<Alone>;
                    auto o = options<T>(1, micro_batches);
                    o.checkpointing = checkpointing.policy;
                    Alone norm;
                    norm.momentum = momentum;
                    norm.biased = biased;
                    T train(gpipe::Pipeline<Alone>(norm), {}, gpipe::SGD{0}, o);
                    std::vector<double> mean(3), variance(3, 1.0);
                    std::int64_t moves = 0;
                    for (std::size_t const samples : {16, 5, 1, 16}) {
                        auto const x = batch(samples, static_cast<std::uint32_t>(samples));
                        (void)train.step(x, std::vector<double>(x.size()));
                        ++moves;
                        double const m = momentum < 0 ? 1 / static_cast<double>(moves) : momentum;
                        for (std::size_t c = 0; c < 3; ++c) {
                            Statistics const all = of(x, c, 0, samples);
                            mean[c] += m * (all.mean - mean[c]);
                            variance[c] += m * ((biased ? all.biased : all.unbiased) - variance[c]);
                        }
                        Running const running(train);
                        CHECK(running.moves[0] == moves);
                        for (std::size_t c = 0; c < 3; ++c) {
                            CHECK(running.mean[c] == near(mean[c]));
                            CHECK(running.variance[c] == near(variance[c]));
                        }
                    }
                }
}

TEST_CASE("by micro-batches they move once for each that has samples, in ascending order") {
    for (double const momentum : {0.3, -1.0})
        for (std::size_t const micro_batches : {1, 4, 8})
            for (auto const& checkpointing : toy::checkpointings) {
                using T = TrainAlone<PerBatch>;
                auto o = options<T>(1, micro_batches);
                o.checkpointing = checkpointing.policy;
                PerBatch norm;
                norm.momentum = momentum;
                T train(gpipe::Pipeline<PerBatch>(norm), {}, gpipe::SGD{0}, o);
                std::vector<double> mean(3), variance(3, 1.0);
                std::int64_t moves = 0;
                for (std::size_t const samples : {16, 5}) {
                    auto const x = batch(samples, static_cast<std::uint32_t>(samples));
                    (void)train.step(x, std::vector<double>(x.size()));
                    std::size_t first = 0;
                    for (std::size_t const size : toy::deal(samples, micro_batches)) {
                        if (size == 0) continue;
                        ++moves;
                        double const m = momentum < 0 ? 1 / static_cast<double>(moves) : momentum;
                        for (std::size_t c = 0; c < 3; ++c) {
                            Statistics const own = of(x, c, first, first + size);
                            mean[c] += m * (own.mean - mean[c]);
                            variance[c] += m * (own.unbiased - variance[c]);
                        }
                        first += size;
                    }
                    Running const running(train);
                    CHECK(running.moves[0] == moves);
                    for (std::size_t c = 0; c < 3; ++c) {
                        CHECK(running.mean[c] == near(mean[c]));
                        CHECK(running.variance[c] == near(variance[c]));
                    }
                }
            }
}

TEST_CASE("K5 an evaluation normalises by running statistics, and moves none") {
    using T = TrainAlone<Alone>;
    T train({}, {}, gpipe::SGD{0.01f}, options<T>(1, 4));
    for (std::uint32_t step = 0; step < 5; ++step) {
        auto const x = batch(16, step);
        (void)train.step(x, toy::numbers<double>(16 * 12, step));
    }
    Running const running(train);
    auto const x = batch(7, 9);
    std::vector<double> y(x.size());
    train.predict(x, y);
    for (std::size_t i = 0; i < x.size(); ++i) {
        std::size_t const c = i / 4 % 3;
        double const normal = (x[i] - running.mean[c]) / std::sqrt(running.variance[c] + 1e-5);
        CHECK(y[i] ==
              near(normal * train.parameter<double>(0, 0)[c] + train.parameter<double>(0, 1)[c]));
    }
    Running const after(train);
    CHECK(after.mean == running.mean);
    CHECK(after.variance == running.variance);
    CHECK(after.moves[0] == 5);
}

TEST_CASE("where a micro-batch never has two values of a channel nothing would learn: it is said") {
    using T = Train<gpipe::BatchNorm<gpipe::Tensor<double, 3, 1>>, 3, 1>;
    auto const x = toy::numbers<double>(12, 1), targets = toy::numbers<double>(12, 2);
    for (std::size_t const micro_batches : {1, 2, 3}) { // 4, 2, or 2 and 1 samples
        T train({}, {}, gpipe::SGD{0.01f}, options<T>(1, micro_batches, 4));
        CHECK_NOTHROW(train.step(x, targets));
        CHECK_NOTHROW(train.step(std::span(x).first(3), std::span(targets).first(3)));
    }
    using Sync = Train<gpipe::SyncBatchNorm<gpipe::Tensor<double, 3, 1>>, 3, 1>;
    Sync sync({}, {}, gpipe::SGD{0.01f}, options<Sync>(1, 4, 4)); // of one replica
    CHECK_THROWS_AS(sync.step(x, targets), std::invalid_argument);
    for (bool const debug : {false, true}) {
        auto o = options<T>(1, 4, 4);
        o.debug = debug;
        T train({}, {}, gpipe::SGD{0.01f}, o);
        CHECK_THROWS_WITH_AS(train.step(x, targets),
                             doctest::Contains("one value for each channel of a BatchNorm"),
                             std::invalid_argument);
        CHECK_NOTHROW(train.evaluate(x, targets));
    }
    CHECK_NOTHROW(gpipe::profile(gpipe::Pipeline<gpipe::BatchNorm<gpipe::Tensor<double, 3>>>{},
                                 {.samples = 1}));
}

TEST_CASE_TEMPLATE("fixed ones normalise in training, too, and stay as they are; then go on", Norm,
                   gpipe::BatchNorm<gpipe::Tensor<double, 3, 4>>, PerBatch,
                   gpipe::SyncBatchNorm<gpipe::Tensor<double, 3, 4>>) {
    using T = Train<Norm, 3, 4>;
    using Plain = Train<Known<3, 4>, 3, 4>;
    auto const x = batch(16, 1), target = toy::numbers<double>(16 * 12, 2);
    for (std::size_t const micro_batches : {1, 4, 16})
        for (auto const& checkpointing : toy::checkpointings) {
            auto o = options<T>(micro_batches == 4 ? 3 : 1, micro_batches);
            o.checkpointing = checkpointing.policy;
            T train({}, {}, gpipe::SGD{0.01f}, o);
            for (std::uint32_t step = 0; step < 2; ++step)
                (void)train.step(batch(16, step), target);
            train.template change_layer<1>([](auto& norm) { norm.fixed = true; });
            Running const before(train, 1);
            Plain plain({}, {}, gpipe::SGD{0.01f}, options<Plain>(1, micro_batches));
            plain.template change_layer<1>([&](auto& known) {
                for (std::size_t c = 0; c < 3; ++c) {
                    known.mean[c] = before.mean[c];
                    known.deviation[c] = std::sqrt(before.variance[c] + 1e-5);
                }
            });
            for (std::size_t layer = 0; layer < 3; ++layer)
                for (std::size_t t = 0; t < plain.tensors(layer); ++t)
                    plain.template write_parameter<double>(
                        layer, t, train.template parameter<double>(layer, t));
            for (std::size_t const samples : {16, 5}) {
                auto const inputs = std::span(x).first(12 * samples);
                auto const targets = std::span(target).first(12 * samples);
                CHECK(train.step(inputs, targets).loss == near(plain.step(inputs, targets).loss));
                for (std::size_t layer = 0; layer < 3; ++layer)
                    for (std::size_t t = 0; t < plain.tensors(layer); ++t) {
                        auto const own = train.template gradient<double>(layer, t);
                        auto const other = plain.template gradient<double>(layer, t);
                        for (std::size_t i = 0; i < own.size(); ++i)
                            CHECK(own[i] - other[i] == doctest::Approx(0).epsilon(1e-9));
                    }
            }
            auto const report = gpipe::check_gradients(train, x, target);
            INFO(report);
            CHECK(report.passed());
            Running const after(train, 1);
            CHECK(after.mean == before.mean);
            CHECK(after.variance == before.variance);
            CHECK(after.moves[0] == before.moves[0]);
            if (micro_batches == 16) continue;
            train.template change_layer<1>([](auto& norm) { norm.fixed = false; });
            (void)train.step(x, target);
            CHECK(Running(train, 1).moves[0] > before.moves[0]);
        }
}

TEST_CASE("K7 with several micro-batches outputs differ from those of one, running statistics do "
          "not") {
    using T = TrainAlone<Alone>;
    T one({}, {}, gpipe::SGD{0}, options<T>(1, 1));
    T four({}, {}, gpipe::SGD{0}, options<T>(1, 4));
    auto const x = batch(16, 3);
    auto const target = toy::numbers<double>(x.size(), 5);
    CHECK(std::abs(one.step(x, target).loss - four.step(x, target).loss) > 1e-3);
    Running const a(one), b(four);
    for (std::size_t c = 0; c < 3; ++c) {
        CHECK(a.mean[c] == near(b.mean[c]));
        CHECK(a.variance[c] == near(b.variance[c]));
    }
}

TEST_CASE("K7 so it is behind a convolution, whatever the number of devices") {
    using Norm = gpipe::BatchNorm<gpipe::Tensor<double, 12>>;
    using T = toy::Training<gpipe::Pipeline<toy::Conv<double, 12>, Norm>,
                            toy::MeanSquare<double, 12>, gpipe::SGD, Host>;
    auto const x = batch(16, 3);
    auto const target = toy::numbers<double>(x.size(), 5);
    // What plain batch normalization of what the convolution gives has.
    T plain({}, {}, gpipe::SGD{0}, options<T>(1, 1));
    auto const w = plain.parameter<double>(0, 0);
    std::vector<double> y(x.size()), mean(12), moment(12);
    for (std::size_t s = 0; s < 16; ++s)
        for (std::size_t i = 0; i < 12; ++i) {
            double const* const row = x.data() + 12 * s;
            double const v = w[0] * row[(i + 11) % 12] + w[1] * row[i] + w[2] * row[(i + 1) % 12];
            mean[i] += 0.1 * v / 16;
            y[12 * s + i] = v;
        }
    double const loss = plain.step(x, target).loss;
    for (std::size_t const micro_batches : {1, 4})
        for (std::size_t const cells : {1, 2}) {
            T train({}, {}, gpipe::SGD{0}, options<T>(cells, micro_batches));
            double const own = train.step(x, target).loss;
            CHECK((std::abs(own - loss) > 1e-3) == (micro_batches > 1));
            std::vector<double> running(12);
            train.read_buffer(1, 0, std::span(running));
            for (std::size_t c = 0; c < 12; ++c) CHECK(running[c] == near(mean[c]));
        }
}

TEST_CASE("an offset of 1e6 in fp32 costs no digit: three micro-batches of 5, 3 and 8") {
    double const offsets[] = {1.8125,  0.5,     0.75,   1.625, 0.3125, 4.125, 4.375, 1.875,
                              -1.8125, -0.8125, -0.875, 1.5,   1.6875, -2,    0,     1.3125};
    std::vector<float> x;
    for (double const offset : offsets) x.push_back(static_cast<float>(1e6 + offset));
    gpipe::detail::NormLoops const work;
    std::vector<gpipe::detail::Moments> parts;
    std::size_t first = 0;
    for (std::size_t const samples : {5, 3, 8}) {
        double rows[4] = {};
        work.moments({samples, 1, 1}, x.data() + first, {rows, 1});
        parts.push_back({rows[0], rows[1], rows[2]});
        first += samples;
    }
    auto const two = merged(parts[0], parts[1]), all = merged(two, parts[2]);
    CHECK(parts[0].m2 == doctest::Approx(1.835938).epsilon(1e-6));
    CHECK(parts[1].m2 == doctest::Approx(3.791667).epsilon(1e-6));
    CHECK(two.m2 == doctest::Approx(16.958984).epsilon(1e-6));
    CHECK(all.count == 16);
    CHECK(all.mean - 1e6 == doctest::Approx(0.898438).epsilon(1e-6));
    auto const variance = [&](bool biased) {
        return gpipe::detail::RunningRule{0.1, biased}.variance(all);
    };
    CHECK(std::abs(variance(true) - 3.070251) < 1e-6);
    CHECK(std::abs(variance(false) - 3.274935) < 1e-6);
    // So it is in a training, of any number of micro-batches.
    using Norm = gpipe::BatchNorm<gpipe::Tensor<float, 1>>;
    using T = toy::Training<gpipe::Pipeline<Norm>, toy::MeanSquare<float, 1>, gpipe::SGD, Host>;
    for (bool const biased : {true, false})
        for (std::size_t const micro_batches : {1, 3, 8})
            for (double const momentum : {1.0, 0.1}) {
                Norm norm;
                norm.biased = biased;
                norm.momentum = momentum;
                T train(gpipe::Pipeline<Norm>(norm), {}, gpipe::SGD{0},
                        options<T>(1, micro_batches));
                (void)train.step(x, std::vector<float>(16));
                double mean[1], running[1];
                train.read_buffer(0, 0, std::span(mean));
                train.read_buffer(0, 1, std::span(running));
                CHECK(std::abs(mean[0] - momentum * (1e6 + 0.8984375)) < 1e-6);
                double const wanted = 1 - momentum + momentum * (biased ? 3.070251 : 3.274935);
                CHECK(std::abs(running[0] - wanted) < 1e-6);
            }
}

TEST_CASE("what rounding leaves in a mean is taken out of both moments") {
    // Each is exact in double, their sum is not: without the second sum the variance is 0.2 % off.
    std::vector<double> far, near_by;
    for (int i = 0; i < 1000; ++i) {
        near_by.push_back(i * i % 37 / 8.0);
        far.push_back(4e14 + near_by.back());
    }
    gpipe::detail::NormLoops const work;
    double is[4] = {}, expected[4] = {};
    work.moments({1000, 1, 1}, far.data(), {is, 1});
    work.moments({1000, 1, 1}, near_by.data(), {expected, 1});
    CHECK(is[2] == doctest::Approx(expected[2]).epsilon(1e-14));
}

TEST_CASE("moments that are merged are those of one pass, in any parts; none is neutral") {
    std::mt19937 random(1);
    gpipe::detail::NormLoops const work;
    for (int n = 0; n < 1000; ++n) {
        std::vector<double> all;
        gpipe::detail::Moments sum;
        for (int part = 0; part < 3; ++part) {
            std::vector<double> x(random() % 300);
            for (double& v : x) v = static_cast<double>(random() % 1000) / 10 + 100.0 * part;
            double rows[4] = {};
            if (!x.empty()) work.moments({x.size(), 1, 1}, x.data(), {rows, 1});
            gpipe::detail::Moments const own{rows[0], rows[1], rows[2]};
            auto const before = sum;
            sum = merged(sum, own);
            if (own.count == 0) CHECK((sum.mean == before.mean && sum.m2 == before.m2));
            all.insert(all.end(), x.begin(), x.end());
        }
        if (all.empty()) continue;
        double rows[4] = {};
        work.moments({all.size(), 1, 1}, all.data(), {rows, 1});
        CHECK(sum.count == rows[0]);
        CHECK(sum.mean == near(rows[1]));
        CHECK(sum.m2 == doctest::Approx(rows[2]).epsilon(1e-11));
    }
}

namespace {

// The sum of f(element) over a channel as moments.hpp has it: in lanes, one by one, and these by
// halves.
template <class F> double lane_by_lane(gpipe::detail::Channels const& shape, std::size_t c, F f) {
    std::vector<double> lanes(gpipe::detail::sum_lanes);
    for (std::size_t e = 0; e < shape.elements(); ++e) lanes[e % lanes.size()] += f(shape.at(c, e));
    for (std::size_t half = lanes.size() / 2; half > 0; half /= 2)
        for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    return lanes[0];
}

} // namespace

TEST_CASE_TEMPLATE(
    "loops that take many elements at a time give what one by one gives, in every bit, for "
    "any number of positions and samples",
    T, float, double) {
    using namespace gpipe::detail;
    NormLoops const loops;
    for (std::size_t const positions :
         {1u, 2u, 3u, 4u, 7u, 15u, 16u, 17u, 49u, 127u, 128u, 130u, 300u})
        for (std::size_t const samples : {1u, 2u, 5u, 130u}) {
            CAPTURE(positions);
            CAPTURE(samples);
            Channels const shape{samples, 3, positions};
            std::size_t const all = samples * 3 * positions;
            auto x = toy::numbers<T>(all, 1), dy = toy::numbers<T>(all, 2);
            for (T& v : x) v += T(100);
            auto const scale = toy::numbers<T>(3, 3), shift = toy::numbers<T>(3, 4);
            std::vector<T> y(all), dx(all), dscale(3), dshift(3);
            std::vector<double> statistics(12);
            StatisticsRows const rows{statistics.data(), 3};
            loops.moments(shape, x.data(), rows);
            loops.normalize(shape, x.data(), y.data(), scale.data(), shift.data(),
                            OfMoments{rows, 1e-5});
            loops.backward(shape, x.data(), dy.data(), dx.data(), scale.data(), dscale.data(),
                           dshift.data(), OfSamples{1e-5});
            std::size_t wrong = 0;
            for (std::size_t c = 0; c < 3; ++c) {
                double const n = static_cast<double>(shape.elements());
                double const mean =
                    lane_by_lane(shape, c, [&](std::size_t i) { return double(x[i]); }) / n;
                auto const distance = [&](std::size_t i) { return double(x[i]) - mean; };
                double const b = lane_by_lane(shape, c, distance);
                double const a = lane_by_lane(
                    shape, c, [&](std::size_t i) { return distance(i) * distance(i); });
                Moments const moments{n, mean + b / n, a - b * b / n};
                CHECK(rows.moments(c).mean == moments.mean);
                CHECK(rows.moments(c).m2 == moments.m2);
                Normal const normal = normal_of(moments, 1e-5);
                double const sum =
                    lane_by_lane(shape, c, [&](std::size_t i) { return double(dy[i]); });
                double const weighted = lane_by_lane(
                    shape, c, [&](std::size_t i) { return double(dy[i]) * normal(double(x[i])); });
                CHECK(dshift[c] == static_cast<T>(sum));
                CHECK(dscale[c] == static_cast<T>(weighted));
                auto const gradient = input_gradient<T>(nullptr, nullptr, nullptr, scale[c], normal,
                                                        {sum, weighted}, n);
                for (std::size_t e = 0; e < shape.elements(); ++e) {
                    std::size_t const i = shape.at(c, e);
                    wrong += y[i] != static_cast<T>(normal(double(x[i])) * double(scale[c]) +
                                                    double(shift[c]));
                    wrong += dx[i] != gradient.of(x[i], dy[i]);
                }
            }
            CHECK(wrong == 0);
        }
}
