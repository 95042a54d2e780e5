// Checkpointing inside of cells: what runs again. (What it trains: equality.cpp.)

#include "support/net.hpp"

#include <doctest/doctest.h>

namespace {

using Real = float;
constexpr std::size_t L = toy::layers<Real>;

using Train = toy::Train<Real, gpipe::device::Host>;

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
    std::size_t point = 0;
    for (toy::NamedCheckpointing const& checkpointing : toy::reversings)
        for (std::size_t cells = 1; cells <= L; ++cells) {
            if (toy::left_out(point, 7)) continue;
            Train::Options o;
            o.samples = micro_batches;
            o.cells = cells;
            o.micro_batches = micro_batches;
            o.schedule = gpipe::schedule::GPipe{};
            o.checkpointing = checkpointing.policy;
            toy::Watch watch;
            Train train(toy::make_net<Real>(watch), {}, gpipe::Adam{1e-2f}, o);
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
