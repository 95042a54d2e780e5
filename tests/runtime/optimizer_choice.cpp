// An optimizer that is chosen at construction trains bit by bit as the same one in the type.
#include <support/net.hpp>
#include <support/ranks.hpp>

#include <gpipe/optimizer/optimizer_catalogue.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using gpipe::device::Host;
using toy::Remote;

// Of a user's own: Lion (Chen et al., 2023), with one state, and one without any.
struct Lion {
    static constexpr std::size_t states = 1;
    float learning_rate = 1e-2f;
    template <class T> struct Rule {
        T rate;
        GPIPE_HOST_DEVICE void operator()(T& p, T g, T& m) const {
            T const way = T(0.9) * m + T(0.1) * g;
            p -= rate * static_cast<T>((way > 0) - (way < 0));
            m = T(0.99) * m + T(0.01) * g;
        }
    };
    template <class T> Rule<T> rule(gpipe::UpdateContext) const {
        return {static_cast<T>(learning_rate)};
    }
    template <class T>
    void operator()(gpipe::UpdateContext context,
                    gpipe::UpdateTensor<T, states> tensor) const noexcept {
        gpipe::apply_to_all(*this, context, tensor);
    }
};
struct Plain {
    static constexpr std::size_t states = 0;
    float learning_rate = 1e-2f;
    template <class T> struct Rule {
        T rate;
        GPIPE_HOST_DEVICE void operator()(T& p, T g) const { p -= rate * g; }
    };
    template <class T> Rule<T> rule(gpipe::UpdateContext) const {
        return {static_cast<T>(learning_rate)};
    }
    template <class T>
    void operator()(gpipe::UpdateContext context, gpipe::UpdateTensor<T, 0> tensor) const noexcept {
        gpipe::apply_to_all(*this, context, tensor);
    }
};
using Choice = gpipe::optimizer::Dynamic::with<Lion, Plain>;

template <class O, class Device, class... More>
using Train = gpipe::Training<toy::Net<float>, gpipe::Cells<3>, gpipe::MicroBatches<4>,
                              gpipe::Loss<toy::MeanSquare<float, 3>>, gpipe::Optimizer<O>,
                              gpipe::schedule::OneForwardOneBackward, Device, More...>;

template <class O, class Device, class... More> struct Trained {
    toy::Watch watch;
    Train<O, Device, More...> train;
    std::vector<double> losses;
    explicit Trained(O optimizer, float rate_at_the_end)
        : train(toy::make_net<float>(watch), {}, optimizer, {.samples = 9, .seed = 3}) {
        for (std::uint32_t step = 0; step < 6; ++step) {
            if (step == 3) {
                if constexpr (requires { train.optimizer().chosen_name(); })
                    train.optimizer().visit([&](auto& o) { o.learning_rate = rate_at_the_end; });
                else
                    train.optimizer().learning_rate = rate_at_the_end;
            }
            toy::Data<float> const data(9 - step, step);
            losses.push_back(train.step(data.inputs, data.targets));
        }
    }
    std::vector<float> parameters() {
        std::vector<float> all;
        for (std::size_t layer = 0; layer < toy::layers<float>; ++layer)
            for (std::size_t t = 0; t < train.tensors(layer); ++t) {
                std::vector<float> values(toy::Net<float>::leaf_info[layer].parameters.bytes[t] /
                                          sizeof(float));
                train.template read_parameter<float>(layer, t, values);
                all.insert(all.end(), values.begin(), values.end());
            }
        return all;
    }
};

template <class Device, class... More> void check_all() {
    auto const check = [](auto optimizer) {
        using O = decltype(optimizer);
        CAPTURE(gpipe::type_name<O>);
        Trained<O, Device, More...> constant(optimizer, 3e-3f);
        Trained<Choice, Device, More...> chosen(optimizer, 3e-3f);
        CHECK(chosen.losses == constant.losses);
        CHECK(chosen.parameters() == constant.parameters());
        // Its state is what is planned, not that of the largest.
        for (std::size_t d = 0; d < 3; ++d) {
            CHECK(chosen.train.plan().devices[d].optimizer ==
                  constant.train.plan().devices[d].optimizer);
            CHECK(chosen.train.peak_bytes(d, 3) >= constant.train.peak_bytes(d, 3));
        }
        CHECK(chosen.train.used_bytes() == chosen.train.planned_bytes());
    };
    check(gpipe::SGD{1e-2f, 0.9f, 1e-2f});
    check(gpipe::SGD{1e-2f});
    check(gpipe::RMSProp{.momentum = 0.5f});
    check(gpipe::RMSProp{});
    check(gpipe::Adam{.weight_decay = 1e-2f});
    check(gpipe::AdamW{});
    check(Lion{});
    check(Plain{});
}

} // namespace

