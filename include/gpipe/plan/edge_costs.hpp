#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/edge.hpp>
#include <gpipe/schedule/costs.hpp>

#include <cstddef>

namespace gpipe {

/// The same with the bytes that go over a plan's edges.
GPIPE_INLINE constexpr ChainCosts<double> with_edges(ChainCosts<double> costs, Edges const& edges) {
    std::size_t skips = 0;
    for (Edge const& edge : edges) skips += edge.is_skip();
    costs.skips = Array<SkipCosts<double>>(skips);
    skips = 0;
    for (Edge const& edge : edges) {
        auto const output = static_cast<double>(edge.bytes);
        auto const gradient = static_cast<double>(edge.gradient_bytes);
        if (edge.is_skip()) {
            costs.skips[skips++] = {edge.from, edge.to, output, gradient};
        } else {
            costs.cells[edge.from].output_bytes = output;
            costs.cells[edge.to].gradient_bytes = gradient;
        }
    }
    return costs;
}

} // namespace gpipe
