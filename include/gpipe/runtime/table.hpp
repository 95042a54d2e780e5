#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/moves.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/runtime/addresses.hpp>
#include <gpipe/runtime/forward_programs.hpp>
#include <gpipe/runtime/lanes.hpp>
#include <gpipe/runtime/step.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// A merged program with all addresses.
struct StepTable {
    Array<std::size_t> begin;            ///< by lane; one more at the end
    Array<Step> steps;                   ///< lane by lane
    std::uint32_t longest = 0;           ///< positions on the busiest stream
    std::size_t streams = 1;             ///< how many
    Array<std::size_t> stream_of_device; ///< that computes

    /// How many there are.
    std::size_t lanes() const { return begin.size() - 1; }
    /// Whether this lane puts work on this stream: one lane serves all, several are a stream each.
    bool serves(std::size_t lane, std::size_t stream) const {
        return lanes() == 1 || stream == lane;
    }
};

namespace detail {

GPIPE_INLINE Step base_step(Programs const& programs, LaneStep const& lane_step, std::size_t rank) {
    Action const& a = programs[lane_step.action];
    Step step;
    step.kind = a.kind;
    step.publishes = step.more = lane_step.publishes;
    step.cell = a.cell;
    step.micro_batch = a.micro_batch;
    step.stream = lane_step.stream;
    step.position = lane_step.position;
    for (std::size_t w = 0; w < 3; ++w) {
        step.wait_stream[w] = lane_step.waits[w].stream;
        step.wait_position[w] = lane_step.waits[w].position;
        step.waits = step.waits || lane_step.waits[w].position > 0;
    }
    step.rank = static_cast<std::uint32_t>(rank);
    step.device = static_cast<std::uint32_t>(programs.device_of(a.cell));
    step.action = lane_step.action;
    bool const computes = !is_copy(a.kind);
    step.is_first = computes && a.cell == 0;
    step.is_last = computes && a.cell + 1u == programs.cells();
    return step;
}

// The place of each action in the linear order of the devices' programs, whatever copies there are;
// of a transfer, that of what it brings, of an offload that of its forward, of a fetch that of the
// first action that finds what it brings: whatever fails before that, they run or are skipped
// together.
GPIPE_INLINE Array<std::size_t> ranks(Lowered const& lowered) {
    Programs const& programs = lowered.programs;
    Programs const actions = lowered.computing();
    Array<std::size_t> rank(programs.size());
    Array<std::size_t> made(2 * programs.cells() * programs.micro_batches()); // outputs, gradients
    auto const place = [&](bool gradient, std::size_t cell, std::size_t m) -> std::size_t& {
        return made[(gradient * programs.cells() + cell) * programs.micro_batches() + m];
    };
    auto const order = linear_order(actions);
    for (std::size_t r = 0; r < order.size(); ++r) {
        Action const& a = programs[order[r]];
        rank[order[r]] = r;
        if (a.kind == Kind::forward || gives_gradient(a.kind))
            place(gives_gradient(a.kind), a.cell, a.micro_batch) = r;
    }
    auto const moves = find_moves(programs);
    for (std::size_t i = actions.size(); i < programs.size(); ++i) {
        Action const& a = programs[i];
        std::size_t const m = a.micro_batch;
        if (a.kind == Kind::fetch) {
            rank[i] = rank[moves[a.cell * programs.micro_batches() + m].reversal];
            continue;
        }
        rank[i] = a.kind == Kind::send_output || a.kind == Kind::offload ? place(false, a.cell, m)
                  : a.kind == Kind::receive_input ? place(false, a.cell - 1u, m)
                  : a.kind == Kind::send_gradient ? place(true, a.cell, m)
                                                  : place(true, a.cell + 1u, m);
    }
    return rank;
}

template <class Fill>
StepTable fill_table(Lowered const& lowered, Placement const& placement, Lanes const& lanes,
                     Fill fill) {
    Programs const& programs = lowered.programs;
    auto const rank = ranks(lowered);
    StepTable table;
    table.begin = lanes.begin;
    table.longest = static_cast<std::uint32_t>(lanes.longest);
    table.streams = placement.streams;
    table.stream_of_device = placement.stream;
    table.steps = Array<Step>(lanes.steps.size());
    for (std::size_t i = 0; i < lanes.steps.size(); ++i) {
        LaneStep const& lane_step = lanes.steps[i];
        table.steps[i] = base_step(programs, lane_step, rank[lane_step.action]);
        fill(table.steps[i]);
    }
    return table;
}

GPIPE_INLINE constexpr std::uint32_t calls_at(std::size_t cell, CallList list) {
    return static_cast<std::uint32_t>(cell * call_list_count + static_cast<std::size_t>(list));
}
GPIPE_INLINE constexpr CallList list_of(Kind kind) {
    return kind == Kind::forward          ? CallList::forward
           : kind == Kind::recompute      ? CallList::recompute
           : kind == Kind::input_gradient ? CallList::input_gradient
           : kind == Kind::backward       ? CallList::backward
                                          : CallList::weight_gradient;
}

// The place of the cell's output where that stays inside.
GPIPE_INLINE std::byte* own_output(Step const& step, MemoryPlan const& plan) {
    CellLayout const& layout = plan.layouts[step.cell];
    ReversalLayout const& reversal = plan.reversals[step.cell];
    Place const& place = reversal.calls.empty() ? layout.places[layout.places.size() - 1].output
                         : step.is_last         ? reversal.output
                                                : reversal.again;
    return step[place.region] + place.offset;
}

} // namespace detail