TEST_CASE("an optimizer that is chosen trains bit by bit as the same one in the type") {
    SUBCASE("on the host") { check_all<Host>(); }
    SUBCASE("on the host, updated at once") { check_all<Host, gpipe::update::Immediate>(); }
    SUBCASE("on a device with memory of its own") { check_all<Remote>(); }
}

TEST_CASE("its rule for one element, as a kernel has it, is that of the one that is chosen") {
    auto const check = [](auto optimizer) {
        using O = decltype(optimizer);
        Choice const choice = optimizer;
        for (std::uint64_t step = 1; step <= 20; ++step) {
            gpipe::UpdateContext const context{step, 0.5f};
            double a[3] = {0.7, 0.1, 0.2}, b[3] = {0.7, 0.1, 0.2};
            gpipe::UpdateTensor<double, O::states> one;
            gpipe::UpdateTensor<double, Choice::states> other;
            one.parameter = &a[0];
            other.parameter = &b[0];
            one.size = other.size = 1;
            for (std::size_t s = 0; s < O::states; ++s) one.state[s] = &a[1 + s];
            for (std::size_t s = 0; s < Choice::states; ++s) other.state[s] = &b[1 + s];
            gpipe::apply_rule(optimizer.template rule<double>(context), one, 0, 0.3);
            gpipe::apply_rule(choice.template rule<double>(context), other, 0, 0.3);
            CHECK(std::equal(a, a + 3, b));
            CHECK(a[0] != 0.7);
        }
    };
    check(gpipe::SGD{1e-2f, 0.9f, 1e-2f});
    check(gpipe::RMSProp{});
    check(gpipe::Adam{});
    check(gpipe::AdamW{});
    check(Lion{});
    check(Plain{});
}

TEST_CASE("a training refuses an optimizer that its state was not planned for") {
    Trained<Choice, Host> trained(gpipe::Adam{}, 1e-3f);
    auto& train = trained.train;
    toy::Data<float> const data(9, 1);
    auto const before = trained.parameters();
    for (Choice const& other : {Choice(gpipe::AdamW{}), Choice(gpipe::SGD{}), Choice(Plain{})}) {
        train.optimizer() = other;
        CHECK_THROWS_WITH_AS(train.step(data.inputs, data.targets),
                             ("gpipe: the optimizer is " + std::string(other.chosen_name()) +
                              " now, but state was planned for gpipe::Adam")
                                 .c_str(),
                             std::invalid_argument);
    }
    CHECK(trained.parameters() == before);
    CHECK(train.steps() == 6);
    train.optimizer() = gpipe::Adam{};
    train.step(data.inputs, data.targets);
    CHECK(train.steps() == 7);
}

