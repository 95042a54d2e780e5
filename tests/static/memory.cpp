// memory/: slots, blocks and bytes are constants.
#include <support/blank_layers.hpp>
#include <support/lowered.hpp>
#include <support/schedules.hpp>

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/memory/usage.hpp>
#include <gpipe/pipeline.hpp>
#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <cstddef>

namespace {

using gpipe::Programs;
using gpipe::checkpoint::Always;
using gpipe::checkpoint::ExceptLast;
using gpipe::checkpoint::Never;
using gpipe::schedule::GPipe;
using toy::OneForwardOneBackward;

constexpr gpipe::Pools pools(Programs const& programs, bool gradient = true) {
    gpipe::Edges edges = toy::neighbours(programs.cells());
    for (std::size_t e = 0; e < edges.size(); ++e) edges[e].gradient = gradient;
    auto const lowered = toy::lower(programs, edges);
    auto const operands = find_operands(lowered, toy::any_cells(programs.cells()));
    gpipe::Walk const walk = walk_of(lowered);
    std::size_t const count = gpipe::Pools(edges.size(), programs.cells(), 0).size();
    return assign_slots(walk, lowered, operands, gpipe::Array<gpipe::Patience>(count));
}
constexpr std::size_t slots(Programs const& programs, std::size_t cell, bool gradient = true) {
    return pools(programs, gradient).pool(gpipe::Holds::input, cell - 1).slots;
}

// GPipe: M inputs and one for the gradients. 1F1B: what is in flight at the producer and one. Each
// boundary is an evaluation of its own.
template <std::size_t K, std::size_t M, std::size_t k>
constexpr bool slots_are_in_flight_and_one() {
    static_assert(slots(GPipe::programs(K, M), k) == M + 1);
    static_assert(slots(GPipe::programs(K, M), k, false) == M);
    static_assert(slots(ExceptLast::lower(GPipe::programs(K, M)), k) <= M + 1);
    static_assert(slots(OneForwardOneBackward::programs(K, M), k) ==
                  (M < K - k + 1 ? M : K - k + 1) + 1);
    return true;
}
static_assert(slots_are_in_flight_and_one<2, 1, 1>() && slots_are_in_flight_and_one<2, 4, 1>());
static_assert(slots_are_in_flight_and_one<4, 8, 1>() && slots_are_in_flight_and_one<4, 8, 2>());
static_assert(slots_are_in_flight_and_one<4, 8, 3>() && slots_are_in_flight_and_one<4, 3, 2>());
static_assert(slots_are_in_flight_and_one<8, 12, 4>());

// A plan, byte by byte. Two cells of one layer each, 64 floats a boundary: 256 bytes a sample.
using Net = gpipe::Pipeline<blank::Linear<64>, blank::Linear<64>>;
template <class Pass>
constexpr gpipe::MemoryPlan plan(std::size_t states, std::size_t capacity,
                                 gpipe::Link link = gpipe::Link::shared) {
    auto const layers = Net::layers();
    gpipe::Array<std::size_t> first(3);
    first[1] = 1;
    first[2] = 2;
    return gpipe::plan_memory({{layers.data(), 2, gpipe::lowest_learner(layers.data(), 2)},
                               first,
                               states,
                               capacity,
                               {},
                               gpipe::Array<gpipe::Link>(2, link)},
                              Pass::lower(GPipe::programs(2, 4)));
}
constexpr gpipe::DeviceBytes device(std::size_t d) { return plan<ExceptLast>(2, 3).devices[d]; }
static_assert(device(0).parameters == 64 * 64 * 4 + 256);
static_assert(device(0).gradients == device(0).parameters);
static_assert(device(0).optimizer == 2 * device(0).parameters);
static_assert(device(0).boundary == 0);           // the caller's own arrays
static_assert(device(1).boundary == 5 * 3 * 256); // M + 1 slots for 3 samples
// The first cell's only output and its gradient lie in slots of the second; what is left is a
// scratch input gradient that blank layers do not decline.
static_assert(device(0).activations == 3 * 256);
// Output and its gradient; the loss has no scratch.
static_assert(device(1).activations == 2 * 3 * 256);
static_assert(plan<ExceptLast>(2, 3).total() == device(0).total() + device(1).total());
// Never keeps the last cell's output once per micro-batch in flight.
static_assert(plan<Never>(2, 3).devices[1].activations == (4 + 1) * 3 * 256);

// Devices that share no memory: two slots more on the sending side, and two on the host's for
// either way where tensors go through it. The receiving side needs what it needed.
constexpr gpipe::MemoryPlan copied(gpipe::Link link) { return plan<ExceptLast>(2, 3, link); }
static_assert(copied(gpipe::Link::copied).devices[0].boundary == 2 * 3 * 256);
static_assert(copied(gpipe::Link::copied).devices[1].boundary == device(1).boundary);
static_assert(copied(gpipe::Link::copied).host == 0);
static_assert(copied(gpipe::Link::staged).devices[0].boundary == 2 * 3 * 256);
static_assert(copied(gpipe::Link::staged).devices[1].boundary == device(1).boundary);
static_assert(copied(gpipe::Link::staged).host == (2 + 2) * 3 * 256);
// The third forward waits until the first output has left its slot.
constexpr bool third_forward_waits() {
    auto const lowered = copied(gpipe::Link::copied).lowered;
    return lowered.needs[1].size() == 0 && lowered.needs[2].size() == 1 &&
           lowered.programs[lowered.needs[2][0]] == gpipe::Action{gpipe::Kind::send_output, 0, 0};
}
static_assert(third_forward_waits());

// What is in use over time: before the first output only what always is, at the peak all. At time 1
// the last cell begins: two inputs are there, and its first output.
constexpr gpipe::MemoryCurve usage(std::size_t d) {
    gpipe::MemoryPlan const planned = plan<Never>(2, 3);
    return gpipe::memory_usage(
        planned, gpipe::simulate<std::int64_t>(planned.lowered.programs, gpipe::unit_cost))[d];
}
static_assert(usage(1).at(-1) == 0 && usage(0).fixed == 4 * device(0).parameters);
static_assert(usage(0).at(0) == usage(0).fixed); // a forward alone has no temporaries
static_assert(usage(0).peak() == usage(0).planned);
static_assert(usage(1).at(0) == usage(1).fixed + 3 * 256);
static_assert(usage(1).at(1) == usage(1).fixed + (2 + 1) * 3 * 256);
static_assert(usage(1).peak() == usage(1).planned);
static_assert(usage(1).planned == plan<Never>(2, 3).devices[1].total());

// The lowest learner is above what carries no gradient.
constexpr std::size_t lowest() {
    using L = gpipe::Pipeline<blank::Map<4>, blank::Map<4>, blank::Linear<4>, blank::Map<4>>;
    auto const layers = L::layers();
    return gpipe::lowest_learner(layers.data(), layers.size());
}
static_assert(lowest() == 2);

} // namespace
