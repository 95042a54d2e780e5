// A loss and gradients that are not finite: the step throws before the update, with the place, and
// nothing has changed; or training goes on, if it is told to.
#include "support/net.hpp"

#include <cmath>
#include <cstddef>
#include <doctest/doctest.h>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::FailureOf;
using gpipe::NotFinite;
using gpipe::device::Host;
using toy::Remote;
using Real = double;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double no_number = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t L = 4, M = 3, N = 7, width = 3;

// What is added to the gradient of a layer's tensor in the backward of the first micro-batch.
struct Spoilt {
    std::size_t layer = L;
    std::size_t tensor = 0;
    double value = 0;
};
std::vector<Spoilt> spoilt;
struct Spoils : toy::Linear<Real, width, width> {
    void spoil(auto& ctx) const {
        auto [dw, db] = ctx.gradients();
        for (Spoilt const& s : spoilt)
            if (s.layer == ctx.layer() && ctx.first_sample() == 0)
                (s.tensor == 0 ? dw.data() : db.data())[1] += s.value;
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        toy::Linear<Real, width, width>::backward(ctx, x, dy, dx);
        spoil(ctx);
    }
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        toy::Linear<Real, width, width>::weight_gradient(ctx, x, dy);
        spoil(ctx);
    }
};
// The loss says what the first target of a micro-batch does, whatever comes out; its gradient is
// finite. The weight is that of all samples.
struct Says {
    using Target = gpipe::Tensor<Real>;
    static inline double weight = 1;
    gpipe::LossValue<> operator()(auto&, auto y, auto target, auto dy) const {
        if constexpr (!gpipe::is_none<decltype(dy)>)
            for (std::size_t s = 0; s < y.samples(); ++s)
                for (std::size_t i = 0; i < width; ++i) dy(s, i) = y(s, i);
        return {target(0), weight * static_cast<double>(y.samples())};
    }
};
using Net = gpipe::Pipeline<Spoils, Spoils, Spoils, Spoils>;
template <class Device> using Train = toy::Training<Net, Says, Adam, Device>;

template <class T>
typename T::Options options(std::size_t cells, gpipe::schedule::Dynamic schedule) {
    typename T::Options o;
    o.samples = N;
    o.seed = 3;
    o.cells = cells;
    o.micro_batches = M;
    o.schedule = schedule;
    return o;
}
// Parameters and optimizer state, every byte.
template <class T> std::vector<std::byte> state_of(T& train) {
    std::vector<std::byte> bytes;
    for (std::size_t d = 0; d < train.devices(); ++d) {
        auto const arena = train.arena(d);
        auto const& plan = train.plan().devices[d];
        bytes.insert(bytes.end(), arena.data(), arena.data() + plan.parameters);
        std::byte const* const states = arena.data() + plan.parameters + plan.gradients;
        bytes.insert(bytes.end(), states, states + plan.optimizer);
    }
    return bytes;
}
std::vector<Real> inputs() { return toy::numbers<Real>(N * width, 5); }
std::vector<Real> ones() { return std::vector<Real>(N, 1); }
std::size_t first_sample(std::size_t m) {
    std::size_t first = 0;
    for (std::size_t i = 0; i < m; ++i) first += toy::deal(N, M)[i];
    return first;
}
template <class T> std::string message(T& train, std::vector<Real> const& targets) {
    try {
        train.step(inputs(), targets);
    } catch (std::domain_error const& error) {
        return error.what();
    }
    return "nothing was thrown";
}
bool has(std::string const& text, std::string const& part) {
    bool const there = text.find(part) != std::string::npos;
    if (!there) MESSAGE(text);
    return there;
}

// Every schedule that has so many cells, each on a way to run of its own.
template <class Device, class F> void each_way(F f) {
    std::size_t way = 0;
    for (std::size_t cells : {std::size_t{1}, std::size_t{2}, L})
        for (gpipe::schedule::Dynamic const& schedule :
             {gpipe::schedule::Dynamic(gpipe::schedule::GPipe{}),
              gpipe::schedule::Dynamic(gpipe::schedule::ZeroBubbleH1{}),
              gpipe::schedule::Dynamic(gpipe::schedule::ZeroBubbleV{})}) {
            if (cells * schedule.cells_per_device() > L) continue;
            auto o = options<Train<Device>>(cells, schedule);
            auto const runs = toy::runs<Device>();
            o.device = runs[way++ % runs.size()];
            INFO(schedule.name(), ", K = ", cells, ", ", toy::describe(o.device));
            f(o);
        }
}

} // namespace

