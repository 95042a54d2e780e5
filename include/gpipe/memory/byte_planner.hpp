#pragma once

#include <gpipe/balance/cell_of.hpp>
#include <gpipe/checkpoint/cell_to_reverse.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/memory_plan.hpp>
#include <gpipe/plan/lower.hpp>
#include <gpipe/schedule/order.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

namespace detail {

// Of so many micro-batches in flight a cell keeps the inputs on the device: two blocks, and four
// slots of the boundary, would hold as many.
inline constexpr std::size_t most_with_inputs = 5;

// Operand::address counts two for each, in front of all parts.
inline constexpr std::uint16_t most_skips = 0x3FFC;

// Plans the bytes of programs over a chain, see plan_bytes(): what there is, where it may lie, how
// large it is, in this order.
class BytePlanner {
  public:
    // Into `plan`, in which there is nothing yet. `reversals`: of each cell.
    constexpr BytePlanner(MemoryPlan& plan, PlanRequest const& request, Programs const& programs,
                          Array<Reversal> const& reversals, ChooseOffloads choose,
                          Array<bool> const& stays)
        : plan_(plan), chain_(request.chain), programs_(programs), reversals_(reversals),
          choose_(choose), stays_(stays), cells_(programs.cells()),
          micro_batches_(programs.micro_batches()), recomputes_(cells_), ways_(programs) {
        plan_.first = request.first;
        plan_.capacity = request.capacity;
        plan_.cells = Array<CellValues>(cells_);
        plan_.in_flight = in_flight_by_cell(programs);
        for (Action const& a : programs_)
            if (a.kind == Kind::recompute) recomputes_[a.cell] = true;
        find_edges(request.links);
        find_readers();
        find_values();
        plan_.parts =
            place_parts(programs_, static_cast<Ways&&>(ways_), request.tightness, maker(false));
        size_pools();
    }

  private:
    constexpr LayerInfo const& bottom(std::size_t c) const { return chain_.layers[plan_.first[c]]; }
    constexpr LayerInfo const& top(std::size_t c) const {
        return chain_.layers[plan_.first[c + 1] - 1];
    }
    // First those between neighbours, then a skip each, if it leaves its cell.
    constexpr void find_edges(Array<Link> const& links) {
        plan_.skip_edges = Array<std::uint32_t>(chain_.skips.size(), Operands::none);
        std::size_t const chain_edges = cells_ - 1;
        std::size_t count = chain_edges;
        for (std::size_t s = 0; s < chain_.skips.size(); ++s)
            if (cell_of(plan_.first, chain_.skips[s].from) !=
                cell_of(plan_.first, chain_.skips[s].to))
                plan_.skip_edges[s] = static_cast<std::uint32_t>(count++);
        Array<Edge> edges(count);
        for (std::size_t s = 0; s < chain_.skips.size(); ++s)
            if (std::uint32_t const e = plan_.skip_edges[s]; e != Operands::none)
                edges[e] =
                    skip_edge(chain_.skips[s], links.empty() ? Link::shared : links[cells_ + s]);
        for (std::size_t e = chain_edges; e < count; ++e) {
            edges[e].giver_slot = ++plan_.cells[edges[e].from].skips;
            edges[e].taker_slot = ++plan_.cells[edges[e].to].skips;
            for (std::size_t const c : {edges[e].from, edges[e].to})
                if (plan_.cells[c].skips > most_skips)
                    throw std::length_error(
                        "gpipe: more than 16,380 skips begin and end in a cell");
        }
        for (std::uint32_t e = 0; e < chain_edges; ++e) {
            Edge& edge = edges[e];
            edge.from = e;
            edge.to = e + 1;
            std::size_t const c = edge.to;
            edge.gradient = chain_.lowest_learner < plan_.first[c];
            if (!links.empty()) edge.link = links[c];
            edge.bytes = bottom(c).input.slots(plan_.capacity);
            edge.gradient_bytes =
                edge.gradient ? bottom(c).input_gradient.slots(plan_.capacity) : 0;
        }
        plan_.lowered.edges = {cells_, static_cast<Array<Edge>&&>(edges)};
    }
    constexpr Edge skip_edge(SkipPair const& skip, Link link) const {
        Edge edge{cell_of(plan_.first, skip.from), cell_of(plan_.first, skip.to),
                  chain_.wants_gradient(skip), link};
        edge.bytes = slot_bytes(skip.bytes * plan_.capacity);
        edge.gradient_bytes = edge.gradient ? slot_bytes(skip.gradient_bytes * plan_.capacity) : 0;
        return edge;
    }

