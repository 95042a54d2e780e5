// A constant budget, a policy for each cell, and selective ones, as constants.
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

// What is found within a budget is known at construction; the schedule is a constant.
template <class Checkpointing>
using Four = Training<Net, Loss, Cells<4>, MicroBatches<8>, OneForwardOneBackward, Checkpointing>;
using Tight = Four<Optimal<220'000, samples>>;
template <class T>
concept PlansBytes = requires {
    T::peak_bytes(0, samples);
};
static_assert(Four<Never>::is_constant && PlansBytes<Four<Never>>);
static_assert(!Tight::is_constant && !PlansBytes<Tight>);
static_assert(Tight::bubble() == Four<Never>::bubble());
static_assert(Tight::peak_micro_batches(0) == Four<Never>::peak_micro_batches(0));

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
