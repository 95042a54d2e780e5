// Layers that examples/mlp.cpp and examples/wide have of their own, under check_gradients(): none
// is called wrong, and a fault in one of them is found where it is.
#define main mlp_main
#include "../../examples/mlp.cpp"
#undef main
#include "../../examples/wide/blocks.hpp"

#include <gpipe/check_gradients.hpp>

#include <support/faulty.hpp>
#include <support/long_tests.hpp>
#include <support/net.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace {

using toy::GradientFault;

// All or none have a cost.
template <class L> struct Costly : L { static constexpr double cost = 1; };
template <class L> using Faulty = toy::Faulty<Costly<L>>;

// Takes its weights for their transpose.
template <std::size_t n> struct TransposedLinear : Linear<n, n> {
    static constexpr bool accepts_none = false;
    bool wrong = false;
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        Linear<n, n>::backward(ctx, x, dy, dx);
        auto const w = get<0>(ctx.parameters());
        for (std::size_t s = 0; wrong && s < x.samples(); ++s)
            for (std::size_t i = 0; i < n; ++i) {
                dx(s, i) = 0;
                for (std::size_t o = 0; o < n; ++o) dx(s, i) += w(o, i) * dy(s, o);
            }
    }
};
using Layers =
    gpipe::Pipeline<Faulty<Relu<16>>, Faulty<Linear<16, 16>>, Faulty<wide::RowBlock<16, 32, 2, 0>>,
                    Faulty<wide::RowBlock<16, 32, 2, 1>>, Faulty<wide::ColumnBlock<32, 16, 2, 0>>,
                    Faulty<wide::ColumnBlock<32, 16, 2, 1>>, Faulty<TransposedLinear<16>>,
                    Faulty<Linear<16, 10>>>;
using Checked = gpipe::Training<Layers, gpipe::Cells<2>, gpipe::MicroBatches<2>,
                                gpipe::Loss<toy::FaultyLoss<CrossEntropy>>>;
constexpr std::size_t samples = 6;

// Its faults are in every second layer, from `first` on; 2: in none.
gpipe::GradientReport report(std::uint32_t seed, std::size_t first = 2,
                             GradientFault fault = GradientFault::none, bool transposed = false) {
    auto const net = [&]<std::size_t... Is>(std::index_sequence<Is...>) {
        auto const made = [&]<class L>(L layer, std::size_t at) {
            if (at % 2 == first) layer.fault = fault;
            if constexpr (requires { layer.wrong; }) layer.wrong = transposed;
            return layer;
        };
        return Layers(made(Layers::Layer<Is>{}, Is)...);
    }
    (std::make_index_sequence<Layers::size>{});
    toy::FaultyLoss<CrossEntropy> loss;
    if (Layers::size % 2 == first) loss.fault = fault;
    Checked train(net, loss, {}, {.samples = samples, .seed = seed});
    std::vector<std::int32_t> targets(samples);
    std::vector<float> inputs = toy::numbers<float>(samples * 16, seed);
    for (std::size_t s = 0; s < samples; ++s) {
        targets[s] = static_cast<std::int32_t>((s * 7 + seed) % 10);
        inputs[s * 16 + 15] = 1; // of the last weights, too, there is a gradient
    }
    return gpipe::check_gradients(train, inputs, targets, {.seed = seed});
}

} // namespace

TEST_CASE("no gradient of the examples' own layers is called wrong") {
    for (std::uint32_t seed = 1; seed <= 2 + 300 / toy::one_of(100); ++seed) {
        auto const found = report(seed);
        INFO("seed ", seed, "\n", found);
        CHECK(found.passed());
        for (gpipe::GradientRow const& row : found.rows) CHECK(row.checked > 0);
    }
}

TEST_CASE("every fault in the gradients of the examples' own layers is found where it is") {
    std::size_t point = 0;
    for (std::size_t first = 0; first < 2; ++first)
        for (std::size_t f = 1; f < toy::fault_count; ++f) {
            if (toy::left_out(point, 4)) continue;
            auto const fault = static_cast<GradientFault>(f);
            auto const found = report(7, first, fault);
            INFO(std::string(toy::fault_names[f]), " in every second layer from ", first, "\n",
                 found);
            for (gpipe::GradientRow const& row : found.rows) {
                CAPTURE(row.layer);
                CAPTURE(row.tensor);
                bool const can_have = row.layer % 2 == first && toy::spoils(fault, row.tensor);
                CHECK(row.fault.empty() != can_have);
            }
        }
}

TEST_CASE("a perceptron's weights that are transposed in its backward are found") {
    auto const found = report(7, 2, GradientFault::none, true);
    INFO(found);
    CHECK(found.faults() == 1);
    for (gpipe::GradientRow const& row : found.rows)
        CHECK(row.fault.empty() == (row.layer != 6 || row.tensor != "input 0"));
}
