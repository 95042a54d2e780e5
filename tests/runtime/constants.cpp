// Constants of a step: one value for all micro-batches, set between steps. On streams:
// cuda_double/constants.cpp; what must not compile: compile_fail/constants.cpp.
#include "support/constant_layers.hpp"
#include "support/ranks.hpp"
#include "support/ways.hpp"

#include <gpipe/check_gradients.hpp>
#include <gpipe/inference.hpp>
#include <gpipe/profile.hpp>
#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::dynamic;
using gpipe::device::Host;
using toy::OfTheLayer;
using toy::OfTheStep;
using toy::Remote;
using toy::Settings;
using Real = float;

template <class From> using Net = toy::HeatedNet<Real, From>;
template <class From> using Loss = toy::HeatedSquare<Real, 3, From>;
template <class From, class Device>
using Train = toy::Training<Net<From>, Loss<From>, Adam, Device>;
constexpr std::size_t L = Net<OfTheStep>::size, M = 8;

template <class T> typename T::Options options(std::size_t cells) {
    return {.samples = 13, .seed = 7, .cells = cells, .micro_batches = M};
}
// What all that can be asked of a training gives, each under settings of its own: set(train,
// settings) gives it these.
template <class T, class Set> std::vector<double> numbers(T& train, Set set) {
    std::vector<double> result;
    std::size_t number = 0;
    for (std::size_t const size : std::vector<std::size_t>{13, 7, 13, 3}) {
        toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
        set(train, Settings::of(number++));
        train.accumulate(data.inputs, data.targets);
        set(train, Settings::of(number++));
        result.push_back(train.step(data.inputs, data.targets).loss);
        set(train, Settings::of(number++));
        result.push_back(train.evaluate(data.inputs, data.targets).loss);
        result.push_back(train.evaluate(data.inputs, data.targets).metric[0]);
        set(train, Settings::of(number++));
        result.push_back(train.compute_gradients(data.inputs, data.targets).loss);
        set(train, Settings::of(number++));
        std::vector<Real> outputs(size * 3);
        train.predict(data.inputs, outputs);
        result.insert(result.end(), outputs.begin(), outputs.end());
    }
    toy::add_state<Net<OfTheStep>>(train, result, true);
    return result;
}
auto const set_constants = [](auto& train, Settings const& all) { toy::set(train, all); };
auto const set_members = [](auto& train, Settings const& all) { toy::set_members(train, all); };

// With members in place of constants, on one thread.
std::vector<double> expected(gpipe::schedule::Dynamic schedule) {
    using T = Train<OfTheLayer, Host>;
    auto o = options<T>(1);
    o.schedule = schedule;
    o.device.threads = 1;
    T train(Net<OfTheLayer>{}, {}, Adam{1e-2f}, o);
    return numbers(train, set_members);
}

} // namespace

TEST_CASE_TEMPLATE("P1 constants: every schedule, checkpointing, number of devices and link sees "
                   "what was set before",
                   Device, Host, Remote) {
    auto const descending = expected(gpipe::schedule::GPipe{});
    auto const ascending = expected(gpipe::schedule::GPipeAscending{});
    REQUIRE(descending != ascending);
    toy::each_training<Device>(L, L, M, 157, [&](toy::Way<Device> const& way) {
        using T = Train<OfTheStep, Device>;
        auto o = way.chosen(options<T>(way.cells));
        o.debug = way.number % 4 == 1;
        T train(Net<OfTheStep>{}, {}, Adam{1e-2f}, o);
        CHECK((numbers(train, set_constants) == (way.descends() ? descending : ascending)));
        CHECK(train.used_bytes() == train.planned_bytes());
    });
}

TEST_CASE("a constant begins as its type says, and stays as it was set") {
    using T = Train<OfTheStep, Host>;
    T train(Net<OfTheStep>{}, {}, Adam{1e-2f}, options<T>(2));
    CHECK(train.constant<toy::Temperature>().value == 1.5f);
    CHECK(train.constant<toy::Table>().used == 2);
    CHECK(train.constant<toy::Table>().rows[2] == 3);
    CHECK(train.constant<toy::Table>().rows[3] == 0);
    CHECK(&train.constant<toy::Table>() == &train.constant<toy::Table>());
    toy::set(train, Settings::of(3));
    toy::Data<Real> const data(13);
    train.step(data.inputs, data.targets);
    CHECK(train.constant<toy::Temperature>().value == Settings::of(3).temperature.value);
}

