// Tied parameters. That they train as the plain loop under every schedule, policy and link, with
// skips around them, is in skips.cpp, whose net ties two of them; on streams in
// cuda_double/skips.cpp; in saved states in state/resume.cpp; what must not compile in
// compile_fail/ties.cpp.
#include "support/net.hpp"
#include "support/skip_layers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using gpipe::device::Host;
using toy::Remote;
using toy::TiedTo;

struct Weights;
struct Biases;

// W x + b, of which every layer has the same W and b.
template <class T> struct Again : toy::Linear<T, 5, 5> {
    using Tied = gpipe::Ties<gpipe::Tie<Weights>, gpipe::Tie<Biases, 1>>;
};
// W (W (W x + b) + b) + b as one layer, for one micro-batch: no ties, no cells.
template <class T> struct Thrice {
    using Input = gpipe::Tensor<T, 5>;
    using Output = gpipe::Tensor<T, 5>;
    using Parameters = typename toy::Linear<T, 5, 5>::Parameters;
    using Saved = gpipe::Tensors<gpipe::Tensor<T, 5>, gpipe::Tensor<T, 5>>;

    void initialize(auto& ctx) const { toy::Linear<T, 5, 5>{}.initialize(ctx); }
    void forward(auto& ctx, auto x, auto y) const {
        auto [first, second] = ctx.saved();
        auto const apply = [&](std::size_t s, auto const& from, auto const& to) {
            auto [w, b] = ctx.parameters();
            for (std::size_t o = 0; o < 5; ++o) {
                T sum = b(o);
                for (std::size_t i = 0; i < 5; ++i) sum += w(o, i) * from(s, i);
                to(s, o) = sum;
            }
        };
        for (std::size_t s = 0; s < x.samples(); ++s) {
            apply(s, x, first);
            apply(s, first, second);
            apply(s, second, y);
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto [w, b] = ctx.parameters();
        auto [first, second] = ctx.saved();
        std::vector<T> dw(75), db(15), above(5), below(5);
        for (std::size_t s = 0; s < x.samples(); ++s) {
            for (std::size_t i = 0; i < 5; ++i) above[i] = dy(s, i);
            for (std::size_t use = 3; use-- > 0;) {
                for (std::size_t o = 0; o < 5; ++o) {
                    db[5 * use + o] += above[o];
                    for (std::size_t i = 0; i < 5; ++i)
                        dw[25 * use + 5 * o + i] += above[o] * (use == 0   ? x(s, i)
                                                                : use == 1 ? first(s, i)
                                                                           : second(s, i));
                }
                for (std::size_t i = 0; i < 5; ++i) {
                    below[i] = 0;
                    for (std::size_t o = 0; o < 5; ++o) below[i] += w(o, i) * above[o];
                }
                above = below;
            }
            for (std::size_t i = 0; i < 5; ++i) dx(s, i) = above[i];
        }
        auto [weights, biases] = ctx.gradients();
        for (std::size_t use = 0; use < 3; ++use) {
            for (std::size_t i = 0; i < 25; ++i) weights.data()[i] += dw[25 * use + i];
            for (std::size_t i = 0; i < 5; ++i) biases[i] += db[5 * use + i];
        }
    }
};

// y[i] = a[i] x[i].
template <class T> struct Factors {
    using Input = gpipe::Tensor<T, 5>;
    using Output = gpipe::Tensor<T, 5>;
    using Parameters = gpipe::Tensor<T, 5>;
    void initialize(auto& ctx) const {
        auto numbers = ctx.random(0);
        for (T& v : ctx.parameters()) v = static_cast<T>(numbers.uniform(0.5, 1));
    }
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i)
            y.data()[i] = ctx.parameters()[i % 5] * x.data()[i];
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        for (std::size_t i = 0; i < x.size(); ++i) {
            dx.data()[i] = ctx.parameters()[i % 5] * dy.data()[i];
            ctx.gradients()[i % 5] += x.data()[i] * dy.data()[i];
        }
    }
};

