// Checkpointing inside of cells: promises P1 and P3 to P6 with every policy that reverses cells.

#include "support/expected.hpp"

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace {

using gpipe::device::Host;
using toy::Backward;
using toy::Deferred;
using toy::Remote;

using Real = float;
constexpr std::size_t L = toy::layers<Real>;

template <class Device> using Train = toy::Train<Real, Device>;
using Expected = toy::Expected<Real>;

} // namespace

TEST_CASE_TEMPLATE("P1 cells that are reversed piece by piece train what the plain loop trains, in "
                   "every bit, for every K, schedule and timing",
                   Device, Host, Deferred, Remote) {
    Backward const orders[] = {Backward::descending, Backward::ascending};
    std::size_t const micro_batches = 8;
    std::vector<std::size_t> const sizes{13, 7, 13}; // of 7 samples one micro-batch stays empty
    Expected const descending(micro_batches, orders[0], sizes);
    Expected const ascending(micro_batches, orders[1], sizes);
    std::size_t point = 0;
    std::size_t trained = 0;
    toy::each_of_catalogue(
        L, L, micro_batches, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            for (toy::NamedCheckpointing const& checkpointing : toy::reversings)
                for (auto const& run : toy::runs<Device>()) {
                    if (point++ % toy::one_of(7) != 0) continue;
                    typename Train<Device>::Options o;
                    o.samples = 13;
                    o.seed = 7;
                    o.cells = k;
                    o.micro_batches = micro_batches;
                    o.schedule = schedule;
                    o.checkpointing = checkpointing.policy;
                    o.device = run;
                    toy::Watch watch;
                    Train<Device> train(toy::make_net<Real>(watch), {}, gpipe::Adam{1e-2f}, o);
                    INFO(std::string(schedule.name()), ", ", checkpointing.name, ", K = ", k, ", ",
                         toy::describe(run));
                    bool const descends = schedule.name() == gpipe::schedule::GPipe::name;
                    CHECK((descends ? descending : ascending).differs(train) == "");
                    ++trained;
                }
        });
    MESSAGE(trained << " trainings");
}

namespace {

// How often layers run again by the definition of a reversal: all of its forwards for a micro-batch
// that is not the holder, those behind the first backward for one that is. A forward right before
// its own backward has nothing to do if it saves nothing and backward does not read the output;
// but the forward of the micro-batch itself, which ends with the top layer, gives its output.
std::size_t runs_again(gpipe::Reversal const& reversal, std::size_t first, std::size_t layer,
                       bool holder, bool last_cell) {
    std::size_t count = 0;
    bool begun = false;
    for (std::size_t s = 0; s < reversal.steps.size(); ++s) {
        gpipe::ReversalStep const& step = reversal.steps[s];
        begun = begun || step.backward;
        if (step.backward || first + step.layer != layer || (holder && !begun)) continue;
        auto const& info = toy::Net<Real>::leaf_info[layer];
        bool const top = step.layer + 1 == reversal.layers();
        bool const in_vain =
            reversal.steps[s + 1].backward && info.saved.count == 0 && (top || !info.reads_output);
        count += !in_vain || (top && last_cell);
    }
    return count;
}

} // namespace

TEST_CASE("layers run again as often as their cell's reversal says, and never twice for one "
          "backward") {
    std::size_t const micro_batches = 3;
    for (toy::NamedCheckpointing const& checkpointing : toy::reversings)
        for (std::size_t cells = 1; cells <= L; ++cells) {
            typename Train<Host>::Options o;
            o.samples = micro_batches;
            o.cells = cells;
            o.micro_batches = micro_batches;
            o.schedule = gpipe::schedule::GPipe{};
            o.checkpointing = checkpointing.policy;
            toy::Watch watch;
            Train<Host> train(toy::make_net<Real>(watch), {}, gpipe::Adam{1e-2f}, o);
            toy::Data<Real> const data(micro_batches);
            train.step(data.inputs, data.targets);
            auto const& first = train.plan().first;
            gpipe::Array<gpipe::LayerInfo> const layers = toy::Net<Real>::layers();
            gpipe::Checkpointed const applied =
                checkpointing.policy.apply({layers.data(), L, first.data()},
                                           gpipe::schedule::GPipe::programs(cells, micro_batches));
            if (applied.budget.given) continue; // chosen later
            auto const& reversals = applied.reversals;
            for (std::size_t c = 0; c < cells; ++c)
                for (std::size_t i = first[c]; i < first[c + 1]; ++i) {
                    INFO(checkpointing.name, ", K = ", cells, ", layer ", i);
                    bool const last = c + 1 == cells;
                    // Of the last cell nothing runs early that would run again.
                    bool const recomputes = !reversals[c].steps[0].backward && !last;
                    std::size_t const holders = recomputes ? 1 : micro_batches;
                    CHECK(watch.count(i, toy::Phase::forward) == micro_batches);
                    CHECK(watch.count(i, toy::Phase::recompute) ==
                          holders * runs_again(reversals[c], first[c], i, true, last) +
                              (micro_batches - holders) *
                                  runs_again(reversals[c], first[c], i, false, last));
                    CHECK(watch.count(i, toy::Phase::backward) == micro_batches);
                }
        }
}
