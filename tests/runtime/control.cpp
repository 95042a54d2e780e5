// What a user may do between steps: take gradients without an update, and change layers.
#include <support/net.hpp>

#include <gpipe/inference.hpp>
#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using gpipe::device::Host;
using toy::Remote;

template <class Device, class... More>
using Train =
    gpipe::Training<toy::Net<float>, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<4>,
                    gpipe::Loss<toy::MeanSquare<float, 3>>, gpipe::Optimizer<gpipe::Adam>,
                    gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic, Device, More...>;
using Plain = toy::Plain<float>;

std::size_t const sizes[] = {9, 7, 9, 1, 9};
constexpr std::size_t steps = std::size(sizes);
toy::Data<float> data(std::size_t i) {
    return toy::Data<float>(sizes[i % steps], static_cast<std::uint32_t>(i));
}

/// Calls f(training, order of its backwards, words) for K, schedules and ways to run.
template <class Device, class... More> void each(std::size_t share, double clip, auto f) {
    using T = Train<Device, More...>;
    std::size_t point = 0;
    for (toy::NamedSchedule const& schedule : toy::schedules)
        for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
            for (std::size_t cells = 1; cells <= 4; ++cells)
                for (auto const& run : toy::runs<Device>()) {
                    if (point++ % toy::one_of(share) != 0) continue;
                    typename T::Options options;
                    options.samples = 9;
                    options.seed = 3;
                    options.cells = cells;
                    options.clip_norm = clip;
                    options.schedule = schedule.policy;
                    options.checkpointing = checkpointing.policy;
                    options.device = run;
                    toy::Watch watch;
                    T train(toy::make_net<float>(watch), {}, gpipe::Adam{1e-2f}, options);
                    f(train, watch, schedule.order,
                      schedule.name + ", " + checkpointing.name + ", K = " + std::to_string(cells) +
                          ", " + toy::describe(run));
                }
}

template <class T> std::vector<std::vector<std::byte>> values_of(T& train, bool gradients) {
    std::vector<std::vector<std::byte>> all;
    for (std::size_t layer = 0; layer < T::layer_count; ++layer)
        for (std::size_t t = 0; t < train.tensors(layer); ++t) {
            auto const values = gradients ? train.template gradient<std::byte>(layer, t)
                                          : train.template parameter<std::byte>(layer, t);
            all.emplace_back(values.begin(), values.end());
        }
    return all;
}

/// Gradients are taken between the steps of a training: they are those of the step that follows,
/// and the steps are those of the plain loop.
template <class Device, class... More> void check_gradients_alone() {
    for (double const clip : {0.0, 0.05}) {
        if (clip > 0 && sizeof...(More) > 0) continue;
        each<Device, More...>(
            11, clip,
            [&](auto& train, toy::Watch& watch, toy::Backward order, std::string const& words) {
                toy::Watch quiet;
                Plain plain(toy::make_net<float>(quiet), {}, gpipe::Adam{1e-2f}, 3, 4, order);
                INFO(words);
                for (std::size_t i = 0; i < steps; ++i) {
                    auto const batch = data(i), other = data(i + 1);
                    auto const before = values_of(train, false);
                    train.compute_gradients(other.inputs, other.targets);
                    auto const taken = train.compute_gradients(batch.inputs, batch.targets);
                    auto const gradients = values_of(train, true);
                    CHECK(values_of(train, false) == before);
                    CHECK(train.steps() == i);
                    watch.faults = {{3, 0, toy::Phase::forward}};
                    CHECK_THROWS_AS(train.compute_gradients(other.inputs, other.targets),
                                    toy::Thrown);
                    CHECK(train.failure()->layer == 3);
                    watch.faults.clear();
                    auto const step = train.step(batch.inputs, batch.targets);
                    CHECK(step.loss == taken.loss);
                    CHECK(step.gradient_norm == taken.gradient_norm);
                    CHECK(step.metric == taken.metric);
                    CHECK(values_of(train, true) == gradients);
                    CHECK(train.steps() == i + 1);
                    if (clip > 0) continue;
                    CHECK(plain.step(batch.inputs, batch.targets) == step.loss);
                    CHECK(toy::difference(train, plain) == "");
                }
            });
    }
}