    // Who reads what lies between cells: calls do. What the giver reads is written again, and so
    // may take more calls.
    constexpr void find_readers() {
        for (bool const again : {false, true})
            for (std::size_t c = 0; c < cells_; ++c)
                for (std::size_t w = 0; w < way_evaluates; ++w)
                    if ((!again || plan_.rewrites_output(c)) && ways_.has(c, w))
                        add_reads(c, w,
                                  cell_calls(chain_, plan_.first[c], plan_.first[c + 1],
                                             plan_.use_of(c), reversals_[c], w));
    }
    constexpr void add_reads(std::size_t c, std::size_t way, CellCalls const& all) {
        Edges& edges = plan_.lowered.edges;
        for (std::size_t i = all.begin[1]; i < all.calls.size(); ++i) { // behind the forward
            CellCall const& call = all.calls[i];
            Stage const stage = all.stage_of(i);
            bool const reverses = call.kind != CallKind::forward;
            for (std::uint32_t const e : edges.into(c))
                if (!edges[e].is_skip() && call.x == tensor::input)
                    edges[e].taker_reads.add(way, stage);
            for (std::uint32_t const e : edges.out_of(c)) {
                if (edges[e].is_skip() || !reverses) continue;
                if (call.y == tensor::output) edges[e].giver_reads.add(way, stage);
                if (call.dy == tensor::output_gradient) edges[e].gradient_reads.add(way, stage);
            }
            std::size_t const layer = plan_.first[c] + call.layer;
            // The loss comes behind all layers, of which most are no ends of skips.
            if (layer == chain_.size || chain_.layers[layer].skips.count() == 0) continue;
            for (std::size_t s = 0; s < chain_.skips.size(); ++s) {
                std::uint32_t const e = plan_.skip_edges[s];
                if (e == Operands::none) continue;
                if (chain_.skips[s].to == layer &&
                    (!reverses || chain_.layers[layer].skips.backward_reads))
                    edges[e].taker_reads.add(way, stage);
                if (chain_.skips[s].from == layer && reverses)
                    edges[e].gradient_reads.add(way, stage);
            }
        }
    }

