// What lanes wait for: marks are put down whatever throws, and are the right ones however many
// steps came before, and wherever the marks of a lane that was not used meanwhile have stayed.
#include "support/deferred.hpp"
#include "support/fragile.hpp"
#include "support/layers.hpp"
#include "support/losses.hpp"
#include "support/remote.hpp"

#include <gpipe/gpipe.hpp>

#include <atomic>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <doctest/doctest.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

using Real = float;
using gpipe::device::Host;

// Its lane is late with the first micro-batch: whoever does not wait for it finds what is old.
struct Late : toy::Linear<Real, 2, 2> {
    static inline bool late = false;
    static void sleep(auto& ctx) {
        if (late && ctx.first_sample() == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    void forward(auto& ctx, auto x, auto y) const {
        sleep(ctx);
        toy::Linear<Real, 2, 2>::forward(ctx, x, y);
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        sleep(ctx);
        toy::Linear<Real, 2, 2>::backward(ctx, x, dy, dx);
    }
};
template <class Update>
using Train = gpipe::Training<gpipe::Pipeline<Late, Late>, gpipe::Cells<2>, gpipe::MicroBatches<2>,
                              gpipe::Loss<toy::MeanSquare<Real, 2>>,
                              gpipe::schedule::GPipeAscending, gpipe::checkpoint::Never, Update>;
using Once = Train<gpipe::update::AfterCommit>;
using Overlapping = Train<gpipe::update::Immediate>;

// What only the library sees: explicit instantiations may name what is private.
template <class Key, auto member> struct Opens {
    friend constexpr auto opened(Key) { return member; }
};
struct OnceMachine {
    friend constexpr auto opened(OnceMachine);
};
struct OverlappingMachine {
    friend constexpr auto opened(OverlappingMachine);
};
struct EngineOf {
    friend constexpr auto opened(EngineOf);
};
struct RunsOf {
    friend constexpr auto opened(RunsOf);
};
struct BaseOf {
    friend constexpr auto opened(BaseOf);
};
template struct Opens<OnceMachine, &Once::machine_>;
template struct Opens<OverlappingMachine, &Overlapping::machine_>;
template struct Opens<EngineOf, &gpipe::Machine<Host>::engine_>;
template struct Opens<RunsOf, &gpipe::Engine<Host>::runs_>;
template struct Opens<BaseOf, &gpipe::Runs<Host>::base_>;

auto& base(Once& train) {
    return train.*opened(OnceMachine{}).*opened(EngineOf{}).*opened(RunsOf{}).*opened(BaseOf{});
}
auto& base(Overlapping& train) {
    return train.*opened(OverlappingMachine{}).*opened(EngineOf{}).*opened(RunsOf{}).*
           opened(BaseOf{});
}

constexpr std::size_t steps_after = 4;

// Some steps, then as if there had been so many that the next positions are from `first` on, then
// more steps, two under way where that can be. The losses.
template <class T> std::vector<double> losses(std::size_t threads, std::uint64_t first) {
    typename T::Options o;
    o.samples = 2;
    o.device.threads = threads;
    T train({}, {}, {.learning_rate = 0.1f}, o);
    std::vector<Real> const x{1, -2, 0.5f, 1}, target{2, 1, 0, -1};
    std::vector<double> result;
    auto const run = [&](std::size_t count) {
        std::vector<typename T::Pending> pending;
        for (std::size_t i = 0; i < count; ++i) pending.push_back(train.start(x, target));
        for (auto& step : pending) result.push_back(step.result().loss);
    };
    run(2);
    result.push_back(train.evaluate(x, target).loss); // then nothing is under way
    if (first > 0) base(train) = static_cast<std::remove_reference_t<decltype(base(train))>>(first);
    run(steps_after);
    result.push_back(train.evaluate(x, target).loss);
    return result;
}

} // namespace

TEST_CASE_TEMPLATE("lanes wait for each other at and beyond every power of two of positions", T,
                   Once, Overlapping) {
    Late::late = false;
    auto const expected = losses<T>(1, 0);
    Late::late = true;
    // A step has some ten positions: the second or third reaches the power.
    for (int bit = 6; bit < 64; ++bit)
        for (std::uint64_t const before : {20, 0}) {
            INFO("2^", bit, " - ", before);
            CHECK(losses<T>(2, (std::uint64_t{1} << bit) - before) == expected);
        }
    Late::late = false;
}

namespace {

using toy::Broken;
using toy::Fragile;

template <class Device>
using FragileTrain =
    gpipe::Training<gpipe::Pipeline<toy::Factor, toy::Factor, toy::Factor>, gpipe::Cells<3>,
                    gpipe::MicroBatches<2>, gpipe::Loss<toy::MeanSquare<float, 2>>,
                    gpipe::Optimizer<toy::Descend>, gpipe::schedule::GPipeAscending, Device>;

template <class T> std::vector<float> parameters(T& train) {
    std::vector<float> all;
    for (std::size_t layer = 0; layer < 3; ++layer)
        for (std::size_t t = 0; t < 2; ++t) {
            std::vector<Fragile> values(t == 0 ? 2 : 1);
            train.read_parameter(layer, t, std::span<Fragile>(values));
            for (Fragile const& v : values) all.push_back(v.value);
        }
    return all;
}

} // namespace

TEST_CASE_TEMPLATE("what throws between the layers and the end of a step surfaces, whatever waits "
                   "for it: before the commit nothing has changed, behind it the object says that "
                   "it is of no use",
                   Device, Host, toy::Remote) {
    std::vector<float> const x{1, -2, 0.5f, 1}, target{2, 1, 0, -1};
    typename FragileTrain<Device>::Options o;
    o.samples = 2;
    o.clip_norm = 1e6; // wants the norm
    if constexpr (std::is_same_v<Device, Host>) o.device.threads = 3;
    Fragile::left = -1;
    FragileTrain<Device> calm({}, {}, {}, o);
    Fragile::done = 0;
    calm.step(x, target);
    int const operations = Fragile::done;
    REQUIRE(operations == 3 * (3 + 3)); // converted for the norm, then multiplied
    calm.step(x, target);
    int unchanged = 0, torn = 0;
    for (int n = 0; n < operations; ++n) {
        FragileTrain<Device> train({}, {}, {}, o);
        auto const before = parameters(train);
        Fragile::left = n;
        CHECK_THROWS_AS(train.step(x, target), Broken);
        Fragile::left = -1;
        REQUIRE(train.failure());
        CHECK(train.steps() == 0);
        if (train.failure()->of == gpipe::FailureOf::gradient) {
            ++unchanged;
            CHECK(train.failure()->place().find("in the gradient of parameter tensor ") !=
                  std::string::npos);
            CHECK(parameters(train) == before);
            for (int i = 0; i < 2; ++i) train.step(x, target);
            CHECK(parameters(train) == parameters(calm));
            CHECK(!train.failure());
        } else {
            ++torn;
            CHECK(train.failure()->place().find("in the update of parameter tensor ") !=
                  std::string::npos);
            CHECK_THROWS_WITH_AS(train.step(x, target), doctest::Contains("of no use"),
                                 std::runtime_error);
        }
    }
    CHECK(unchanged == operations / 2);
    CHECK(torn == operations / 2);
}