template <class Net, class O = gpipe::SGD, class Device = Host>
using TrainOf = toy::Training<Net, toy::MeanSquare<double, 5>, O, Device>;
template <class T> typename T::Options options(std::size_t cells, std::size_t micro_batches) {
    typename T::Options o;
    o.samples = 9;
    o.seed = 5;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.schedule = gpipe::schedule::GPipeAscending{};
    return o;
}
template <class T> std::vector<double> parameter(T& train, std::size_t layer, std::size_t tensor) {
    std::vector<double> values(train.template gradient<double>(layer, tensor).size());
    train.read_parameter(layer, tensor, std::span(values));
    return values;
}

using Three = gpipe::Pipeline<Again<double>, Again<double>, Again<double>>;
// The ends are layers 0, 1 and 3 with one type, 4 and 6 with another.
using Net =
    gpipe::Pipeline<TiedTo<toy::Linear<double, 5, 5>, Weights>,
                    TiedTo<toy::Linear<double, 5, 5>, Weights>, toy::Tanh<double, 5>,
                    TiedTo<toy::Linear<double, 5, 5>, Weights>, TiedTo<Factors<double>, Biases>,
                    toy::Tanh<double, 5>, TiedTo<Factors<double>, Biases>>;

} // namespace

TEST_CASE_TEMPLATE(
    "A12 M3 a layer used three times across cells is one layer used three times: outputs "
    "are equal in every bit, before and after steps",
    Device, Host, Remote) {
    using Plain = TrainOf<gpipe::Pipeline<Thrice<double>>, gpipe::SGD>;
    gpipe::SGD const sgd{.learning_rate = 1e-2f, .momentum = 0.9f};
    auto const x = toy::numbers<double>(45, 1), target = toy::numbers<double>(45, 2);
    for (std::size_t cells = 1; cells <= 3; ++cells)
        for (auto const& run : toy::runs<Device>()) {
            INFO("K = ", cells, ", ", toy::describe(run));
            Plain plain({}, {}, sgd, options<Plain>(1, 1));
            using Train = TrainOf<Three, gpipe::SGD, Device>;
            auto o = options<Train>(cells, 1);
            o.device = run;
            Train train({}, {}, sgd, o);
            for (int step = 0; step < 3; ++step) {
                std::vector<double> y(45), expected(45);
                train.predict(x, y);
                plain.predict(x, expected);
                CHECK(y == expected);
                CHECK(train.step(x, target).loss == plain.step(x, target).loss);
                for (std::size_t layer = 0; layer < 3; ++layer) {
                    CHECK(parameter(train, layer, 0) == parameter(plain, 0, 0));
                    CHECK(parameter(train, layer, 1) == parameter(plain, 0, 1));
                }
            }
        }
}

TEST_CASE_TEMPLATE("what is written to one end all have, by copies and through views", Device, Host,
                   Remote) {
    using Train = TrainOf<Net, gpipe::Adam, Device>;
    auto const x = toy::numbers<double>(45, 1), target = toy::numbers<double>(45, 2);
    for (std::size_t cells : {std::size_t{1}, std::size_t{3}, std::size_t{7}}) {
        Train train({}, {}, gpipe::Adam{1e-2f}, options<Train>(cells, 4));
        train.step(x, target);
        std::vector<double> const values = toy::numbers<double>(25, 3);
        for (std::size_t end : {3, 0, 1}) {
            INFO("K = ", cells, ", end ", end);
            std::vector<double> own = values;
            own[end] = 7;
            train.write_parameter(end, 0, std::span<double const>(own));
            for (std::size_t layer : {0, 1, 3}) CHECK(parameter(train, layer, 0) == own);
            own[end] = 8;
            if (end == 3) {
                auto [weights, biases] = train.template parameters<3>();
                weights.data()[end] = 8;
            } else {
                train.template parameter<double>(end, 0)[end] = 8;
            }
            for (std::size_t layer : {0, 1, 3}) CHECK(parameter(train, layer, 0) == own);
        }
        // Without a look between: an evaluation, a step, a gradient.
        auto const scale = [&](double factor, std::size_t end) {
            for (double& v : train.template parameter<double>(end, 0)) v = factor;
        };
        scale(0.5, 4);
        double const loss = train.evaluate(x, target).loss;
        scale(3, 4);
        scale(0.5, 6);
        CHECK(train.evaluate(x, target).loss == loss);
        scale(2, 4);
        scale(0.5, 6);
        CHECK(train.compute_gradients(x, target).loss == loss);
        scale(2, 6);
        scale(0.5, 4);
        CHECK(train.step(x, target).loss == loss);
        CHECK(parameter(train, 4, 0) == parameter(train, 6, 0));
    }
}

