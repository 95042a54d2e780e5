#pragma once

#include <gpipe/plan/happens_before.hpp>
#include <gpipe/plan/lower.hpp>
#include <gpipe/plan/sweep.hpp>
#include <gpipe/schedule/order.hpp>

#include <cstddef>
#include <cstdint>

// Tables of programs alone, whatever their cells hold: what a plan makes of a chain.
namespace toy {

/// In any way of a cell.
constexpr void read_in(gpipe::CallReads& reads, gpipe::Stage stage) {
    for (std::size_t way = 0; way < gpipe::way_evaluates; ++way) reads.add(way, stage);
}

/// From every cell to the next: edge c - 1 ends at cell c, whose recompute and backward read it.
constexpr gpipe::Edges neighbours(std::size_t cells) {
    gpipe::Array<gpipe::Edge> all(cells > 0 ? cells - 1 : 0);
    for (std::uint32_t e = 0; e < all.size(); ++e) {
        all[e].from = e;
        all[e].to = e + 1;
        read_in(all[e].taker_reads, gpipe::Stage::recompute);
        read_in(all[e].taker_reads, gpipe::Stage::backward);
        read_in(all[e].gradient_reads, gpipe::Stage::backward);
    }
    return {cells, static_cast<gpipe::Array<gpipe::Edge>&&>(all)};
}

/// What stands for any cells where only the order of actions matters.
constexpr gpipe::Array<gpipe::CellValues> any_cells(std::size_t cells) {
    gpipe::CellValues any;
    any.retained = true;
    return gpipe::Array<gpipe::CellValues>(cells, any);
}

/// With copies where ends of edges share no memory, and of cells that offload. Needs are those of
/// the data; where values lie adds more.
constexpr gpipe::Lowered lower(gpipe::Programs const& programs, gpipe::Edges edges,
                               gpipe::Array<bool> const& offloads = {}) {
    gpipe::Lowered result = gpipe::detail::put_copies_in(
        programs, static_cast<gpipe::Edges&&>(edges), gpipe::linear_order(programs), offloads,
        gpipe::choose_offloads(programs, offloads));
    gpipe::Operands const operands = find_operands(result, any_cells(programs.cells()));
    result.order = order_of(result, operands);
    result.needs = find_needs(walk_of(result), operands,
                              [](std::size_t, gpipe::Operand const&) { return gpipe::Span{}; });
    return result;
}

/// Between neighbours that share their memory: without copies.
constexpr gpipe::Lowered lower(gpipe::Programs const& programs) {
    return lower(programs, neighbours(programs.cells()));
}

/// What its actions can be sure of.
constexpr gpipe::HappensBefore happens_before(gpipe::Lowered const& lowered) {
    return {walk_of(lowered), find_operands(lowered, any_cells(lowered.programs.cells()))};
}

} // namespace toy
