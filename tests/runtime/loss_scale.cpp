// Options::loss_scale: gradients that are scaled on their way, and steps that are skipped because
// they overflow. On streams: cuda_double/loss_scale.cpp; in saved states: state/resume.cpp.
#include "support/ranks.hpp"
#include "support/ways.hpp"

#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::LossScale;
using gpipe::device::Host;
using toy::Backward;
using toy::Remote;
using Real = float;

using Limited = toy::Limited<Real, 6>;
using Net = gpipe::Pipeline<toy::Linear<Real, 5, 6>, toy::Tanh<Real, 6>, toy::Linear<Real, 6, 6>,
                            Limited, toy::Dropout<Real, 6>, toy::Linear<Real, 6, 3>>;
constexpr std::size_t L = Net::size;
Net make_net(Real most = 100) { return Net{{}, {}, {}, Limited{most}, {}, {}}; }
using Loss = toy::MeanSquare<Real, 3>;
template <class Device> using Train = toy::Training<Net, Loss, Adam, Device>;
using Plain = toy::Reference<Net, Loss, Adam>;
constexpr std::size_t micro_batches = 4;

template <class T> typename T::Options options(std::size_t cells, LossScale scale) {
    typename T::Options o;
    o.samples = 8;
    o.seed = 7;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.loss_scale = scale;
    return o;
}
/// Begins where nothing fits, and grows again.
constexpr LossScale dynamic = LossScale::dynamic(65536, 2, 0.25, 3);

/// Steps that count as the plain loop does without any scale; of the others nothing is seen.
template <class T>
std::string differs(T& train, Plain& plain, std::size_t steps, std::size_t least = 3) {
    std::size_t counted = 0, skipped = 0;
    for (std::size_t i = 0; i < steps; ++i) {
        toy::Data<Real> const data(i % 3 == 1 ? 7 : 8, static_cast<std::uint32_t>(counted));
        if (i % 4 == 3) {
            train.accumulate(data.inputs, data.targets);
        }
        auto const result = train.step(data.inputs, data.targets);
        if (result.skipped()) {
            ++skipped;
            continue;
        }
        if (i % 4 == 3) plain.accumulate(data.inputs, data.targets);
        if (result.loss != plain.step(data.inputs, data.targets))
            return "the loss of step " + std::to_string(i);
        ++counted;
        if (std::string const difference = toy::difference(train, plain); !difference.empty())
            return difference + " after step " + std::to_string(i);
    }
    if (counted < least || skipped < least) return "nothing to be seen";
    return {};
}

template <class Device> void sweep(std::size_t one_in) {
    toy::each_training<Device>(4, L, micro_batches, one_in, [&](toy::Way<Device> const& way) {
        Train<Device> train(make_net(), {}, Adam{1e-2f},
                            way.chosen(options<Train<Device>>(way.cells, dynamic)));
        Plain plain(make_net(1e30f), {}, Adam{1e-2f}, 7, micro_batches,
                    way.descends() ? Backward::descending : Backward::ascending);
        CHECK(differs(train, plain, 12) == "");
        CHECK(train.used_bytes() == train.planned_bytes());
    });
}

/// Leaves the last element of a sample as it was.
struct Lazy {
    using Target = gpipe::Tensor<Real, 3>;
    gpipe::LossValue<> operator()(auto&, auto y, auto target, auto dy) const {
        double sum = 0;
        for (std::size_t s = 0; s < y.samples(); ++s)
            for (std::size_t i = 0; i < 2; ++i) {
                Real const d = y(s, i) - target(s, i);
                sum += d * d / 2;
                dy(s, i) = d;
            }
        return {sum, static_cast<double>(y.samples())};
    }
};

} // namespace

TEST_CASE_TEMPLATE("P1 with a loss scale of powers of two every bit of the steps that count is "
                   "that without",
                   Device, Host, Remote) {
    sweep<Device>(157);
}

