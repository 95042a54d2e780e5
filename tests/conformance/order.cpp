// C, F: in what order layers are called, and what becomes of what they throw.

#include "support/conformance.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <doctest/doctest.h>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using namespace conformance;

} // namespace

TEST_CASE("C1 the clock of the forwards: micro-batch m is in cell k at clock m + k") {
    for (auto [m, n] :
         {std::pair<std::size_t, std::size_t>{1, 1}, {1, 3}, {3, 1}, {3, 3}, {4, 2}}) {
        auto const programs = gpipe::schedule::GPipe::programs(n, m);
        auto const times = gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost);
        std::int64_t last = 0;
        for (std::size_t i = 0; i < programs.size(); ++i)
            if (programs[i].kind == gpipe::Kind::forward) {
                CHECK(times.start[i] == std::int64_t(programs[i].micro_batch + programs[i].cell));
                last = std::max(last, times.end[i]);
            }
        CHECK(last == std::int64_t(m + n - 1));
        // Inside a clock, ascending cells.
        auto const order = gpipe::linear_order(programs);
        for (std::size_t r = 1; r < order.size(); ++r)
            if (times.start[order[r - 1]] == times.start[order[r]])
                CHECK(programs[order[r - 1]].cell < programs[order[r]].cell);
    }
}

TEST_CASE("C2 nobody keeps step: a quick cell runs ahead of a slow one, which needs it no more") {
    // Upstream the first is never more than a clock ahead.
    auto const programs = gpipe::schedule::GPipe::programs(2, 3);
    auto const times =
        gpipe::simulate<std::int64_t>(programs, [](gpipe::Action const& action) -> std::int64_t {
            return action.cell == 0 ? 1 : 100;
        });
    std::vector<std::pair<std::int64_t, std::size_t>> ends; // and micro-batch and cell
    for (std::size_t i = 0; i < programs.size(); ++i)
        if (programs[i].kind == gpipe::Kind::forward)
            ends.emplace_back(times.end[i], 10 * programs[i].micro_batch + programs[i].cell);
    std::sort(ends.begin(), ends.end());
    CHECK(ends == std::vector<std::pair<std::int64_t, std::size_t>>{
                      {1, 00}, {2, 10}, {3, 20}, {101, 01}, {201, 11}, {301, 21}});
}

TEST_CASE("C3 backward order follows needs: recomputed before its backward, later cells first") {
    using A = Watched<toy::Saver<Real, 1>>;
    using N = gpipe::Pipeline<Watched<Line>, A, A>;
    Watch watch;
    watch.logs = true;
    using T = Train<N>;
    toy::hand = {2, 1};
    T train(N{Watched<Line>(watch), A(watch), A(watch)}, {}, {},
            options<T>(1, 2, 1, gpipe::checkpoint::Always{}));
    toy::hand.clear();
    std::vector<Real> const one{1};
    train.step(one, one);
    auto const at = [&](std::size_t layer, Phase phase) {
        auto const& log = watch.log();
        auto const found = std::find_if(log.begin(), log.end(), [&](toy::Call const& call) {
            return call.layer == layer && call.phase == phase;
        });
        CHECK(found != log.end());
        return found - log.begin();
    };
    CHECK(at(1, Phase::forward) < at(2, Phase::forward));
    CHECK(at(2, Phase::forward) < at(2, Phase::recompute));
    CHECK(at(2, Phase::recompute) < at(2, Phase::backward));
    CHECK(at(2, Phase::backward) < at(1, Phase::backward));
    // The recompute of the cell before needs no gradient: it may run earlier than upstream, in the
    // bubble.
    CHECK(at(1, Phase::recompute) < at(1, Phase::backward));
    CHECK(watch.log().size() == 3 + 3 + 3);
}

namespace {

struct Throws {
    using Input = Tensor<Real, 1>;
    using Output = Tensor<Real, 1>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    void forward(auto&, auto, auto) const { throw std::length_error("a layer's own words"); }
    void backward(auto&, auto, auto) const {}
};

} // namespace

TEST_CASE("F1 F2 pass, pass, throw: the exception arrives with its own type, and nothing hangs") {
    using N = gpipe::Pipeline<Line, Line, Throws>;
    using T = Train<N>;
    auto const data = toy::numbers<Real>(3, 1);
    for (std::size_t threads : {1, 2, 3}) {
        T train(N{}, {}, {}, options<T>(3, 3, 3, {}, threads));
        for (int again = 0; again < 50; ++again)
            CHECK_THROWS_WITH_AS(train.step(data, data), "a layer's own words", std::length_error);
        CHECK(train.failure()->layer == 2);
    }
}

TEST_CASE("F3 pass, pass, count, throw: what stands before the failure is done, what stands behind "
          "is not begun once it is known") {
    // The order is that of clocks: upstream's failing clock completes, and the next never starts.
    using N = gpipe::Pipeline<Line, Line, Watched<Line>, Throws>;
    using T = Train<N>;
    auto const data = toy::numbers<Real>(3, 1);
    for (std::size_t threads : {1, 2, 4})
        for (int again = 0; again < 50; ++again) {
            Watch watch;
            T train(N({}, {}, Watched<Line>(watch), {}), {}, {},
                    options<T>(3, 4, 3, gpipe::checkpoint::Never{}, threads));
            CHECK_THROWS_AS(train.step(data, data), std::length_error);
            std::size_t const count = watch.count(2, Phase::forward);
            CHECK(count >= 2);
            CHECK(count <= 3); // another thread may have begun the third before the failure
            if (threads == 1) CHECK(count == 2);
            CHECK(watch.count(2, Phase::backward) == 0);
        }
}

TEST_CASE("F7 whether the caller trains or evaluates holds on every thread") {
    using N = gpipe::Pipeline<gpipe::Repeat<4, Watched<Line>>>;
    using T = Train<N>;
    Watch watch;
    watch.logs = true;
    T train(N(gpipe::Repeat<4, Watched<Line>>(Watched<Line>(watch))), {}, {},
            options<T>(4, 4, 4, {}, 4));
    auto const data = toy::numbers<Real>(4, 1);
    for (bool training : {true, false, true}) {
        watch.reset();
        if (training)
            train.step(data, data);
        else
            train.evaluate(data, data);
        CHECK(watch.log().size() >= 16);
        for (toy::Call const& call : watch.log()) CHECK(call.training == training);
    }
}

TEST_CASE("G1 on the host a stream is nothing, and nothing is to be restored") {
    static_assert(std::is_empty_v<Host::Stream>);
    Host host({2}, 2);
    CHECK(Host::streams(host.lanes(), 3) >= 2);
    CHECK(host.link(0, 1) == gpipe::Link::shared);
}