TEST_CASE_TEMPLATE(
    "a loss that is not finite is thrown with its micro-batch, nothing has changed, and "
    "training goes on as if nothing had happened",
    Device, Host, Remote) {
    spoilt.clear();
    each_way<Device>([](auto o) {
        for (double const clip : {0.0, 1e-3}) {
            o.clip_norm = clip;
            Train<Device> train(Net{}, {}, Adam{1e-2f}, o), twin(Net{}, {}, Adam{1e-2f}, o);
            train.step(inputs(), ones());
            twin.step(inputs(), ones());
            auto const before = state_of(train);
            for (double const value : {infinity, -infinity, no_number})
                for (std::size_t m = 0; m < M; ++m) {
                    auto targets = ones();
                    targets[first_sample(m)] = value;
                    for (std::size_t later = m + 1; later < M; ++later)
                        targets[first_sample(later)] = no_number; // the first is told
                    CHECK(message(train, targets) == "gpipe: the loss of micro-batch " +
                                                         std::to_string(m) + " is " +
                                                         (std::isnan(value) ? "nan"
                                                          : value > 0       ? "inf"
                                                                            : "-inf"));
                    REQUIRE(train.failure());
                    CHECK(train.failure()->of == FailureOf::loss);
                    CHECK(train.failure()->micro_batch == m);
                    CHECK(train.failure()->layer == L);
                    CHECK(has(train.failure()->place(),
                              "Says), its value over micro-batch " + std::to_string(m)));
                    CHECK(train.steps() == 1);
                    CHECK((state_of(train) == before));
                    CHECK(
                        std::isnan(train.evaluate(inputs(), std::vector<Real>(N, no_number)).loss));
                }
            std::vector<Real> const large(N, 1e308);
            CHECK(message(train, large) ==
                  "gpipe: the sum of the loss over all micro-batches is inf");
            CHECK(has(train.failure()->place(), "all micro-batches"));
            for (int i = 0; i < 2; ++i) {
                CHECK(train.step(inputs(), ones()).loss == twin.step(inputs(), ones()).loss);
                CHECK(!train.failure());
            }
            CHECK((state_of(train) == state_of(twin)));
        }
    });
}

TEST_CASE_TEMPLATE(
    "gradients that are not finite are thrown with the first layer and tensor, where "
    "somebody asks, and nothing has changed",
    Device, Host, Remote) {
    each_way<Device>([](auto o) {
        for (bool const clips : {false, true}) {
            spoilt.clear();
            o.clip_norm = clips ? 1e-3 : 0;
            o.finite_gradients = !clips;
            Train<Device> train(Net{}, {}, Adam{1e-2f}, o), twin(Net{}, {}, Adam{1e-2f}, o);
            o.clip_norm = 0;
            o.finite_gradients = false;
            Train<Device> careless(Net{}, {}, Adam{1e-2f}, o);
            auto const first = train.step(inputs(), ones());
            CHECK(first.gradient_norm == twin.step(inputs(), ones()).gradient_norm);
            CHECK(first.gradient_norm > 0);
            CHECK(careless.step(inputs(), ones()).gradient_norm == 0);
            CHECK(clips != (state_of(careless) == state_of(train)));
            auto const before = state_of(train);
            for (std::size_t layer = 0; layer < L; ++layer)
                for (std::size_t tensor = 0; tensor < 2; ++tensor)
                    for (double const value : {infinity, no_number, 1e200}) {
                        spoilt = {{layer, tensor, value}};
                        for (std::size_t later = layer + 1; later < L; ++later)
                            spoilt.push_back({later, 0, no_number});
                        std::string const place =
                            "gradient of parameter tensor " + std::to_string(tensor);
                        std::string const found = message(train, ones());
                        CHECK(has(found, "gpipe: the " + place + " of layer " +
                                             std::to_string(layer) + " ("));
                        CHECK(has(found, std::isnan(value) ? "squares is nan" : "squares is inf"));
                        REQUIRE(train.failure());
                        CHECK(train.failure()->of == FailureOf::gradient);
                        CHECK(train.failure()->layer == layer);
                        CHECK(train.failure()->tensor == tensor);
                        CHECK(has(train.failure()->place(), ") in the " + place + ", cell "));
                        CHECK(train.steps() == 1);
                        CHECK((state_of(train) == before));
                    }
            CHECK_NOTHROW(careless.step(inputs(), ones()));
            CHECK(careless.steps() == 2);
            spoilt = {{0, 0, 1.2e154}, {1, 0, 1.2e154}}; // of squares that add up to more
            CHECK(message(train, ones()) == "gpipe: the norm of all gradients is inf");
            CHECK(train.failure()->of == FailureOf::norm);
            spoilt.clear();
            for (double const weight :
                 {1e-320, 1e-310, 1e-40}) { // one over it is infinite in floats
                Says::weight = weight;
                CHECK(has(message(train, ones()), ", not 2^-126 or more"));
                CHECK(has(message(careless, ones()), ", not 2^-126 or more"));
            }
            Says::weight = 1;
            CHECK(careless.steps() == 2);
            CHECK(train.steps() == 1);
            for (int i = 0; i < 2; ++i)
                CHECK(train.step(inputs(), ones()).loss == twin.step(inputs(), ones()).loss);
            CHECK((state_of(train) == state_of(twin)));
        }
    });
    spoilt.clear();
}

