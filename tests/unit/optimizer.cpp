#include <gpipe/optimizer/adam.hpp>
#include <gpipe/optimizer/groups.hpp>
#include <gpipe/optimizer/rates.hpp>
#include <gpipe/optimizer/rmsprop.hpp>
#include <gpipe/optimizer/sgd.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using namespace gpipe;

// An optimizer on `size` parameters of type T, with states as an engine keeps them.
template <class T, class O> struct Run {
    static constexpr std::size_t states = O::states;

    Run(O which, std::vector<T> start)
        : optimizer(which), parameters(std::move(start)),
          state(states ? states : 1, std::vector<T>(parameters.size())) {}

    void operator()(std::vector<T> const& gradient, float decay = 1, float rate = 1) {
        UpdateTensor<T, states> tensor;
        tensor.parameter = parameters.data();
        tensor.gradient = gradient.data();
        for (std::size_t s = 0; s < states; ++s) tensor.state[s] = state[s].data();
        tensor.size = parameters.size();
        optimizer(UpdateContext{++step, decay, rate}, tensor);
    }

    O optimizer;
    std::vector<T> parameters;
    std::vector<std::vector<T>> state;
    std::uint64_t step = 0;
};

/// Whether an optimizer's state depends on the parameters where it decays.
template <class O, bool apart> struct Decay : O { static constexpr bool decoupled = apart; };

// The updates as their papers state them, for one number. `t` counts from 1.
struct ReferenceSGD {
    double rate, momentum, decay;
    bool nesterov = false;
    double v = 0;
    double operator()(double p, double g, int) {
        v = momentum * v + g + decay * p;
        return p - rate * (nesterov ? g + decay * p + momentum * v : v);
    }
};
struct ReferenceRMSProp {
    double rate, alpha, momentum, epsilon, decay, square = 0, b = 0;
    double operator()(double p, double g, int) {
        double const slope = g + decay * p;
        square = square * alpha + (1 - alpha) * std::pow(slope, 2);
        b = b * momentum + slope / (std::sqrt(square) + epsilon);
        return p - rate * b;
    }
};
struct ReferenceAdam {
    double rate, beta1, beta2, epsilon, decay;
    bool decoupled;
    double m = 0, v = 0;
    double operator()(double p, double g, int t) {
        double const slope = decoupled ? g : g + decay * p;
        double const start = decoupled ? p - rate * decay * p : p;
        m = beta1 * m + (1 - beta1) * slope;
        v = beta2 * v + (1 - beta2) * slope * slope;
        double const m_hat = m / (1 - std::pow(beta1, t));
        double const v_hat = v / (1 - std::pow(beta2, t));
        return start - rate * m_hat / (std::sqrt(v_hat) + epsilon);
    }
};

// Random gradients for 200 steps; every element follows its reference. The settings of an optimizer
// are floats, hence the tolerance in double.
template <class T, class O, class Reference>
void check_against(O optimizer, Reference reference, double tolerance, float decay = 1) {
    std::mt19937 random{1};
    std::normal_distribution<double> normal;
    std::size_t const n = 5;
    std::vector<double> expected(n);
    for (double& p : expected) p = normal(random);
    Run<T, O> run{optimizer, std::vector<T>(expected.begin(), expected.end())};
    std::vector<Reference> references(n, reference);
    for (int step = 1; step <= 200; ++step) {
        std::vector<T> gradient(n);
        for (T& g : gradient) g = static_cast<T>(normal(random));
        run(gradient, decay);
        for (std::size_t i = 0; i < n; ++i)
            expected[i] = references[i](expected[i], static_cast<double>(gradient[i]), step);
    }
    for (std::size_t i = 0; i < n; ++i) {
        CAPTURE(i);
        CHECK(std::abs(static_cast<double>(run.parameters[i]) - expected[i]) < tolerance);
    }
}

// Settings that a float holds exactly, so that double runs agree to rounding.
constexpr double rate = 0x1p-6;

