// B: how a mini-batch is split and merged, and what may go from layer to layer.

#include "support/conformance.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <doctest/doctest.h>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace conformance;

// t, t, t to (a + b + c, a b c), and the sum of both.
struct Three {
    using Input = Tensor<Real, 1>;
    using Output = Tensors<Tensor<Real, 1>, Tensor<Real, 1>, Tensor<Real, 1>>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            gpipe::get<0>(y)(s, 0) = gpipe::get<1>(y)(s, 0) = gpipe::get<2>(y)(s, 0) = x(s, 0);
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            dx(s, 0) = gpipe::get<0>(dy)(s, 0) + gpipe::get<1>(dy)(s, 0) + gpipe::get<2>(dy)(s, 0);
    }
};
struct SumAndProduct {
    using Input = Three::Output;
    using Output = Tensors<Tensor<Real, 1>, Tensor<Real, 1>>;
    void forward(auto& ctx, auto x, auto y) const {
        auto const& [a, b, c] = x;
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            gpipe::get<0>(y)(s, 0) = a(s, 0) + b(s, 0) + c(s, 0);
            gpipe::get<1>(y)(s, 0) = a(s, 0) * b(s, 0) * c(s, 0);
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto const& [a, b, c] = x;
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            Real const sum = gpipe::get<0>(dy)(s, 0), product = gpipe::get<1>(dy)(s, 0);
            gpipe::get<0>(dx)(s, 0) = sum + product * b(s, 0) * c(s, 0);
            gpipe::get<1>(dx)(s, 0) = sum + product * a(s, 0) * c(s, 0);
            gpipe::get<2>(dx)(s, 0) = sum + product * a(s, 0) * b(s, 0);
        }
    }
};

// The same one tensor, spelt as a group.
struct GroupOfOne : toy::Scale<Real, 1> {
    using Input = Tensors<Tensor<Real, 1>>;
    using Output = Input;
};

// The sizes of the micro-batches that layer 0 saw.
std::vector<std::size_t> sizes_seen(std::size_t samples, std::size_t micro_batches) {
    Watch watch;
    watch.logs = true;
    using N = gpipe::Pipeline<Watched<Line>>;
    using T = Train<N>;
    T train(N(Watched<Line>(watch)), {}, {},
            options<T>(samples, 1, micro_batches, gpipe::checkpoint::Never{}));
    auto const data = toy::numbers<Real>(samples, 1);
    train.step(data, data);
    std::vector<std::size_t> sizes;
    for (toy::Call const& call : watch.log())
        if (call.phase == Phase::forward) sizes.push_back(call.samples);
    return sizes;
}

} // namespace

TEST_CASE("B1 two samples in two micro-batches are one each, in order, and come back in order") {
    CHECK(sizes_seen(2, 2) == std::vector<std::size_t>{1, 1});
    using N = gpipe::Pipeline<toy::Scale<Real, 1>, GroupOfOne, toy::Scale<Real, 1>>;
    using T = Train<N>;
    T train(N{}, {}, {}, options<T>(2, 2, 2));
    std::vector<Real> const inputs{4, 7};
    std::vector<Real> outputs(2);
    train.predict(inputs, outputs);
    CHECK(outputs == inputs);
}

TEST_CASE("B2 7 samples in 4 micro-batches are 2, 2, 2 and 1") {
    CHECK(sizes_seen(7, 4) == std::vector<std::size_t>{2, 2, 2, 1});
}

TEST_CASE("B3 2 samples in 4 micro-batches are 2 micro-batches") {
    CHECK(sizes_seen(2, 4) == std::vector<std::size_t>{1, 1});
}

TEST_CASE("B4 a batch of one tensor has one, of a group as many, and none changes that") {
    static_assert(gpipe::Batch<Tensor<float, 3>>::count == 1);
    static_assert(gpipe::Batch<Tensors<Tensor<float, 3>>>::count == 1);
    static_assert(gpipe::Batch<Pair::Input>::count == 2);
    std::vector<float> const values(12);
    CHECK(gpipe::Batch<Tensor<float, 3>>(values).samples("inputs") == 4);
}

