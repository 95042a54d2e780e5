#pragma once

#include "links.hpp"
#include "random_chain.hpp"

#include <gpipe/checkpoint/reversing.hpp>
#include <gpipe/checkpoint/revolve.hpp>
#include <gpipe/checkpoint/verify_reversal.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/plan/links.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/schedule/halves.hpp>

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

// What a plan is made of, by chance.
namespace toy {

/// So many layers in so many cells.
inline gpipe::Array<std::size_t> some_cut(std::mt19937_64& random, std::size_t cells,
                                          std::size_t length) {
    std::vector<std::size_t> cuts;
    for (std::size_t i = 1; i < length; ++i) cuts.push_back(i);
    std::shuffle(cuts.begin(), cuts.end(), random);
    cuts.resize(cells - 1);
    std::sort(cuts.begin(), cuts.end());
    gpipe::Array<std::size_t> first(cells + 1);
    std::copy(cuts.begin(), cuts.end(), first.begin() + 1);
    first[cells] = length;
    return first;
}

/// Any reversal of so many layers that is sound, step by step.
inline gpipe::Reversal any_reversal(std::mt19937_64& random, std::size_t layers) {
    using gpipe::Keep;
    for (;;) {
        gpipe::Reversal result{gpipe::Array<Keep>(layers), {}};
        for (Keep& keep : result.forward) keep = static_cast<Keep>(random() % 3);
        for (int tries = 0; tries < 200; ++tries) {
            gpipe::Reversal longer{result.forward,
                                   gpipe::Array<gpipe::ReversalStep>(result.steps.size() + 1)};
            std::copy(result.steps.begin(), result.steps.end(), longer.steps.begin());
            bool const backward = random() % 2 == 0;
            longer.steps[result.steps.size()] = {
                backward, backward ? Keep::nothing : static_cast<Keep>(random() % 3),
                static_cast<std::uint32_t>(random() % layers)};
            auto const verdict = gpipe::verify(longer);
            if (verdict) return longer;
            if (verdict.problem != gpipe::ReversalProblem::missing) continue;
            result = longer;
            tries = 0;
        }
    }
}
/// By a policy, or any; offloaded or not.
inline gpipe::Reversal some_reversal(std::mt19937_64& random, std::size_t layers) {
    gpipe::Array<bool> dear(layers);
    for (bool& each : dear) each = random() % 2 == 0;
    gpipe::Reversal const all[] = {gpipe::keep_everything(layers),
                                   gpipe::selective(dear),
                                   gpipe::every_segment(layers, 1 + random() % 3),
                                   gpipe::equal_segments(layers, 1 + random() % layers),
                                   gpipe::revolve(layers, random() % 3),
                                   any_reversal(random, layers)};
    gpipe::Reversal result = all[random() % std::size(all)];
    result.offload = random() % 4 != 0;
    if (random() % 2 == 0) {
        result.weights = gpipe::Array<gpipe::WeightHalf>(layers);
        for (auto& half : result.weights) half = static_cast<gpipe::WeightHalf>(random() % 3);
    }
    return result;
}

/// A plan with what it is made of.
struct RandomPlan {
    RandomChain chain;
    gpipe::Array<gpipe::Reversal> reversals; ///< by cell, or none
    gpipe::Array<gpipe::Link> links;         ///< see plan_bytes()
    gpipe::MemoryPlan plan;
    gpipe::Programs programs; ///< without copies
};
/// Links between cells, and behind them those of a chain's skips: each that goes from device to
/// device like one of the cells', or as `ranks` say.
inline gpipe::Array<gpipe::Link> links_of(gpipe::Programs const& programs,
                                          gpipe::Array<std::size_t> const& first,
                                          ChainShape const& chain, std::mt19937_64& random,
                                          gpipe::Ranks const* ranks) {
    if (ranks)
        return gpipe::links_between(
            programs, first, chain.skips, [&](std::size_t from, std::size_t to) {
                return ranks->of(from) == ranks->of(to) ? gpipe::Link::shared : gpipe::Link::sent;
            });
    bool const mixed = random() % 2 == 0;
    auto const link = mixed ? gpipe::Link::shared : static_cast<gpipe::Link>(random() % 3);
    auto const of_cells = mixed ? mixed_links(programs, random) : same_links(programs, link);
    gpipe::Array<gpipe::Link> result(of_cells.size() + chain.skips.size());
    std::copy(of_cells.begin(), of_cells.end(), result.begin());
    auto const device_of = [&](std::size_t layer) {
        auto const behind = std::upper_bound(first.begin(), first.end(), layer);
        return programs.device_of(static_cast<std::size_t>(behind - first.begin()) - 1);
    };
    for (std::size_t s = 0; s < chain.skips.size(); ++s)
        if (device_of(chain.skips[s].from) != device_of(chain.skips[s].to))
            result[of_cells.size() + s] = mixed ? static_cast<gpipe::Link>(random() % 3) : link;
    return result;
}
/// For programs without recomputes: a chain, a cut, links, and what runs again, `in_pieces` or by
/// whole cells.
inline RandomPlan some_plan(gpipe::Programs programs, bool in_pieces, std::mt19937_64& random,
                            int percent_skips = 0, gpipe::Ranks const* ranks = nullptr,
                            std::size_t slack = gpipe::no_wait) {
    std::size_t const cells = programs.cells();
    Sizes sizes;
    sizes.most_bytes = 700;
    int const percents[] = {100, 100, 60, 20, 0}; // gradients everywhere ... nowhere
    sizes.percent_parameters = percents[random() % 5];
    sizes.percent_skips = percent_skips;
    std::size_t const length = cells + random() % (2 * cells + 1);
    sizes.percent_frozen = length % 3 == 0 ? 30 : 0;
    RandomPlan result{random_chain(random, length, sizes), {}, {}, {}, {}};
    gpipe::Array<std::size_t> const first = some_cut(random, cells, length);
    if (in_pieces) {
        result.reversals = gpipe::Array<gpipe::Reversal>(cells);
        for (std::size_t c = 0; c < cells; ++c)
            result.reversals[c] = some_reversal(random, first[c + 1] - first[c]);
        // Often all run again for their weight halves: else few do.
        if (random() % 2 == 0)
            for (gpipe::Reversal& reversal : result.reversals)
                reversal.weights = {reversal.layers(), gpipe::WeightHalf::again};
        auto const& layers = result.chain.layers;
        programs = lower_reversed({layers.data(), layers.size(), first.data()}, programs,
                                  result.reversals);
    } else {
        programs = lowerings[random() % 3](programs);
    }
    result.links = links_of(programs, first, result.chain.shape(), random, ranks);
    gpipe::PlanRequest request{result.chain.shape(), first, 1, 1 + random() % 2, {}, result.links};
    request.slack = slack;
    result.plan = gpipe::plan_memory(request, programs, result.reversals);
    result.programs = std::move(programs);
    return result;
}

} // namespace toy