TEST_CASE_TEMPLATE("a step whose gradients overflow is skipped, and says where", Device, Host,
                   Remote) {
    auto moves = LossScale::dynamic(1u << 30, 64, 1. / 64, 2);
    moves.least = 1e-9;
    auto o = options<Train<Device>>(3, moves);
    for (bool const goes_on : {false, true}) {
        if (goes_on) o.not_finite = gpipe::NotFinite::go_on;
        Train<Device> train(make_net(), {}, Adam{1e-2f}, o);
        toy::Data<Real> const data(8);
        std::vector<Real> before(36), after(36);
        train.template read_parameter<Real>(2, 0, before);
        double scale = train.loss_scale();
        CHECK(scale == 1u << 30);
        std::size_t skipped = 0;
        for (;; ++skipped, scale /= 64) {
            CHECK(train.loss_scale() == scale);
            auto const result = train.step(data.inputs, data.targets);
            if (!result.skipped()) break;
            CHECK(result.loss > 0);
            CHECK(train.steps() == 0);
            REQUIRE(train.skipped().has_value());
            // Behind the lowest layer with parameters comes nothing that is finite.
            CHECK(train.skipped()->layer == 0);
            CHECK(train.skipped()->tensor == 0);
            CHECK(train.skipped()->of == gpipe::FailureOf::gradient);
            CHECK_FALSE(train.failure().has_value());
            train.template read_parameter<Real>(2, 0, after);
            CHECK(before == after);
        }
        CHECK(skipped >= 2);
        CHECK(train.steps() == 1);
        CHECK_FALSE(train.skipped().has_value());
        CHECK(train.loss_scale() == scale);
        // After two that counted it grows, which is too much, and comes back.
        CHECK_FALSE(train.step(data.inputs, data.targets).skipped());
        CHECK(train.loss_scale() == 64 * scale);
        CHECK(train.step(data.inputs, data.targets).skipped());
        CHECK(train.loss_scale() == scale);
        CHECK_FALSE(train.step(data.inputs, data.targets).skipped());
        CHECK(train.steps() == 3);
        // One that is skipped between those that count: it is two in a row that let it grow.
        train.template change_layer<3>([](Limited& layer) { layer.most = 0; });
        CHECK(train.step(data.inputs, data.targets).skipped());
        train.template change_layer<3>([](Limited& layer) { layer.most = 1e30f; });
        CHECK_FALSE(train.step(data.inputs, data.targets).skipped());
        CHECK(train.loss_scale() == scale / 64);
        CHECK_FALSE(train.step(data.inputs, data.targets).skipped());
        CHECK(train.loss_scale() == scale);
    }
}

TEST_CASE_TEMPLATE("gradients that are not finite at the least scale are a fault", Device, Host,
                   Remote) {
    auto scale = LossScale::dynamic(1024, 2, 0.5, 2);
    scale.least = 256;
    auto o = options<Train<Device>>(2, scale);
    toy::Data<Real> const data(8);
    Train<Device> train(make_net(0), {}, Adam{1e-2f}, o);
    CHECK(train.step(data.inputs, data.targets).skipped());
    CHECK(train.step(data.inputs, data.targets).skipped());
    for (int step = 0; step < 2; ++step) {
        CHECK(train.loss_scale() == 256);
        CHECK_THROWS_AS(train.step(data.inputs, data.targets), std::domain_error);
        REQUIRE(train.failure().has_value());
        CHECK(train.failure()->of == gpipe::FailureOf::gradient);
    }
    o.not_finite = gpipe::NotFinite::go_on;
    Train<Device> goes_on(make_net(0), {}, Adam{1e-2f}, o);
    for (int step = 0; step < 5; ++step) CHECK(goes_on.step(data.inputs, data.targets).skipped());
    CHECK(goes_on.loss_scale() == 256);
    CHECK(goes_on.steps() == 0);
    o.loss_scale = LossScale::fixed(512);
    o.not_finite = gpipe::NotFinite::fail;
    Train<Device> fixed(make_net(0), {}, Adam{1e-2f}, o);
    for (int step = 0; step < 3; ++step) CHECK(fixed.step(data.inputs, data.targets).skipped());
    CHECK(fixed.loss_scale() == 512);
    // A loss that is not finite is a fault at any scale.
    toy::Data<Real> broken(8);
    broken.targets[3] = std::numeric_limits<Real>::quiet_NaN();
    CHECK_THROWS_AS(fixed.step(broken.inputs, broken.targets), std::domain_error);
    CHECK(fixed.failure()->of == gpipe::FailureOf::loss);
}