/// Layers and optimizer are changed behind a step that has been started; all is that of the plain
/// loop with the same changes.
template <class Device, class... More> void check_changes() {
    each<Device, More...>(
        11, 0, [&](auto& train, toy::Watch&, toy::Backward order, std::string const& words) {
            toy::Watch quiet;
            Plain plain(toy::make_net<float>(quiet), {}, gpipe::Adam{1e-2f}, 3, 4, order);
            using T = std::remove_reference_t<decltype(train)>;
            INFO(words);
            std::vector<double> expected;
            std::vector<typename T::Pending> pending;
            for (std::size_t i = 0; i < 2 * steps; ++i) {
                auto const batch = data(i);
                expected.push_back(plain.step(batch.inputs, batch.targets));
                pending.push_back(train.start(batch.inputs, batch.targets));
                if (i % 3 == 2) continue;
                float const rate = 0.1f * static_cast<float>(i % 4);
                plain.template layer<7>().rate = rate;
                plain.template layer<8>().factor *= 0.75f;
                train.template change_layer<7>([&](auto& dropout) { dropout.rate = rate; });
                train.template change_layer<8>([](auto& scale) { scale.factor *= 0.75f; });
                CHECK(train.template layer<7>().rate == rate);
                CHECK(train.template layer<8>().factor == plain.template layer<8>().factor);
            }
            for (std::size_t i = 0; i < 2 * steps; ++i)
                CHECK(pending[i].result().loss == expected[i]);
            CHECK(toy::difference(train, plain) == "");
        });
}

} // namespace

TEST_CASE("gradients without an update are those of the step that follows, and change nothing") {
    SUBCASE("on the host") { check_gradients_alone<Host>(); }
    SUBCASE("with immediate updates") { check_gradients_alone<Host, gpipe::update::Immediate>(); }
    SUBCASE("on a device with memory of its own") { check_gradients_alone<Remote>(); }
}

TEST_CASE("members of layers that are set between steps hold from the next step on") {
    SUBCASE("on the host") { check_changes<Host>(); }
    SUBCASE("with immediate updates") { check_changes<Host, gpipe::update::Immediate>(); }
    SUBCASE("on a device with memory of its own") { check_changes<Remote>(); }
}

TEST_CASE("every layer of a chain is to be read at its place, and repetitions share one") {
    using Block = gpipe::Repeat<3, toy::Scale<float, 4>, toy::Dropout<float, 4>>;
    using Net = gpipe::Pipeline<toy::Linear<float, 4, 4>, Block, toy::Scale<float, 4>>;
    gpipe::Training<Net, gpipe::Loss<toy::MeanSquare<float, 4>>> train(
        Net({}, Block({2}, {0.5f}), {7}), {}, {}, {.samples = 4});
    CHECK(train.layer<1>().factor == 2);
    CHECK(train.layer<2>().rate == 0.5f);
    CHECK(train.layer<7>().factor == 7);
    train.change_layer<3>([](auto& scale) { scale.factor = 5; });
    CHECK(train.layer<1>().factor == 5);
    CHECK(&train.layer<5>() == &train.layer<1>());
    CHECK(train.layer<7>().factor == 7);
    toy::Watch watch;
    train.change_loss([&](auto& loss) { loss.watch = &watch; });
    CHECK(train.loss().watch == &watch);
    std::vector<float> const x(16, 1);
    train.step(x, x);
    CHECK(watch.loss_calls() == 4);
}

namespace {

/// y = by x.
struct Times {
    using Input = gpipe::Tensor<float, 2>;
    using Output = Input;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    float by = 2;
    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = by * x.data()[i];
    }
    void backward(auto&, auto dy, auto dx) const {
        for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = by * dy.data()[i];
    }
};

} // namespace

TEST_CASE("run-time members of several layers are given in braces, those of one by its type") {
    using Train =
        gpipe::Training<gpipe::Pipeline<Times, Times>, gpipe::Loss<toy::MeanSquare<float, 2>>>;
    std::vector<float> const x(2, 1);
    auto const y = [&](Train&& train) {
        std::vector<float> result(2);
        train.predict(x, result);
        return result[1];
    };
    CHECK(y(Train{{}, {}, {}, {.samples = 1}}) == 4);
    CHECK(y(Train{{{}, Times{3}}, {}, {}, {.samples = 1}}) == 6);
    CHECK(y(Train{{{3}, {5}}, {}, {}, {.samples = 1}}) == 15);
    static_assert(!std::is_convertible_v<Times, gpipe::Pipeline<Times>>);
}

TEST_CASE("gradients without an update refuse what a step refuses") {
    gpipe::Training<gpipe::Pipeline<toy::Linear<float, 2, 2>>,
                    gpipe::Loss<toy::MeanSquare<float, 2>>>
        train({}, {}, {}, {.samples = 4});
    std::vector<float> const x(16, 1);
    CHECK_THROWS_WITH_AS(
        train.compute_gradients(x, x),
        "gpipe: a mini-batch of 8 samples, but memory was planned for 4: Options::samples",
        std::invalid_argument);
}

