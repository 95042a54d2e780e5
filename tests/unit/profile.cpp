// Profiles of layers, and cuts by them: section L of what torchgpipe's tests pin down. L1 and L6
// are in conformance/parity.cpp, too, L5 on a GPU in gpu/control.cu. L7, gradients that parameters
// have already, has no counterpart: a net has none, and a profile has memory of its own.

#include "support/buffer_layers.hpp"
#include "support/folder.hpp"
#include "support/net.hpp"
#include "support/skip_layers.hpp"

#include <gpipe/balance/by_profile.hpp>
#include <gpipe/profile.hpp>

#include <algorithm>
#include <array>
#include <clocale>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <doctest/doctest.h>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using gpipe::Tensor;

/// So many units of two milliseconds, forward and backward each.
struct Sleeper {
    using Input = Tensor<float, 1>;
    using Output = Tensor<float, 1>;
    int units = 0;
    int* calls = nullptr;

    void work() const {
        if (calls) ++*calls;
        timespec const time{0, units * 2'000'000L};
        nanosleep(&time, nullptr);
    }
    void forward(auto&, auto, auto) const { work(); }
    void backward(auto&, auto, auto, auto) const { work(); }
    bool operator==(Sleeper const&) const = default;
};
using Sleepers = gpipe::Pipeline<Sleeper, Sleeper, Sleeper, Sleeper, Sleeper, Sleeper>;

using Sizes = std::vector<std::size_t>;
/// Layers that take so long, forward or backward in turns.
gpipe::Profile taking(std::vector<double> const& seconds) {
    gpipe::Profile profile{1, 2, gpipe::Array<gpipe::LayerProfile>(seconds.size()),
                           gpipe::Array<std::string_view>(seconds.size(), "Layer")};
    for (std::size_t i = 0; i < seconds.size(); ++i)
        (i % 2 ? profile.layers[i].backward : profile.layers[i].forward) = seconds[i];
    return profile;
}
template <class Net> gpipe::Profile quick(Net const& net = {}, std::size_t samples = 2) {
    return gpipe::profile(net, {.samples = samples, .rounds = 1});
}

/// Has so many parameters, and keeps so many floats for each sample.
template <std::size_t Params, std::size_t Kept> struct TradeOff {
    using Input = Tensor<float, 1>;
    using Output = Tensor<float, 1>;
    using Parameters = Tensor<float, Params>;
    using Saved = Tensor<float, Kept>;
    void initialize(auto&) const {}
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};
/// Keeps so many floats for each sample.
template <std::size_t Kept> struct Keeper : TradeOff<1, Kept> {
    using Parameters = gpipe::Tensors<>;
};

/// Of so many numbers.
template <class T, std::size_t n> struct Holder {
    using Input = Tensor<T, n>;
    using Output = Tensor<T, n>;
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};

/// Of the same shapes.
struct OtherKeeper : Keeper<2> {};

/// Notes a number of all that it is given.
struct Notes : toy::Tanh<float, 8> {
    std::vector<float>* to = nullptr;
    void forward(auto& ctx, auto x, auto y) const {
        static_assert(std::is_same_v<decltype(x.data()), float const*>); // which it cannot change
        if (to) to->push_back(x(1, 3));
        toy::Tanh<float, 8>::forward(ctx, x, y);
    }
};
/// Notes what it was given last.
struct Recorder : toy::Plus<float, 1, 0> {
    float* given = nullptr;
    void forward(auto& ctx, auto x, auto) const {
        given[0] = x(0, 0);
        given[1] = gpipe::pop<toy::SkipTag<0>>(ctx)(0, 0);
    }
};

} // namespace

TEST_CASE("L1 balances of given times: 1 to 6 in two cells are 4 and 2, nothing twice 1 and 1") {
    CHECK(gpipe::balance::by_time(taking({1, 2, 3, 4, 5, 6}), 2) == Sizes{4, 2});
    CHECK(gpipe::balance::by_time(taking({0, 0}), 2) == Sizes{1, 1});
    CHECK_THROWS_AS(gpipe::balance::by_time(taking({1}), 0), std::invalid_argument);
    for (std::size_t const cells : {std::size_t{2}, std::size_t{1} << 60, ~std::size_t{0}})
        CHECK_THROWS_AS(gpipe::balance::by_time(taking({1}), cells), std::invalid_argument);
    CHECK_THROWS_AS(gpipe::balance::by_time(taking({}), 1), std::invalid_argument);
}

