// Skips of a chain, and of a plan that is a constant. What must not compile:
// compile_fail/skips.cpp.
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>
#include <support/skip_layers.hpp>

#include <gpipe/gpipe.hpp>

#include <cstddef>
#include <cstdint>

namespace {

using gpipe::Pipeline;
using gpipe::Repeat;
using gpipe::Skip;
using gpipe::Skips;

struct Foo;
struct Bar;
using Floats = blank::Floats<4>;
using Plain = blank::Linear<4>;
template <class S> struct Gives : blank::Linear<4> { using Stash = S; };
template <class P> struct Takes : blank::Linear<4> { using Pop = P; };
struct Passes : blank::Linear<4> {
    using Pop = Skip<Foo, Floats>;
    using Stash = Skip<Bar, Floats>;
};
using GivesFoo = Gives<Skip<Foo, Floats>>;
using TakesFoo = Takes<Skip<Foo, Floats>>;
using TakesBar = Takes<Skip<Bar, Floats>>;

template <class Net> constexpr bool is(std::size_t skip, std::size_t from, std::size_t to) {
    return Net::skips[skip].from == from && Net::skips[skip].to == to;
}

// H8: a chain without any.
static_assert(Pipeline<Plain, Repeat<3, Plain>>::skips.size() == 0);
// H1, I1: one tensor each.
using Two = Pipeline<GivesFoo, TakesFoo>;
static_assert(Two::skips.size() == 1 && is<Two>(0, 0, 1) && Two::skips[0].bytes == 16);
static_assert(Two::skips[0].gradient_bytes == 16);
// I6: one layer takes one and gives another.
using Relay = Pipeline<GivesFoo, Plain, Passes, Plain, TakesBar>;
static_assert(Relay::skips.size() == 2 && is<Relay>(0, 0, 2) && is<Relay>(1, 2, 4));
// Several of a layer, and their places among its ends.
using Both = Pipeline<Gives<Skips<Skip<Foo, Floats>, Skip<Bar, gpipe::Tensor<int, 3>>>>,
                      Takes<Skips<Skip<Bar, gpipe::Tensor<int, 3>>>>, TakesFoo>;
static_assert(Both::skips.size() == 2 && is<Both>(0, 0, 1) && is<Both>(1, 0, 2));
static_assert(Both::skips[0].stash == 1 && Both::skips[0].pop == 0 && Both::skips[1].stash == 0);
static_assert(Both::skips[0].bytes == 12 && Both::skips[0].gradient_bytes == 0);
// I9, H10: every repetition is a namespace of its own, equal to the others, and so is the chain.
using Spaces = Pipeline<GivesFoo, Repeat<1, GivesFoo, TakesFoo>,
                        Repeat<2, Plain, GivesFoo, TakesFoo>, TakesFoo>;
static_assert(Spaces::skips.size() == 4 && is<Spaces>(0, 1, 2) && is<Spaces>(1, 4, 5));
static_assert(is<Spaces>(2, 7, 8) && is<Spaces>(3, 0, 9));
static_assert(Pipeline<Repeat<1000, GivesFoo, Plain, TakesFoo>>::skips.size() == 1000);

// J1: which of them are edges, in the order in which they are popped, and between which cells. One
// within a cell is none.
template <class Net, std::size_t... sizes>
constexpr bool crosses(std::size_t skip, std::size_t from, std::size_t to) {
    using Train = gpipe::Training<Net, gpipe::Loss<blank::Loss<4>>, gpipe::Balance<sizes...>,
                                  gpipe::MicroBatches<2>, gpipe::schedule::OneForwardOneBackward>;
    gpipe::MemoryPlan const plan = Train::plan_for(1);
    std::uint32_t const e = plan.skip_edges[skip];
    if (e == gpipe::Operands::none) return from == to;
    gpipe::Edge const& edge = plan.lowered.edges[e];
    return from != to && edge.from == from && edge.to == to && edge.is_skip() && edge.gradient;
}
static_assert(crosses<Relay, 5>(0, 0, 0) && crosses<Relay, 3, 2>(0, 0, 0));
static_assert(crosses<Relay, 3, 2>(1, 0, 1) && crosses<Relay, 2, 2, 1>(0, 0, 1));
static_assert(crosses<Relay, 1, 1, 1, 1, 1>(0, 0, 2) && crosses<Relay, 1, 1, 1, 1, 1>(1, 2, 4));
using Crossed = Pipeline<GivesFoo, Gives<Skip<Bar, Floats>>, TakesBar, TakesFoo>;
static_assert(crosses<Crossed, 1, 1, 2>(0, 1, 2) && crosses<Crossed, 1, 1, 2>(1, 0, 2));
// What they carry from device to device takes its time.
using Piecewise = gpipe::Training<Relay, gpipe::Loss<blank::Loss<4>>, gpipe::Balance<1, 1, 1, 1, 1>,
                                  gpipe::MicroBatches<2>, gpipe::schedule::OneForwardOneBackward>;
constexpr bool times_skips() {
    gpipe::LayerTimes const times{gpipe::Array<double>(5, 1.0), gpipe::Array<double>(5, 2.0)};
    auto costs = Piecewise::action_costs(times, 16);
    bool const all = costs.skips.size() == 2 && costs.skips[1].from == 2 &&
                     costs.skips[1].to == 4 && costs.skips[0].output_bytes == 256 &&
                     costs.skips[0].gradient_bytes == 256 &&
                     costs.bytes(gpipe::forward(0, 0)) == 256;
    // Neighbours send as much, so it is there before them.
    double const alike = Piecewise::bubble(costs, 0, 256);
    costs.skips[0].output_bytes *= 20;
    return all && alike < Piecewise::bubble(costs, 0, 256);
}
static_assert(times_skips());
static_assert(
    Piecewise::action_costs({gpipe::Array<double>(5), gpipe::Array<double>(5)}).skips.size() == 0);
// Namespaces with the same tag: each its own edge.
static_assert(crosses<Spaces, 5, 3, 2>(0, 0, 0) && crosses<Spaces, 5, 3, 2>(1, 0, 1));
static_assert(crosses<Spaces, 5, 3, 2>(2, 1, 2) && crosses<Spaces, 5, 3, 2>(3, 0, 2));
static_assert(crosses<Spaces, 3, 3, 4>(1, 1, 1) && crosses<Spaces, 3, 3, 4>(2, 2, 2));

// A chain with skips of every kind, as a constant, on 4 devices.
template <class Schedule, class Checkpointing>
using Large = gpipe::Training<toy::SkipNet<float>, gpipe::Loss<blank::Loss<3>>, gpipe::Cells<4>,
                              gpipe::MicroBatches<8>, Schedule, Checkpointing>;
template <class Schedule, class Checkpointing = gpipe::checkpoint::ExceptLast>
constexpr std::size_t bytes = Large<Schedule, Checkpointing>::peak_bytes(3, 4);
static_assert(bytes<gpipe::schedule::GPipe> > bytes<gpipe::schedule::OneForwardOneBackward>);
static_assert(bytes<gpipe::schedule::ZeroBubbleV> > 0 && bytes<gpipe::schedule::ZeroBubbleH1> > 0);
static_assert(bytes<gpipe::schedule::Interleaved1F1B<2>, gpipe::checkpoint::Always> > 0);

} // namespace
