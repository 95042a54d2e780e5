// An optimizer that is chosen at construction trains bit by bit as the same one in the type.
#include <support/net.hpp>

#include <gpipe/optimizer/optimizer_catalogue.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
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
                if constexpr (requires { train.optimizer().chosen_states(); })
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
    check(gpipe::RMSProp{.momentum = 0.5f});
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