TEST_CASE("L2 layers that sleep for 1 to 6 units are cut into 4 and 2 by time") {
    Sleepers const net({1}, {2}, {3}, {4}, {5}, {6});
    gpipe::Profile const profile = gpipe::profile(net, {.samples = 1, .rounds = 3});
    INFO(profile);
    CHECK(gpipe::balance::by_time(profile, 2) == Sizes{4, 2});
}

TEST_CASE("L3 a convolution and linear layers are timed with what each is given, in each round the "
          "same") {
    using Net = gpipe::Pipeline<toy::Conv<float, 8>, Notes, toy::Linear<float, 8, 512>>;
    Net net;
    std::vector<float> notes;
    const_cast<Notes*>(static_cast<Notes const*>(net.leaf_objects()[1]))->to = &notes;
    gpipe::Profile const profile = gpipe::profile(net, {.samples = 64});
    INFO(profile);
    CHECK(gpipe::balance::by_time(profile, 2) == Sizes{2, 1});
    CHECK(notes.size() > 2);
    CHECK(notes.front() != 0);
    CHECK(std::count(notes.begin(), notes.end(), notes.front()) ==
          static_cast<std::ptrdiff_t>(notes.size()));
    gpipe::LayerTimes const times = profile.times();
    REQUIRE(times.forward.size() == 3);
    for (std::size_t l = 0; l < 3; ++l) {
        CHECK(times.forward[l] == profile.layers[l].forward);
        CHECK(times.backward[l] == profile.layers[l].backward);
        CHECK(times.weight_gradient[l] == profile.layers[l].weight_gradient);
    }
}

TEST_CASE("L4 by size: what layers keep, their parameters, and what wins by param_scale") {
    using gpipe::balance::by_size;
    gpipe::Profile const keeps = quick<
        gpipe::Pipeline<Keeper<10>, Keeper<20>, Keeper<30>, Keeper<40>, Keeper<50>, Keeper<60>>>();
    CHECK(by_size(keeps, 2) == Sizes{4, 2});
    gpipe::Profile const kept = quick<
        gpipe::Pipeline<Keeper<60>, Keeper<50>, Keeper<40>, Keeper<30>, Keeper<20>, Keeper<10>>>();
    CHECK(by_size(kept, 2) == Sizes{2, 4});

    using L = float;
    gpipe::Profile const grows =
        quick<gpipe::Pipeline<toy::Linear<L, 1, 2>, toy::Linear<L, 2, 3>, toy::Linear<L, 3, 4>,
                              toy::Linear<L, 4, 5>, toy::Linear<L, 5, 6>, toy::Linear<L, 6, 7>>>();
    CHECK(by_size(grows, 2, {.param_scale = 100}) == Sizes{4, 2});
    gpipe::Profile const shrinks =
        quick<gpipe::Pipeline<toy::Linear<L, 7, 6>, toy::Linear<L, 6, 5>, toy::Linear<L, 5, 4>,
                              toy::Linear<L, 4, 3>, toy::Linear<L, 3, 2>, toy::Linear<L, 2, 1>>>();
    CHECK(by_size(shrinks, 2, {.param_scale = 100}) == Sizes{2, 4});

    // Linearly: of torchgpipe's matrices of 1 to 6 rows and columns 5 and 1 have less than 4 and 2.
    gpipe::Profile const opposed =
        quick<gpipe::Pipeline<TradeOff<1, 60>, TradeOff<2, 50>, TradeOff<3, 40>, TradeOff<4, 30>,
                              TradeOff<5, 20>, TradeOff<6, 10>>>();
    CHECK(by_size(opposed, 2, {.param_scale = 0}) == Sizes{2, 4});
    CHECK(by_size(opposed, 2, {.param_scale = 1000}) == Sizes{4, 2});
    // Two samples of one float out, and of sixty kept; one parameter.
    CHECK(opposed.layers[0].output == 8);
    CHECK(opposed.layers[0].saved == 480);
    CHECK(opposed.layers[0].parameters == 4);
}

TEST_CASE("L5 layers are profiled in training, and a training of the same net goes on as before") {
    using Net = toy::Net<float>;
    toy::Data<float> const data(8);
    auto const losses = [&](bool profiles) {
        toy::Watch watch;
        watch.logs = true;
        Net const net = toy::make_net<float>(watch);
        toy::Train<float, gpipe::device::Host> train(
            net, {}, {}, {.samples = 8, .cells = 2, .micro_batches = 2});
        std::vector<double> result;
        for (int step = 0; step < 3; ++step) {
            result.push_back(train.step(data.inputs, data.targets).loss);
            if (!profiles) continue;
            watch.reset();
            quick(net, 4);
            auto const log = watch.log();
            CHECK(log.size() >= 3 * Net::size);
            for (toy::Call const& call : log) CHECK(call.training);
        }
        return result;
    };
    CHECK(losses(true) == losses(false));
}

