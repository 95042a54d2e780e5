// Rates and decay by layer and tensor, and what an optimizer is told of a tensor.
#include <support/net.hpp>

#include <gpipe/optimizer/hooked.hpp>
#include <gpipe/optimizer/optimizer_catalogue.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using gpipe::Grouped, gpipe::ParameterGroup;
using toy::Remote, gpipe::device::Host;

using Linear = toy::Watched<toy::Linear<float, 5, 6>>;

/// An own optimizer that is told nothing but what it asks: another rate for a type of layers.
struct ByType : gpipe::SGD {
    template <class T>
    void operator()(gpipe::UpdateContext context,
                    gpipe::UpdateTensor<T, states> tensor) const noexcept {
        if (context.of_layer<Linear>()) context.rate *= 0.25f;
        if (context.layer == 9 && context.tensor == 1) context.rate = 0;
        gpipe::SGD::operator()(context, tensor);
    }
};

/// What happens in step `i`: rates of groups change, and come to rest.
template <class O> void set(O& optimizer, std::size_t i) {
    optimizer.learning_rate = 1e-2f / static_cast<float>(i + 1);
    if constexpr (requires { optimizer.groups; }) {
        optimizer.groups[0] = {.last_layer = 4, .rate = 0.5f, .decay = i % 2 ? 0.0f : 2.0f};
        optimizer.groups[1] = {.type = gpipe::type_id<Linear>, .rate = i == 2 ? 0.0f : 3.0f};
        optimizer.groups[2] = {
            .first_layer = 9, .last_layer = 9, .tensor = 0, .rate = i < 2 ? 0.0f : 1.0f};
        optimizer.groups[7] = {.first_layer = 6, .last_layer = 6, .rate = 0};
    }
}

/// Steps of a training that begin before others are done are those of the plain loop, in every bit.
template <class Device, class... More, class O>
void check(O const& optimizer, std::string const& name) {
    using Net = toy::Net<float>;
    using Loss = toy::MeanSquare<float, 3>;
    using Train = gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<4>,
                                  gpipe::Loss<Loss>, gpipe::Optimizer<O>, gpipe::schedule::Dynamic,
                                  Device, More...>;
    std::vector<std::size_t> const sizes{9, 4, 9, 7, 9};
    for (auto const order : {toy::Backward::ascending, toy::Backward::descending}) {
        toy::Watch watch;
        toy::Reference<Net, Loss, O> plain(toy::make_net<float>(watch), {}, optimizer, 3, 4, order);
        std::vector<double> losses;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            set(plain.optimizer(), i);
            toy::Data<float> const data(sizes[i], static_cast<std::uint32_t>(i));
            losses.push_back(plain.step(data.inputs, data.targets));
        }
        std::size_t point = 0;
        for (toy::NamedSchedule const& schedule : toy::schedules)
            for (std::size_t cells = 1; cells <= 4; ++cells)
                for (auto const& run : toy::runs<Device>()) {
                    if (schedule.order != order || point++ % toy::one_of(5) != 0) continue;
                    typename Train::Options options;
                    options.samples = 9;
                    options.seed = 3;
                    options.cells = cells;
                    options.schedule = schedule.policy;
                    options.device = run;
                    Train train(toy::make_net<float>(watch), {}, optimizer, options);
                    std::vector<typename Train::Pending> pending;
                    for (std::size_t i = 0; i < sizes.size(); ++i) {
                        set(train.optimizer(), i);
                        toy::Data<float> const data(sizes[i], static_cast<std::uint32_t>(i));
                        pending.push_back(train.start(data.inputs, data.targets));
                    }
                    INFO(name, ", ", schedule.name, ", K = ", cells, ", ", toy::describe(run));
                    for (std::size_t i = 0; i < sizes.size(); ++i)
                        CHECK(pending[i].result().loss == losses[i]);
                    CHECK(toy::difference(train, plain) == "");
                }
    }
}
} // namespace