TEST_CASE("B5 both tensors of a pair get gradients, through every boundary") {
    using N = gpipe::Pipeline<Pair, Pair, AddPair>;
    using T = Train<N, Sum<1>>;
    std::vector<Real> const a{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, b(10, 1.0), none(10);
    for (std::size_t cells : {1, 2, 3})
        for (toy::NamedCheckpointing const& c : toy::every_checkpointing()) {
            T train(N{}, {}, SGD{0.0f}, options<T>(10, cells, 2, c.policy));
            auto const result = train.step({a, b}, none);
            CHECK(result.weight == 2);
            CHECK(result.loss * 2 == 2 * 2 * 55 + 3 * 3 * 10);
            for (std::size_t layer : {0, 1}) {
                CHECK(train.gradient<Real>(layer, 0)[0] * 2 == 2 * 55);
                CHECK(train.gradient<Real>(layer, 1)[0] * 2 == 3 * 10);
            }
        }
}

namespace {

template <class Group, class... Given>
constexpr bool fits = gpipe::Batch<Group>::template takes<Given...>;
template <class Group> constexpr bool has_samples = requires(gpipe::Batch<Group> const& batch) {
    batch.samples("inputs");
};

// (numbers, integers, flags) to (flags, numbers, integers), and twice the numbers.
struct Reorder {
    using Integers = Tensor<std::int32_t, 3>;
    using Input = Tensors<Tensor<Real, 2>, Integers, Tensor<bool>>;
    using Output = Tensors<Tensor<bool>, Tensor<Real, 2>, Integers>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    void forward(auto& ctx, auto x, auto y) const {
        auto const& [numbers, integers, flags] = x;
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            gpipe::get<0>(y)(s) = flags(s);
            for (std::size_t i = 0; i < 2; ++i) gpipe::get<1>(y)(s, i) = 2 * numbers(s, i);
            for (std::size_t i = 0; i < 3; ++i) gpipe::get<2>(y)(s, i) = integers(s, i);
        }
    }
    void backward(auto&, auto, auto) const {}
};
// And back, without doing anything to them.
struct Back {
    using Input = Reorder::Output;
    using Output = Reorder::Input;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    void forward(auto& ctx, auto x, auto y) const {
        auto const& [flags, numbers, integers] = x;
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            for (std::size_t i = 0; i < 2; ++i) gpipe::get<0>(y)(s, i) = numbers(s, i);
            for (std::size_t i = 0; i < 3; ++i) gpipe::get<1>(y)(s, i) = integers(s, i);
            gpipe::get<2>(y)(s) = flags(s);
        }
    }
    void backward(auto&, auto, auto) const {}
};
struct Untrained {
    using Target = Tensors<>;
    gpipe::LossValue<> operator()(auto&, auto, auto, auto) const { return {0, 1}; }
};

} // namespace

TEST_CASE("B6 B7 a mini-batch is a range for each tensor that the model takes, of its elements") {
    using One = Tensor<Real, 1>;
    using Range = std::vector<Real>;
    using Words = char const(&)[6];
    static_assert(fits<One, Range&> && fits<Pair::Input, Range&, Range&>);
    static_assert(!fits<One, Range&, Range&> && !fits<Pair::Input, Range&>);
    static_assert(!fits<One, Words> && !fits<Pair::Input, Range&, Words>);
    static_assert(!fits<One, std::string> && !fits<One, Real>);
    std::vector<Real> const three(3);
    CHECK(gpipe::Batch<Pair::Input>(three, three).samples("inputs") == 3);
}

TEST_CASE("B9 integers and flags go with numbers through every boundary, in any order, and come "
          "back exactly; without a tensor there is no mini-batch") {
    static_assert(has_samples<Pair::Input> && !has_samples<Tensors<>>);
    using N = gpipe::Pipeline<Reorder, Back, Reorder, Back>;
    using T = Train<N, Untrained>;
    auto const numbers = toy::numbers<Real>(2 * 10, 1);
    std::vector<std::int32_t> integers(3 * 10);
    bool flags[10];
    for (std::size_t i = 0; i < 30; ++i) integers[i] = std::int32_t(1'000'000'000 + 7 * i);
    for (std::size_t s = 0; s < 10; ++s) flags[s] = s % 3 == 0;
    for (toy::NamedCheckpointing const& c : toy::checkpointings)
        for (std::size_t cells : {1, 2, 4}) {
            T train(N{}, {}, {}, options<T>(10, cells, 5, c.policy));
            std::vector<Real> numbers_out(2 * 10);
            std::vector<std::int32_t> integers_out(3 * 10);
            bool flags_out[10] = {};
            train.predict({numbers, integers, flags}, {numbers_out, integers_out, flags_out});
            CHECK(integers_out == integers);
            CHECK(std::equal(flags, flags + 10, flags_out));
            for (std::size_t i = 0; i < 20; ++i) CHECK(numbers_out[i] == 4 * numbers[i]);
        }
}

TEST_CASE(
    "B10 B11 three samples in five micro-batches are three micro-batches, and tensors of three and "
    "four samples are refused") {
    using N = gpipe::Pipeline<Pair, AddPair>;
    using T = Train<N, Sum<1>>;
    T train(N{}, {}, {}, options<T>(6, 2, 5));
    std::vector<Real> const three(3), four(4);
    CHECK_THROWS_AS(train.step({three, four}, three), std::invalid_argument);
    CHECK_NOTHROW(train.step({three, three}, three));
    CHECK(sizes_seen(3, 5) == std::vector<std::size_t>{1, 1, 1});
}

TEST_CASE("B14 t, t, t to their sum and product to the sum of both is 3 t + t^3") {
    using N = gpipe::Pipeline<Leaf<4, 1>, Three, SumAndProduct, AddPair>;
    using T = Train<N, Sum<1>>;
    std::vector<Real> const t{1, 1, 1, 1};
    for (toy::NamedCheckpointing const& c : toy::every_checkpointing()) {
        T train(N{}, {}, SGD{0.0f}, options<T>(4, 4, 2, c.policy));
        for (std::size_t s = 0; s < 4; ++s) train.parameter<Real>(0, 0)[s] = Real(s + 1);
        std::vector<Real> outputs(4);
        train.predict(t, outputs);
        train.step(t, t);
        for (std::size_t s = 0; s < 2; ++s) // a prediction of four samples, two per micro-batch
            for (std::size_t i : {s, s + 2}) {
                Real const v = Real(i + 1);
                CHECK(outputs[i] == 3 * v + v * v * v);
                CHECK(train.gradient<Real>(0, 0)[i] * 2 == 3 + 3 * v * v);
            }
    }
}
