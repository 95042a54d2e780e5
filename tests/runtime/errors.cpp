// What is refused at run time, in which words; what may be changed between steps.

#include "support/net.hpp"

#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::SGD;
using gpipe::device::Host;

using Real = float;
constexpr std::size_t L = toy::layers<Real>;
using Train = toy::Train<Real, Host>;

Train::Options options(std::size_t samples, std::size_t cells, std::size_t micro_batches) {
    Train::Options o;
    o.samples = samples;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.device.threads = 2;
    return o;
}

// The words of the exception of type E that f throws; what happened instead, if it does not.
template <class E, class F> std::string words(F f) {
    try {
        f();
    } catch (E const& error) {
        return error.what();
    } catch (std::exception const& error) {
        return std::string("another exception: ") + error.what();
    }
    return "nothing was thrown";
}
bool has(std::string const& text, std::initializer_list<char const*> parts) {
    bool all = text.rfind("gpipe: ", 0) == 0;
    for (char const* part : parts) all = all && text.find(part) != std::string::npos;
    if (!all) MESSAGE(text);
    return all;
}

std::string refusal(Train::Options o) {
    toy::Watch watch;
    return words<std::invalid_argument>(
        [&] { Train train(toy::make_net<Real>(watch), {}, Adam{}, o); });
}

// Schedules that are wrong, each in one way.
template <void (*spoil)(std::vector<std::vector<gpipe::Action>>&)> struct Spoilt {
    using policy_kind = gpipe::policy::Schedule;
    static gpipe::Programs programs(std::size_t devices, std::size_t micro_batches) {
        auto const right = gpipe::schedule::GPipe::programs(devices, micro_batches);
        std::vector<std::vector<gpipe::Action>> actions(devices);
        for (std::size_t d = 0; d < devices; ++d)
            actions[d].assign(right.program(d).begin(), right.program(d).end());
        spoil(actions);
        gpipe::Programs result(devices, devices, micro_batches, right.size() + 4);
        for (auto const& program : actions) {
            for (auto const& action : program) result.add(action);
            result.next_device();
        }
        return result;
    }
};
using Actions = std::vector<std::vector<gpipe::Action>>;
void twice(Actions& actions) { actions[1].push_back(gpipe::backward(1, 2)); }
void missing(Actions& actions) { actions[1].pop_back(); }
void too_early(Actions& actions) { std::swap(actions[1][2], actions[1][3]); }
void elsewhere(Actions& actions) { actions[1][2] = gpipe::forward(0, 2); }
void no_such(Actions& actions) { actions[1][2] = gpipe::forward(1, 77); }
// Cell 0 wants the gradient of micro-batch 2 before it has sent micro-batch 3; cell 1 begins its
// backwards with micro-batch 3.
void deadlock(Actions& actions) {
    std::swap(actions[0][3], actions[0][4]);
    std::swap(actions[0][3], actions[0][5]);
}
void recomputes(Actions& actions) {
    actions[2].insert(actions[2].begin() + 4, gpipe::recompute(2, 3));
}
// More than the programs have room for at first.
void many(Actions& actions) {
    for (std::uint32_t m = 0; m < 20; ++m) actions[1].push_back(gpipe::forward(1, m));
}
template <std::size_t device> struct Elsewhere {
    using policy_kind = gpipe::policy::Schedule;
    static gpipe::Programs programs(std::size_t devices, std::size_t micro_batches) {
        auto result = gpipe::schedule::GPipe::programs(devices, micro_batches);
        result.place(1, device);
        return result;
    }
};
template <std::size_t per_device> struct ManyCells : gpipe::schedule::GPipe {
    static constexpr std::size_t cells_per_device = per_device;
};
struct OtherShape {
    using policy_kind = gpipe::policy::Schedule;
    static gpipe::Programs programs(std::size_t devices, std::size_t micro_batches) {
        return gpipe::schedule::GPipe::programs(devices, micro_batches + 1);
    }
};

} // namespace

