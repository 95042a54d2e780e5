#pragma once

#include <gpipe/balance/cell_of.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/countable.hpp>
#include <gpipe/memory/locate.hpp>
#include <gpipe/memory/memory_plan.hpp>
#include <gpipe/plan/lower.hpp>

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

// Operand::skip counts two for each.
inline constexpr std::uint16_t most_skips = 0x7FFF;

// Plans the bytes of programs over a chain, see plan_bytes(): what there is, where it may lie, how
// large it is, in this order.
class BytePlanner {
  public:
    constexpr BytePlanner(ChainShape const& chain, Array<std::size_t> const& first,
                          Programs const& programs, std::size_t capacity, Array<Link> const& links,
                          Array<Reversal> const& reversals, Reversing const& reversing)
        : chain_(chain), programs_(programs), reversals_(reversals), reversing_(reversing),
          cells_(programs.cells()), micro_batches_(programs.micro_batches()), recomputes_(cells_),
          mixes_(cells_) {
        plan_.first = first;
        plan_.capacity = capacity;
        plan_.cells = Array<CellValues>(cells_);
        plan_.in_flight = Array<std::size_t>(cells_);
        look_at_programs();
        find_edges(links);
        find_values();
        plan_.uses = Array<CellUse>(cells_);
        plan_.layouts = Array<CellLayout>(cells_);
        plan_.reversals = Array<ReversalLayout>(cells_);
        for (std::size_t d = 0; d < programs_.devices(); ++d) lay_out(d);
        size_pools();
    }
    constexpr MemoryPlan take() { return static_cast<MemoryPlan&&>(plan_); }

  private:
    constexpr LayerInfo const& bottom(std::size_t c) const { return chain_.layers[plan_.first[c]]; }
    constexpr LayerInfo const& top(std::size_t c) const {
        return chain_.layers[plan_.first[c + 1] - 1];
    }
    constexpr bool learns(std::size_t c) const {
        return chain_.lowest_learner < plan_.first[c + 1];
    }
    // Whether the weight gradient of a layer runs apart from the rest of its backward.
    constexpr bool runs_apart(std::size_t c, std::size_t layer) const {
        return plan_.cells[c].splits && chain_.layers[layer].splits &&
               layer >= chain_.lowest_learner;
    }
    template <class F> constexpr void each_cell(std::size_t device, F f) const {
        for (std::size_t c = 0; c < cells_; ++c)
            if (programs_.device_of(c) == device) f(c);
    }

    constexpr void look_at_programs() {
        Array<std::size_t> now(cells_);
        for (std::size_t i = 0; i < programs_.size(); ++i) {
            Action const& a = programs_[i];
            if (a.kind == Kind::recompute) recomputes_[a.cell] = true;
            if (a.kind == Kind::weight_gradient) plan_.cells[a.cell].splits = true;
            if (a.kind == Kind::forward)
                plan_.in_flight[a.cell] = std::max(plan_.in_flight[a.cell], ++now[a.cell]);
            if (ends_backward(a.kind)) --now[a.cell];
        }
        for (std::size_t i = 0; i < programs_.size(); ++i)
            if (programs_[i].kind == Kind::backward && plan_.cells[programs_[i].cell].splits)
                mixes_[programs_[i].cell] = true;
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
        plan_.skip_slots = Array<std::uint16_t>(cells_);
        for (std::size_t e = chain_edges; e < count; ++e) {
            edges[e].giver_slot = ++plan_.skip_slots[edges[e].from];
            edges[e].taker_slot = ++plan_.skip_slots[edges[e].to];
            for (std::size_t const c : {edges[e].from, edges[e].to})
                if (plan_.skip_slots[c] > most_skips)
                    throw std::length_error(
                        "gpipe: more than 32,767 skips begin and end in a cell");
        }
        for (std::uint32_t e = 0; e < chain_edges; ++e) {
            Edge& edge = edges[e];
            edge.from = e;
            edge.to = e + 1;
            std::size_t const c = edge.to;
            edge.gradient = chain_.lowest_learner < plan_.first[c];
            if (!links.empty()) edge.link = links[c];
            bool const again = !reversals_.empty() && first_layer_again(reversals_[c]).in_backward;
            edge.taker_reverses =
                learns(c) &&
                (again || (chain_.lowest_learner <= plan_.first[c] && bottom(c).reads_input));
            edge.taker_weighs = runs_apart(c, plan_.first[c]);
            edge.giver_reverses = edge.gradient && top(edge.from).reads_output;
            edge.giver_weighs = runs_apart(edge.from, plan_.first[c] - 1);
            edge.bytes = bottom(c).input.slots(plan_.capacity);
            edge.gradient_bytes =
                edge.gradient ? bottom(c).input_gradient.slots(plan_.capacity) : 0;
        }
        plan_.lowered.edges = {cells_, static_cast<Array<Edge>&&>(edges)};
    }
    constexpr Edge skip_edge(SkipPair const& skip, Link link) const {
        Edge edge{cell_of(plan_.first, skip.from), cell_of(plan_.first, skip.to),
                  chain_.wants_gradient(skip), link};
        bool const learns = chain_.lowest_learner <= skip.to;
        // Piece by piece, who pops may run again in the backward.
        bool const in_pieces = !reversals_.empty() && !is_whole(reversals_[edge.to]);
        edge.taker_reverses = in_pieces ? this->learns(edge.to)
                                        : learns && chain_.layers[skip.to].skips.backward_reads;
        edge.taker_weighs = edge.taker_reverses && runs_apart(edge.to, skip.to);
        edge.giver_weighs = edge.gradient && runs_apart(edge.from, skip.from);
        edge.bytes = slot_bytes(skip.bytes * plan_.capacity);
        edge.gradient_bytes = edge.gradient ? slot_bytes(skip.gradient_bytes * plan_.capacity) : 0;
        return edge;
    }