TEST_CASE(
    "groups take their rates and decay, set between steps, as in a plain loop, in every bit") {
    Grouped<gpipe::AdamW> const adam_w{{.weight_decay = 0.1f}};
    SUBCASE("with each optimizer") {
        check<Host>(Grouped<gpipe::SGD>{{.momentum = 0.9f, .weight_decay = 0.1f}}, "SGD");
        check<Host>(Grouped<gpipe::RMSProp>{{.momentum = 0.5f, .weight_decay = 0.1f}}, "RMSProp");
        check<Host>(Grouped<gpipe::Adam>{{.weight_decay = 0.1f}}, "Adam");
        check<Host>(adam_w, "AdamW");
        check<Host>(ByType{{.momentum = 0.9f, .weight_decay = 0.1f}}, "an own one");
    }
    SUBCASE("updated at once") { check<Host, gpipe::update::Immediate>(adam_w, "AdamW at once"); }
    SUBCASE("on a device with memory of its own") { check<Remote>(adam_w, "AdamW"); }
}

TEST_CASE("parameters that rest keep every bit, decay or not, and the others train on") {
    using Train = toy::Training<toy::Net<float>, toy::MeanSquare<float, 3>,
                                Grouped<gpipe::optimizer::Dynamic>, Host>;
    for (auto const& entry : gpipe::optimizer::optimizers().entries()) {
        Grouped<gpipe::optimizer::Dynamic> optimizer{gpipe::optimizer::find_optimizer(entry.name)};
        optimizer.visit([](auto& own) { own.weight_decay = 0.5f; });
        optimizer.groups[3] = {.first_layer = 4, .last_layer = 9, .rate = 0};
        toy::Watch watch;
        Train train(toy::make_net<float>(watch), {}, optimizer,
                    {.samples = 8, .seed = 3, .cells = 2, .micro_batches = 2});
        toy::Data<float> const data(8);
        auto const bits = [&](std::size_t layer) {
            auto const values = train.parameter<float>(layer, 0);
            std::vector<std::uint32_t> result(values.size());
            std::memcpy(result.data(), values.data(), values.size_bytes());
            return result;
        };
        train.parameter<float>(9, 0)[1] = -0.0f; // is 0 after p - 0 * m
        auto const resting = bits(9), carried = bits(4), moving = bits(0);
        for (int step = 0; step < 20; ++step) train.step(data.inputs, data.targets);
        CAPTURE(entry.name);
        CHECK(bits(9) == resting);
        CHECK(bits(4) == carried);
        CHECK(bits(0) != moving);
        train.optimizer().groups[3].rate = 1;
        train.step(data.inputs, data.targets);
        CHECK(bits(9) != resting);
    }
}

TEST_CASE("a rate that is no number, and one out of its bounds, is refused before anything "
          "changes, and in no other step") {
    using Net = toy::Net<float>;
    using Loss = toy::MeanSquare<float, 3>;
    using Chosen = gpipe::optimizer::OneOf<Grouped<gpipe::AdamW>, gpipe::SGD>;
    float const no_number = std::numeric_limits<float>::quiet_NaN();
    float const infinite = std::numeric_limits<float>::infinity();
    toy::Data<float> const data(8);
    auto const refuses = [&](auto optimizer, char const* name, auto change) {
        toy::Watch watch;
        toy::Training<Net, Loss, decltype(optimizer), Host> train(
            toy::make_net<float>(watch), {}, optimizer, {.samples = 8, .seed = 3, .cells = 2});
        train.step(data.inputs, data.targets);
        auto const right = train.optimizer();
        auto const parameters = [&] {
            auto const all = train.template parameter<float>(0, 0);
            return std::vector<float>(all.begin(), all.end());
        };
        auto const before = parameters();
        change(train.optimizer());
        CHECK_THROWS_WITH_AS(train.step(data.inputs, data.targets),
                             doctest::Contains((std::string("optimizer's ") + name).c_str()),
                             std::invalid_argument);
        CHECK(parameters() == before);
        CHECK(train.steps() == 1);
        train.optimizer() = right;
        CHECK_NOTHROW(train.step(data.inputs, data.targets));
    };
    refuses(gpipe::SGD{}, "learning_rate is nan", [&](auto& o) { o.learning_rate = no_number; });
    refuses(gpipe::AdamW{}, "weight_decay is inf", [&](auto& o) { o.weight_decay = infinite; });
    refuses(Grouped<gpipe::SGD>{}, "groups[].rate is nan",
            [&](auto& o) { o.groups[2].rate = no_number; });
    refuses(Chosen(Grouped<gpipe::AdamW>{}), "learning_rate is -inf",
            [&](auto& o) { o.visit([&](auto& chosen) { chosen.learning_rate = -infinite; }); });
    refuses(Chosen(Grouped<gpipe::AdamW>{}), "groups[].rate is nan", [&](auto& o) {
        o.visit([&](auto& chosen) {
            if constexpr (requires { chosen.groups; }) chosen.groups[7].rate = no_number;
        });
    });
    refuses(gpipe::SGD{}, "momentum is nan", [&](auto& o) { o.momentum = no_number; });
    refuses(gpipe::RMSProp{}, "alpha is inf", [&](auto& o) { o.alpha = infinite; });
    // What it takes the root of would be negative.
    refuses(gpipe::RMSProp{.alpha = 1, .epsilon = 1}, "alpha is 1.5, not 0 or more, and at most 1",
            [](auto& o) { o.alpha = 1.5f; });
    refuses(Grouped<gpipe::RMSProp>{}, "alpha is -0.5, not 0 or more",
            [](auto& o) { o.alpha = -0.5f; });
    refuses(gpipe::Adam{}, "epsilon is -1e-08, not 0 or more",
            [&](auto& o) { o.epsilon = -1e-8f; });
    refuses(gpipe::Adam{}, "epsilon is nan", [&](auto& o) { o.epsilon = no_number; });
    refuses(gpipe::Adam{}, "beta1 is 1, not 0 or more, and less than 1",
            [](auto& o) { o.beta1 = 1; });
    refuses(gpipe::AdamW{}, "beta2 is -0.5, not 0 or more, and less than 1",
            [](auto& o) { o.beta2 = -0.5f; });
    using Clipped = gpipe::Hooked<gpipe::SGD, gpipe::ClipByValue>;
    refuses(Clipped{}, "hook.limit is -1, not 0 or more", [](auto& o) { o.hook.limit = -1; });
    refuses(Grouped<Clipped>{}, "hook.limit is nan", [&](auto& o) { o.hook.limit = no_number; });
    refuses(gpipe::Hooked<Clipped, gpipe::ClipByValue>{}, "hook.limit is nan",
            [&](auto& o) { static_cast<Clipped&>(o).hook.limit = no_number; });
    using Groups = Grouped<gpipe::SGD>;
    refuses(Grouped<Groups>{}, "groups[].decay is inf",
            [&](auto& o) { static_cast<Groups&>(o).groups[1].decay = infinite; });
}

