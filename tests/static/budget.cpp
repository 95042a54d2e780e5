// Reversals within a constant budget, a policy for each cell, and selective ones, as constants.
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

#include <gpipe/gpipe.hpp>

#include <cstddef>

namespace {

using namespace gpipe::checkpoint;
using gpipe::Cells;
using gpipe::MicroBatches;
using gpipe::Repeat;
using gpipe::Training;
using gpipe::schedule::OneForwardOneBackward;

using Loss = gpipe::Loss<blank::Loss<64>>;
using Net = gpipe::Pipeline<Repeat<16, blank::Costly<64>>>;
constexpr std::size_t samples = 8;
constexpr std::size_t plenty = std::size_t{1} << 40;

// Sixteen layers in four cells and on as many devices.
template <class Checkpointing>
using Four = Training<Net, Loss, Cells<4>, OneForwardOneBackward, Checkpointing>;
template <class T> constexpr bool fits(std::size_t bytes) {
    for (std::size_t d = 0; d < T::device_count; ++d)
        if (T::peak_bytes(d, samples) > bytes) return false;
    return true;
}
constexpr std::size_t tight = 220'000;
static_assert(Four<Optimal<tight, samples>>::constant);
static_assert(fits<Four<Optimal<tight, samples>>>(tight));
static_assert(!fits<Four<EverySegment<1>>>(tight) && !fits<Four<Never>>(tight));
// With enough of them nothing runs again that anybody would read.
template <class Checkpointing>
constexpr double again = [] {
    gpipe::LayerTimes const times{gpipe::Array<double>(16, 1.0), gpipe::Array<double>(16, 0.0)};
    auto const costs = Four<Checkpointing>::action_costs(times);
    return costs(gpipe::recompute(0, 0)) + costs(gpipe::backward(0, 0));
}();
static_assert(again<Optimal<plenty, samples>> == 0 && again<Optimal<tight, samples>> > 0);
static_assert(Four<Optimal<plenty, samples>>::peak_bytes(0, samples) <=
              Four<Never>::peak_bytes(0, samples));
static_assert(Four<Optimal<tight, samples>>::bubble() == Four<Never>::bubble());
// Bytes without samples, or the other way round, are for construction.
static_assert(!Four<Optimal<tight>>::constant);

// Two cells on each device share its temporaries.
using Shared = Training<Net, Loss, Cells<2>, gpipe::schedule::ZeroBubbleV, MicroBatches<4>,
                        Optimal<430'000, samples>>;
static_assert(fits<Shared>(430'000));
static_assert(
    !fits<Training<Net, Loss, Cells<2>, gpipe::schedule::ZeroBubbleV, MicroBatches<4>, Never>>(
        430'000));

// All layers in one cell.
using Half = gpipe::Pipeline<Repeat<8, blank::Costly<64>>>;
using One = Training<Half, Loss, Cells<1>, MicroBatches<4>, Optimal<410'000, samples>>;
static_assert(fits<One>(410'000));
static_assert(!fits<Training<Half, Loss, Cells<1>, MicroBatches<4>, Never>>(410'000));

// A policy for each cell.
template <class Checkpointing>
using Two = Training<Net, Loss, Cells<2>, MicroBatches<4>, Checkpointing>;
template <class Checkpointing, std::size_t device>
constexpr std::size_t bytes_of = Two<Checkpointing>::peak_bytes(device, samples);
static_assert(bytes_of<PerCell<Never, ExceptLast>, 0> == bytes_of<Never, 0>);
static_assert(bytes_of<PerCell<Never, ExceptLast>, 1> == bytes_of<ExceptLast, 1>);
static_assert(bytes_of<PerCell<Revolve<1>, Never>, 0> == bytes_of<Revolve<1>, 0>);
static_assert(bytes_of<PerCell<Revolve<1>, Never>, 1> == bytes_of<Never, 1>);

// Selective: of a cheap layer nothing is kept but its input.
struct Cheap : blank::Costly<64> {
    using Saved = blank::Floats<64 * 64>;
    static constexpr bool recompute_is_cheap = true;
};
struct Dear : Cheap {
    static constexpr bool recompute_is_cheap = false;
};
template <class L, class Checkpointing>
constexpr std::size_t
    with_layer = Training<gpipe::Pipeline<blank::Costly<64>, L, blank::Costly<64>, L>, Loss,
                          Cells<2>, MicroBatches<4>, Checkpointing>::peak_bytes(0, samples);
static_assert(with_layer<Cheap, Selective> < with_layer<Cheap, Never>);
static_assert(with_layer<Dear, Selective> == with_layer<Dear, Never>);

} // namespace