/// The table of a training step. `arenas`: where each device's arena begins; `host`: the memory
/// that staged tensors go through.
GPIPE_INLINE StepTable training_table(MemoryPlan const& plan, Placement const& placement,
                                      Lanes const& lanes, Array<std::byte*> const& arenas,
                                      std::byte* host) {
    detail::Addresses const at(plan, arenas, host);
    return detail::fill_table(plan.lowered, placement, lanes, [&](Step& step) {
        std::size_t const c = step.cell;
        std::size_t const m = step.micro_batch;
        if (is_transfer(step.kind)) {
            std::size_t const b = detail::boundary_of(step);
            Transfers const& transfers = plan.transfers[b];
            detail::Ends ends{at.outbox(b, transfers.outbox.output[m]),
                              at.slot(b, plan.boundaries[b].input[m]),
                              at.outbox(b, transfers.outbox.gradient[m])};
            if (ends.gradient) ends.input_gradient = at.gradient(b, m);
            if (plan.links[b] == Link::staged) {
                ends.staged_output = at.host(b, transfers.outputs_at, transfers.outputs.slot[m]);
                if (ends.gradient)
                    ends.staged_gradient =
                        at.host(b, transfers.gradients_at, transfers.gradients.slot[m]);
            }
            detail::fill_transfer(step, ends);
            return;
        }
        Offloaded const& moved = plan.offloaded[c];
        if (is_copy(step.kind)) {
            bool const out = step.kind == Kind::offload;
            step.calls = detail::calls_at(c, out ? CallList::offload : CallList::fetch);
            step[Region::retained] = at.arena(c) + plan.retained_at[c] +
                                     (out ? moved.block : moved.returned)[m] * moved.retained;
            step[out ? Region::output : Region::input] = at.offloaded(c, m);
            if (moved.with_input)
                step[out ? Region::input : Region::output] =
                    out ? at.slot(c, plan.boundaries[c].input[m]) : at.fetched_input(c, m);
            return;
        }
        bool const passes = step.kind == Kind::forward && !plan.blocks.keeps[step.action];
        step.calls = detail::calls_at(c, passes ? CallList::pass : detail::list_of(step.kind));
        step.phase = step.kind == Kind::forward          ? Phase::forward
                     : step.kind == Kind::recompute      ? Phase::recompute
                     : step.kind == Kind::input_gradient ? Phase::input_gradient
                     : step.kind == Kind::backward       ? Phase::backward
                                                         : Phase::weight_gradient;
        auto const block = [&](std::size_t first, BlockUse const& use, std::size_t size) {
            return at.arena(c) + first + use.of_action[step.action] * size;
        };
        CellLayout const& layout = plan.layouts[c];
        step[Region::retained] =
            block(plan.retained_at[c], plan.blocks.retained, plan.reversals[c].retained);
        step[Region::kept] = block(plan.blocks_at[c], plan.blocks.kept, layout.kept);
        step[Region::temporary] = at.arena(c) + plan.temporaries_at[c];
        step[Region::held] = block(plan.held_at[c], plan.blocks.held, layout.held);
        step[Region::deferred] = block(plan.deferred_at[c], plan.blocks.deferred, layout.deferred);
        if (c > 0) {
            bool const back = step.kind != Kind::forward && moved.with_input && moved.moved(m);
            step[Region::input] =
                back ? at.fetched_input(c, m) : at.slot(c, plan.boundaries[c].input[m]);
            step[Region::input_gradient] = at.gradient(c, m);
        }
        std::byte* output = nullptr;
        bool const again = step.kind == Kind::recompute;
        if (again && c > 0) output = at.slot(c, plan.boundaries[c].discarded_output[m]);
        if (c + 1 < plan.lowered.programs.cells()) {
            if (plan.links[c + 1] == Link::shared) {
                if (!again) output = at.slot(c + 1, plan.boundaries[c + 1].input[m]);
                step[Region::output_gradient] = at.gradient(c + 1, m);
            } else {
                Outbox const& outbox = plan.transfers[c + 1].outbox;
                bool const rewritten = outbox.recomputed[m] != no_slot;
                if (rewritten && step.kind != Kind::forward)
                    output = at.outbox(c + 1, outbox.recomputed[m]);
                else if (!again)
                    output = at.outbox(c + 1, outbox.output[m]);
                step[Region::output_gradient] = at.outbox(c + 1, outbox.gradient[m]);
            }
        }
        step[Region::output] = output ? output : detail::own_output(step, plan);
    });
}

