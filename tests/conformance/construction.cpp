// A: construction, and what of a training can be read. Of the mistakes that do not compile:
// compile_fail.
#include "support/conformance.hpp"

#include <cstddef>
#include <doctest/doctest.h>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using namespace conformance;

// What a training loses, made and trained before main() begins.
double const loss_before_main = [] {
    using T = Train<Two>;
    T train(Two{}, {}, {}, options<T>(4, 2, 2));
    auto const data = toy::numbers<Real>(4, 1);
    return train.step(data, data).loss;
}();

} // namespace

TEST_CASE(
    "A1 parameters are reachable; balance, micro-batches and all else are readable as given") {
    using T = Train<Two>;
    toy::hand = {1, 1};
    T train(Two{}, {}, {}, options<T>(6, 2, 3));
    toy::hand.clear();
    CHECK(train.parameter<Real>(0, 0).size() == 2);
    CHECK(train.parameter<Real>(1, 1).size() == 1);
    CHECK(Two::parameters() == 2 + 2 + 2 + 1);
    CHECK(train.cells() == 2);
    CHECK(train.devices() == 2);
    CHECK(train.micro_batches() == 3);
    CHECK(train.samples() == 6);
    CHECK(train.seed() == 1);
    CHECK(train.plan().first[1] == 1);
}

TEST_CASE("A2 the layers have one order, whatever the balance") {
    static_assert(Two::size == 2);
    static_assert(std::is_same_v<Two::Layer<0>, toy::Linear<Real, 1, 2>>);
    static_assert(std::is_same_v<Two::Layer<1>, toy::Linear<Real, 2, 1>>);
    using T = Train<Two>;
    std::vector<std::vector<Real>> starts;
    for (std::size_t cells : {1, 2}) {
        T train(Two{}, {}, {}, options<T>(2, cells, 1));
        auto const a = train.parameter<Real>(0, 0);
        starts.emplace_back(a.begin(), a.end());
        CHECK_THROWS_AS(train.parameter<Real>(2, 0), std::out_of_range);
    }
    CHECK(starts[0] == starts[1]);
}

TEST_CASE("A3 A4 a balance that does not sum to the layers, or has a zero entry, is refused") {
    // At run time by the functions that refuse the policy. Without a balance layers are cut by
    // cost, so none can be missing.
    double const costs[] = {1, 1};
    std::size_t first[4];
    CHECK_THROWS_AS(gpipe::Balance<1>::cut(costs, 2, 1, first), std::invalid_argument);
    CHECK_THROWS_AS((gpipe::Balance<1, 2>::cut(costs, 2, 2, first)), std::invalid_argument);
    CHECK_THROWS_AS((gpipe::Balance<0, 2>::cut(costs, 2, 2, first)), std::invalid_argument);
    CHECK_NOTHROW((gpipe::Balance<1, 1>::cut(costs, 2, 2, first)));
    using T = Train<Two>;
    CHECK_THROWS_AS(T(Two{}, {}, {}, options<T>(2, 3, 1)), std::invalid_argument);
}

TEST_CASE("A5 no micro-batches at all") {
    // As an option 0 asks for the default.
    using T = Train<Two>;
    CHECK(T(Two{}, {}, {}, options<T>(2, 2, 0)).micro_batches() == 8);
}

TEST_CASE("A6 A7 more cells than threads is no mistake, and surplus threads are dropped") {
    // Upstream a stage needs a device of its own; here a device is a lane of work, and one thread
    // walks as many as there are.
    using N = gpipe::Pipeline<gpipe::Repeat<4, Line>>;
    using T = Train<N>;
    auto const data = toy::numbers<Real>(4, 1);
    T one(N{}, {}, {}, options<T>(4, 4, 2, {}, 1));
    CHECK(one.lanes() == 1);
    T three(N{}, {}, {}, options<T>(4, 3, 2, {}, 5));
    CHECK(three.lanes() == 3);
    CHECK(one.step(data, data).loss == three.step(data, data).loss);
}

TEST_CASE("A9 one micro-batch works with every checkpointing") {
    using T = Train<Two>;
    auto const data = toy::numbers<Real>(3, 1);
    for (toy::NamedCheckpointing const& c : toy::every_checkpointing()) {
        T train(Two{}, {}, {}, options<T>(3, 2, 1, c.policy));
        CHECK(train.step(data, data).weight == 3);
    }
}

TEST_CASE("A11 A12 the same layer twice is two layers, each with parameters of its own") {
    // Layers are values: there is no object that could be in the list twice.
    using N = gpipe::Pipeline<Line, Line>;
    using T = Train<N>;
    Line const layer;
    T train(N(layer, layer), {}, {}, options<T>(2, 2, 1));
    CHECK(train.parameter<Real>(0, 0).data() != train.parameter<Real>(1, 0).data());
    CHECK(train.parameter<Real>(0, 0)[0] != train.parameter<Real>(1, 0)[0]);
}

TEST_CASE("A15 a training cannot be moved or copied") {
    // Its layers and tables point into it. There are no casts either: the element type is a type.
    using T = Train<Two>;
    static_assert(!std::is_copy_constructible_v<T> && !std::is_move_constructible_v<T>);
    static_assert(!std::is_copy_assignable_v<T> && !std::is_move_assignable_v<T>);
    CHECK(std::is_copy_constructible_v<Two>);
}

TEST_CASE("A16 the cells can be looked into, and layers have names") {
    auto const layers = Two::layers();
    CHECK(std::string(layers[0].name).find("Linear<double, 1") != std::string::npos);
    CHECK(layers[1].parameters.count == 2);
    using T = Train<Two>;
    T train(Two{}, {}, {}, options<T>(2, 2, 1));
    CHECK(train.plan().first.size() == 3);
    CHECK(train.programs().size(0) > 0);
}

TEST_CASE("A17 A18 where a layer runs is a matter of the cut: what Repeat repeats are layers as "
          "any, and one that is moved by hand is on another device") {
    using N = gpipe::Pipeline<Line, gpipe::Repeat<2, Line>, Watched<toy::Dropout<Real, 1>>, Line>;
    using T = Train<N>;
    auto const data = toy::numbers<Real>(4, 1);
    auto const device_of = [](T const& train, std::size_t layer) {
        std::size_t cell = 0;
        while (train.plan().first[cell + 1] <= layer) ++cell;
        return train.programs().device_of(cell);
    };
    std::vector<double> losses;
    for (std::vector<std::size_t> const& cut :
         {std::vector<std::size_t>{3, 1, 1}, {3, 2}, {4, 1}, {5}}) {
        toy::hand = cut;
        T train(N{}, {}, {}, options<T>(4, cut.size(), 2));
        toy::hand.clear();
        CHECK(train.devices() == cut.size());
        CHECK(device_of(train, 2) == 0);
        CHECK(device_of(train, 3) == (cut[0] == 3));
        CHECK(device_of(train, 4) == cut.size() - 1);
        losses.push_back(train.step(data, data).loss);
    }
    CHECK(losses == std::vector<double>(4, losses[0]));
}

TEST_CASE("A19 nothing is to be initialized first: a training trains before main() begins") {
    using T = Train<Two>;
    T train(Two{}, {}, {}, options<T>(4, 2, 2));
    auto const data = toy::numbers<Real>(4, 1);
    CHECK(train.step(data, data).loss == loss_before_main);
}
