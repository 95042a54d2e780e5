// D, E: what is run again, and random numbers in it.

#include "support/conformance.hpp"

#include <algorithm>
#include <cstddef>
#include <doctest/doctest.h>
#include <vector>

namespace {

using namespace conformance;

} // namespace

TEST_CASE(
    "D1 D2 D3 of two micro-batches 2, 1 or 0 are recomputed under always, except-last and never, "
    "and none in an evaluation, which keeps nothing") {
    // In the first of two cells; in the last, except-last puts a forward off instead of running it
    // twice.
    using S = Watched<toy::Saver<Real, 1>>;
    using N = gpipe::Pipeline<Watched<Line>, S, S, Watched<Line>>;
    std::size_t const first[] = {0, 1, 2}, last[] = {0, 0, 2};
    for (std::size_t c = 0; c < 3; ++c) {
        Watch watch;
        using T = Train<N>;
        toy::hand = {2, 2};
        T train(N{Watched<Line>(watch), S(watch), S(watch), Watched<Line>(watch)}, {}, {},
                options<T>(4, 2, 2, toy::checkpointings[c].policy));
        toy::hand.clear();
        auto const data = toy::numbers<Real>(4, 1);
        train.step(data, data);
        CHECK(watch.count(1, Phase::recompute) == first[c]);
        CHECK(watch.count(2, Phase::recompute) == last[c]);
        CHECK(watch.count(2, Phase::forward) == 2);
        watch.reset();
        watch.logs = true;
        train.evaluate(data, data);
        for (toy::Call const& call : watch.log()) {
            CHECK(call.phase == Phase::evaluate);
            CHECK(!call.saving);
        }
    }
}

TEST_CASE("D4 parameters behind an input without a gradient have theirs, checkpointed or not") {
    using N = gpipe::Pipeline<toy::Scale<Real, 1>, Line>;
    using T = Train<N, Sum<1>>;
    std::vector<Real> const x{1, 2, 3, 4};
    for (toy::NamedCheckpointing const& c : toy::every_checkpointing()) {
        T train(N({2.0}, {}), {}, SGD{0.0f}, options<T>(4, 2, 2, c.policy));
        train.step(x, x);
        CHECK(train.gradient<Real>(1, 0)[0] * 2 == 2 * (1 + 2 + 3 + 4));
    }
}

TEST_CASE("D6 integers pass through a checkpointed boundary, and no gradient flows to them") {
    // That none does is a static_assert in toy::Tag and toy::Carry.
    using N =
        gpipe::Pipeline<Leaf<4, 1>, toy::Tag<Real, 1>, toy::Carry<Real, 1>, toy::Untag<Real, 1>>;
    using T = Train<N, Sum<1>>;
    std::vector<Real> const x(4);
    T train(N{}, {}, SGD{0.0f}, options<T>(4, 4, 2, gpipe::checkpoint::Always{}));
    train.parameter<Real>(0, 0)[1] = -1;
    train.step(x, x);
    // Carry's weights are 0.75 for tag 0 and 1.25 for tag 1.
    for (std::size_t s = 0; s < 4; ++s)
        CHECK(train.gradient<Real>(0, 0)[s] * 2 == (s == 1 ? 0.75 : 1.25));
    CHECK(train.gradient<Real>(2, 0)[0] * 2 == -1);
    CHECK(train.gradient<Real>(2, 0)[1] * 2 == 3);
}

TEST_CASE("D7 a chain of identities under always gives back its input") {
    // Input and output never share memory here: a layer need not mind.
    using N = gpipe::Pipeline<gpipe::Repeat<3, toy::Scale<Real, 4>>>;
    using T = Train<N, toy::MeanSquare<Real, 4>>;
    T train(N{}, {}, {}, options<T>(5, 3, 2, gpipe::checkpoint::Always{}));
    auto const x = toy::numbers<Real>(20, 1);
    std::vector<Real> y(20);
    train.predict(x, y);
    CHECK(y == x);
    CHECK(train.step(x, x).loss == 0);
}

TEST_CASE("E1 with dropout the input gradient is the same with and without checkpointing") {
    using N = gpipe::Pipeline<Leaf<3, 3>, toy::Dropout<Real, 3>, toy::Dropout<Real, 3>>;
    using T = Train<N, Sum<3>>;
    std::vector<std::vector<Real>> gradients;
    std::vector<Real> const x(9), t(3);
    for (toy::NamedCheckpointing const& c : toy::every_checkpointing())
        for (std::size_t cells : {1, 2}) {
            T train(N({}, {0.5f}, {0.25f}), {}, {}, options<T>(3, cells, 1, c.policy));
            train.step(x, t);
            auto const g = train.gradient<Real>(0, 0);
            gradients.emplace_back(g.begin(), g.end());
            CHECK(std::count(g.begin(), g.end(), 0.0) > 0);
            CHECK(std::count(g.begin(), g.end(), 0.0) < 9);
        }
    for (auto const& g : gradients) CHECK(g == gradients[0]);
}

namespace {

// Keeps the outputs that it sees.
struct Keeps : Sum<10> {
    std::vector<Real>* outputs = nullptr;
    gpipe::LossValue<> operator()(auto& ctx, auto y, auto t, gpipe::BatchView<Real, 10> dy) const {
        std::copy(y.begin(), y.end(), outputs->begin() + std::ptrdiff_t(10 * ctx.first_sample()));
        return Sum<10>::operator()(ctx, y, t, dy);
    }
};

} // namespace

TEST_CASE(
    "E2 through two cells of a hundred dropouts zeros of the output are zeros of the gradient") {
    using Many = gpipe::Repeat<100, toy::Dropout<Real, 10>>;
    using Watcher = Watched<toy::Scale<Real, 10>>;
    using N = gpipe::Pipeline<Leaf<10, 10>, Many, Many, Watcher>;
    using T = Train<N, Keeps>;
    toy::Dropout<Real, 10> const rare{0.001f};
    std::vector<Real> const x(100), t(10);
    std::vector<Real> outputs(100, -1.0);
    auto o = options<T>(10, 2, 10, gpipe::checkpoint::Always{});
    T train(N({}, Many(rare), Many(rare), {}), {{}, &outputs}, {}, o);
    train.step(x, t);
    std::size_t zeros = 0;
    for (std::size_t i = 0; i < 100; ++i) {
        CHECK((outputs[i] == 0) == (train.gradient<Real>(0, 0)[i] == 0));
        zeros += outputs[i] == 0;
    }
    CHECK(zeros > 5);
    CHECK(zeros < 40);
}