namespace {

// What SGD does without momentum, in an optimizer that has no state.
template <class Device, class... More> void keeps_nothing() {
    Trained<gpipe::SGD, Device, More...> sgd({}, 3e-3f);
    Trained<Plain, Device, More...> plain({}, 3e-3f);
    CHECK(sgd.losses == plain.losses);
    CHECK(sgd.parameters() == plain.parameters());
    CHECK(sgd.train.planned_bytes() == plain.train.planned_bytes());
    CHECK(sgd.train.used_bytes() == sgd.train.planned_bytes());
    Trained<gpipe::SGD, Device, More...> moved({.momentum = 0.5f}, 3e-3f);
    Trained<gpipe::RMSProp, Device, More...> root({}, 3e-3f), both({.momentum = 0.5f}, 3e-3f);
    for (std::size_t d = 0; d < 3; ++d) {
        std::size_t const one = moved.train.plan().devices[d].optimizer;
        CHECK(one > 0);
        CHECK(sgd.train.plan().devices[d].optimizer == 0);
        CHECK(root.train.plan().devices[d].optimizer == one);
        CHECK(both.train.plan().devices[d].optimizer == 2 * one);
    }
    // gradients() are means, whatever is planned in place of a state.
    toy::Data<float> const data(9, 7);
    for (float const decay : {0.0f, 0.5f}) {
        sgd.train.optimizer().weight_decay = plain.train.optimizer().learning_rate = 0;
        sgd.train.optimizer().learning_rate = 0;
        sgd.train.optimizer().weight_decay = decay;
        sgd.train.step(data.inputs, data.targets);
        plain.train.step(data.inputs, data.targets);
        std::vector<float> own(plain.parameters().size()), other = own;
        for (std::size_t layer = 0; layer < toy::layers<float>; ++layer)
            for (std::size_t t = 0; t < sgd.train.tensors(layer); ++t) {
                std::size_t const n =
                    toy::Net<float>::leaf_info[layer].parameters.bytes[t] / sizeof(float);
                own.resize(n), other.resize(n);
                sgd.train.template read_gradient<float>(layer, t, own);
                plain.train.template read_gradient<float>(layer, t, other);
                CHECK(own == other);
            }
    }
}

// The momentum of one that was made without.
template <class O, class Device, class... More>
void refuses_momentum(O optimizer, std::string const& wants) {
    Trained<O, Device, More...> trained(optimizer, 1e-3f);
    auto& train = trained.train;
    auto const before = trained.parameters();
    toy::Data<float> const data(9, 1);
    auto const set = [&](float momentum) {
        if constexpr (requires { train.optimizer().visit([](auto&) {}); })
            train.optimizer().visit([&](auto& o) {
                if constexpr (requires { o.momentum; }) o.momentum = momentum;
            });
        else
            train.optimizer().momentum = momentum;
    };
    set(0.5f);
    CHECK_THROWS_WITH_AS(
        train.step(data.inputs, data.targets),
        ("gpipe: " + wants + ": what is to have momentum later has to have some then").c_str(),
        std::invalid_argument);
    CHECK(train.steps() == 6);
    CHECK(trained.parameters() == before);
    set(0);
    train.step(data.inputs, data.targets);
    CHECK(train.steps() == 7);
}
template <class Device, class... More> void refuses_momentum() {
    std::string const of_sgd =
                          "gpipe::SGD wants more state (1) than when the Training was made (0)",
                      of_root =
                          "gpipe::RMSProp wants more state (2) than when the Training was made (1)";
    refuses_momentum<gpipe::SGD, Device, More...>({}, of_sgd);
    refuses_momentum<gpipe::RMSProp, Device, More...>({}, of_root);
    refuses_momentum<gpipe::Grouped<gpipe::SGD>, Device, More...>({}, of_sgd);
    refuses_momentum<Choice, Device, More...>(gpipe::SGD{}, of_sgd);
    refuses_momentum<Choice, Device, More...>(gpipe::RMSProp{}, of_root);
}

} // namespace

TEST_CASE("without momentum no velocity is planned, and the bits are those without any") {
    SUBCASE("on the host") { keeps_nothing<Host>(); }
    SUBCASE("on the host, updated at once") { keeps_nothing<Host, gpipe::update::Immediate>(); }
    SUBCASE("on a device with memory of its own") { keeps_nothing<Remote>(); }
}

TEST_CASE("momentum that was not planned is refused before the step") {
    SUBCASE("on the host") { refuses_momentum<Host>(); }
    SUBCASE("on the host, updated at once") { refuses_momentum<Host, gpipe::update::Immediate>(); }
    SUBCASE("on a device with memory of its own") { refuses_momentum<Remote>(); }
}