TEST_CASE_TEMPLATE(
    "SGD is v = momentum v + g + decay p; p -= rate v, or what Nesterov adds to that", T, float,
    double) {
    double const tolerance = std::is_same_v<T, float> ? 1e-3 : 1e-11;
    for (double const momentum : {0.0, 0.875})
        for (double const decay : {0.0, 0.125})
            for (bool const nesterov : {false, true})
                check_against<T>(SGD{.learning_rate = static_cast<float>(rate),
                                     .momentum = static_cast<float>(momentum),
                                     .weight_decay = static_cast<float>(decay),
                                     .nesterov = nesterov},
                                 ReferenceSGD{rate, momentum, decay, nesterov}, tolerance);
}

TEST_CASE_TEMPLATE("RMSProp divides by the root of the running square", T, float, double) {
    double const tolerance = std::is_same_v<T, float> ? 1e-3 : 1e-11;
    for (double const momentum : {0.0, 0.75})
        for (double const decay : {0.0, 0.125})
            check_against<T>(RMSProp{.learning_rate = static_cast<float>(rate),
                                     .alpha = 0.9375f,
                                     .momentum = static_cast<float>(momentum),
                                     .epsilon = 0x1p-20f,
                                     .weight_decay = static_cast<float>(decay)},
                             ReferenceRMSProp{rate, 0.9375, momentum, 0x1p-20, decay}, tolerance);
}

TEST_CASE_TEMPLATE("Adam corrects its bias, and decays through the gradient", T, float, double) {
    double const tolerance = std::is_same_v<T, float> ? 1e-3 : 1e-11;
    for (double const decay : {0.0, 0.125})
        check_against<T>(Adam{.learning_rate = static_cast<float>(rate),
                              .beta1 = 0.875f,
                              .beta2 = 0.96875f,
                              .epsilon = 0x1p-20f,
                              .weight_decay = static_cast<float>(decay)},
                         ReferenceAdam{rate, 0.875, 0.96875, 0x1p-20, decay, false}, tolerance);
}

TEST_CASE_TEMPLATE("AdamW corrects its bias, and decays apart from the gradient", T, float,
                   double) {
    // 1 - rate decay is a float, too.
    double const tolerance = std::is_same_v<T, float> ? 1e-3 : 1e-11;
    for (double const decay : {0.0, 0.125})
        check_against<T>(AdamW{.learning_rate = static_cast<float>(rate),
                               .beta1 = 0.875f,
                               .beta2 = 0.96875f,
                               .epsilon = 0x1p-20f,
                               .weight_decay = static_cast<float>(decay)},
                         ReferenceAdam{rate, 0.875, 0.96875, 0x1p-20, decay, true}, tolerance);
}

TEST_CASE("the decay of doubles is theirs, however small it is") {
    for (float const size : {1e-3f, 1e-6f}) {
        gpipe::AdamW const adamw{.learning_rate = size, .weight_decay = 0.125f};
        double p = 1, first = 0, second = 0;
        for (std::uint64_t step = 1; step <= 1000; ++step)
            adamw.rule<double>({step})(p, 0, first, second);
        CHECK(p == doctest::Approx(std::pow(1 - double(size) * 0.125, 1000)).epsilon(1e-13));
    }
}

TEST_CASE_TEMPLATE("without momentum the velocity is neither read nor written", T, float, double) {
    T const infinite = std::numeric_limits<T>::infinity();
    T p = 1, square = 0, step = 0;
    for (bool const nesterov : {false, true}) {
        gpipe::SGD const sgd{.learning_rate = 0.5f, .nesterov = nesterov};
        sgd.rule<T>({1})(p = 1, 0.25, step = infinite);
        CHECK(p == T(0.875));
        CHECK(step == infinite);
        CHECK(sgd.chosen_states() == 0);
    }
    gpipe::RMSProp{.learning_rate = 0.5f, .alpha = 0, .epsilon = 0}.rule<T>({1})(p, 0.25, square,
                                                                                 step = infinite);
    CHECK(p == T(0.375));
    CHECK(step == infinite);
    CHECK(gpipe::RMSProp{}.chosen_states() == 1);
}