TEST_CASE("options that do not fit are refused with their numbers") {
    CHECK(has(refusal(options(0, 2, 2)), {"Options::samples", "zero"}));
    CHECK(has(refusal(options(4, L + 1, 2)), {"11", "10"}));
    CHECK(has(refusal(options(4, 0, 2)), {"Options::cells", "Options::balance"}));

    toy::Watch watch;
    using Constant = gpipe::Training<toy::Net<Real>, gpipe::Cells<3>, gpipe::MicroBatches<5>,
                                     gpipe::Loss<toy::MeanSquare<Real, 3>>>;
    auto const build = [&](std::size_t cells, std::size_t micro_batches) {
        Constant::Options o;
        o.samples = 4;
        o.cells = cells;
        o.micro_batches = micro_batches;
        Constant train(toy::make_net<Real>(watch), {}, {}, o);
        return train.micro_batches();
    };
    CHECK(has(words<std::invalid_argument>([&] { build(4, 0); }), {"Options::cells", "4", "3"}));
    CHECK(has(words<std::invalid_argument>([&] { build(0, 6); }),
              {"Options::micro_batches", "6", "5"}));
    CHECK(build(3, 5) == 5); // the same number again is no contradiction
    CHECK(build(0, 0) == 5);
    auto const given = [&](Constant::Options o) {
        o.samples = 4;
        return words<std::invalid_argument>(
            [&] { Constant(toy::make_net<Real>(watch), {}, {}, o); });
    };
    CHECK(has(given({.schedule = gpipe::schedule::GPipe{}}),
              {"Options::schedule is given", "schedule::Dynamic"}));
    CHECK(has(given({.checkpointing = gpipe::checkpoint::Never{}}),
              {"Options::checkpointing is given", "checkpoint::Dynamic"}));
}

TEST_CASE("numbers that no memory could hold are refused by their names, whatever they wrap to") {
    std::size_t const most = std::numeric_limits<std::size_t>::max();
    for (std::size_t const samples : {most, most - 1, most - 2, most - 3, most / 2, most / 2 + 1,
                                      most / 4 + 1, most / 20, most / 80 + 1})
        for (std::size_t const micro_batches : {1, 2, 3, 4, 7}) {
            INFO("M = ", micro_batches);
            CHECK(has(refusal(options(samples, 2, micro_batches)),
                      {"Options::samples", std::to_string(samples).c_str()}));
        }
    for (auto const& schedule : toy::schedules)
        for (int bit = 28; bit < 64; ++bit)
            for (std::size_t const more : {0, 1, 2, 3}) {
                std::size_t const number = (std::size_t{1} << bit) + more;
                INFO(schedule.name, ", ", number);
                auto o = options(8, 2, number);
                o.schedule = schedule.policy;
                CHECK(has(refusal(o), {std::to_string(number).c_str(), "micro-batches"}));
                o = options(8, number, 2);
                o.schedule = schedule.policy;
                CHECK(has(refusal(o), {std::to_string(number).c_str(), "cells"}));
            }
    // Those that a budget is for, likewise, however few there are.
    for (std::size_t const samples : {most - 1, most / 2 + 1, most / 20}) {
        auto o = options(4, 2, 2);
        o.checkpointing =
            gpipe::checkpoint::Optimal<gpipe::dynamic, gpipe::dynamic>{1 << 20, samples};
        CHECK(refusal(o) ==
              "gpipe: checkpoint::Optimal is for micro-batches of " + std::to_string(samples) +
                  " samples, whose tensors have more bytes than memory has addresses");
    }
    toy::each_of_catalogue(L, L, 8, [&](gpipe::schedule::Dynamic schedule, std::size_t) {
        auto o = options(8, most / 2 + 2, 8);
        o.schedule = schedule;
        CHECK(has(refusal(o), {std::to_string(most / 2 + 2).c_str(), "cells"}));
        o = options(8, schedule.cells_per_device() > 1 ? 3 : 4, most / 2 + 2);
        o.schedule = schedule;
        CHECK(has(refusal(o), {std::to_string(most / 2 + 2).c_str(), "micro-batches"}));
    });
    auto o = options(8, 2, 2);
    o.schedule = ManyCells<std::numeric_limits<std::size_t>::max() / 2 + 2>{};
    CHECK(has(refusal(o), {"cells are more than the 10 layers"}));
}

