// Gradients clipped by the norm of all of them: what it is, that it is the same everywhere, and
// what becomes of steps whose gradients are not finite.
#include <support/net.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <vector>

namespace {

using gpipe::device::Host;
using toy::Remote;
using Real = double;
constexpr std::size_t L = toy::Net<Real>::size;

template <class Device>
auto options(std::size_t cells, std::size_t micro_batches, double clip,
             gpipe::schedule::Dynamic schedule = gpipe::schedule::GPipeAscending{}) {
    typename toy::Train<Real, Device>::Options o;
    o.samples = 9;
    o.seed = 4;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.clip_norm = clip;
    o.schedule = schedule;
    return o;
}
template <class T> std::vector<Real> gradients(T& train) {
    std::vector<Real> all;
    for (std::size_t layer = 0; layer < L; ++layer)
        for (std::size_t t = 0; t < train.tensors(layer); ++t) {
            std::vector<Real> values(toy::Net<Real>::leaf_info[layer].parameters.bytes[t] /
                                     sizeof(Real));
            train.template read_gradient<Real>(layer, t, values);
            all.insert(all.end(), values.begin(), values.end());
        }
    return all;
}
template <class T> std::vector<Real> parameters(T& train) {
    std::vector<Real> all;
    for (std::size_t layer = 0; layer < L; ++layer)
        for (std::size_t t = 0; t < train.tensors(layer); ++t) {
            std::vector<Real> values(toy::Net<Real>::leaf_info[layer].parameters.bytes[t] /
                                     sizeof(Real));
            train.template read_parameter<Real>(layer, t, values);
            all.insert(all.end(), values.begin(), values.end());
        }
    return all;
}
double norm(std::vector<Real> const& values) {
    double sum = 0;
    for (Real const v : values) sum += v * v;
    return std::sqrt(sum);
}

// Three steps: norms, losses, parameters and gradients.
template <class T> std::vector<double> history(T& train) {
    std::vector<double> result;
    for (std::uint32_t i = 0; i < 3; ++i) {
        toy::Data<Real> const data(9 - i, i);
        auto const step = train.step(data.inputs, data.targets);
        result.push_back(step.loss);
        result.push_back(step.gradient_norm);
    }
    for (Real const v : parameters(train)) result.push_back(v);
    for (Real const v : gradients(train)) result.push_back(v);
    return result;
}

} // namespace

TEST_CASE("the norm is that of all mean gradients, and larger ones are scaled down to it") {
    toy::Watch one, two, three;
    toy::Data<Real> const data(9);
    toy::Train<Real, Host> free(toy::make_net<Real>(one), {}, {}, options<Host>(1, 3, 0));
    CHECK(free.step(data.inputs, data.targets).gradient_norm == 0);
    auto const plain = gradients(free);
    double const expected = norm(plain);
    REQUIRE(expected > 1e-3);

    toy::Train<Real, Host> wide(toy::make_net<Real>(two), {}, {},
                                options<Host>(2, 3, 2 * expected));
    CHECK(wide.step(data.inputs, data.targets).gradient_norm == doctest::Approx(expected));
    CHECK(gradients(wide) == plain); // in every bit
    CHECK(parameters(wide) == parameters(free));

    toy::Train<Real, Host> narrow(toy::make_net<Real>(three), {}, {},
                                  options<Host>(2, 3, expected / 8));
    CHECK(narrow.step(data.inputs, data.targets).gradient_norm == doctest::Approx(expected));
    auto const clipped = gradients(narrow);
    CHECK(norm(clipped) == doctest::Approx(expected / 8));
    for (std::size_t i = 0; i < plain.size(); ++i)
        CHECK(clipped[i] == doctest::Approx(plain[i] / 8));
    CHECK(narrow.evaluate(data.inputs, data.targets).gradient_norm == 0);
}

TEST_CASE_TEMPLATE("P1 clipped steps are the same in every bit for any cut, schedule and device",
                   Device, Host, Remote) {
    for (std::size_t micro_batches : {1, 2, 4}) {
        toy::Watch watch;
        toy::Train<Real, Host> plain(toy::make_net<Real>(watch), {}, {},
                                     options<Host>(1, micro_batches, 0.01));
        auto const expected = history(plain);
        CHECK(expected[1] > 0.01);
        for (std::size_t cells : {std::size_t{1}, std::size_t{2}, std::size_t{3}, L})
            for (toy::NamedSchedule const& schedule : toy::schedules)
                for (auto const& run : toy::runs<Device>()) {
                    if (schedule.order == toy::Backward::descending) continue;
                    INFO("K = ", cells, ", M = ", micro_batches, ", ", schedule.name, ", ",
                         toy::describe(run));
                    toy::Watch other;
                    auto o = options<Device>(cells, micro_batches, 0.01, schedule.policy);
                    o.device = run;
                    toy::Train<Real, Device> train(toy::make_net<Real>(other), {}, {}, o);
                    CHECK(history(train) == expected);
                    CHECK(train.used_bytes() == train.planned_bytes());
                }
    }
}

TEST_CASE_TEMPLATE("where training goes on, a step whose gradients are not finite does not count",
                   Device, Host, Remote) {
    toy::Watch watch;
    auto o = options<Device>(3, 2, 1);
    o.not_finite = gpipe::NotFinite::go_on;
    toy::Train<Real, Device> train(toy::make_net<Real>(watch), {}, {}, o);
    toy::Data<Real> const data(9);
    train.step(data.inputs, data.targets);
    auto const before = parameters(train);
    toy::Data<Real> broken(9);
    broken.targets[4] = std::numeric_limits<Real>::infinity();
    auto const step = train.step(broken.inputs, broken.targets);
    CHECK(!std::isfinite(step.gradient_norm));
    CHECK(train.steps() == 1);
    CHECK(parameters(train) == before);
    train.step(data.inputs, data.targets);
    CHECK(train.steps() == 2);
    // As if it had not been: Adam's correction counts steps, and so do the masks of dropout.
    toy::Watch other;
    toy::Train<Real, Device> twin(toy::make_net<Real>(other), {}, {}, options<Device>(3, 2, 1));
    for (int i = 0; i < 2; ++i) twin.step(data.inputs, data.targets);
    CHECK(parameters(train) == parameters(twin));
    CHECK(parameters(train) != before);
}

TEST_CASE("a norm that is none is refused") {
    toy::Watch watch;
    for (double clip : {-1.0, std::numeric_limits<double>::quiet_NaN()})
        CHECK_THROWS_AS(
            (toy::Train<Real, Host>(toy::make_net<Real>(watch), {}, {}, options<Host>(1, 2, clip))),
            std::invalid_argument);
}