TEST_CASE("a tensor takes its share of the weight decay") {
    check_against<double>(SGD{.learning_rate = 0x1p-6f, .weight_decay = 0.25f},
                          ReferenceSGD{rate, 0, 0.125}, 1e-11, 0.5f);
    check_against<double>(
        RMSProp{
            .learning_rate = 0x1p-6f, .alpha = 0.9375f, .epsilon = 0x1p-20f, .weight_decay = 0.25f},
        ReferenceRMSProp{rate, 0.9375, 0, 0x1p-20, 0.125}, 1e-11, 0.5f);
    check_against<double>(Adam{.learning_rate = 0x1p-6f,
                               .beta1 = 0.875f,
                               .beta2 = 0.96875f,
                               .epsilon = 0x1p-20f,
                               .weight_decay = 0.25f},
                          ReferenceAdam{rate, 0.875, 0.96875, 0x1p-20, 0.125, false}, 1e-11, 0.5f);
    check_against<double>(AdamW{.learning_rate = 0x1p-6f,
                                .beta1 = 0.875f,
                                .beta2 = 0.96875f,
                                .epsilon = 0x1p-20f,
                                .weight_decay = 0.25f},
                          ReferenceAdam{rate, 0.875, 0.96875, 0x1p-20, 0.125, true}, 1e-11, 0.5f);
}

TEST_CASE("without a share, weight decay changes nothing") {
    auto const same = [](auto with, auto without) {
        Run<double, decltype(with)> a{with, {1, -2, 3}};
        Run<double, decltype(without)> b{without, {1, -2, 3}};
        for (int i = 1; i < 20; ++i) {
            std::vector<double> const gradient{0.1 * i, -0.2, 1.0 / i};
            a(gradient, 0);
            b(gradient, 1);
        }
        CHECK(a.parameters == b.parameters);
    };
    same(SGD{.momentum = 0.5f, .weight_decay = 0.5f}, SGD{.momentum = 0.5f});
    same(RMSProp{.weight_decay = 0.5f}, RMSProp{});
    same(Adam{.weight_decay = 0.5f}, Adam{});
    same(AdamW{.weight_decay = 0.5f}, AdamW{.weight_decay = 0});
}

TEST_CASE_TEMPLATE("a share of the learning rate is a smaller learning rate, in every bit", T,
                   float, double) {
    auto const same = [](auto whole, auto less) {
        Run<T, decltype(whole)> a{whole, {1, -2, 3}};
        Run<T, decltype(less)> b{less, {1, -2, 3}};
        for (int i = 1; i < 20; ++i) {
            std::vector<T> const gradient{T(0.1 * i), T(-0.2), T(1.0 / i)};
            a(gradient, 0.5f, 0.3f);
            b(gradient, 0.5f, 1);
        }
        CHECK(a.parameters == b.parameters);
        CHECK(a.state == b.state);
    };
    float const r = 0.01f * 0.3f;
    same(SGD{0.01f, 0.5f, 0.5f}, SGD{r, 0.5f, 0.5f});
    same(RMSProp{.learning_rate = 0.01f, .weight_decay = 0.5f},
         RMSProp{.learning_rate = r, .weight_decay = 0.5f});
    same(Adam{.learning_rate = 0.01f, .weight_decay = 0.5f},
         Adam{.learning_rate = r, .weight_decay = 0.5f});
    same(AdamW{.learning_rate = 0.01f, .weight_decay = 0.5f},
         AdamW{.learning_rate = r, .weight_decay = 0.5f});
}

TEST_CASE_TEMPLATE("with a rate of 0 parameters keep every bit, and the state goes on", T, float,
                   double) {
    auto const rests = [](auto optimizer) {
        T const infinity = std::numeric_limits<T>::infinity();
        std::vector<T> const start{1, T(-0.0), std::numeric_limits<T>::denorm_min(), 3};
        Run<T, decltype(optimizer)> resting{optimizer, start};
        Run<T, decltype(optimizer)> moving{optimizer, start};
        for (int i = 1; i < 20; ++i) {
            std::vector<T> const gradient{T(0.1 * i), T(-0.2), T(1.0 / i), i == 9 ? infinity : 1};
            resting(gradient, 1, 0);
            moving(gradient, 1, 1);
        }
        CHECK(std::memcmp(resting.parameters.data(), start.data(), sizeof(T) * start.size()) == 0);
        for (std::size_t s = 0; s < resting.state.size(); ++s)
            for (std::size_t i = 0; i < 3; ++i)
                if (optimizer.weight_decay == 0 || decltype(optimizer)::decoupled)
                    CHECK(resting.state[s][i] == moving.state[s][i]);
                else
                    CHECK(resting.state[s][i] != 0);
    };
    for (float const decay : {0.0f, 0.25f}) {
        rests(Decay<SGD, false>{{.momentum = 0.5f, .weight_decay = decay}});
        rests(Decay<RMSProp, false>{{.momentum = 0.5f, .epsilon = 0, .weight_decay = decay}});
        rests(Decay<Adam, false>{{.epsilon = 0, .weight_decay = decay}});
        rests(Decay<AdamW, true>{{.epsilon = 0, .weight_decay = decay}});
    }
}