TEST_CASE("micro-batches that are not asked for are four times the cells") {
    toy::Watch watch;
    CHECK(Train(toy::make_net<Real>(watch), {}, Adam{}, options(4, 3, 0)).micro_batches() == 12);
}

TEST_CASE("a schedule that is wrong is refused with device, position and action") {
    auto const with = [](auto schedule) {
        auto o = options(4, 3, 4);
        o.schedule = schedule;
        return refusal(o);
    };
    CHECK(has(with(Spoilt<&twice>{}), {"schedule", "twice", "device 1", "position 8",
                                       "backward of cell 1", "micro-batch 2"}));
    CHECK(has(with(Spoilt<&missing>{}),
              {"missing", "device 1", "backward of cell 1", "micro-batch 0"}));
    CHECK(has(with(Spoilt<&elsewhere>{}),
              {"another device", "device 1", "position 2", "forward of cell 0", "micro-batch 2"}));
    CHECK(has(with(Spoilt<&no_such>{}), {"does not exist", "device 1", "position 2", "77"}));
    CHECK(has(with(Spoilt<&deadlock>{}), {"deadlock", "device", "position", "micro-batch"}));
    CHECK(with(gpipe::schedule::GPipe{}) == "nothing was thrown");
    CHECK(has(with(Spoilt<&recomputes>{}),
              {"programs of the schedule", "no place", "device 2", "position 4", "recompute"}));
    CHECK(has(with(Spoilt<&many>{}), {"schedule", "twice", "device 1", "position 8"}));
    std::string const elsewhere = with(Elsewhere<77>{});
    CHECK(has(elsewhere, {"programs of the schedule", "cell 1", "device 77"}));
    CHECK(elsewhere.find("position") == std::string::npos);
    // Another order of forwards is no mistake.
    CHECK(with(Spoilt<&too_early>{}) == "nothing was thrown");
}

TEST_CASE("memory that the host has not is asked for in bytes") {
    if (toy::sanitized) return; // which end the process
    toy::Watch watch;
    auto const o = options(std::size_t{1} << 45, 2, 2);
    std::string said;
    try {
        Train(toy::make_net<Real>(watch), {}, Adam{}, o);
    } catch (std::bad_alloc const& error) {
        said = error.what();
    }
    CHECK(has(said, {"gpipe: the host has no ", " bytes for what a device"}));
}

TEST_CASE(
    "what holds no policy, and a device that is not there, are refused where they are asked") {
    CHECK_THROWS_WITH_AS(gpipe::schedule::Dynamic().programs(2, 2),
                         "gpipe: this schedule::Dynamic holds no schedule", std::logic_error);
    CHECK_THROWS_AS(gpipe::schedule::Dynamic().least_micro_batches(2), std::logic_error);
    CHECK_THROWS_WITH_AS(gpipe::checkpoint::Dynamic().lower(gpipe::schedule::GPipe::programs(2, 2)),
                         "gpipe: this checkpoint::Dynamic holds no policy", std::logic_error);
    CHECK_THROWS_AS(gpipe::checkpoint::Dynamic().reverses(), std::logic_error);
    for (double const bandwidth : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
        gpipe::checkpoint::Optimal<gpipe::dynamic, gpipe::dynamic> optimal{1 << 20};
        optimal.bandwidth = bandwidth;
        auto o = options(4, 2, 2);
        o.checkpointing = optimal;
        CHECK(refusal(o) == "gpipe: checkpoint::Optimal is told that " +
                                std::string(bandwidth == 0  ? "0"
                                            : bandwidth < 0 ? "-1"
                                                            : "nan") +
                                " bytes are offloaded in a unit of time: that has to be positive");
    }
    toy::Watch watch;
    Train train(toy::make_net<Real>(watch), {}, Adam{}, options(4, 2, 2));
    CHECK(train.arena(1).size() > 0);
    CHECK_THROWS_WITH_AS(train.arena(2),
                         "gpipe: there is no device 2: there are 2, numbered from 0",
                         std::out_of_range);
}

