// The library's own layers, and those of tests with side inputs, constants, buffers, optional
// tensors and exchanges, under check_gradients(): none is called wrong, and a fault in one of them
// is found where it is.
#include "support/buffer_layers.hpp"
#include "support/constant_layers.hpp"
#include "support/exchange_layers.hpp"
#include "support/faulty.hpp"
#include "support/long_tests.hpp"
#include "support/optional_layers.hpp"
#include "support/side_layers.hpp"

#include <gpipe/check_gradients.hpp>
#include <gpipe/layers/gradient_tap.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace {

using toy::Faulty, toy::GradientFault;

template <class T> using Six = gpipe::Tensor<T, 6>;
// In one chain, so that the library is compiled for one training: norms stand where numbers would
// grow.
template <class T, class Hint = toy::Maybe<T>>
using Net = gpipe::Pipeline<
    Faulty<toy::Hinted<T, 5, 6, Hint>>, Faulty<toy::Hinted<T, 6, 6, Hint>>,
    Faulty<toy::Parting<T, Hint>>, Faulty<toy::OfOne<gpipe::BatchNorm<Six<T>>>>,
    Faulty<toy::Rejoining<T, Hint>>, Faulty<toy::Counter<T, 6>>,
    Faulty<toy::BySide<toy::MaskedBody<T>>>, Faulty<gpipe::GradientTap<Six<T>>>,
    Faulty<toy::OfOne<gpipe::BatchNorm<Six<T>, gpipe::RunningStatistics::micro_batch>>>,
    Faulty<toy::BySide<toy::PlacedBody<T>>>, Faulty<toy::StepCounter<T, 6>>,
    Faulty<toy::Meeting<T, 6>>, Faulty<toy::OfOne<gpipe::SyncBatchNorm<Six<T>>>>,
    Faulty<toy::Linear<T, 6, 6>>, Faulty<toy::Heated<T, 6, toy::OfTheStep>>,
    Faulty<toy::Cooled<T, 6, toy::OfTheStep>>,
    Faulty<toy::OfOne<gpipe::SyncBatchNorm<Six<T>, gpipe::RunningStatistics::micro_batch>>>,
    Faulty<toy::Bent<T>>, Faulty<toy::Linear<T, 6, 3>>>;
template <class T> using Loss = toy::FaultyLoss<toy::HeatedSquare<T, 3, toy::OfTheStep>>;
template <class T>
using Train =
    gpipe::Training<Net<T>, gpipe::Cells<3>, gpipe::MicroBatches<2>, gpipe::Loss<Loss<T>>>;

// With a fault in every second layer, from `first` on, the loss being one: what others are told is
// no matter.
constexpr std::size_t apart = 2;
bool is_faulty(std::size_t layer, std::size_t first) { return layer % apart == first; }

template <class T, std::size_t... Is>
Net<T> net(std::size_t first, GradientFault fault, std::index_sequence<Is...>) {
    auto const made = [&]<class L>(L layer, bool faulty) {
        if (faulty) layer.fault = fault;
        return layer;
    };
    return Net<T>(made(typename Net<T>::template Layer<Is>{}, is_faulty(Is, first))...);
}

template <class T>
gpipe::GradientReport report(std::uint32_t seed, bool with, std::size_t first = apart,
                             GradientFault fault = GradientFault::none) {
    Loss<T> loss;
    if (is_faulty(Net<T>::size, first)) loss.fault = fault;
    Train<T> train(net<T>(first, fault, std::make_index_sequence<Net<T>::size>{}), loss,
                   {.learning_rate = 0.01f}, {.samples = 8, .seed = seed});
    toy::set(train, toy::Settings::of(seed));
    toy::HintedData<T> const data(8, seed);
    toy::MaskedData<T> const more(8, seed);
    using Batch = gpipe::Batch<typename Train<T>::Input>;
    auto const batch = with ? Batch{data.inputs, data.hints, data.marks, more.mask, more.place}
                            : Batch{data.inputs, gpipe::none, gpipe::none, more.mask, more.place};
    return gpipe::check_gradients(train, batch, data.targets,
                                  {.samples = 8, .entries = 4, .seed = seed});
}

} // namespace

TEST_CASE_TEMPLATE("no gradient of a layer with anything else beside its tensors is called wrong",
                   T, float, double) {
    std::size_t checked = 0, left_out = 0;
    for (std::uint32_t seed = 1; seed <= 2 + 400 / toy::one_of(200); ++seed) {
        auto const found = report<T>(seed, seed % 2 == 0);
        INFO("seed ", seed, "\n", found);
        CHECK(found.passed());
        for (gpipe::GradientRow const& row : found.rows) {
            CAPTURE(row.layer);
            CAPTURE(row.tensor);
            CHECK(row.checked > 0);
            checked += row.checked;
            left_out += row.left_out;
        }
    }
    MESSAGE(checked, " checked, ", left_out, " left out");
    CHECK(left_out * 20 < checked);
}

TEST_CASE_TEMPLATE("every fault in such a layer's gradient is found where it is", T, float,
                   double) {
    std::size_t point = 0, wrong = 0;
    for (std::size_t first = 0; first < apart; ++first)
        for (std::size_t f = 1; f < toy::fault_count; ++f) {
            if (toy::left_out(point, 4)) continue;
            auto const fault = static_cast<GradientFault>(f);
            auto const found = report<T>(7, true, first, fault);
            INFO(std::string(toy::fault_names[f]), " in every second layer from ", first, "\n",
                 found);
            for (gpipe::GradientRow const& row : found.rows) {
                CAPTURE(row.layer);
                CAPTURE(row.tensor);
                bool const can_have = is_faulty(row.layer, first) && toy::spoils(fault, row.tensor);
                CHECK(row.fault.empty() != can_have);
                wrong += can_have;
            }
        }
    // Of 42 tensors, none of whose 23 inputs is added to.
    if (!toy::sanitized) CHECK(wrong == 271);
}