TEST_CASE("a tensor takes the product of the shares of the groups that have it") {
    Grouped<SGD> optimizer;
    optimizer.groups[0] = {.first_layer = 2, .last_layer = 4, .rate = 0.5f};
    optimizer.groups[1] = {.tensor = 1, .decay = 0.25f};
    optimizer.groups[7] = {.type = type_id<int>, .rate = 0.125f, .decay = 0.5f};
    for (std::uint32_t layer = 0; layer < 7; ++layer)
        for (std::uint32_t tensor = 0; tensor < 3; ++tensor)
            for (std::uint64_t type : {type_id<int>, type_id<float>}) {
                UpdateContext const told = optimizer.shared({3, 0.5f, 1, layer, tensor, type});
                bool const third = type == type_id<int>;
                CHECK(told.step == 3);
                CHECK(told.rate == (layer >= 2 && layer <= 4 ? 0.5f : 1) * (third ? 0.125f : 1));
                CHECK(told.decay == 0.5f * (tensor == 1 ? 0.25f : 1) * (third ? 0.5f : 1));
                CHECK(told.of_layer<int>() == third);
            }
}

TEST_CASE("rates over a training begin, go and end as they say") {
    CHECK(rates::Constant{0.5}.rate(0) == 0.5f);
    CHECK(rates::Constant{0.5}.rate(1 << 20) == 0.5f);
    rates::Linear const line{.first = 1, .last = 0.25, .steps = 8};
    rates::Steps const steps{.first = 1, .factor = 0.5, .every = 4};
    rates::WarmUpCosine const curve{.peak = 2, .warm_up = 4, .steps = 20, .last = 0.125};
    for (std::uint64_t step = 0; step < 40; ++step) {
        double const way = std::min(1.0, double(step) / 8);
        CHECK(line.rate(step) == doctest::Approx(1 - 0.75 * way));
        CHECK(steps.rate(step) == float(std::pow(0.5, double(step / 4))));
        double const least = 2 * 0.125;
        double const wave = std::cos(3.14159265358979 * std::min(1.0, double(step) / 20));
        double const full = least + (2 - least) * (1 + wave) / 2;
        CHECK(curve.rate(step) == doctest::Approx(full * std::min(1.0, double(step + 1) / 4)));
    }
    rates::Then const both{line, 5, rates::Then{steps, 6, curve}};
    for (std::uint64_t step = 0; step < 40; ++step)
        CHECK(both.rate(step) == (step < 5    ? line.rate(step)
                                  : step < 11 ? steps.rate(step - 5)
                                              : curve.rate(step - 11)));
    CHECK(line.rate(100) == 0.25f);
    CHECK(curve.rate(20) == curve.rate(1000));
    CHECK(rates::Steps{.first = 3, .every = 0}.rate(7) == 3);
    CHECK(rates::Linear{.first = 3, .last = 1, .steps = 0}.rate(0) == 1);
    CHECK(rates::WarmUpCosine{.peak = 1, .warm_up = 0, .steps = 0, .last = 0.5}.rate(0) == 0.5f);
}

TEST_CASE("Adam's first step has the length of the learning rate, whatever the gradient's") {
    for (double const g : {1e-3, 1.0, 1e3}) {
        Run<double, Adam> run{Adam{.learning_rate = 0.125f}, {0.0}};
        run({g});
        CHECK(run.parameters[0] == doctest::Approx(-0.125).epsilon(1e-4));
    }
}

