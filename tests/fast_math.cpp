// With -ffast-math a compiler takes every number for one: what is none is found by its bits. This
// is compiled so, and header-only.
#include "support/net.hpp"

#include <gpipe/check_gradients.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

namespace {

using Real = float;
using Loss = toy::MeanSquare<Real, 3>;
constexpr double none = std::numeric_limits<double>::quiet_NaN();

/// Passes its input on; the gradient is that, or no number, or not written.
struct Passes {
    enum Fault { right, no_number, unwritten };
    using Input = gpipe::Tensor<Real, 3>;
    using Output = Input;
    static constexpr auto backward_reads = gpipe::Reads::neither;
    Fault fault = right;

    void forward(auto&, auto x, auto y) const { std::copy_n(x.data(), x.size(), y.data()); }
    void backward(auto&, auto dy, auto dx) const {
        if (fault == right) std::copy_n(dy.data(), dy.size(), dx.data());
        if (fault == no_number) std::fill_n(dx.data(), dx.size(), static_cast<Real>(none));
    }
};
using Net = gpipe::Pipeline<Passes, toy::Linear<Real, 3, 3>>;
using Train = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<2>, gpipe::Loss<Loss>>;

Train::Options options() { return {.samples = 4, .seed = 7}; }

} // namespace

TEST_CASE("options that are no number are refused") {
    auto clips = options(), scales = options();
    clips.clip_norm = none;
    CHECK_THROWS_AS((Train{Net{}, {}, {}, clips}), std::invalid_argument);
    scales.loss_scale = gpipe::LossScale::dynamic(none);
    CHECK_THROWS_AS((Train{Net{}, {}, {}, scales}), std::invalid_argument);
    CHECK_NOTHROW((Train{Net{}, {}, {}, options()}));
}

TEST_CASE("a loss that is no number changes nothing") {
    Train train{Net{}, {}, {}, options()};
    std::vector<Real> const numbers(4 * 3, 1);
    std::vector<Real> targets = numbers;
    targets[7] = static_cast<Real>(none);
    auto const before = train.parameter<Real>(1, 0);
    CHECK_THROWS_AS(train.step(numbers, targets), std::domain_error);
    CHECK(train.steps() == 0);
    CHECK(std::ranges::equal(train.parameter<Real>(1, 0), before));
}

TEST_CASE("gradients that are no number, or not there, are found") {
    std::vector<Real> const numbers(4 * 3, 1), targets(4 * 3, 2);
    for (auto const fault : {Passes::right, Passes::no_number, Passes::unwritten}) {
        Train train{Net{Passes{fault}, {}}, {}, {}, options()};
        auto const report = gpipe::check_gradients(train, numbers, targets);
        INFO(report);
        CHECK(report.faults() == (fault == Passes::right ? 0 : 1));
        CHECK((report.rows[0].fault == "backward gives no number") == (fault == Passes::no_number));
    }
}