TEST_CASE("a schedule without a cell on a device is refused, and a balance that fits no devices") {
    for (gpipe::schedule::Dynamic const& schedule :
         {gpipe::schedule::Dynamic(gpipe::schedule::Interleaved1F1B<gpipe::dynamic>{0}),
          gpipe::schedule::Dynamic(gpipe::schedule::BreadthFirst<gpipe::dynamic>{0}),
          gpipe::schedule::Dynamic(ManyCells<0>{})})
        for (std::size_t const cells : {0, 2})
            for (std::size_t const entries : {0, 2}) {
                auto o = options(4, cells, 4);
                o.schedule = schedule;
                o.balance.assign(entries, L / 2);
                CHECK(has(refusal(o), {"the schedule has no cells on a device"}));
            }
    for (std::size_t const cells : {0, 1, 2}) {
        auto o = options(4, cells, 4);
        o.schedule = gpipe::schedule::ZeroBubbleV{};
        o.balance = {4, 3, L - 7};
        CHECK(has(refusal(o), {"2 cells on each device", "3 entries", "no multiple"}));
    }
}

TEST_CASE("a schedule for another number of cells or micro-batches is refused") {
    auto o = options(4, 3, 4);
    o.schedule = OtherShape{};
    CHECK(has(refusal(o), {"schedule", "3 cells and 5 micro-batches", "not for 3 and 4"}));
}

TEST_CASE("Lingvo P2 batches that do not fit are refused with their numbers, and nothing happens") {
    toy::Watch watch;
    Train train(toy::make_net<Real>(watch), {}, Adam{}, options(8, 2, 2));
    toy::Data<Real> const right(8), many(9), none(0);
    std::vector<Real> torn(12), outputs(8 * 3);
    auto const step = [&](auto const& inputs, auto const& targets) {
        return words<std::invalid_argument>([&] { train.step(inputs, targets); });
    };
    CHECK(has(step(many.inputs, many.targets), {"9 samples", "planned for 8"}));
    CHECK(has(step(none.inputs, none.targets), {"empty"}));
    CHECK(has(step(right.inputs, many.targets), {"inputs of 8 samples", "targets of 9"}));
    CHECK(has(step(torn, right.targets), {"inputs", "12 elements", "5"}));
    CHECK(has(step(right.inputs, std::vector<Real>(23)), {"targets", "23 elements", "3"}));
    CHECK(has(words<std::invalid_argument>([&] { train.evaluate(none.inputs, none.targets); }),
              {"empty"}));
    CHECK(has(words<std::invalid_argument>([&] { train.predict(many.inputs, outputs); }),
              {"inputs of 9 samples", "outputs of 8"}));
    CHECK(train.steps() == 0);
    CHECK(watch.count(0, toy::Phase::forward) == 0);
    CHECK(step(right.inputs, right.targets) == "nothing was thrown");
}

TEST_CASE("the tensors of a batch must hold equally many samples") {
    using Pair = gpipe::Batch<gpipe::Tensors<gpipe::Tensor<float, 2>, gpipe::Tensor<int, 3>>>;
    std::vector<float> const a(8);
    std::vector<int> const b(12), c(9);
    CHECK(Pair(a, b).samples("inputs") == 4);
    CHECK(has(words<std::invalid_argument>([&] { Pair(a, c).samples("inputs"); }),
              {"inputs", "4 and 3"}));
}