namespace {

struct Own;
/// y = a x + b, and a and b are one.
struct Both {
    using Input = gpipe::Tensor<double, 2>;
    using Output = Input;
    using Parameters = gpipe::Tensors<Input, Input>;
    using Tied = gpipe::Ties<gpipe::Tie<Own, 0>, gpipe::Tie<Own, 1>>;
    void initialize(auto& ctx) const {
        auto [a, b] = ctx.parameters();
        std::fill(a.begin(), a.end(), 1);
        std::fill(b.begin(), b.end(), 2); // the first one's counts
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto [a, b] = ctx.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 2; ++i) y(s, i) = a[i] * x(s, i) + b[i];
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto [a, b] = ctx.parameters();
        auto [da, db] = ctx.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 2; ++i) {
                da[i] += dy(s, i) * x(s, i);
                db[i] += dy(s, i);
                dx(s, i) = a[i] * dy(s, i);
            }
    }
};

} // namespace

TEST_CASE("so it is of two ends in one layer, whichever is written") {
    using Loss = toy::MeanSquare<double, 2>;
    toy::Training<gpipe::Pipeline<Both>, Loss, gpipe::SGD, Host> train(
        {}, {}, {.learning_rate = 0.5f}, {.samples = 1, .cells = 1});
    auto const both_are = [&](double first, double second) {
        for (std::size_t tensor : {0, 1}) {
            double value[2];
            train.read_parameter(0, tensor, value);
            CHECK(value[0] == first);
            CHECK(value[1] == second);
        }
    };
    both_are(1, 1);
    for (std::size_t tensor : {0, 1}) {
        double const written[] = {3 + double(tensor), 5};
        train.write_parameter(0, tensor, written);
        both_are(written[0], 5);
        train.parameter<double>(0, tensor)[1] = 7;
        both_are(written[0], 7);
        train.write_parameter(0, tensor, std::vector<double>{1, 1});
    }
    double const x[] = {2, 3}, target[] = {2.5, 4.5};
    CHECK(train.step(x, target).loss > 0);
    double const now = train.parameter<double>(0, 0)[0];
    CHECK(now < 1);
    both_are(now, train.parameter<double>(0, 1)[1]);
}

TEST_CASE("gradients are those of the one parameter: against differences") {
    using Train = TrainOf<Net>;
    Train train({}, {}, {}, options<Train>(3, 4));
    auto const x = toy::numbers<double>(45, 1), target = toy::numbers<double>(45, 2);
    train.compute_gradients(x, target);
    struct Tensor {
        std::size_t layer, tensor;
    };
    for (Tensor const at : {Tensor{1, 0}, Tensor{6, 0}, Tensor{3, 1}}) {
        std::size_t const layer = at.layer, tensor = at.tensor;
        auto const span = train.gradient<double>(layer, tensor);
        std::vector<double> const gradient(span.begin(), span.end());
        for (std::size_t i = 0; i < gradient.size(); ++i) {
            std::vector<double> const values = parameter(train, layer, tensor);
            double losses[2];
            for (int side : {0, 1}) {
                std::vector<double> moved = values;
                moved[i] += side == 0 ? 1e-5 : -1e-5;
                train.write_parameter(layer, tensor, std::span<double const>(moved));
                losses[side] = train.evaluate(x, target).loss;
            }
            train.write_parameter(layer, tensor, std::span<double const>(values));
            INFO("layer ", layer, ", tensor ", tensor, ", element ", i);
            CHECK((losses[0] - losses[1]) / 2e-5 == doctest::Approx(gradient[i]).epsilon(1e-6));
        }
    }
}

