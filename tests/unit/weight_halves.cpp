// When the weight halves of a cell's layers run, and what runs again for them.
#include <support/long_tests.hpp>
#include <support/random_plan.hpp>

#include <gpipe/checkpoint/weight_halves.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <random>
#include <vector>

namespace {

using gpipe::Array;
using gpipe::Keep;
using gpipe::Reversal;
using gpipe::ReversalStep;
using gpipe::WeightHalf;

// Layers that all learn and have halves.
Array<gpipe::LayerInfo> layers_with_halves(std::size_t count) {
    Array<gpipe::LayerInfo> layers(count);
    for (auto& layer : layers) layer.splits = true, layer.deferred.count = 1;
    return layers;
}
std::vector<WeightHalf> halves_of(Reversal const& reversal) {
    auto const layers = layers_with_halves(reversal.layers());
    auto const found = weight_halves(reversal, layers.data(), 0, 0);
    return {found.begin(), found.end()};
}

constexpr WeightHalf once = WeightHalf::at_once, later = WeightHalf::later,
                     again = WeightHalf::again;

} // namespace

TEST_CASE("by themselves those come later that the forward keeps, and those made again last") {
    CHECK(halves_of(gpipe::keep_everything(3)) == std::vector{later, later, later});
    CHECK(halves_of(gpipe::equal_segments(3, 1)) == std::vector{later, later, later});
    CHECK(halves_of(gpipe::every_segment(5, 2)) == std::vector{later, later, once, once, once});
    Array<bool> dear(5);
    dear[1] = dear[3] = true;
    CHECK(halves_of(gpipe::selective(dear)) == std::vector{later, later, once, later, once});
    CHECK(halves_of(gpipe::revolve(3, 0)) == std::vector{later, once, once});
}

TEST_CASE("the reversal's own choice counts, but for layers that have nothing to choose") {
    Reversal reversal = gpipe::every_segment(6, 2);
    reversal.forward[4] = Keep::all; // of layer 4 nothing is dropped
    reversal.weights = Array<WeightHalf>(6, again);
    reversal.weights[5] = once;
    auto layers = layers_with_halves(8);
    layers[3].splits = false;
    layers[2].deferred.count = 0; // the lowest learner: of its first half nobody wants anything
    auto const found = weight_halves(reversal, layers.data(), 2, 2);
    CHECK(std::vector(found.begin(), found.end()) ==
          std::vector{later, once, again, again, later, once});
}

TEST_CASE("each half that waits runs once, the last layer's first, behind its layer if that runs "
          "again, and layers run again at most once") {
    std::mt19937_64 random(3);
    std::size_t runs = 0, passes = 0;
    for (std::size_t n = 0; n < toy::cases(2000); ++n) {
        std::size_t const count = 1 + random() % 8;
        Reversal const reversal = toy::some_reversal(random, count);
        Array<WeightHalf> halves(count);
        for (std::size_t l = 0; l < count; ++l) {
            halves[l] = static_cast<WeightHalf>(random() % 3);
            if (halves[l] == again && reversal.forward[l] == Keep::all) halves[l] = later;
        }
        std::vector<int> forwards(count);
        std::vector<bool> made(count);
        std::size_t left = count;
        std::size_t current = count; // the layer whose input has been computed
        auto const steps = weight_steps(reversal, halves);
        for (std::size_t s = 0; s < steps.size(); ++s) {
            std::size_t const l = steps[s].layer;
            if (steps[s].backward) {
                REQUIRE(l < left);
                while (left > l) REQUIRE((--left == l || halves[left] == once));
                REQUIRE((halves[l] == later || made[l]));
                current = count;
                continue;
            }
            bool const kept = l == 0 || reversal.forward[l] == Keep::input ||
                              reversal.forward[l - 1] == Keep::all;
            REQUIRE((l == current || (kept && (s == 0 || steps[s - 1].backward))));
            REQUIRE(++forwards[l] == 1);
            REQUIRE((steps[s].keep == Keep::all) == (halves[l] == again));
            made[l] = steps[s].keep == Keep::all;
            current = l + 1;
            ++(made[l] ? runs : passes);
            // Nothing runs for nobody.
            REQUIRE(s + 1 < steps.size());
            REQUIRE((!steps[s + 1].backward || steps[s + 1].layer == l));
        }
        while (left > 0) REQUIRE(halves[--left] == once);
    }
    CHECK(runs > toy::cases(400));
    CHECK(passes > toy::cases(400));
}