TEST_CASE("a mini-batch of which every target is ignored is refused, and the next one trains") {
    using Net =
        gpipe::Pipeline<toy::Linear<Real, 5, 4>, toy::Tanh<Real, 4>, toy::Linear<Real, 4, 3>>;
    using T = toy::Training<Net, toy::CrossEntropy<Real, 3>, Adam, Host>;
    T::Options o;
    o.samples = 6;
    o.cells = 2;
    o.micro_batches = 3;
    T train(Net{}, {}, Adam{}, o);
    toy::Reference<Net, toy::CrossEntropy<Real, 3>, Adam> plain(Net{}, {}, Adam{}, 0, 3,
                                                                toy::Backward::descending);
    auto const inputs = toy::numbers<Real>(6 * 5, 1);
    std::vector<std::int32_t> const ignored(6, -1), classes{0, -1, 2, 1, -1, -1};
    CHECK(has(words<std::domain_error>([&] { train.step(inputs, ignored); }), {"weight", "0"}));
    CHECK(has(words<std::domain_error>([&] { train.evaluate(inputs, ignored); }), {"weight"}));
    CHECK(train.steps() == 0);
    for (int step = 0; step < 3; ++step) {
        auto const result = train.step(inputs, classes);
        CHECK(result.weight == 1 + 3 + 2);
        CHECK(result.loss == plain.step(inputs, classes));
    }
    CHECK(toy::difference(train, plain) == "");
}

namespace {

// The mean of what comes out: nothing to compare it with.
struct Mean {
    using Target = gpipe::Tensors<>;
    gpipe::LossValue<> operator()(auto&, auto y, auto, auto dy) const {
        double sum = 0;
        for (std::size_t i = 0; i < y.size(); ++i) sum += y.data()[i];
        if constexpr (!gpipe::is_none<decltype(dy)>)
            for (std::size_t i = 0; i < y.size(); ++i) dy.data()[i] = 1;
        return {sum, static_cast<double>(y.samples())};
    }
};

} // namespace

TEST_CASE_TEMPLATE("a loss may have no targets", Device, Host, toy::Remote) {
    using Net = gpipe::Pipeline<toy::Linear<Real, 5, 4>, toy::Linear<Real, 4, 1>>;
    using T = toy::Training<Net, Mean, SGD, Device>;
    typename T::Options o;
    o.samples = 7;
    o.cells = 2;
    o.micro_batches = 3;
    T train(Net{}, {}, SGD{1e-1f}, o);
    auto const inputs = toy::numbers<Real>(7 * 5, 1);
    double before = train.evaluate(inputs, {}).loss;
    for (int i = 0; i < 3; ++i) {
        CHECK(train.step(inputs, {}).loss == before);
        double const after = train.evaluate(inputs, {}).loss;
        CHECK(after < before);
        before = after;
    }
    std::vector<Real> outputs(7);
    train.predict(inputs, outputs);
    double sum = 0;
    for (Real const y : outputs) sum += y;
    CHECK(sum / 7 == doctest::Approx(before));
}

TEST_CASE("the loss's metrics are sums over the mini-batch divided by its weight") {
    toy::Watch watch;
    Train train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, options(7, 3, 4));
    toy::Data<Real> const data(7);
    auto const before = train.evaluate(data.inputs, data.targets);
    CHECK(before.metric.size() == 1);
    CHECK(before.weight == 7);
    // The mean of |d| is at most the root of the mean of d^2.
    CHECK(before.metric[0] / 3 <= std::sqrt(before.loss / 3));
    float loss = train.step(data.inputs, data.targets); // reads as a number
    CHECK(std::isfinite(loss));
}