TEST_CASE("a step that is under way goes on with the constants that it was started with") {
    using Immediate = gpipe::Training<Net<OfTheStep>, gpipe::Cells<dynamic>,
                                      gpipe::MicroBatches<dynamic>, gpipe::Loss<Loss<OfTheStep>>,
                                      gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                                      gpipe::checkpoint::Dynamic, gpipe::update::Immediate>;
    auto const run = [](auto& train, auto set) {
        std::vector<typename std::remove_reference_t<decltype(train)>::Pending> pending;
        std::vector<double> result;
        toy::Data<Real> const data(13);
        for (std::size_t i = 0; i < 12; ++i) {
            set(train, Settings::of(i));
            pending.push_back(train.start(data.inputs, data.targets));
            set(train, Settings::of(100 + i)); // which nobody may see
        }
        for (auto& step : pending) result.push_back(step.result().loss);
        toy::add_state<Net<OfTheStep>>(train, result, true);
        return result;
    };
    using Members = Train<OfTheLayer, Host>;
    auto o = options<Members>(1);
    o.schedule = gpipe::schedule::GPipeAscending{};
    Members members(Net<OfTheLayer>{}, {}, Adam{1e-2f}, o);
    auto const expected = run(members, set_members);
    toy::slow_layer = 5; // so that the others are done long before
    for (std::size_t const threads : std::vector<std::size_t>{1, 2, 3, 4})
        for (gpipe::schedule::Dynamic const& schedule :
             {gpipe::schedule::Dynamic(gpipe::schedule::ZeroBubbleH1{}),
              gpipe::schedule::Dynamic(gpipe::schedule::OneForwardOneBackward{})}) {
            auto own = options<Immediate>(3);
            own.schedule = schedule;
            own.device.threads = threads;
            INFO(threads, " threads, ", schedule.name());
            Immediate train(Net<OfTheStep>{}, {}, Adam{1e-2f}, own);
            CHECK((run(train, set_constants) == expected));
        }
    toy::slow_layer = L;
}

TEST_CASE("constants are planned where somebody reads them, and only where they are staged") {
    auto const bytes = [](auto& train, std::size_t d) { return train.plan().devices[d].staging; };
    auto const make = []<class From, class Device>(From, Device*) {
        using T = Train<From, Device>;
        auto o = options<T>(L);
        o.schedule = gpipe::schedule::OneForwardOneBackward{};
        return std::make_unique<T>(Net<From>{}, Loss<From>{}, Adam{1e-2f}, o);
    };
    auto const here = make(OfTheStep{}, static_cast<Host*>(nullptr));
    auto const with = make(OfTheStep{}, static_cast<Remote*>(nullptr));
    auto const without = make(OfTheLayer{}, static_cast<Remote*>(nullptr));
    REQUIRE(L == 8);
    for (std::size_t d = 0; d < L; ++d) {
        bool const reads = d == 1 || d == 3 || d == 5 || d == 7; // the loss, too
        CHECK(bytes(*here, d) == 0);
        CHECK(bytes(*with, d) ==
              bytes(*without, d) + (reads ? gpipe::slot_bytes(sizeof(Settings)) : 0));
    }
    CHECK(with->used_bytes() == with->planned_bytes());
}

TEST_CASE("constants: gradients are checked, and layers timed, with what they are by then") {
    using T = Train<OfTheStep, Remote>;
    auto o = options<T>(2);
    o.device.guards = false; // runtime/check_gradients.cpp looks at what touches the memory
    T train(Net<OfTheStep>{}, {}, Adam{1e-2f}, o);
    toy::Data<Real> const data(13);
    auto const numbers = [&] {
        std::vector<double> result;
        auto const report =
            gpipe::check_gradients(train, data.inputs, data.targets, {.entries = 2});
        CHECK(report.passed());
        for (auto const& row : report.rows) result.push_back(row.analytic);
        return result;
    };
    auto const before = numbers();
    train.constant<toy::Temperature>().value *= 2;
    CHECK(before != numbers());
    auto const profile =
        gpipe::profile(Net<OfTheStep>{}, gpipe::ProfileOptions<>{.samples = 2, .rounds = 1});
    CHECK(profile.layers.size() == L);
}

TEST_CASE_TEMPLATE("an Inference has constants of its own, and those under way keep theirs", Device,
                   Host, Remote) {
    using T = Train<OfTheStep, Device>;
    using I = gpipe::Inference<Net<OfTheStep>, gpipe::Cells<3>, gpipe::MicroBatches<M>, Device>;
    T train(Net<OfTheStep>{}, {}, Adam{1e-2f}, options<T>(2));
    typename I::Options o;
    o.samples = 13;
    I inference(Net<OfTheStep>{}, o);
    inference.copy_from(train);
    toy::Data<Real> const data(13);
    std::vector<std::vector<Real>> expected, found(8, std::vector<Real>(13 * 3));
    std::vector<typename I::Pending> pending;
    for (std::size_t i = 0; i < 8; ++i) {
        toy::set(train, Settings::of(i));
        toy::set(inference, Settings::of(i));
        expected.emplace_back(13 * 3);
        train.predict(data.inputs, expected.back());
        pending.push_back(inference.start(data.inputs, found[i]));
        toy::set(inference, Settings::of(i + 50));
    }
    for (auto& run : pending) run.wait();
    CHECK((found == expected));
    CHECK(inference.used_bytes() == inference.planned_bytes());
}