TEST_CASE_TEMPLATE("what is no step, or fails, changes neither the scale's count nor what was "
                   "skipped",
                   Device, Host, Remote) {
    auto scale = LossScale::dynamic(64, 2, 0.5, 4);
    scale.least = 64;
    toy::Data<Real> const data(8);
    auto const most = [](Train<Device>& train, Real value) {
        train.template change_layer<3>([&](Limited& layer) { layer.most = value; });
    };
    Train<Device> train(make_net(1e30f), {}, Adam{1e-2f}, options<Train<Device>>(2, scale));
    for (int step = 0; step < 4; ++step) {
        CHECK(train.loss_scale() == 64);
        most(train, 0);
        if (step == 3) CHECK_THROWS_AS(train.step(data.inputs, data.targets), std::domain_error);
        most(train, 1e30f);
        CHECK_FALSE(train.step(data.inputs, data.targets).skipped());
    }
    CHECK(train.loss_scale() == 128);
    most(train, 0);
    CHECK(train.step(data.inputs, data.targets).skipped());
    most(train, 1e30f);
    train.compute_gradients(data.inputs, data.targets);
    CHECK(train.skipped().has_value());
    train.accumulate(data.inputs, data.targets);
    train.evaluate(data.inputs, data.targets);
    CHECK(train.skipped().has_value());
    CHECK_FALSE(train.step(data.inputs, data.targets).skipped());
    CHECK_FALSE(train.skipped().has_value());
    most(train, 0);
    CHECK_THROWS_AS(train.compute_gradients(data.inputs, data.targets), std::domain_error);
    CHECK_FALSE(train.skipped().has_value());
}

TEST_CASE("norms, clipped gradients and those of compute_gradients() are not scaled") {
    for (double const clip : {0.0, 1e-3}) {
        auto plain_options = options<Train<Host>>(3, {});
        plain_options.clip_norm = clip;
        plain_options.finite_gradients = true;
        auto o = options<Train<Host>>(3, LossScale::dynamic(4096, 2, 0.5, 2));
        o.clip_norm = clip;
        Train<Host> plain(make_net(1e30f), {}, Adam{1e-2f}, plain_options);
        Train<Host> train(make_net(1e30f), {}, Adam{1e-2f}, o);
        for (std::uint32_t step = 0; step < 6; ++step) {
            toy::Data<Real> const data(8, step);
            auto const same = [&](auto call) {
                auto const expected = call(plain), found = call(train);
                CHECK(expected.loss == found.loss);
                CHECK(expected.gradient_norm == found.gradient_norm);
                CHECK(expected.gradient_norm > 0);
                for (std::size_t layer : {0, 2, 5})
                    for (std::size_t t = 0; t < 2; ++t) {
                        auto const a = plain.gradient<Real>(layer, t);
                        auto const b = train.gradient<Real>(layer, t);
                        CHECK(std::vector<Real>(a.begin(), a.end()) ==
                              std::vector<Real>(b.begin(), b.end()));
                    }
            };
            double const scale = train.loss_scale();
            same([&](auto& t) { return t.compute_gradients(data.inputs, data.targets); });
            CHECK(train.loss_scale() == scale);
            same([&](auto& t) { return t.step(data.inputs, data.targets); });
        }
        CHECK(train.loss_scale() == 4096 * 8);
    }
}