TEST_CASE(
    "groups that are changed are looked at again, and nothing changes where they do not fit") {
    toy::Watch watch;
    toy::Training<toy::Net<float>, toy::MeanSquare<float, 3>, Grouped<gpipe::SGD>, Host> train(
        toy::make_net<float>(watch), {}, {}, {.samples = 8, .seed = 3, .cells = 2});
    toy::Data<float> const data(8);
    train.optimizer().groups[2] = {.first_layer = 3, .last_layer = 10};
    CHECK_THROWS_WITH_AS(train.step(data.inputs, data.targets),
                         doctest::Contains("groups[2] of the optimizer is of layers 3 to 10"),
                         std::invalid_argument);
    CHECK(train.steps() == 0);
    train.optimizer().groups[2].last_layer = 9;
    CHECK_NOTHROW(train.step(data.inputs, data.targets));
}

TEST_CASE("a group of layers or parameters that the chain does not have is refused, and named") {
    using Net = toy::Net<float>;
    using Loss = toy::MeanSquare<float, 3>;
    static_assert(Net::size == 10);
    auto const construct = [](auto const& optimizer) {
        using Optimizer = std::remove_cvref_t<decltype(optimizer)>;
        toy::Watch watch;
        toy::Training<Net, Loss, Optimizer, Host>(
            toy::make_net<float>(watch), {}, optimizer,
            {.samples = 8, .seed = 3, .cells = 2, .micro_batches = 2});
    };
    auto const of = [](std::uint32_t first, std::uint32_t last) {
        Grouped<gpipe::SGD> optimizer;
        optimizer.groups[5] = {.first_layer = first, .last_layer = last};
        return optimizer;
    };
    CHECK_NOTHROW(construct(of(0, 9)));
    CHECK_NOTHROW(construct(of(9, ParameterGroup::every)));
    CHECK_THROWS_WITH_AS(construct(of(4, 10)),
                         "gpipe: groups[5] of the optimizer is of layers 4 to 10, but L = 10: the "
                         "chain has layers 0 to 9",
                         std::invalid_argument);
    CHECK_THROWS_WITH_AS(construct(of(10, ParameterGroup::every)),
                         "gpipe: groups[5] of the optimizer is of layers 10 and above, but L = 10: "
                         "the chain has layers 0 to 9",
                         std::invalid_argument);
    CHECK_THROWS_WITH_AS(construct(of(4, 3)),
                         "gpipe: groups[5] of the optimizer is of layers 4 to 3: there are none",
                         std::invalid_argument);
    CHECK_NOTHROW(construct(of(4, 4)));
    // Of layers that are there, but none of their parameters.
    CHECK_THROWS_WITH_AS(construct(of(1, 1)),
                         "gpipe: groups[5] of the optimizer is of nothing: none of its layers has "
                         "a parameter tensor; tied ones are those of the first of their layers",
                         std::invalid_argument);
    auto const with = [](ParameterGroup const& group) {
        Grouped<gpipe::SGD> optimizer;
        optimizer.groups[1] = group;
        return optimizer;
    };
    CHECK_NOTHROW(construct(with({.tensor = 1, .type = gpipe::type_id<Linear>})));
    CHECK_THROWS_WITH_AS(construct(with({.tensor = 2, .type = gpipe::type_id<Linear>})),
                         "gpipe: groups[1] of the optimizer is of nothing: none of its layers of "
                         "that type has a parameter tensor 2; tied ones are those of the first of "
                         "their layers",
                         std::invalid_argument);
    CHECK_THROWS_WITH_AS(construct(with({.first_layer = 1, .type = gpipe::type_id<Linear>})),
                         doctest::Contains("of that type has a parameter tensor"),
                         std::invalid_argument);
    CHECK_THROWS_AS(construct(with({.type = gpipe::type_id<int>})), std::invalid_argument);
    CHECK_THROWS_WITH_AS(construct(with({.tensor = 7})),
                         doctest::Contains("groups[1] of the optimizer is of nothing"),
                         std::invalid_argument);
    CHECK_THROWS_AS(
        construct(gpipe::optimizer::OneOf<gpipe::SGD, Grouped<gpipe::SGD>>(with({.tensor = 7}))),
        std::invalid_argument);
    Grouped<Grouped<gpipe::SGD>, 2> twice;
    CHECK_NOTHROW(construct(twice));
    static_cast<Grouped<gpipe::SGD>&>(twice) = with({.tensor = 7});
    CHECK_THROWS_WITH_AS(construct(twice), doctest::Contains("groups[1] of the"),
                         std::invalid_argument);
    static_cast<Grouped<gpipe::SGD>&>(twice) = of(11, 12);
    CHECK_THROWS_AS(construct(twice), std::invalid_argument);
    CHECK_THROWS_AS(construct(gpipe::optimizer::OneOf<gpipe::SGD, Grouped<gpipe::SGD>>(of(11, 12))),
                    std::invalid_argument);
}