TEST_CASE_TEMPLATE("what the optimizer has of each tensor is to be read", Device, Host, Remote) {
    using Net = gpipe::Pipeline<toy::Linear<double, 5, 6>, toy::Linear<double, 6, 3>>;
    using T = toy::Training<Net, toy::MeanSquare<double, 3>, gpipe::Adam, Device>;
    for (std::size_t cells : {std::size_t{1}, std::size_t{2}}) {
        typename T::Options options;
        options.samples = 8;
        options.cells = cells;
        options.micro_batches = 4;
        gpipe::Adam const adam{.learning_rate = 0.01f, .beta1 = 0.75f, .beta2 = 0.875f};
        T train({}, {}, adam, options);
        toy::Data<double> const some(8, 3);
        std::vector<double> before(30, 7);
        train.read_optimizer_state(0, 0, 1, before);
        CHECK(before == std::vector<double>(30));
        train.step(some.inputs, some.targets);
        for (std::size_t const layer : {std::size_t{0}, std::size_t{1}})
            for (std::size_t const tensor : {std::size_t{0}, std::size_t{1}}) {
                std::size_t const count = tensor ? (layer ? 3 : 6) : (layer ? 18 : 30);
                std::vector<double> gradient(count), first(count), second(count);
                train.read_gradient(layer, tensor, gradient);
                train.read_optimizer_state(layer, tensor, 0, first);
                train.read_optimizer_state(layer, tensor, 1, std::span(second));
                for (std::size_t i = 0; i < count; ++i) {
                    CHECK(first[i] == doctest::Approx(0.25 * gradient[i]));
                    CHECK(second[i] == doctest::Approx(0.125 * gradient[i] * gradient[i]));
                }
            }
        std::vector<double> six(6);
        std::vector<float> other(6);
        CHECK_THROWS_WITH_AS(train.read_optimizer_state(0, 1, 2, six),
                             "gpipe: there is no array 2 of optimizer state: the optimizer has 2 "
                             "for each parameter tensor",
                             std::out_of_range);
        CHECK_THROWS_AS(train.read_optimizer_state(0, 0, 0, six), std::invalid_argument);
        CHECK_THROWS_AS(train.read_optimizer_state(0, 1, 0, other), std::invalid_argument);
        CHECK_THROWS_AS(train.read_optimizer_state(2, 0, 0, six), std::out_of_range);
    }
    using Sharded =
        gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<4>,
                        gpipe::Loss<toy::MeanSquare<double, 3>>, gpipe::Optimizer<gpipe::Adam>,
                        gpipe::Replicas<2, gpipe::shard::OptimizerState>>;
    Sharded sharded({}, {}, {}, {.samples = 8});
    std::vector<double> six(6);
    CHECK_THROWS_WITH_AS(sharded.read_optimizer_state(0, 1, 0, six),
                         "gpipe: each replica has a part of the optimizer's state: save() writes "
                         "it whole",
                         std::logic_error);
}

TEST_CASE("a summary says what a training consists of") {
    using First = toy::Linear<double, 4, 5>;
    using Second = toy::Tag<double, 5>;
    using Third = toy::Carry<double, 5>;
    using Fourth = toy::Untag<double, 5>;
    using Train =
        gpipe::Training<gpipe::Pipeline<First, Second, Third, Fourth>, gpipe::Balance<2, 2>,
                        gpipe::MicroBatches<3>, gpipe::Loss<toy::MeanSquare<double, 5>>>;
    Train train({}, {}, {}, {.samples = 7}), looked_at({}, {}, {}, {.samples = 7, .debug = true});
    std::size_t const wide =
        std::max(gpipe::type_name<First>.size(), gpipe::type_name<Third>.size());
    auto const name = [&]<class L>(L) {
        std::string text(gpipe::type_name<L>);
        return text + std::string(wide - text.size(), ' ');
    };
    std::string const gap(wide - 4, ' ');
    std::string const text = train.summary();
    CHECK(text.substr(0, text.find("\n\n")) ==
          "layer  type" + gap +
              "  cell  device  input            output           parameters  bytes  shapes\n"
              "    0  " +
              name(First{}) +
              "     0       0  4 double         5 double                 25    200  5x4, 5 double\n"
              "    1  " +
              name(Second{}) +
              "     0       0  5 double         5 double, 2 int           0      0  -\n"
              "    2  " +
              name(Third{}) +
              "     1       1  5 double, 2 int  5 double, 2 int           2     16  2 double\n"
              "    3  " +
              name(Fourth{}) +
              "     1       1  5 double, 2 int  5 double                  0      0  -\n"
              "       in all" +
              std::string(wide - 6, ' ') +
              "                                                          27    216");
    CHECK(text.find("\nbytes planned  layers  parameters  gradients  optimizer  buffers  "
                    "boundaries  activations  staging  handles  in all\n") != std::string::npos);
    CHECK(text.find("\n2 devices, 2 cells, M = 3, room for 3 samples in a micro-batch\n") !=
          std::string::npos);
    CHECK(looked_at.summary().find("M = 3, room for 4 samples in") != std::string::npos);
}