TEST_CASE("L5 nor does a profile move statistics") {
    using Net = toy::BufferNet<float>;
    toy::Data<float> const data(8);
    auto const state = [&](bool profiles) {
        Net const net;
        toy::Training<Net, toy::MeanSquare<float, 3>, gpipe::SGD, gpipe::device::Host> train(
            net, {}, {}, {.samples = 8, .seed = 7, .cells = 2, .micro_batches = 2});
        std::vector<double> all;
        for (int step = 0; step < 3; ++step) {
            if (profiles) quick(net, 4);
            toy::add_state<Net>(train, all); // parameters and buffers
            all.push_back(train.step(data.inputs, data.targets).loss);
        }
        return all;
    };
    auto const expected = state(false);
    CHECK(state(true) == expected);
}

TEST_CASE("a layer is timed with what those before give and stash") {
    using Net = gpipe::Pipeline<toy::Copy<float, 1, 0>, toy::Linear<float, 1, 1>, Recorder>;
    float given[2] = {};
    Recorder recorder;
    recorder.given = given;
    quick(Net({}, {}, recorder), 1);
    gpipe::InitialRandom weight(0, 1, 0), bias(0, 1, 1);
    CHECK(given[1] == static_cast<float>(gpipe::InitialRandom(0, 0, 0).normal()));
    CHECK(given[0] == static_cast<float>(bias.uniform(-0.1, 0.1)) +
                          static_cast<float>(weight.normal()) * given[1]);
}

TEST_CASE("equal layers are timed once: in a Repeat, or where == says so, but not the lowest") {
    int calls[4] = {};
    using Net = gpipe::Pipeline<gpipe::Repeat<5, Sleeper>, Sleeper, Sleeper, Sleeper>;
    Net const net(gpipe::Repeat<5, Sleeper>(Sleeper{0, &calls[0]}), {0, &calls[1]}, {0, &calls[1]},
                  {0, &calls[3]});
    gpipe::profile(net, {.samples = 1, .rounds = 7});
    // Without parameters nobody has a backward: first once to see what it gives, and then to hand
    // that on, where somebody is behind.
    CHECK(calls[0] > 14);
    CHECK(calls[0] == calls[1]);
    CHECK(calls[2] == 0);
    CHECK(calls[3] == calls[1] - 1);

    using Linear = toy::Watched<toy::Linear<float, 3, 3>>;
    using Lines = gpipe::Pipeline<gpipe::Repeat<4, Linear>>;
    toy::Watch watch;
    gpipe::Profile const lines = quick(Lines(gpipe::Repeat<4, Linear>(Linear(watch))));
    CHECK(watch.count(0, gpipe::Phase::backward) == 1);
    CHECK(watch.count(1, gpipe::Phase::backward) == 1);
    CHECK(watch.count(1, gpipe::Phase::input_gradient) == 1);
    CHECK(watch.count(1, gpipe::Phase::recompute) == 1);
    CHECK(watch.count(2, gpipe::Phase::forward) == 0);
    CHECK(lines.layers[3].backward == lines.layers[1].backward);
}

TEST_CASE("a profile of another chain, or other micro-batches, is refused with a sentence") {
    using Net = gpipe::Pipeline<Keeper<1>, Keeper<2>>;
    gpipe::Profile const profile = quick<Net>();
    gpipe::ProfileView const view = profile;
    CHECK(&gpipe::checked_profile<Net>(view, 2) == &view);
    CHECK_THROWS_WITH_AS((gpipe::checked_profile<gpipe::Pipeline<Keeper<1>>>(view, 2)),
                         "gpipe: the profile is stale: it is of 2 layers, and the chain has 1; "
                         "profile it again",
                         std::invalid_argument);
    CHECK_THROWS_WITH_AS(gpipe::checked_profile<Net>(view, 4),
                         "gpipe: the profile is stale: it is for micro-batches of 2 samples, not "
                         "of 4; profile the chain again",
                         std::invalid_argument);
    char const* const other = "gpipe: the profile is stale: it is of layers of other types or "
                              "shapes; profile the chain again";
    CHECK_THROWS_WITH_AS((gpipe::checked_profile<gpipe::Pipeline<Keeper<2>, Keeper<1>>>(view, 2)),
                         other, std::invalid_argument);
    CHECK_THROWS_WITH_AS((gpipe::checked_profile<gpipe::Pipeline<Keeper<1>, OtherKeeper>>(view, 2)),
                         other, std::invalid_argument);
    using Narrow = gpipe::Pipeline<Holder<float, 4>, Holder<float, 4>>;
    CHECK_THROWS_WITH_AS(
        (gpipe::checked_profile<gpipe::Pipeline<Holder<double, 2>, Holder<double, 2>>>(
            quick<Narrow>(), 2)),
        other, std::invalid_argument);
    for (std::size_t const samples : {0, 2})
        CHECK_THROWS_WITH_AS(
            gpipe::profile(Net{}, {.samples = samples, .rounds = samples == 0 ? 1u : 0u}),
            "gpipe: a profile is of one sample and one round at least", std::invalid_argument);
    for (std::size_t const samples : {~std::size_t{0}, ~std::size_t{0} / 2})
        CHECK_THROWS_WITH_AS(quick<Net>({}, samples),
                             doctest::Contains("than memory has addresses"), std::invalid_argument);
}