TEST_CASE("P1 a scale near the largest float rounds nothing, either") {
    auto o = options<Train<Host>>(3, LossScale::fixed(0x1p125));
    Train<Host> plain(make_net(HUGE_VALF), {}, Adam{1e-2f}, options<Train<Host>>(3, {}));
    Train<Host> train(make_net(HUGE_VALF), {}, Adam{1e-2f}, o);
    toy::Data<Real> const data(7); // its weight is no power of two
    for (int step = 0; step < 3; ++step) {
        CHECK(plain.step(data.inputs, data.targets).loss ==
              train.step(data.inputs, data.targets).loss);
        CHECK(train.steps() == plain.steps()); // none was skipped
        auto const a = plain.gradient<Real>(2, 0);
        auto const b = train.gradient<Real>(2, 0);
        CHECK(std::vector<Real>(a.begin(), a.end()) == std::vector<Real>(b.begin(), b.end()));
    }
}

TEST_CASE("where training goes on a loss that is not finite is returned, and its step skipped, at "
          "any scale") {
    auto o = options<Train<Host>>(3, LossScale::dynamic(256));
    o.not_finite = gpipe::NotFinite::go_on;
    Train<Host> train(make_net(HUGE_VALF), {}, Adam{1e-2f}, o);
    toy::Data<Real> broken(8);
    broken.targets[3] = std::numeric_limits<Real>::infinity();
    auto const result = train.step(broken.inputs, broken.targets);
    CHECK(result.loss == HUGE_VAL);
    CHECK(result.skipped());
    CHECK(train.steps() == 0);
    CHECK(train.loss_scale() == 256);
}

TEST_CASE("P1 over ranks and replicas all skip, and scale, alike") {
    using Ranks =
        gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                        gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                        gpipe::checkpoint::Dynamic, gpipe::Replicas<gpipe::dynamic>, toy::Wired>;
    for (std::size_t const replicas : {1, 2})
        for (std::vector<std::size_t> const& devices :
             std::vector<std::vector<std::size_t>>{{3}, {1, 2}, {1, 1, 1}}) {
            if (replicas * devices.size() == 1) continue;
            CAPTURE(replicas);
            CAPTURE(devices.size());
            auto o = options<Ranks>(3, dynamic);
            o.schedule = gpipe::schedule::OneForwardOneBackward{};
            o.replicas = replicas;
            std::vector<std::size_t> all;
            for (std::size_t r = 0; r < replicas; ++r)
                all.insert(all.end(), devices.begin(), devices.end());
            toy::Crew<Ranks> crew(all, true, 1, [&](std::size_t, toy::Rank::Options device) {
                auto own = o;
                own.device = device;
                return std::make_unique<Ranks>(make_net(), Loss{}, Adam{1e-2f}, own);
            });
            Plain plain(make_net(1e30f), {}, Adam{1e-2f}, 7, micro_batches, Backward::ascending,
                        replicas);
            CHECK(differs(crew, plain, 12) == "");
            double const scale = crew[0].loss_scale();
            for (std::size_t r = 0; r < crew.ranks(); ++r) {
                CHECK(crew[r].loss_scale() == scale);
                CHECK(crew[r].skipped().has_value() == crew[0].skipped().has_value());
            }
        }
    using Threads = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<micro_batches>,
                                    gpipe::Loss<Loss>, gpipe::Optimizer<Adam>,
                                    gpipe::schedule::OneForwardOneBackward, gpipe::Replicas<2>>;
    auto o = options<Threads>(2, dynamic);
    Threads train(make_net(), {}, Adam{1e-2f}, o);
    Plain plain(make_net(1e30f), {}, Adam{1e-2f}, 7, micro_batches, Backward::ascending, 2);
    CHECK(differs(train, plain, 12) == "");
    std::vector<Real> weights(36); // between steps what one writes is given to all
    train.read_parameter<Real>(2, 0, weights);
    train.write_parameter<Real>(2, 0, weights);
    CHECK(differs(train, plain, 12, 0) == "");
}