    // What of a cell waits between its forward and its reversal, and is worth to be moved.
    constexpr bool moves_retained(std::size_t c) const {
        if (!learns(c)) return false;
        CellUse use;
        use.capacity = plan_.capacity;
        return reversing_.lay_out(chain_, plan_.first[c], plan_.first[c + 1], use, reversals_[c])
                   .retained > 0;
    }
    constexpr bool moves_input(std::size_t c) const {
        if (!learns(c) || c == 0 || plan_.in_flight[c] <= most_with_inputs) return false;
        bool const read = first_layer_again(reversals_[c]).at_all ||
                          (chain_.lowest_learner <= plan_.first[c] && bottom(c).reads_input);
        // In the cell before it may have to stay, as its output.
        for (std::uint32_t const e : plan_.lowered.edges.into(c))
            if (plan_.lowered.edges[e].shared() && plan_.lowered.edges[e].giver_reverses)
                return false;
        return read;
    }
    constexpr void find_values() {
        Array<bool> offloads(cells_);
        bool inputs = false;
        for (std::size_t c = 0; c < reversals_.size(); ++c) {
            if (!reversals_[c].offload) continue;
            plan_.cells[c].input_moves = moves_input(c);
            inputs = inputs || plan_.cells[c].input_moves;
            offloads[c] = plan_.cells[c].input_moves || moves_retained(c);
        }
        Offloads chosen;
        if (!reversals_.empty()) chosen = reversing_.offloads(programs_, offloads);
        plan_.lowered =
            put_copies_in(programs_, static_cast<Edges&&>(plan_.lowered.edges),
                          linear_order(programs_), offloads, static_cast<Offloads&&>(chosen));
        // One micro-batch: nothing follows that would need the room. But for devices of two cells.
        bool alone = micro_batches_ == 1;
        for (std::size_t c = 1; c < cells_; ++c)
            for (std::size_t b = 0; b < c && alone; ++b)
                alone = programs_.device_of(b) != programs_.device_of(c);
        for (std::size_t c = 0; c < cells_; ++c) {
            CellValues& cell = plan_.cells[c];
            bool const whole = reversals_.empty() || is_whole(reversals_[c]);
            cell.retained = !whole || moves(c);
            cell.kept_in_backward = !whole && !begins_again(reversals_[c]);
            if (c == 0) continue;
            Edge const& edge = plan_.lowered.edges[c - 1];
            cell.gradient_inside = edge.gradient && alone && !cell.splits;
            // The output of a recompute, where it needs room at all, goes where the gradient will.
            cell.discards = edge.gradient && !cell.gradient_inside && recomputes_[c] &&
                            c + 1 < cells_ && top(c).saved.count > 0 && !plan_.rewrites_output(c) &&
                            top(c).output.slots(plan_.capacity) <= slot_bytes_of(edge);
        }
        assign();
        if (!inputs) return;
        // Not where inputs wait for the forward rather than for the reversal.
        Pools const moving = plan_.pools;
        Array<CellValues> const all = plan_.cells;
        for (CellValues& cell : plan_.cells) cell.input_moves = false;
        assign();
        for (std::size_t c = 1; c < cells_; ++c)
            plan_.cells[c].input_moves =
                all[c].input_moves && moving.pool(Holds::input, c - 1).slots +
                                              moving.pool(Holds::input_back, c - 1).slots <
                                          plan_.pools.pool(Holds::input, c - 1).slots;
        assign();
    }
    // Whether anything of the cell leaves the device.
    constexpr bool moves(std::size_t c) const {
        for (std::size_t m = 0; m < micro_batches_; ++m)
            if (plan_.lowered.offloads.moved(c, m)) return true;
        return false;
    }
    constexpr std::size_t slot_bytes_of(Edge const& edge) const {
        return plan_.gradient_lies_inside(edge) ? edge.bytes
                                                : std::max(edge.bytes, edge.gradient_bytes);
    }
    constexpr void assign() {
        plan_.operands = find_operands(plan_.lowered, plan_.cells);
        plan_.lowered.order = order_of(plan_.lowered, plan_.operands);
        Walk const walk = walk_of(plan_.lowered);
        Pools const numbers(plan_.lowered.edges.size(), cells_, programs_.devices(), 0);
        Array<Patience> patience(numbers.size());
        Patience const two{std::min<std::size_t>(2, micro_batches_)};
        // Two slots are enough for GPipe and 1F1B to copy while the device works.
        for (std::size_t e = 0; e < plan_.lowered.edges.size(); ++e) {
            for (Holds const holds : {Holds::output, Holds::staged_output, Holds::staged_gradient})
                patience[numbers.number(holds, e)] = two;
            Edge const& edge = plan_.lowered.edges[e];
            if (plan_.cells[edge.to].input_moves && !edge.is_skip())
                patience[numbers.number(Holds::input, e)] = {0, 2};
        }
        for (std::size_t c = 0; c < cells_; ++c) {
            if (!moves(c)) continue;
            patience[numbers.number(Holds::retained, c)] = two;
            for (std::uint32_t const e : plan_.lowered.edges.into(c))
                patience[numbers.number(Holds::input_back, e)] = two;
        }
        plan_.pools = assign_slots(walk, plan_.lowered, plan_.operands,
                                   HappensBefore(walk, plan_.operands), patience);
    }