TEST_CASE("a profile reads as a table, and as a header of constants") {
    gpipe::Profile profile = taking({3e-6, 6e-3});
    profile.layers[1].parameters = 4096;
    CHECK(to_string(profile) ==
          "layer  type   forward  recompute  backward  its input's  its weights'  parameters  "
          "saved  output\n"
          "    0  Layer      3.0        0.0       0.0          0.0           0.0           0      "
          "0       0\n"
          "    1  Layer      0.0        0.0    6000.0          0.0           0.0       4,096      "
          "0       0\n"
          "in microseconds and bytes, for a micro-batch of 2 samples\n");
    std::string const header = gpipe::profile_header(profile, "of_two");
    CHECK(header.find("\n    {0, 0, 0.006, 0, 0, 4096, 0, 0}, // Layer\n};\n"
                      "inline constexpr gpipe::ProfileView of_two{1u, 2, {of_two_layers, 2}};\n") !=
          std::string::npos);
    { // where numbers are written with a comma, too
        toy::Folder const locales;
        REQUIRE(std::system(("localedef -i de_DE -f UTF-8 " + (locales / "de")).c_str()) == 0);
        ::setenv("LOCPATH", locales.path.c_str(), 1);
        REQUIRE(std::setlocale(LC_NUMERIC, "de"));
        CHECK(std::to_string(0.5)[1] == ',');
        CHECK(gpipe::profile_header(profile, "of_two") == header);
        std::setlocale(LC_NUMERIC, "C");
        ::unsetenv("LOCPATH");
    }
    CHECK(gpipe::profile_header(profile, "_2").find(" _2{") != std::string::npos);
    for (char const* name : {"", "2nd", "of-two", "of two", "zwei\xc3\xbc"})
        CHECK_THROWS_WITH_AS(static_cast<void>(gpipe::profile_header(profile, name)),
                             doctest::Contains("which cannot be called '"), std::invalid_argument);
}

TEST_CASE("Options::balance cuts a training of Cells<dynamic>, and no other") {
    using Net = gpipe::Pipeline<gpipe::Repeat<4, toy::Linear<float, 3, 3>>>;
    using Train = toy::Training<Net, toy::MeanSquare<float, 3>, gpipe::SGD, gpipe::device::Host>;
    auto const options = [](Sizes const& balance, std::size_t cells = 0) {
        return Train::Options{.samples = 4, .cells = cells, .balance = balance};
    };
    Train const train(Net{}, {}, {}, options(gpipe::balance::by_time(taking({1, 1, 1, 3}), 2)));
    CHECK(train.devices() == 2);
    CHECK(train.plan().first[1] == 3);
    CHECK(Train(Net{}, {}, {}, {.samples = 4, .balance = {1, 3}}).plan().first[1] == 1);
    CHECK_THROWS_AS(Train(Net{}, {}, {}, options({3, 3})), std::invalid_argument);
    CHECK_THROWS_AS(Train(Net{}, {}, {}, options({0, 4})), std::invalid_argument);
    CHECK_THROWS_AS(Train(Net{}, {}, {}, options({2, 2}, 3)), std::invalid_argument);
    using Fixed = gpipe::Training<Net, gpipe::Cells<2>, gpipe::Loss<toy::MeanSquare<float, 3>>>;
    CHECK_THROWS_WITH_AS(Fixed(Net{}, {}, {}, {.samples = 4, .balance = {2, 2}}),
                         "gpipe: Options::balance is for Cells<dynamic>, but the type says how the "
                         "layers are cut",
                         std::invalid_argument);
}