TEST_CASE_TEMPLATE(
    "where training is to go on the loss is returned as it is and parameters are updated, "
    "but not by gradients whose norm is known and not finite",
    Device, Host, Remote) {
    spoilt.clear();
    for (int asks = 0; asks < 3; ++asks) {
        auto o = options<Train<Device>>(2, gpipe::schedule::GPipe{});
        o.not_finite = NotFinite::go_on;
        o.clip_norm = asks == 1 ? 1.0 : 0.0;
        o.finite_gradients = asks == 2;
        Train<Device> train(Net{}, {}, Adam{1e-2f}, o);
        auto const before = state_of(train);
        CHECK(std::isnan(train.step(inputs(), std::vector<Real>(N, no_number)).loss));
        CHECK(!train.failure());
        CHECK(train.steps() == 1);
        CHECK((state_of(train) != before));
        auto const once = state_of(train);
        spoilt = {{1, 0, no_number}};
        CHECK(train.step(inputs(), ones()).loss == 3.0 / N);
        CHECK(!train.failure());
        CHECK(train.steps() == (asks == 0 ? 2 : 1));
        CHECK((state_of(train) == once) == (asks != 0));
        spoilt.clear();
    }
}

namespace {

template <class Device>
using Immediately =
    gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<Says>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                    gpipe::checkpoint::Dynamic, gpipe::update::Immediate, Device>;

} // namespace

TEST_CASE_TEMPLATE(
    "with immediate updates a loss that is not finite changes nothing, and after gradients "
    "that are not the object says whether devices have updated",
    Device, Host, Remote) {
    spoilt.clear();
    int torn = 0;
    for (std::size_t cells : {std::size_t{1}, std::size_t{2}, L}) {
        auto o = options<Immediately<Device>>(cells, gpipe::schedule::ZeroBubbleH2{});
        o.finite_gradients = true;
        Immediately<Device> train(Net{}, {}, Adam{1e-2f}, o), twin(Net{}, {}, Adam{1e-2f}, o);
        train.step(inputs(), ones());
        twin.step(inputs(), ones());
        auto targets = ones();
        targets[first_sample(1)] = no_number;
        auto const before = state_of(train);
        // Nor are gradients to blame that such a loss, or weight, has made.
        for (bool const gradients : {false, true}) {
            if (gradients) spoilt = {{0, 1, no_number}};
            CHECK(message(train, targets) == "gpipe: the loss of micro-batch 1 is nan");
            CHECK((state_of(train) == before));
            for (double const weight : {no_number, infinity, -infinity}) {
                Says::weight = weight;
                std::string const said = message(train, ones());
                CAPTURE(said);
                CHECK(has(said, "weight"));
                CHECK(has(said, weight > 0 ? "inf" : weight < 0 ? "-inf" : "nan"));
                CHECK((state_of(train) == before));
            }
            // Of all micro-batches together alone.
            Says::weight = 1e308;
            CHECK(message(train, ones()) ==
                  "gpipe: the loss's total weight over the mini-batch is inf, not finite");
            CHECK((state_of(train) == before));
            Says::weight = 1;
            spoilt.clear();
        }
        CHECK(train.step(inputs(), ones()).loss == twin.step(inputs(), ones()).loss);
        CHECK((state_of(train) == state_of(twin)));

        auto const sound = state_of(train);
        spoilt = {{L - 1, 1, infinity}}; // on the device that ends last, unless it is the only one
        CHECK(has(message(train, ones()), "parameter tensor 1 of layer 3 ("));
        CHECK(train.failure()->of == FailureOf::gradient);
        spoilt.clear();
        if (state_of(train) == sound)
            CHECK_NOTHROW(train.step(inputs(), ones()));
        else
            CHECK_THROWS_WITH_AS((++torn, train.step(inputs(), ones())),
                                 doctest::Contains("of no use"), std::runtime_error);
    }
    if (std::is_same_v<Device, Remote>) CHECK(torn > 0); // its order is always the same
    auto o = options<Immediately<Device>>(2, gpipe::schedule::ZeroBubbleH2{});
    o.finite_gradients = true;
    o.not_finite = NotFinite::go_on;
    CHECK_THROWS_WITH_AS((Immediately<Device>(Net{}, {}, Adam{}, o)), doctest::Contains("go_on"),
                         std::invalid_argument);
}

TEST_CASE("P1 asking for finite gradients changes no bit") {
    spoilt.clear();
    each_way<Host>([](auto o) {
        Train<Host> plain(Net{}, {}, Adam{1e-2f}, o);
        o.finite_gradients = true;
        Train<Host> asks(Net{}, {}, Adam{1e-2f}, o);
        for (int i = 0; i < 3; ++i)
            CHECK(plain.step(inputs(), ones()).loss == asks.step(inputs(), ones()).loss);
        CHECK((state_of(plain) == state_of(asks)));
        CHECK(asks.planned_bytes() == plain.planned_bytes());
    });
}