TEST_CASE("the totals of a summary are those of the plan") {
    each<Host>(7, 0, [](auto& train, toy::Watch&, toy::Backward, std::string const& words) {
        INFO(words);
        std::vector<std::string> lines(1);
        for (char const c : train.summary())
            if (c == '\n')
                lines.emplace_back();
            else if (c != ',')
                lines.back() += c;
        // The numbers of a line behind its first words.
        auto const numbers = [](std::string const& line) {
            std::vector<std::size_t> all;
            std::istringstream in(line.substr(line.find_first_of("0123456789")));
            for (std::size_t number; in >> number;) all.push_back(number);
            return all;
        };
        std::size_t const L = toy::Net<float>::size;
        std::vector<std::size_t> const parameters{toy::Net<float>::parameters(),
                                                  toy::Net<float>::parameter_bytes()};
        CHECK(numbers(lines[L + 1]) == parameters);
        gpipe::DeviceBytes all;
        for (std::size_t d = 0; d < train.devices(); ++d) {
            gpipe::DeviceBytes const& device = train.plan().devices[d];
            auto const row = numbers(lines[L + 4 + d]);
            REQUIRE(row.size() == 11);
            CHECK(row[0] == d);
            CHECK(row[2] == device.parameters + device.frozen);
            CHECK(row[5] == device.buffers);
            CHECK(row[6] == device.boundary);
            CHECK(row[7] == device.activations);
            CHECK(row[10] == device.total());
            all.gradients += device.gradients;
            all.optimizer += device.optimizer;
        }
        auto const row = numbers(lines[L + 4 + train.devices()]);
        REQUIRE(row.size() == 10);
        CHECK(row[0] == L);
        CHECK(row[2] == all.gradients);
        CHECK(row[3] == all.optimizer);
        CHECK(row[9] == train.planned_bytes());
    });
}

namespace {

// Cuts as it is told.
struct Told {
    static inline std::vector<std::size_t> first;
    static void cut(double const*, std::size_t, std::size_t cells, std::size_t* to) {
        std::copy_n(first.begin(), cells + 1, to);
    }
};

} // namespace

TEST_CASE("a cut by a user's own objective is one, or refused with the place") {
    using T = gpipe::Training<toy::Net<float>, gpipe::Cells<gpipe::dynamic, Told>,
                              gpipe::MicroBatches<4>, gpipe::Loss<toy::MeanSquare<float, 3>>>;
    using I = gpipe::Inference<toy::Net<float>, gpipe::Cells<gpipe::dynamic, Told>>;
    toy::Watch watch;
    constexpr std::size_t L = toy::layers<float>;
    using Cut = std::vector<std::size_t>;
    struct Case {
        Cut first;
        std::size_t wrong;
    };
    for (Case const& c :
         {Case{{1, 2, L}, 0}, Case{{0, 0, L}, 1}, Case{{0, 2, L - 1}, 2}, Case{{0, L, L}, 1},
          Case{{0, L + 9, L}, 1}, Case{{0, 5, 4}, 2}, Case{{0, 1, L}, 3}}) {
        Told::first = c.first;
        std::string const words = "first[" + std::to_string(c.wrong) + "], which it fills with " +
                                  std::to_string(c.wrong < 3 ? c.first[c.wrong] : 0) +
                                  ": first[0] is 0, first[2] is " + std::to_string(L) +
                                  ", and each is more than the one before";
        auto const train = [&] {
            T trains(toy::make_net<float>(watch), {}, {}, {.samples = 9, .cells = 2});
        };
        auto const infer = [&] {
            I infers(toy::make_net<float>(watch), {.samples = 9, .cells = 2});
        };
        if (c.wrong > 2) {
            CHECK_NOTHROW(train());
            CHECK_NOTHROW(infer());
            continue;
        }
        CHECK_THROWS_WITH_AS(train(), doctest::Contains(words.c_str()), std::invalid_argument);
        CHECK_THROWS_WITH_AS(infer(), doctest::Contains(words.c_str()), std::invalid_argument);
    }
}