TEST_CASE("parameters and gradients are read and written by layer") {
    toy::Watch watch, other;
    for (std::size_t cells : {std::size_t{1}, std::size_t{4}, L}) {
        Train train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, options(6, cells, 3));
        toy::Plain<Real> plain(toy::make_net<Real>(other), {}, Adam{1e-2f}, 0, 3,
                               toy::Backward::descending);
        toy::Data<Real> const data(6);
        CHECK(train.step(data.inputs, data.targets).loss == plain.step(data.inputs, data.targets));

        // By type and by number it is the same memory.
        auto [weights, bias] = train.parameters<0>();
        CHECK(weights.data() == train.parameter<Real>(0, 0).data());
        CHECK(bias.data() == train.parameter<Real>(0, 1).data());
        CHECK(train.parameter<Real>(0, 0).size() == 30);
        CHECK(train.parameter<Real>(0, 1).size() == 6);
        auto [weight_gradient, bias_gradient] = train.gradients<0>();
        CHECK(weight_gradient.data() == train.gradient<Real>(0, 0).data());
        CHECK(bias_gradient.data() == train.gradient<Real>(0, 1).data());
        CHECK(train.parameters<4>().data() == train.parameter<Real>(4, 0).data());
        CHECK(train.tensors(0) == 2);
        CHECK(train.tensors(1) == 0);
        CHECK(train.tensors(4) == 1);

        // What is written is what is used.
        std::vector<Real> outputs(6 * 3), others(6 * 3);
        train.predict(data.inputs, outputs);
        train.parameters<9>();
        for (Real& value : train.parameter<Real>(9, 0)) value = 0;
        for (Real& value : train.parameter<Real>(9, 1)) value = 3;
        train.predict(data.inputs, others);
        CHECK(outputs != others);
        CHECK(others == std::vector<Real>(6 * 3, 3));

        CHECK_THROWS_AS(train.parameter<Real>(L, 0), std::out_of_range);
        CHECK_THROWS_AS(train.parameter<Real>(1, 0), std::out_of_range);
        CHECK_THROWS_AS(train.gradient<Real>(0, 2), std::out_of_range);
        std::vector<Real> copied(30);
        train.read_parameter(0, 0, std::span(copied));
        CHECK(std::equal(copied.begin(), copied.end(), train.parameter<Real>(0, 0).begin()));
        CHECK_THROWS_WITH_AS(train.read_parameter(0, 1, std::span(copied)),
                             "gpipe: parameter tensor 1 of layer 0 has 6 elements, not 30",
                             std::invalid_argument);
        CHECK_THROWS_AS(train.write_parameter(L, 0, std::span<Real const>(copied)),
                        std::out_of_range);
        CHECK_THROWS_AS(train.read_gradient(0, 2, std::span(copied)), std::out_of_range);
    }
}

TEST_CASE_TEMPLATE(
    "elements of another type are refused with both types, the layer and the tensor, "
    "wherever a type is given",
    Wrong, double, int, std::uint16_t, gpipe::Tensor<Real>) {
    toy::Watch watch;
    Train train(toy::make_net<Real>(watch), {}, Adam{}, options(6, 2, 3));
    std::string const wrong(gpipe::type_name<Wrong>);
    for (std::size_t layer = 0; layer < L; ++layer)
        for (std::size_t t = 0; t < train.tensors(layer); ++t) {
            std::size_t const size = train.parameter<Real>(layer, t).size();
            CHECK(train.parameter<std::byte>(layer, t).size() == size * sizeof(Real));
            std::vector<Wrong> values(size * sizeof(Real) / sizeof(Wrong));
            auto const refused = [&](auto f) {
                return has(words<std::invalid_argument>(f),
                           {("parameter tensor " + std::to_string(t) + " of layer " +
                             std::to_string(layer) + " (")
                                .c_str(),
                            std::string(toy::Net<Real>::leaf_info[layer].name).c_str(),
                            ("are of type float, not " + wrong).c_str()});
            };
            CHECK(refused([&] { train.parameter<Wrong>(layer, t); }));
            CHECK(refused([&] { train.gradient<Wrong>(layer, t); }));
            CHECK(refused([&] { train.read_parameter(layer, t, std::span<Wrong>(values)); }));
            CHECK(
                refused([&] { train.write_parameter(layer, t, std::span<Wrong const>(values)); }));
            CHECK(refused([&] { train.read_gradient(layer, t, std::span<Wrong>(values)); }));
        }
    CHECK(has(words<std::out_of_range>([&] { train.tensors(L); }),
              {"there is no layer 10: the layers of the pipeline are 0 to 9"}));
    CHECK(has(words<std::out_of_range>([&] { train.parameter<Real>(0, 2); }),
              {"no parameter tensor 2 in layer 0 (", "it has 2"}));
}