    constexpr void lay_out(std::size_t d) {
        std::size_t blocks = 0;
        each_cell(d, [&](std::size_t c) { blocks += plan_.pools.pool(Holds::kept, c).slots; });
        bool const adjacent = blocks == 1;
        each_cell(d, [&](std::size_t c) {
            std::size_t const first = plan_.first[c];
            std::size_t const last = plan_.first[c + 1];
            CellValues const& cell = plan_.cells[c];
            CellLayout& layout = plan_.layouts[c];
            CellUse const& use = plan_.uses[c] = {adjacent,
                                                  plan_.capacity,
                                                  recomputes_[c] && !cell.discards &&
                                                      !plan_.rewrites_output(c) && learns(c),
                                                  cell.gradient_inside,
                                                  cell.splits,
                                                  mixes_[c],
                                                  plan_.rewrites_output(c),
                                                  recomputes_[c]};
            if (cell.retained) {
                ReversalLayout& reversal = plan_.reversals[c];
                reversal = reversing_.lay_out(chain_, first, last, use, reversals_[c]);
                layout.kept = reversal.kept;
                layout.temporary = reversal.temporary;
                layout.adjacent = adjacent;
                layout.input_gradient = reversal.input_gradient;
            } else {
                layout = lay_out_cell(chain_, first, last, use);
            }
            auto const set = [&](Holds holds, std::size_t bytes) {
                plan_.pools.pool(holds, c).bytes = bytes;
            };
            set(Holds::retained, plan_.reversals[c].retained);
            set(Holds::kept, layout.kept);
            set(Holds::held, layout.held);
            set(Holds::deferred, layout.deferred);
            std::size_t input = 0;
            for (std::uint32_t const e : plan_.lowered.edges.into(c))
                if (cell.input_moves && !plan_.lowered.edges[e].is_skip())
                    input += plan_.lowered.edges[e].bytes;
            set(Holds::offloaded, plan_.reversals[c].retained + input);
            Pool& temporaries = plan_.pools.temporaries(d);
            temporaries.slots = 1;
            temporaries.bytes =
                std::max(temporaries.bytes, layout.temporary - (adjacent ? layout.kept : 0));
        });
    }
    constexpr void size_pools() {
        for (std::size_t e = 0; e < plan_.lowered.edges.size(); ++e) {
            Edge const& edge = plan_.lowered.edges[e];
            plan_.pools.pool(Holds::input, e).bytes = slot_bytes_of(edge);
            plan_.pools.pool(Holds::input_back, e).bytes = edge.bytes;
            for (Holds const holds : {Holds::output, Holds::staged_output, Holds::staged_gradient})
                plan_.pools.pool(holds, e).bytes = std::max(edge.bytes, edge.gradient_bytes);
        }
    }

