// What crosses between devices that share no memory, in few slots: whoever reads finds what was
// written for it, and nobody waits for ever, in whatever order streams and waits allow.
#include <support/links.hpp>
#include <support/random_chain.hpp>
#include <support/walker.hpp>

#include <gpipe/runtime/placement.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <utility>
#include <vector>

using gpipe::Array;
using gpipe::Kind;
using gpipe::Link;
using gpipe::Lowered;
using gpipe::MemoryPlan;
using gpipe::no_slot;
using gpipe::Programs;

namespace {

double cost(gpipe::Action const& a) { return a.kind == Kind::backward ? 2 : 1; }

// A stream per program, one walker: as a device that enqueues has it.
gpipe::StepTable table_of(MemoryPlan const& plan, toy::Places const& places) {
    auto const placement = gpipe::place_programs(plan.lowered, 1, true, cost);
    return gpipe::training_table(plan, placement, gpipe::merge_lanes(plan.lowered, placement, cost),
                                 places.arenas, places.host);
}
gpipe::StepTable table_of(gpipe::ForwardPrograms const& forwards, MemoryPlan const& plan,
                          toy::Places const& places) {
    auto const placement = gpipe::place_programs(forwards.lowered, 1, true, cost);
    return gpipe::forward_table(forwards, placement,
                                gpipe::merge_lanes(forwards.lowered, placement, cost), plan,
                                places.arenas, places.host);
}

toy::RandomChain some_chain(std::mt19937_64& random, std::size_t length) {
    toy::Sizes sizes;
    sizes.most_bytes = 700;
    int const percents[] = {100, 100, 60, 20, 0}; // gradients everywhere ... nowhere
    sizes.percent_parameters = percents[random() % 5];
    return toy::random_chain(random, length, sizes);
}
Array<std::size_t> some_cut(std::mt19937_64& random, std::size_t cells, std::size_t length) {
    std::vector<std::size_t> cuts;
    for (std::size_t i = 1; i < length; ++i) cuts.push_back(i);
    std::shuffle(cuts.begin(), cuts.end(), random);
    cuts.resize(cells - 1);
    std::sort(cuts.begin(), cuts.end());
    Array<std::size_t> first(cells + 1);
    std::copy(cuts.begin(), cuts.end(), first.begin() + 1);
    first[cells] = length;
    return first;
}

// Calls f(chain, programs, plan) for the sweep over all programs and links.
template <class F> void each_plan(std::size_t seed, F f) {
    std::mt19937_64 random(seed);
    for (std::size_t k = 2; k <= 6; ++k)
        for (std::size_t m = 1; m <= 7; ++m)
            toy::each_lowering(k, m, [&](Programs const& programs) {
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(toy::chance);
                std::size_t const length = k + random() % 3;
                auto const chain = some_chain(random, length);
                auto const first = some_cut(random, k, length);
                for (auto const& links :
                     {toy::same_links(programs, Link::copied),
                      toy::same_links(programs, Link::staged), toy::mixed_links(programs, random)})
                    f(chain.shape(), programs,
                      gpipe::plan_memory(chain.shape(), first, programs, 1, 1 + random() % 2, {},
                                         links));
            });
}

// Where a step's tensors may lie: those of a boundary with transfers in the step's own arena, and
// only the far end of a transfer elsewhere.
std::string wrong_with_places(toy::Walker const& walker, gpipe::Step const& step,
                              MemoryPlan const& plan, toy::Places const& places) {
    Programs const& programs = plan.lowered.programs;
    auto const boundary_of = [](std::uint32_t tag) { return (tag - 1) / 2 % 16; };
    auto const in_arena = [&](auto const& tensor, std::size_t device) {
        auto const& bytes = plan.devices[device];
        std::size_t const begin = bytes.parameters + bytes.gradients + bytes.optimizer;
        return places.within(tensor.at, tensor.bytes, device, begin, begin + bytes.boundary);
    };
    auto const effect = walker.effect(step);
    for (bool const writes : {false, true})
        for (auto const& tensor : writes ? effect.writes : effect.reads) {
            std::size_t const b = boundary_of(tensor.tag);
            bool const gradient = (tensor.tag - 1) % 2 != 0;
            Link const link = plan.links[b];
            bool const receives =
                step.kind == Kind::receive_input || step.kind == Kind::receive_gradient;
            bool const sends = step.kind == Kind::send_output || step.kind == Kind::send_gradient;
            if (link == Link::staged && (sends ? writes : receives && !writes)) {
                std::size_t const at =
                    gradient ? plan.transfers[b].gradients_at : plan.transfers[b].outputs_at;
                auto const& slots =
                    gradient ? plan.transfers[b].gradients : plan.transfers[b].outputs;
                auto const offset = static_cast<std::size_t>(tensor.at - places.host);
                if (!places.in_host(tensor.at, tensor.bytes)) return "not in the host's memory";
                if (offset < at ||
                    offset + tensor.bytes > at + slots.slots * plan.transfers[b].slot_size)
                    return "in another's staging slots";
                continue;
            }
            std::size_t cell = step.cell;
            // What a recompute writes stays where it is, whoever may read it.
            if (link == Link::shared && step.kind != Kind::recompute) cell = b;
            if (sends && writes) cell = gradient ? b - 1 : b;
            // With one micro-batch a gradient has its place among the temporaries.
            if (plan.holds_gradient[b] && gradient && cell == b) continue;
            if (!in_arena(tensor, programs.device_of(cell))) return "in no slot of its device";
        }
    return "";
}

} // namespace

TEST_CASE("whoever reads finds what was written for it, in whatever order, and nobody waits on") {
    std::mt19937_64 random(1);
    std::size_t walks = 0;
    each_plan(1, [&](gpipe::ChainShape const& chain, Programs const& programs, MemoryPlan plan) {
        toy::Places const places(plan);
        toy::Walker const walker(chain, plan, places);
        auto const walk = [&](gpipe::StepTable const& table) {
            for (toy::Pace const pace : {toy::Pace::any, toy::paces[1 + random() % 4]}) {
                CAPTURE(static_cast<int>(pace));
                REQUIRE(walker.walk(table, programs.devices(), pace, random) == "");
                ++walks;
            }
            for (gpipe::Step const& step : table.steps)
                REQUIRE(wrong_with_places(walker, step, plan, places) == "");
        };
        walk(table_of(plan, places));
        gpipe::drop_implied(plan.lowered,
                            gpipe::HappensBefore(plan.lowered, gpipe::linear_order(plan.lowered)));
        walk(table_of(plan, places));
        walk(table_of(gpipe::forward_programs(programs, plan), plan, places));
    });
    MESSAGE(walks << " walks");
}