namespace {

// One that keeps the mean gradient, and has of SGD its rate.
struct Mean : gpipe::SGD {
    static constexpr std::size_t states = 1;
    template <class T> auto rule(gpipe::UpdateContext) const {
        return [rate = static_cast<T>(learning_rate)](T& p, T gradient, T& mean) {
            mean = T(0.5) * mean + T(0.5) * gradient;
            p -= rate * mean;
        };
    }
    template <class T>
    void operator()(gpipe::UpdateContext context,
                    gpipe::UpdateTensor<T, states> tensor) const noexcept {
        gpipe::apply_to_all(*this, context, tensor);
    }
};
struct MeanAlone {
    static constexpr std::size_t states = 1;
    float learning_rate = 1e-2f;
    template <class T> auto rule(gpipe::UpdateContext context) const {
        return Mean{{learning_rate}}.rule<T>(context);
    }
    template <class T>
    void operator()(gpipe::UpdateContext context,
                    gpipe::UpdateTensor<T, states> tensor) const noexcept {
        gpipe::apply_to_all(*this, context, tensor);
    }
};
// Whose state grows with what nobody compares.
struct Grows : MeanAlone {
    static constexpr std::size_t states = 1;
    bool keeps = false;
    std::size_t chosen_states() const { return keeps; }
};

// On one rank, or on all: whoever is told of more state.
template <class O, class F> void refused_on_ranks(F set) {
    using T = Train<O, Host, toy::Wired>;
    std::vector<toy::Watch> watches(3);
    auto crew = toy::Crew<T>({1, 1, 1}, false, 1, [&](std::size_t r, toy::Rank::Options device) {
        typename T::Options options;
        options.samples = 9;
        options.device = device;
        return std::make_unique<T>(toy::make_net<float>(watches[r]), toy::MeanSquare<float, 3>{},
                                   O{}, options);
    });
    toy::Data<float> const data(9, 1);
    for (std::size_t const given : {0u, 1u, 2u, 3u}) {
        crew.each([&](std::size_t r) {
            set(crew[r].optimizer(), given == 3 || given == r);
            crew[r].step(data.inputs, data.targets);
        });
        for (std::size_t r = 0; r < 3; ++r) {
            CAPTURE(r);
            REQUIRE(crew.errors[r]);
            CHECK_THROWS_WITH_AS(std::rethrow_exception(crew.errors[r]),
                                 doctest::Contains(given == 3 ? " wants more state (1) than when "
                                                              : "have to be told the same"),
                                 std::invalid_argument);
        }
    }
    crew.each([&](std::size_t r) {
        set(crew[r].optimizer(), false);
        crew[r].step(data.inputs, data.targets);
        CHECK(crew[r].steps() == 1);
    });
    crew.rethrow();
}

} // namespace

TEST_CASE("ranks refuse state that was not planned together, whoever is given it") {
    refused_on_ranks<gpipe::SGD>([](auto& o, bool more) { o.momentum = more ? 0.5f : 0; });
    refused_on_ranks<Grows>([](auto& o, bool more) { o.keeps = more; });
}

TEST_CASE("an optimizer that derives from SGD has its own states, whatever SGD's momentum is") {
    static_assert(gpipe::states_of(gpipe::SGD{}) == 0);
    static_assert(gpipe::states_of(Mean{}) == 1);
    static_assert(gpipe::states_of(gpipe::Grouped<gpipe::SGD>{}) == 0);
    static_assert(gpipe::states_of(gpipe::Grouped<Mean>{}) == 1);
    Trained<Mean, Host> derived({}, 3e-3f);
    Trained<MeanAlone, Host> alone({}, 3e-3f);
    CHECK(derived.losses == alone.losses);
    CHECK(derived.parameters() == alone.parameters());
    Trained<gpipe::Grouped<Mean>, Host> grouped({}, 3e-3f);
    CHECK(grouped.parameters() == alone.parameters());
}

TEST_CASE("momentum may rest: what there was stays for when it comes back") {
    Trained<gpipe::SGD, Host> trained({.learning_rate = 1e-2f, .momentum = 0.5f}, 1e-3f);
    auto& train = trained.train;
    toy::Data<float> const data(9, 1);
    std::vector<float> before(toy::Net<float>::leaf_info[0].parameters.bytes[0] / sizeof(float)),
        after = before;
    train.read_optimizer_state<float>(0, 0, 0, before);
    train.optimizer().momentum = 0;
    train.step(data.inputs, data.targets);
    train.read_optimizer_state<float>(0, 0, 0, after);
    CHECK(after == before);
    CHECK(std::any_of(after.begin(), after.end(), [](float v) { return v != 0; }));
    train.optimizer().momentum = 0.5f;
    train.step(data.inputs, data.targets);
    train.read_optimizer_state<float>(0, 0, 0, after);
    CHECK(after != before);
}