TEST_CASE_TEMPLATE("they count once in the norm of all gradients", Device, Host, Remote) {
    using Train = TrainOf<Net, gpipe::SGD, Device>;
    auto const x = toy::numbers<double>(45, 1), target = toy::numbers<double>(45, 2);
    for (std::size_t cells : {std::size_t{1}, std::size_t{2}, std::size_t{7}}) {
        double sum = 0;
        Train train({}, {}, {}, options<Train>(cells, 4));
        train.compute_gradients(x, target);
        for (std::size_t layer : {0, 1, 3, 4})
            for (std::size_t t = layer == 1 || layer == 3; t < train.tensors(layer); ++t)
                for (double const v : train.template gradient<double>(layer, t)) sum += v * v;
        auto o = options<Train>(cells, 4);
        o.clip_norm = std::sqrt(sum) / 2;
        Train clipped({}, {}, {}, o);
        clipped.compute_gradients(x, target);
        for (std::size_t layer : {0, 1, 3, 4, 6})
            for (std::size_t t = 0; t < train.tensors(layer); ++t)
                for (std::size_t i = 0; i < train.template gradient<double>(layer, t).size(); ++i)
                    CHECK(clipped.template gradient<double>(layer, t)[i] ==
                          doctest::Approx(train.template gradient<double>(layer, t)[i] / 2)
                              .epsilon(1e-12));
    }
}

namespace {

// Decay of its own at each end, of which the first counts.
template <class L, class Tag, int half> struct Decays : TiedTo<L, Tag> {
    static constexpr float decay[] = {half / 2.0f, 1};
};
using Decayed =
    gpipe::Pipeline<toy::Linear<double, 5, 5>, Decays<toy::Linear<double, 5, 5>, Weights, 1>,
                    toy::Tanh<double, 5>, Decays<toy::Linear<double, 5, 5>, Weights, 2>,
                    Decays<toy::Linear<double, 5, 5>, Weights, 0>>;

} // namespace

namespace {

// (p - p) x + x, of which both p are one: their gradients are each other's opposites.
struct Opposite {
    using Input = gpipe::Tensor<double>;
    using Output = Input;
    using Parameters = gpipe::Tensors<Input, Input>;
    using Tied = gpipe::Ties<gpipe::Tie<Weights, 0>, gpipe::Tie<Weights, 1>>;
    void initialize(auto& ctx) const {
        auto [a, b] = ctx.parameters();
        a[0] = b[0] = 1;
    }
    void forward(auto&, auto x, auto y) const { std::copy(x.begin(), x.end(), y.begin()); }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto [a, b] = ctx.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s) {
            a[0] += x(s) * dy(s);
            b[0] -= x(s) * dy(s);
            dx(s) = dy(s);
        }
    }
};

} // namespace

TEST_CASE_TEMPLATE("only their sum has to be finite, with immediate updates, too", Device, Host,
                   Remote) {
    auto const check = [](auto update) {
        using T =
            gpipe::Training<gpipe::Pipeline<Opposite>, gpipe::Cells<1>, gpipe::MicroBatches<2>,
                            gpipe::Loss<toy::MeanSquare<double, 1>>, Device, decltype(update)>;
        T train({}, {}, {}, {.samples = 2, .finite_gradients = true});
        double const x[] = {0x1p300, 0x1p300}, target[] = {0, 0}; // whose squares are infinite
        for (int step = 0; step < 3; ++step) CHECK_NOTHROW(train.step(x, target));
        double parameter[1], gradient[1];
        for (std::size_t const tensor : {std::size_t{0}, std::size_t{1}}) {
            train.read_parameter(0, tensor, parameter);
            train.read_gradient(0, tensor, gradient);
            CHECK(parameter[0] == 1);
            CHECK(gradient[0] == 0);
        }
        CHECK(train.steps() == 3);
    };
    check(gpipe::update::AfterCommit{});
    check(gpipe::update::Immediate{});
}

