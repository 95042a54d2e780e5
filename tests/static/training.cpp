// Training: policies in any order, and everything known before the run as a constant.
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>
#include <support/schedules.hpp>

#include <gpipe/gpipe.hpp>

#include <cstddef>
#include <utility>

namespace {

using namespace gpipe::literals;
using gpipe::Balance;
using gpipe::Cells;
using gpipe::MicroBatches;
using gpipe::Optimizer;
using gpipe::Repeat;
using gpipe::Training;
using gpipe::checkpoint::Always;
using gpipe::checkpoint::ExceptLast;
using gpipe::checkpoint::Never;

using Net = gpipe::Pipeline<blank::Costly<64>, Repeat<6, blank::Costly<64>>, blank::Costly<64>>;
using Loss = gpipe::Loss<blank::Loss<64>>;

// In any order, each with a default.
using A =
    Training<Net, Cells<4>, MicroBatches<32>, Loss, Optimizer<gpipe::AdamW>,
             toy::OneForwardOneBackward, Always, gpipe::transport::Local, gpipe::device::Host>;
using B = Training<Net, gpipe::device::Host, Always, Loss, toy::OneForwardOneBackward,
                   gpipe::transport::Local, Optimizer<gpipe::AdamW>, MicroBatches<32>, Cells<4>>;
static_assert(A::is_constant && A::cell_count == 4 && A::micro_batch_count == 32);
static_assert(A::layer_count == 8);
static_assert(B::cell_count == 4 && B::micro_batch_count == 32 && B::bubble() == A::bubble());
static_assert(A::peak_bytes(1, 8) == B::peak_bytes(1, 8));
static_assert(A::bubble() == gpipe::ratio(3, 35));
static_assert(A::peak_bytes(0, 8) < 2_GiB && A::peak_bytes(0, 8) > 64 * 64 * 4 * 2);
static_assert(A::peak_micro_batches(0) == 4 && A::peak_micro_batches(3) == 1);

using Default = Training<Net, Loss>;
static_assert(Default::is_constant && Default::cell_count == 1 && Default::micro_batch_count == 4);
static_assert(Default::bubble() == gpipe::ratio(0, 1));
static_assert(Default::peak_micro_batches(0) == 4);
static_assert(Training<Net, Loss, Cells<8>>::micro_batch_count == 32);

// Balance by hand.
using ByHand = Training<Net, Balance<3, 1, 4>, Loss>;
static_assert(ByHand::cell_count == 3 && ByHand::first_layers()[0] == 0);
static_assert(ByHand::first_layers()[1] == 3 && ByHand::first_layers()[2] == 4);
static_assert(ByHand::first_layers()[3] == 8 && ByHand::first_layers().size() == 4);
static_assert(A::first_layers()[1] == 2 && A::first_layers()[3] == 6);

// The family of schedules, over layers with halves and without.
struct Halved : blank::Costly<64> {
    void input_gradient(auto&, auto, auto, auto) const {}
    void weight_gradient(auto&, auto, auto) const {}
};
template <class L, class Schedule>
using Of = Training<gpipe::Pipeline<Repeat<8, L>>, Loss, Cells<4>, MicroBatches<8>, Schedule>;
template <class Schedule> using Whole = Of<blank::Costly<64>, Schedule>;
template <class Schedule> using Half = Of<Halved, Schedule>;
using gpipe::ratio;
using namespace gpipe::schedule;
static_assert(Half<OneForwardOneBackward>::bubble() == ratio(3, 11));
static_assert(Half<EagerOneForwardOneBackward>::bubble() == ratio(3, 11));
static_assert(Half<Interleaved1F1B<2>>::bubble() == ratio(3, 19));
static_assert(Half<BreadthFirst<2>>::bubble() == ratio(3, 19));
static_assert(Half<ZeroBubbleH1>::bubble() == ratio(3, 27));
static_assert(Half<ZeroBubbleH2>::bubble() == ratio(3, 27));
static_assert(Half<ZeroBubbleV>::bubble() == ratio(3, 51));
static_assert(Half<DualPipeV>::bubble() == ratio(3, 51));
static_assert(Half<VHalf>::bubble() == ratio(7, 55) && Half<VMin>::bubble() == ratio(11, 59));
static_assert(Half<ZeroBubbleV>::cell_count == 8 && Half<ZeroBubbleV>::device_count == 4);
static_assert(Half<VHalf>::peak_micro_batches(0) == 6 && Half<VMin>::peak_micro_batches(0) == 4);
static_assert(Half<ZeroBubbleH1>::peak_micro_batches(3) == 4);
// Without halves a backward takes the time of both in the place of the first.
static_assert(Whole<Interleaved1F1B<2>>::bubble() == ratio(3, 19));
static_assert(ratio(3, 27) < Whole<ZeroBubbleH1>::bubble());
static_assert(Whole<ZeroBubbleH1>::bubble(gpipe::CellCosts<double>{
                  .forward = 1, .input_gradient = 1, .weight_gradient = 0}) < 0.4);
static_assert(Half<ZeroBubbleV>::peak_bytes(0, 2) > Half<VMin>::peak_bytes(0, 2));

// Bubbles and slots over a sweep.
template <std::size_t K, std::size_t M> constexpr bool gpipe_facts() {
    using T = Training<Net, Cells<K>, MicroBatches<M>, Loss>;
    static_assert(T::bubble() == gpipe::ratio(K - 1, M + K - 1));
    static_assert(T::peak_micro_batches(K - 1) == M);
    constexpr std::size_t slots = [] {
        auto const plan = T::plan_for(1);
        std::size_t most = 0;
        for (std::size_t e = 0; e + 1 < K; ++e)
            if (std::size_t const n = plan.pools.pool(gpipe::Holds::input, e).slots; n > most)
                most = n;
        return most;
    }();
    static_assert(slots == (K > 1 ? M + 1 : 0));
    return true;
}
static_assert(gpipe_facts<1, 1>() && gpipe_facts<2, 4>() && gpipe_facts<3, 7>());
static_assert(gpipe_facts<8, 2>());

// Less is kept with checkpointing; more samples need more.
template <class Checkpointing>
using With = Training<Net, Cells<2>, MicroBatches<8>, Loss, Checkpointing>;
static_assert(With<Always>::peak_bytes(0, 4) <= With<Never>::peak_bytes(0, 4));
static_assert(With<ExceptLast>::peak_bytes(0, 4) < With<Never>::peak_bytes(0, 4));
static_assert(With<Never>::peak_bytes(0, 4) < With<Never>::peak_bytes(0, 8));
static_assert(With<Never>::plan_for(4).total() ==
              With<Never>::peak_bytes(0, 4) + With<Never>::peak_bytes(1, 4));

// What is chosen at construction is not constant.
using Chosen = Training<Net, Cells<gpipe::dynamic>, Loss>;
static_assert(!Chosen::is_constant && Chosen::micro_batch_count == gpipe::dynamic);
template <class T>
concept KnowsItsBubble = requires {
    T::bubble();
};
template <class T>
concept KnowsItsCut = requires {
    T::first_layers();
};
template <class T>
concept KnowsItsBytes = requires {
    T::peak_bytes(0, 1);
};
static_assert(KnowsItsBubble<A> && KnowsItsCut<A> && KnowsItsBytes<A>);
static_assert(!KnowsItsBubble<Chosen> && !KnowsItsCut<Chosen> && !KnowsItsBytes<Chosen>);
using SomeSchedule = Training<Net, Cells<2>, Loss, gpipe::schedule::Dynamic>;
// A schedule may want several cells on each device.
static_assert(!SomeSchedule::is_constant && SomeSchedule::device_count == 2 &&
              SomeSchedule::cell_count == gpipe::dynamic && !KnowsItsCut<SomeSchedule> &&
              !KnowsItsBubble<SomeSchedule>);
static_assert(!Training<Net, Loss, gpipe::checkpoint::Dynamic>::is_constant);
static_assert(!Training<Net, Loss, MicroBatches<gpipe::dynamic>>::is_constant);

// Cells that are reversed piece by piece are planned as constants, too. Of the first cell four
// micro-batches are in flight, and each retains the inputs of all segments; of the last cell one.
template <class Checkpointing>
using Reversed = Training<gpipe::Pipeline<Repeat<16, blank::Costly<64>>>, Loss, Cells<2>,
                          MicroBatches<4>, Checkpointing>;
template <class Checkpointing, std::size_t device>
constexpr std::size_t inside = Reversed<Checkpointing>::plan_for(8).devices[device].activations;
using gpipe::checkpoint::EverySegment;
using gpipe::checkpoint::Revolve;
static_assert(inside<EverySegment<8>, 0> == inside<ExceptLast, 0>);
static_assert(inside<EverySegment<4>, 1> < inside<ExceptLast, 1>);
static_assert(inside<Revolve<2>, 0> < inside<ExceptLast, 0>);
static_assert(inside<Revolve<0>, 0> < inside<Revolve<2>, 0>);
static_assert(inside<gpipe::checkpoint::SquareRoot, 0> <= inside<ExceptLast, 0>);
static_assert(Reversed<Revolve<2>>::bubble() == gpipe::ratio(1, 5));

// What is offloaded is planned as a constant, too: two blocks of a cell on the device, one for
// every micro-batch but the last two in the host's memory.
template <class Checkpointing>
using Moved = Training<gpipe::Pipeline<Repeat<8, blank::Costly<64>>>, Loss, Cells<2>,
                       MicroBatches<8>, Checkpointing>;
using gpipe::checkpoint::Offload;
static_assert(Moved<Offload<Never>>::peak_bytes(0, 8) < Moved<Never>::peak_bytes(0, 8));
static_assert([] {
    gpipe::MemoryPlan const plan = Moved<Offload<Never>>::plan_for(8);
    auto const slots = [&](gpipe::Holds holds) { return plan.pools.pool(holds, 0).slots; };
    return slots(gpipe::Holds::retained) == 2 && slots(gpipe::Holds::offloaded) == 6 &&
           slots(gpipe::Holds::input) == 4 && !plan.cells[0].input_moves &&
           plan.cells[1].input_moves;
}());
static_assert(Moved<Offload<Never>>::bubble() == gpipe::ratio(1, 9));

// What actions take, for bubble(): cells of 8 layers in segments of 4, each last layer of which
// would run again for nobody.
constexpr gpipe::LayerTimes layer_times() {
    return {gpipe::Array<double>(16, 1.0), gpipe::Array<double>(16, 2.0)};
}
constexpr double taken(gpipe::Action const& action) {
    return Reversed<EverySegment<4>>::action_costs(layer_times())(action);
}
static_assert(taken(gpipe::forward(0, 0)) == 8 && taken(gpipe::recompute(0, 0)) == 3);
static_assert(taken(gpipe::backward(0, 0)) == 16 + 3);
template <class Checkpointing>
constexpr double
    timed = Reversed<Checkpointing>::bubble(Reversed<Checkpointing>::action_costs(layer_times()));
static_assert(timed<Never> > 0.19999 && timed<Never> < 0.20001);
// Four forwards, each with its backward in the last cell, one backward more in the first.
constexpr double makespan = 4 * 8 + 4 * (8 + 19) + 19;
constexpr double busy = 4 * 8 + 3 * 3 + 4 * 19 + 4 * (8 + 19);
static_assert(timed<EverySegment<4>> > 1 - busy / (2 * makespan) - 1e-9);
static_assert(timed<EverySegment<4>> < 1 - busy / (2 * makespan) + 1e-9);

// A cut that knows what runs again, where that is a constant: see cut_for().
template <class... Policies>
using Long = Training<gpipe::Pipeline<Repeat<24, blank::Costly<4>>>, Cells<2>,
                      gpipe::Loss<blank::Loss<4>>, Policies...>;
using gpipe::schedule::OneForwardOneBackward;
static_assert(Long<MicroBatches<32>, OneForwardOneBackward>::first_layers()[1] == 10);
static_assert(Long<MicroBatches<32>, OneForwardOneBackward, Never>::first_layers()[1] == 12);
static_assert(Long<MicroBatches<32>>::first_layers()[1] == 12);
static_assert(!KnowsItsCut<Long<MicroBatches<gpipe::dynamic>, OneForwardOneBackward>>);
static_assert(!KnowsItsCut<Long<MicroBatches<32>, gpipe::checkpoint::Dynamic>>);

// 4,096 layers in 256 cells.
using Deep = gpipe::Pipeline<Repeat<4096, blank::Costly<4>>>;
using Loss4 = gpipe::Loss<blank::Loss<4>>;
using Wide = Training<Deep, Cells<256>, MicroBatches<gpipe::dynamic>, Loss4>;
static_assert(Deep::size == 4096 && Deep::leaves == 1);
static_assert(Wide::first_layers()[1] == 16 && Wide::first_layers()[256] == 4096);

// Six hundred ends of ties cost no more than their layers do, and each device has the tensors once.
template <int> struct Shared;
template <class Indices> struct SharesAll;
template <int... tensors> struct SharesAll<std::integer_sequence<int, tensors...>> : blank::Map<4> {
    template <int> using One = blank::Floats<4>;
    using Parameters = gpipe::Tensors<One<tensors>...>;
    using Tied = gpipe::Ties<gpipe::Tie<Shared<tensors>, tensors>...>;
    void initialize(auto&) const {}
};
using Ties = Training<gpipe::Pipeline<Repeat<48, SharesAll<std::make_integer_sequence<int, 12>>>>,
                      Cells<8>, MicroBatches<4>, Loss4, Optimizer<gpipe::Adam>>;
constexpr gpipe::DeviceBytes of_ties = Ties::plan_for(1).devices[7];
static_assert(of_ties.parameters == 12 * gpipe::slot_bytes(16));
static_assert(of_ties.optimizer == 2 * 12 * gpipe::slot_bytes(16));
static_assert(of_ties.gradients == 6 * 12 * gpipe::slot_bytes(16));
// Nor does a budget want more: for that a device has too little here if each end had its own.
constexpr std::size_t little = 2 * 6 * 12 * gpipe::slot_bytes(16);
using TiesInLittle =
    Training<gpipe::Pipeline<Repeat<48, SharesAll<std::make_integer_sequence<int, 12>>>>, Cells<8>,
             MicroBatches<4>, Loss4, Optimizer<gpipe::Adam>, gpipe::checkpoint::Optimal<little, 1>>;
static_assert(of_ties.state() < little && little < 4 * of_ties.gradients);
static_assert(TiesInLittle::cell_count == 8);

// Optimizers.
static_assert(gpipe::OptimizerFunctor<gpipe::SGD> && gpipe::OptimizerFunctor<gpipe::Adam>);
static_assert(gpipe::OptimizerFunctor<gpipe::AdamW> && gpipe::OptimizerFunctor<gpipe::RMSProp>);
struct MayThrow {
    static constexpr std::size_t states = 0;
    template <class T> void operator()(gpipe::UpdateContext, gpipe::UpdateTensor<T, 0>) const {}
};
struct NoStates {
    template <class T>
    void operator()(gpipe::UpdateContext, gpipe::UpdateTensor<T, 0>) const noexcept {}
};
static_assert(!gpipe::OptimizerFunctor<MayThrow> && !gpipe::OptimizerFunctor<NoStates>);
static_assert(!gpipe::OptimizerFunctor<int>);

} // namespace
