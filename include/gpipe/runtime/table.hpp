#pragma once

#include <gpipe/memory/plan.hpp>
#include <gpipe/runtime/cell_row.hpp>
#include <gpipe/runtime/lanes.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// A merged program with all addresses.
struct StepTable {
    Array<std::size_t> begin; ///< by lane; one more at the end
    Array<Step> steps;
    std::uint32_t longest = 0; ///< positions on the busiest stream
    std::size_t streams = 1;
    Array<std::size_t> stream_of_device;

    std::size_t lanes() const { return begin.size() - 1; }
    /// Whether this lane puts work on this stream: one lane serves all, several are a stream each.
    bool serves(std::size_t lane, std::size_t stream) const {
        return lanes() == 1 || stream == lane;
    }
};

/// The forwards alone, for evaluation: nothing is kept, and a boundary's tensors alternate between
/// two slots of the training's plan, so a forward also waits until the next cell is done with the
/// slot.
struct ForwardPrograms {
    Programs programs;
    Array<std::size_t> also;  ///< by action: the forward of the next cell that frees its slot
    Array<std::size_t> slots; ///< by cell: how many slots its inputs alternate between
};

inline ForwardPrograms forward_programs(Programs const& training, MemoryPlan const& plan) {
    std::size_t const cells = training.cells();
    std::size_t const micro_batches = training.micro_batches();
    ForwardPrograms result{
        Programs(training.devices(), cells, micro_batches, cells * micro_batches),
        Array<std::size_t>(cells * micro_batches, no_action), Array<std::size_t>(cells, 1)};
    for (std::size_t c = 0; c < cells; ++c) result.programs.place(c, training.device_of(c));
    Array<std::size_t> index(cells * micro_batches);
    for (std::size_t d = 0; d < training.devices(); ++d) {
        for (std::size_t m = 0; m < micro_batches; ++m)
            for (std::size_t c = 0; c < cells; ++c)
                if (training.device_of(c) == d) {
                    index[c * micro_batches + m] = result.programs.size();
                    result.programs.add(forward(c, m));
                }
        result.programs.next_device();
    }
    for (std::size_t c = 1; c < cells; ++c) {
        std::size_t const slots = std::min<std::size_t>(2, plan.boundaries[c].slots);
        result.slots[c] = slots;
        for (std::size_t m = slots; m < micro_batches; ++m)
            result.also[index[(c - 1) * micro_batches + m]] = index[c * micro_batches + m - slots];
    }
    return result;
}

namespace detail {

inline Step base_step(Programs const& programs, LaneStep const& lane_step, std::size_t rank) {
    Action const& a = programs[lane_step.action];
    Step step;
    step.kind = a.kind;
    step.publishes = lane_step.publishes;
    step.cell = a.cell;
    step.micro_batch = a.micro_batch;
    step.stream = lane_step.stream;
    step.position = lane_step.position;
    for (std::size_t w = 0; w < 2; ++w) {
        step.wait_stream[w] = lane_step.waits[w].stream;
        step.wait_position[w] = lane_step.waits[w].position;
    }
    step.rank = static_cast<std::uint32_t>(rank);
    step.action = lane_step.action;
    return step;
}

template <class Fill>
StepTable fill_table(Programs const& programs, Placement const& placement, Lanes const& lanes,
                     Fill fill) {
    auto const order = linear_order(programs);
    Array<std::size_t> rank(order.size());
    for (std::size_t r = 0; r < order.size(); ++r) rank[order[r]] = r;
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

} // namespace detail

/// The table of a training step. `arenas`: where each device's arena begins.
inline StepTable training_table(Programs const& programs, Placement const& placement,
                                Lanes const& lanes, MemoryPlan const& plan,
                                Array<std::byte*> const& arenas) {
    return detail::fill_table(programs, placement, lanes, [&](Step& step) {
        std::size_t const c = step.cell;
        std::size_t const m = step.micro_batch;
        std::byte* const arena = arenas[programs.device_of(c)];
        auto const slot = [&](std::size_t cell, std::size_t s) -> std::byte* {
            if (s == no_slot) return nullptr;
            return arenas[programs.device_of(cell)] + plan.slots_at[cell] +
                   s * plan.slot_size[cell];
        };
        auto const gradient = [&](std::size_t cell) {
            if (!plan.holds_gradient[cell]) return slot(cell, plan.boundaries[cell].gradient[m]);
            return arenas[programs.device_of(cell)] + plan.temporaries_at[cell] +
                   plan.layouts[cell].input_gradient.offset;
        };
        step.saving = plan.blocks.keeps[step.action];
        step.block =
            arena + plan.blocks_at[c] + plan.blocks.of_action[step.action] * plan.layouts[c].kept;
        if (c > 0) {
            step.input = slot(c, plan.boundaries[c].input[m]);
            step.input_gradient = gradient(c);
        }
        if (c + 1 < programs.cells()) {
            step.output = step.kind == Kind::recompute
                              ? slot(c, c > 0 ? plan.boundaries[c].discarded_output[m] : no_slot)
                              : slot(c + 1, plan.boundaries[c + 1].input[m]);
            step.output_gradient = gradient(c + 1);
        }
    });
}

/// The table of an evaluation over the same arenas.
inline StepTable forward_table(ForwardPrograms const& forwards, Placement const& placement,
                               Lanes const& lanes, MemoryPlan const& plan,
                               Array<std::byte*> const& arenas) {
    Programs const& programs = forwards.programs;
    return detail::fill_table(programs, placement, lanes, [&](Step& step) {
        std::size_t const c = step.cell;
        auto const slot = [&](std::size_t cell) {
            return arenas[programs.device_of(cell)] + plan.slots_at[cell] +
                   step.micro_batch % forwards.slots[cell] * plan.slot_size[cell];
        };
        step.block = arenas[programs.device_of(c)] + plan.blocks_at[c];
        if (c > 0) step.input = slot(c);
        if (c + 1 < programs.cells()) step.output = slot(c + 1);
    });
}

} // namespace gpipe