TEST_CASE_TEMPLATE("an optimizer takes all ends for the first one: rates, decay, layer and type",
                   Device, Host, Remote) {
    using O = gpipe::Grouped<gpipe::AdamW>;
    using Loss = toy::MeanSquare<double, 5>;
    using Train = TrainOf<Decayed, O, Device>;
    auto const x = toy::numbers<double>(45, 1), target = toy::numbers<double>(45, 2);
    using First = Decays<toy::Linear<double, 5, 5>, Weights, 1>;
    gpipe::ParameterGroup const groups[] = {{.type = gpipe::type_id<First>, .rate = 0.5f},
                                            {.last_layer = 1, .rate = 0.25f},
                                            {.first_layer = 2, .rate = 0},
                                            {.last_layer = 1, .tensor = 0, .decay = 3}};
    for (gpipe::ParameterGroup const& group : groups)
        for (std::size_t cells = 1; cells <= 5; ++cells) {
            O const optimizer{{.weight_decay = 0.5f}, {group}};
            toy::Reference<Decayed, Loss, O> plain({}, {}, optimizer, 5, 4,
                                                   toy::Backward::ascending);
            Train train({}, {}, optimizer, options<Train>(cells, 4));
            for (int step = 0; step < 2; ++step) {
                CHECK(train.step(x, target).loss == plain.step(x, target));
                CHECK(toy::difference(train, plain) == "");
            }
        }
}

TEST_CASE("each device has them once, with their state: planned, used, and one in memory") {
    using Train = TrainOf<Net, gpipe::Adam>;
    using Infers =
        gpipe::Inference<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>>;
    constexpr std::size_t tensors_of[] = {2, 2, 0, 2, 1, 0, 1};
    auto const slots = [](std::size_t elements) {
        return gpipe::slot_bytes(elements * sizeof(double));
    };
    for (std::size_t cells : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7}})
        for (bool const frozen : {false, true}) {
            CAPTURE(cells);
            CAPTURE(frozen);
            auto o = options<Train>(cells, 4);
            if (frozen)
                for (std::size_t const layer : {0, 1, 3, 4, 6})
                    o.frozen_parameters.push_back({layer, 0});
            Train train({}, {}, {}, o);
            typename Infers::Options chosen;
            chosen.samples = 9;
            chosen.cells = cells;
            chosen.micro_batches = 4;
            Infers inference(Net{}, chosen);
            auto const& plan = train.plan();
            std::size_t all = 0;
            for (std::size_t d = 0; d < cells; ++d) {
                // Each tensor is there where its bytes are, which no other of the device has.
                std::vector<double const*> tensors;
                std::size_t bytes = 0, learned = 0, gradients = 0;
                for (std::size_t layer = plan.first[d]; layer < plan.first[d + 1]; ++layer) {
                    for (std::size_t t = 0; t < tensors_of[layer]; ++t) {
                        auto const tensor = train.template parameter<double>(layer, t);
                        bool const learns = !frozen || t > 0;
                        if (learns) gradients += slots(tensor.size());
                        if (std::count(tensors.begin(), tensors.end(), tensor.data())) continue;
                        tensors.push_back(tensor.data());
                        (learns ? learned : bytes) += slots(tensor.size());
                    }
                }
                CHECK(plan.devices[d].parameters == learned);
                CHECK(plan.devices[d].optimizer == 2 * learned);
                CHECK(plan.devices[d].gradients == gradients);
                CHECK(plan.begin[d].unwanted - plan.begin[d].frozen == bytes);
                auto const& forward = inference.plan().devices[d];
                CHECK(forward.parameters + forward.frozen == learned + bytes);
                all += learned + bytes;
            }
            if (cells == 1) CHECK(all == slots(25) + 3 * slots(5) + slots(5));
        }
}

TEST_CASE("a summary counts them once, and so does a pipeline") {
    using Train = TrainOf<Net>;
    Train const train({}, {}, {}, options<Train>(3, 4));
    static_assert(Net::parameters() == 25 + 3 * 5 + 5 && Net::parameter_bytes() == 8 * 45);
    std::string const text = train.summary();
    CHECK(text.find("in all") != std::string::npos);
    std::string const all = text.substr(text.find("in all"));
    CHECK(all.substr(0, all.find('\n')).find(" 45 ") != std::string::npos);
    CHECK(all.substr(0, all.find('\n')).find(" 360") != std::string::npos);
    CHECK(text.find("; 0 tied to 4") != std::string::npos);
}