namespace {

struct Table; // the tag
struct TiedLinear : toy::Linear<float, 5, 5> {
    using Tied = gpipe::Tie<Table, 0>;
};

} // namespace

TEST_CASE("a group of frozen parameters is one, a group of a later end of a tie is none") {
    auto const construct = []<class Net>(Net const& net, ParameterGroup const& group,
                                         std::vector<std::size_t> const& frozen = {}) {
        Grouped<gpipe::SGD> optimizer;
        optimizer.groups[0] = group;
        toy::Training<Net, toy::MeanSquare<float, 3>, Grouped<gpipe::SGD>, Host>(
            net, {}, optimizer, {.samples = 8, .cells = 1, .micro_batches = 2, .frozen = frozen});
    };
    using Last = toy::Linear<float, 5, 3>;
    gpipe::Pipeline<gpipe::Frozen<toy::Linear<float, 5, 5>>, Last> const by_type;
    CHECK_NOTHROW(construct(by_type, {.last_layer = 0}));
    gpipe::Pipeline<toy::Linear<float, 5, 5>, Last> const by_option;
    CHECK_NOTHROW(construct(by_option, {.last_layer = 0}, {0}));
    gpipe::Pipeline<TiedLinear, TiedLinear, Last> const tied;
    CHECK_NOTHROW(construct(tied, {.last_layer = 0, .tensor = 0}));
    CHECK_NOTHROW(construct(tied, {.first_layer = 1, .last_layer = 1}));
    CHECK_THROWS_WITH_AS(construct(tied, {.first_layer = 1, .last_layer = 1, .tensor = 0}),
                         doctest::Contains("tied ones are those of the first of their layers"),
                         std::invalid_argument);
}