    // What of a cell waits between its forward and its reversal, and is worth to be moved.
    constexpr bool moves_retained(std::size_t c) const {
        return maker(true)(c, ways_(c, 0), 1).retained > 0;
    }
    constexpr bool moves_input(std::size_t c) const {
        if (plan_.in_flight[c] <= most_with_inputs) return false;
        bool read = false;
        for (std::uint32_t const e : plan_.lowered.edges.into(c)) {
            Edge const& edge = plan_.lowered.edges[e];
            // In the cell before it may have to stay, as its output.
            if (edge.shared() && edge.giver_reads.any()) return false;
            read = read || (!edge.is_skip() && edge.taker_reads.any());
        }
        return read;
    }
    constexpr void find_values() {
        Array<bool> offloads(cells_);
        bool inputs = false;
        for (std::size_t c = 0; c < cells_; ++c) {
            if (!reversals_[c].offload || (!stays_.empty() && stays_[c])) continue;
            plan_.cells[c].input_moves = moves_input(c);
            inputs = inputs || plan_.cells[c].input_moves;
            offloads[c] = plan_.cells[c].input_moves || moves_retained(c);
        }
        Offloads chosen = choose_(programs_, offloads);
        plan_.lowered =
            put_copies_in(programs_, static_cast<Edges&&>(plan_.lowered.edges),
                          linear_order(programs_), offloads, static_cast<Offloads&&>(chosen));
        for (std::size_t c = 0; c < cells_; ++c) plan_.cells[c].retained = moves(c);
        for (Edge const& edge : plan_.lowered.edges) {
            std::size_t const c = edge.to;
            if (edge.is_skip()) continue;
            // The output of a recompute, where it needs room at all, goes where the gradient will.
            plan_.cells[c].discards = edge.gradient && recomputes_[c] && c + 1 < cells_ &&
                                      top(c).saved.count > 0 && !plan_.rewrites_output(c) &&
                                      top(c).output.slots(plan_.capacity) <= edge.bytes;
        }
        assign();
        if (!inputs) return;
        // Not where inputs wait for the forward rather than for the reversal.
        Pools const moving = plan_.pools;
        Array<CellValues> const all = plan_.cells;
        for (CellValues& cell : plan_.cells) cell.input_moves = false;
        assign();
        for (std::size_t e = 0; e < plan_.lowered.edges.size(); ++e) {
            Edge const& edge = plan_.lowered.edges[e];
            if (edge.is_skip()) continue;
            plan_.cells[edge.to].input_moves =
                all[edge.to].input_moves &&
                moving.pool(Holds::input, e).slots + moving.pool(Holds::input_back, e).slots <
                    plan_.pools.pool(Holds::input, e).slots;
        }
        assign();
    }
    // Whether anything of the cell leaves the device.
    constexpr bool moves(std::size_t c) const {
        for (std::size_t m = 0; m < micro_batches_; ++m)
            if (plan_.lowered.offloads.moved(c, m)) return true;
        return false;
    }
    constexpr void assign() {
        plan_.operands = find_operands(plan_.lowered, plan_.cells);
        plan_.lowered.order = order_of(plan_.lowered, plan_.operands);
        Walk const walk = walk_of(plan_.lowered);
        Pools const numbers(plan_.lowered.edges.size(), cells_, 0);
        Array<Patience> patience(numbers.size());
        Patience const two{std::min<std::size_t>(2, micro_batches_)};
        bool const evaluates = programs_.evaluates();
        // Two slots are enough for GPipe and 1F1B to copy while the device works.
        for (std::size_t e = 0; e < plan_.lowered.edges.size(); ++e) {
            for (Holds const holds : {Holds::output, Holds::staged_output, Holds::staged_gradient})
                patience[numbers.number(holds, e)] = two;
            Edge const& edge = plan_.lowered.edges[e];
            if (plan_.cells[edge.to].input_moves && !edge.is_skip())
                patience[numbers.number(Holds::input, e)] = {0, 2};
            // No gradient comes back that would say who is done.
            if (evaluates) patience[numbers.number(Holds::input, e)] = two;
        }
        for (std::size_t c = 0; c < cells_; ++c) {
            if (!moves(c)) continue;
            patience[numbers.number(Holds::retained, c)] = two;
            for (std::uint32_t const e : plan_.lowered.edges.into(c))
                patience[numbers.number(Holds::input_back, e)] = two;
        }
        plan_.pools = assign_slots(walk, plan_.lowered, plan_.operands, patience);
    }

    constexpr CellMaker maker(bool retains) const {
        CellMaker result{chain_, plan_.first, reversals_, Array<CellUse>(cells_),
                         Array<bool>(cells_, retains)};
        for (std::size_t c = 0; c < cells_; ++c) {
            result.uses[c] = plan_.use_of(c);
            if (!retains) result.retains[c] = plan_.cells[c].retained;
        }
        return result;
    }

    constexpr void size_pools() {
        for (std::size_t e = 0; e < plan_.lowered.edges.size(); ++e) {
            Edge const& edge = plan_.lowered.edges[e];
            plan_.pools.pool(Holds::input, e).bytes = edge.bytes;
            plan_.pools.pool(Holds::input_back, e).bytes = edge.bytes;
            for (Holds const holds : {Holds::output, Holds::staged_output, Holds::staged_gradient})
                if (holds == Holds::output || edge.link == Link::staged)
                    plan_.pools.pool(holds, e).bytes = edge.bytes;
        }
        for (std::size_t c = 0; c < cells_; ++c) {
            std::size_t retained = 0;
            for (std::size_t w = 0; w < way_evaluates; ++w)
                retained = std::max(retained, plan_.parts.of(c, w).retained);
            std::size_t input = 0;
            for (std::uint32_t const e : plan_.lowered.edges.into(c))
                if (plan_.cells[c].input_moves && !plan_.lowered.edges[e].is_skip())
                    input += plan_.lowered.edges[e].bytes;
            plan_.pools.pool(Holds::retained, c).bytes = retained;
            plan_.pools.pool(Holds::offloaded, c).bytes = retained + input;
        }
    }

    MemoryPlan& plan_;
    ChainShape const& chain_;
    Programs const& programs_;
    Array<Reversal> const& reversals_;
    ChooseOffloads choose_;
    Array<bool> const& stays_; // cells that offload nothing, whatever they say
    std::size_t cells_;
    std::size_t micro_batches_;
    Array<bool> recomputes_; // by cell
    Ways ways_;              // until they are the plan's
};

} // namespace detail
} // namespace gpipe
GPIPE_RUNS_ONCE_END