TEST_CASE("without gradients, AdamW shrinks parameters by its decay and Adam does not move") {
    Run<double, AdamW> shrinking{AdamW{.learning_rate = 0.5f, .weight_decay = 0.25f}, {8}};
    Run<double, Adam> resting{Adam{.learning_rate = 0.5f}, {8}};
    for (int i = 0; i < 3; ++i) {
        shrinking({0});
        resting({0});
    }
    CHECK(shrinking.parameters[0] == doctest::Approx(8 * std::pow(0.875, 3)));
    CHECK(resting.parameters[0] == 8);
}

TEST_CASE("every optimizer finds the minimum of a quadratic") {
    auto const distance = [](auto optimizer) {
        std::vector<double> const target{3, -1, 0.5};
        std::vector<double> const steepness{1, 10, 0.1};
        Run<double, decltype(optimizer)> run{optimizer, {0, 0, 0}};
        float const first = run.optimizer.learning_rate;
        for (int step = 0; step < 4000; ++step) {
            // Settable between steps.
            run.optimizer.learning_rate = first * static_cast<float>(4000 - step) / 4000;
            std::vector<double> gradient(3);
            for (std::size_t i = 0; i < 3; ++i)
                gradient[i] = steepness[i] * (run.parameters[i] - target[i]);
            run(gradient);
        }
        double most = 0;
        for (std::size_t i = 0; i < 3; ++i)
            most = std::max(most, std::abs(run.parameters[i] - target[i]));
        return most;
    };
    CHECK(distance(SGD{.learning_rate = 0.1f}) < 1e-4);
    CHECK(distance(SGD{.learning_rate = 0.02f, .momentum = 0.9f}) < 1e-4);
    CHECK(distance(RMSProp{.learning_rate = 0.01f}) < 1e-2);
    CHECK(distance(Adam{.learning_rate = 0.05f}) < 1e-3);
    CHECK(distance(AdamW{.learning_rate = 0.05f, .weight_decay = 0}) < 1e-3);
}

TEST_CASE("the state of an optimizer starts at zero and belongs to its tensor") {
    // Two tensors through one functor: what one sees does not reach the other.
    Adam const adam{.learning_rate = 0.5f};
    Run<double, Adam> alone{adam, {1}};
    Run<double, Adam> first{adam, {1}};
    Run<double, Adam> second{adam, {1}};
    for (int i = 0; i < 5; ++i) {
        alone({2});
        first({2});
        second({-100.0 * i});
    }
    CHECK(first.parameters == alone.parameters);
    CHECK(first.state == alone.state);
}

// What users may write, and what they may not.
struct SignDescent {
    static constexpr std::size_t states = 0;
    float learning_rate = 0.5f;

    template <class T> void operator()(UpdateContext, UpdateTensor<T, 0> tensor) const noexcept {
        for (std::size_t i = 0; i < tensor.size; ++i)
            tensor.parameter[i] -=
                static_cast<T>(learning_rate) *
                static_cast<T>((tensor.gradient[i] > 0) - (tensor.gradient[i] < 0));
    }
};
struct MayThrow {
    static constexpr std::size_t states = 0;
    template <class T> void operator()(UpdateContext, UpdateTensor<T, 0>) const {}
};
struct WithoutStates {
    template <class T> void operator()(UpdateContext, UpdateTensor<T, 0>) const noexcept {}
};
struct Returns {
    static constexpr std::size_t states = 0;
    template <class T> int operator()(UpdateContext, UpdateTensor<T, 0>) const noexcept {
        return 0;
    }
};

TEST_CASE("an optimizer of one's own fits the concept, one that may throw does not") {
    static_assert(OptimizerFunctor<SGD> && OptimizerFunctor<RMSProp>);
    static_assert(OptimizerFunctor<Adam> && OptimizerFunctor<AdamW>);
    static_assert(OptimizerFunctor<SignDescent>);
    static_assert(!OptimizerFunctor<MayThrow>);
    static_assert(!OptimizerFunctor<WithoutStates>);
    static_assert(!OptimizerFunctor<Returns>);
    static_assert(!OptimizerFunctor<int>);
    static_assert(SGD::states == 1 && RMSProp::states == 2 && Adam::states == 2 &&
                  AdamW::states == 2);

    Run<float, SignDescent> run{SignDescent{}, {1, 1, 1}};
    run({3, -4, 0});
    CHECK(run.parameters == std::vector<float>{0.5f, 1.5f, 1.0f});
}

} // namespace