    ChainShape const& chain_;
    Programs const& programs_;
    Array<Reversal> const& reversals_;
    Reversing const& reversing_;
    std::size_t cells_;
    std::size_t micro_batches_;
    Array<bool> recomputes_; // by cell
    Array<bool> mixes_;      // likewise: whether some backwards run whole, others in halves
    MemoryPlan plan_;
};

// The largest tensor that this device adds up with one of another device.
GPIPE_INLINE constexpr std::size_t most_tied(Part<TiedTensor> ties, Array<std::size_t> const& first,
                                             Programs const& programs, std::size_t device) {
    auto const device_of = [&](std::size_t layer) {
        return programs.device_of(cell_of(first, layer));
    };
    std::size_t bytes = 0;
    bool here = false;
    for (TiedTensor const& end : ties) {
        if (end.is_first) here = device_of(end.layer) == device;
        if (here && device_of(end.layer) != device) bytes = std::max(bytes, end.bytes);
    }
    return bytes;
}

} // namespace detail

/// Plans the bytes of `programs` (with their recomputes) over a chain cut at `first`, for
/// micro-batches of up to `capacity` samples and an optimizer with `states` arrays per parameter
/// tensor. `links[c]`: how the tensors before cell c get there; behind these, by skip, how its
/// tensor does; empty: all are shared.
/// `reversals[c]`: how cell c is reversed piece by piece; one that is_whole(), or none at all: its
/// forward or recompute keeps every layer whole. `reversing`: may be none where there are no
/// reversals. Throws std::invalid_argument where there are more
/// bytes than can be counted.
[[gnu::cold]] GPIPE_INLINE constexpr MemoryPlan
plan_bytes(ChainShape const& chain, Array<std::size_t> const& first, Programs const& programs,
           std::size_t states, std::size_t capacity, Staging const& staging = {},
           Array<Link> const& links = {}, Array<Reversal> const& reversals = {},
           Reversing const& reversing = any_reversing) {
    std::size_t const cells = programs.cells();
    std::size_t const devices = programs.devices();
    if (!countable(chain, programs.micro_batches(), states, capacity, staging))
        throw std::invalid_argument("gpipe: a plan for micro-batches of so many samples has more "
                                    "bytes than memory has addresses");
    MemoryPlan plan =
        detail::BytePlanner(chain, first, programs, capacity, links, reversals, reversing).take();
    plan.devices = Array<DeviceBytes>(devices);
    for (auto* by_layer : {&plan.parameters, &plan.gradients, &plan.optimizer})
        *by_layer = Array<std::size_t>(chain.size);
    for (auto* by_device :
         {&plan.states_at, &plan.optimizers_at, &plan.squares_at, &plan.tied_at, &plan.handles_at})
        *by_device = Array<std::size_t>(devices);
    plan.staged_inputs = staging.inputs.slots(staging.samples);
    plan.staged_targets = staging.targets.slots(staging.samples);

    for (std::size_t d = 0; d < devices; ++d) {
        DeviceBytes& bytes = plan.devices[d];
        std::size_t at = 0;
        auto const each_layer = [&](auto f) {
            for (std::size_t c = 0; c < cells; ++c)
                if (programs.device_of(c) == d)
                    for (std::size_t i = first[c]; i < first[c + 1]; ++i) f(i);
        };
        auto const reserve = [&](Array<std::size_t>& offsets, std::size_t times) {
            std::size_t const begin = at;
            each_layer([&](std::size_t i) {
                offsets[i] = at;
                at += times * chain.layers[i].parameters.slots(1);
            });
            return at - begin;
        };
        bytes.parameters = reserve(plan.parameters, 1);
        bytes.gradients = reserve(plan.gradients, 1);
        bytes.optimizer = reserve(plan.optimizer, states);

        auto const put = [&](Pool& pool, std::size_t& purpose) {
            pool.space = d;
            pool.at = at;
            at += pool.total();
            purpose += pool.total();
        };
        Pools& pools = plan.pools;
        for (std::size_t c = 0; c < cells; ++c) {
            if (programs.device_of(c) != d) continue;
            for (std::uint32_t const e : plan.lowered.edges.out_of(c))
                put(pools.pool(Holds::output, e), bytes.boundary);
            for (std::uint32_t const e : plan.lowered.edges.into(c))
                put(pools.pool(Holds::input, e), bytes.boundary);
        }
        // The kept blocks last: where there is one, temporaries begin within it.
        for (std::size_t c = 0; c < cells; ++c) {
            if (programs.device_of(c) != d) continue;
            for (std::uint32_t const e : plan.lowered.edges.into(c))
                put(pools.pool(Holds::input_back, e), bytes.activations);
            for (Holds const holds : {Holds::retained, Holds::held, Holds::deferred, Holds::kept})
                put(pools.pool(holds, c), bytes.activations);
        }
        put(pools.temporaries(d), bytes.activations);

        std::size_t const staged = at;
        auto const stage = [&](std::size_t& offset, std::size_t size) {
            offset = at;
            at += size;
        };
        bool const last = programs.device_of(cells - 1) == d;
        bool const updates = bytes.parameters > 0;
        stage(plan.states_at[d], slot_bytes(staging.state));
        stage(plan.optimizers_at[d], updates ? slot_bytes(staging.optimizer) : 0);
        if (staging.squares > 0) {
            std::size_t tensors = 0;
            std::size_t all = 0;
            each_layer([&](std::size_t i) { tensors += chain.layers[i].parameters.count; });
            for (std::size_t i = 0; i < chain.size; ++i) all += chain.layers[i].parameters.count;
            if (updates)
                stage(plan.squares_at[d], staging.squares + slot_bytes(tensors * sizeof(double)));
            if (last) {
                stage(plan.all_squares_at, slot_bytes(all * sizeof(double)));
                stage(plan.order_at, slot_bytes(all * sizeof(std::uint32_t)));
            }
        }
        stage(plan.tied_at[d],
              staging.ties ? slot_bytes(detail::most_tied(chain.ties, first, programs, d)) : 0);
        if (programs.device_of(0) == d) stage(plan.inputs_at, staging.steps * plan.staged_inputs);
        if (last) {
            stage(plan.targets_at, staging.steps * plan.staged_targets);
            stage(plan.sums_at, slot_bytes(staging.sums));
        }
        bytes.staging = at - staged;
        HandlePlan handles;
        each_layer([&](std::size_t i) { handles.add(chain.layers[i].handles); });
        if (last) handles.add(chain.loss_handles);
        plan.handles_at[d] = at;
        bytes.handles = handles.bytes();
    }
    auto const put_on_host = [&](Pool& pool) {
        pool.space = devices;
        pool.at = plan.host;
        plan.host += pool.total();
    };
    for (std::size_t e = 0; e < plan.lowered.edges.size(); ++e)
        for (Holds const holds : {Holds::staged_output, Holds::staged_gradient})
            put_on_host(plan.pools.pool(holds, e));
    for (std::size_t c = 0; c < cells; ++c) put_on_host(plan.pools.pool(Holds::offloaded, c));
    return plan;
}

/// The same with all that actions have to wait for.
[[gnu::cold]] GPIPE_INLINE constexpr MemoryPlan
plan_memory(ChainShape const& chain, Array<std::size_t> const& first, Programs const& programs,
            std::size_t states, std::size_t capacity, Staging const& staging = {},
            Array<Link> const& links = {}, Array<Reversal> const& reversals = {},
            Reversing const& reversing = any_reversing) {
    MemoryPlan plan =
        plan_bytes(chain, first, programs, states, capacity, staging, links, reversals, reversing);
    plan.lowered.needs = find_needs(walk_of(plan.lowered), plan.operands, Located(plan));
    return plan;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