/// The table of an evaluation over the same memory.
GPIPE_INLINE StepTable forward_table(ForwardPrograms const& forwards, Placement const& placement,
                                     Lanes const& lanes, MemoryPlan const& plan,
                                     Array<std::byte*> const& arenas, std::byte* host) {
    detail::Addresses const at(plan, arenas, host);
    return detail::fill_table(forwards.lowered, placement, lanes, [&](Step& step) {
        std::size_t const c = step.cell;
        std::size_t const m = step.micro_batch;
        auto const input = [&](std::size_t cell) {
            return at.slot(cell, m % forwards.slots[cell]);
        };
        auto const output = [&](std::size_t cell) {
            return at.outbox(cell, m % std::min<std::size_t>(2, plan.transfers[cell].outbox.slots));
        };
        if (is_transfer(step.kind)) {
            std::size_t const b = detail::boundary_of(step);
            Transfers const& transfers = plan.transfers[b];
            detail::Ends ends{output(b), input(b)};
            if (plan.links[b] == Link::staged)
                ends.staged_output = at.host(b, transfers.outputs_at, m % transfers.outputs.slots);
            detail::fill_transfer(step, ends);
            return;
        }
        step.calls = detail::calls_at(c, CallList::evaluate);
        step.delivers = step.is_last;
        step.more = step.more || step.delivers;
        step[Region::retained] = at.arena(c) + plan.retained_at[c];
        step[Region::kept] = at.arena(c) + plan.blocks_at[c];
        step[Region::temporary] = at.arena(c) + plan.temporaries_at[c];
        step[Region::held] = at.arena(c) + plan.held_at[c];
        // The loss may write its gradient there.
        step[Region::deferred] = at.arena(c) + plan.deferred_at[c];
        if (c > 0) step[Region::input] = input(c);
        if (step.is_last)
            step[Region::output] = detail::own_output(step, plan);
        else
            step[Region::output] = plan.links[c + 1] == Link::shared ? input(c + 1) : output(c + 1);
    });
}

} // namespace gpipe