TEST_CASE("the learning rate may change between steps") {
    toy::Watch watch, other;
    Train train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, options(6, 4, 3));
    toy::Plain<Real> plain(toy::make_net<Real>(other), {}, Adam{1e-2f}, 0, 3,
                           toy::Backward::descending);
    toy::Data<Real> const data(6);
    for (float rate : {1e-2f, 0.0f, 5e-3f, 1.0f}) {
        train.optimizer().learning_rate = rate;
        plain.optimizer().learning_rate = rate;
        auto const before = plain.parameter(0, 0);
        train.step(data.inputs, data.targets);
        plain.step(data.inputs, data.targets);
        CHECK(toy::difference(train, plain) == "");
        CHECK((plain.parameter(0, 0) == before) == (rate == 0));
    }
}

namespace {

// An optimizer of a user's own: it makes every parameter 1 + its share of the decay.
struct Shares {
    static constexpr std::size_t states = 0;
    template <class T>
    void operator()(gpipe::UpdateContext context, gpipe::UpdateTensor<T, 0> tensor) const noexcept {
        for (std::size_t i = 0; i < tensor.size; ++i)
            tensor.parameter[i] =
                static_cast<T>(1 + context.decay + static_cast<float>(context.step));
    }
};

} // namespace

TEST_CASE("every parameter tensor has its share of the weight decay, and the optimizer is told the "
          "step") {
    toy::Watch watch;
    using T = toy::Training<toy::Net<Real>, toy::MeanSquare<Real, 3>, Shares, Host>;
    T::Options o;
    o.samples = 6;
    o.cells = 3;
    o.micro_batches = 2;
    T train(toy::make_net<Real>(watch), {}, {}, o);
    toy::Data<Real> const data(6);
    for (float step = 1; step <= 3; ++step) {
        train.step(data.inputs, data.targets);
        for (std::size_t layer = 0; layer < L; ++layer)
            for (std::size_t t = 0; t < train.tensors(layer); ++t)
                for (Real const value : train.parameter<Real>(layer, t))
                    CHECK(value == (layer == 6 ? 1 : 2) + step); // toy::Square declares 0
    }
}

TEST_CASE("weight decay shrinks what has a share of it, and nothing else") {
    toy::Watch watch;
    using T = toy::Training<toy::Net<Real>, toy::MeanSquare<Real, 3>, gpipe::AdamW, Host>;
    auto const train_with = [&](float decay) {
        T::Options o;
        o.samples = 6;
        o.cells = 2;
        o.micro_batches = 2;
        T train(toy::make_net<Real>(watch), {}, {.learning_rate = 1e-2f, .weight_decay = decay}, o);
        toy::Data<Real> const data(6);
        train.step(data.inputs, data.targets);
        std::vector<std::vector<Real>> values;
        for (std::size_t layer : {0, 6}) {
            auto const tensor = train.parameter<Real>(layer, 0);
            values.emplace_back(tensor.begin(), tensor.end());
        }
        return values;
    };
    auto const without = train_with(0), with = train_with(10);
    CHECK(with[0] != without[0]);
    CHECK(with[1] == without[1]);
}