TEST_CASE("a gradient that a scaled loss leaves unwritten is noticed all the same") {
    using T = toy::Training<Net, Lazy, Adam, Host>;
    for (LossScale const scale : {LossScale::fixed(1), LossScale::fixed(3), LossScale::dynamic()}) {
        auto o = options<T>(2, scale);
        o.debug = true;
        T train(make_net(1e30f), {}, Adam{1e-2f}, o);
        toy::Data<Real> const data(8);
        CHECK_THROWS_WITH_AS(train.step(data.inputs, data.targets),
                             doctest::Contains("dy 0 is left unwritten, first at element 2"),
                             std::logic_error);
    }
}

TEST_CASE("a loss scale that is none is refused") {
    auto const refused = [](LossScale scale, bool immediate) -> std::string {
        try {
            gpipe::check_scale(scale, immediate);
        } catch (std::invalid_argument const& error) {
            return error.what();
        }
        return "";
    };
    CHECK(refused({}, true) == "");
    CHECK(refused(LossScale::dynamic(), false) == "");
    // Every one of its numbers, named with the others.
    auto const words = [](std::string const& initial, std::string const& bounds,
                          std::string const& factors) {
        return "gpipe: Options::loss_scale begins at " + initial + ", with bounds of " + bounds +
               ", grows by " + factors +
               ": a scale, and both of its bounds, are positive and finite, it begins within "
               "these, grows by a finite factor of 1 or more, and falls by one between 0 and 1";
    };
    CHECK(refused(LossScale::fixed(0.5), false) ==
          words("0.5", "1 and 1.7e+38", "1 and falls by 1"));
    CHECK(refused(LossScale::fixed(1.8e38), false) ==
          words("1.8e+38", "1 and 1.7e+38", "1 and falls by 1"));
    CHECK(refused(LossScale::fixed(-1), false) == words("-1", "1 and 1.7e+38", "1 and falls by 1"));
    CHECK(refused(LossScale::dynamic(1024, 0.5), false) ==
          words("1024", "1 and 1.7e+38", "0.5 and falls by 0.5"));
    CHECK(refused(LossScale::dynamic(1024, 2, 1.5), false) ==
          words("1024", "1 and 1.7e+38", "2 and falls by 1.5"));
    CHECK(refused(LossScale::dynamic(1024, 2, 0), false) ==
          words("1024", "1 and 1.7e+38", "2 and falls by 0"));
    CHECK(refused(LossScale::dynamic(1024, 1, 1), false) == "");
    double const nan = std::numeric_limits<double>::quiet_NaN();
    for (double LossScale::*const number :
         {&LossScale::initial, &LossScale::least, &LossScale::most, &LossScale::growth,
          &LossScale::backoff})
        for (double const wrong : {nan, HUGE_VAL, -HUGE_VAL, -1.0}) {
            auto scale = LossScale::dynamic();
            scale.*number = wrong;
            CHECK(refused(scale, false).rfind("gpipe: Options::loss_scale begins at ", 0) == 0);
        }
    auto scale = LossScale::dynamic();
    scale.least = 0;
    CHECK(refused(scale, false) == words("65536", "0 and 1.7e+38", "2 and falls by 0.5"));
    scale.least = 65537;
    CHECK(refused(scale, false) == words("65536", "65537 and 1.7e+38", "2 and falls by 0.5"));
    scale = LossScale::dynamic();
    scale.most = 65535;
    CHECK(refused(scale, false) == words("65536", "1 and 65535", "2 and falls by 0.5"));
    CHECK(refused(LossScale::dynamic(), true) ==
          "gpipe: Options::loss_scale skips steps whose gradients are not finite, but with "
          "update::Immediate devices update their parameters before all gradients are known");
}