TEST_CASE("P1 constants: ranks that set the same train as one") {
    using T = gpipe::Training<Net<OfTheStep>, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>,
                              gpipe::Loss<Loss<OfTheStep>>, gpipe::Optimizer<Adam>,
                              gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic, toy::Wired>;
    using One = Train<OfTheLayer, Host>;
    auto o = options<One>(1);
    o.schedule = gpipe::schedule::GPipeAscending{};
    One one(Net<OfTheLayer>{}, {}, Adam{1e-2f}, o);
    auto own = options<T>(4);
    own.schedule = gpipe::schedule::ZeroBubbleH1{};
    toy::Crew<T> crew({2, 1, 1}, true, 2, [&](std::size_t, toy::Rank::Options device) {
        auto of = own;
        of.device = device;
        return std::make_unique<T>(Net<OfTheStep>{}, Loss<OfTheStep>{}, Adam{1e-2f}, of);
    });
    for (std::size_t i = 0; i < 3; ++i) {
        toy::Data<Real> const data(13, static_cast<std::uint32_t>(i));
        toy::set_members(one, Settings::of(i));
        for (std::size_t r = 0; r < crew.ranks(); ++r) toy::set(crew[r], Settings::of(i));
        CHECK(crew.step(data.inputs, data.targets).loss ==
              one.step(data.inputs, data.targets).loss);
        CHECK(crew.evaluate(data.inputs, data.targets).loss ==
              one.evaluate(data.inputs, data.targets).loss);
    }
    std::vector<double> expected, found;
    toy::add_state<Net<OfTheStep>>(one, expected, true);
    toy::add_state<Net<OfTheStep>>(crew, found, true);
    CHECK((expected == found));
}

TEST_CASE("P1 constants: replicas of one process all see what is set once") {
    auto const run = []<class From>(From, auto set) {
        using T =
            gpipe::Training<Net<From>, gpipe::Cells<2>, gpipe::MicroBatches<4>,
                            gpipe::Loss<Loss<From>>, gpipe::Optimizer<Adam>, gpipe::Replicas<3>>;
        typename T::Options o;
        o.samples = 5;
        o.seed = 7;
        T train(Net<From>{}, {}, Adam{1e-2f}, o);
        std::vector<double> result;
        for (std::size_t i = 0; i < 4; ++i) {
            toy::Data<Real> const data(13, static_cast<std::uint32_t>(i));
            set(train, Settings::of(i));
            result.push_back(train.step(data.inputs, data.targets).loss);
            set(train, Settings::of(i + 7));
            result.push_back(train.evaluate(data.inputs, data.targets).loss);
        }
        toy::add_state<Net<OfTheStep>>(train, result, true);
        return result;
    };
    // With members all replicas have those of the first's layers.
    CHECK((run(OfTheStep{}, set_constants) == run(OfTheLayer{}, set_members)));
}

namespace {

// A tensor that belongs to no sample.
struct Whole {
    double numbers[7] = {};
};
struct Looks {
    using Input = gpipe::Tensor<double>;
    using Output = Input;
    using Constants = Whole;
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s) {
            y(s) = x(s);
            for (double const number : gpipe::constant<Whole>(ctx)->numbers) y(s) += number;
        }
    }
    void backward(auto&, auto, auto dy, auto dx) const {
        for (std::size_t s = 0; s < dy.samples(); ++s) dx(s) = dy(s);
    }
};
struct Flat {
    using Target = gpipe::Tensor<double>;
    gpipe::LossValue<> operator()(auto&, auto y, auto, auto dy) const {
        for (std::size_t s = 0; s < y.samples(); ++s) dy(s) = 1;
        return {0, 1};
    }
};

} // namespace

TEST_CASE("B12 a tensor that is not split is seen whole by every micro-batch") {

    using Chain = gpipe::Pipeline<Looks, Looks>;

    using T = gpipe::Training<Chain, gpipe::Cells<2>, gpipe::MicroBatches<5>, gpipe::Loss<Flat>>;
    T train(Chain{}, {}, gpipe::SGD{}, {.samples = 9});
    std::vector<double> const x(9, 1.0);
    std::vector<double> y(9);
    for (double& number : train.constant<Whole>().numbers) number = 2;
    train.predict(x, y);
    CHECK(y == std::vector<double>(9, 29.0));
    train.constant<Whole>().numbers[6] = 0;
    train.predict(x, y);
    CHECK(y == std::vector<double>(9, 25.0));
}
