#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/plan.hpp>

#include <algorithm>
#include <cstddef>

namespace gpipe {

/// The forwards alone, for evaluation: nothing is kept, and a boundary's tensors alternate between
/// two slots of the training's plan, so whoever writes one also waits until its reader is done.
struct ForwardPrograms {
    Lowered lowered;          ///< with transfers
    Array<std::size_t> slots; ///< by cell: how many slots its inputs alternate between
};

/// Of these programs, over the memory of their plan.
GPIPE_INLINE ForwardPrograms forward_programs(Programs const& training, MemoryPlan const& plan) {
    std::size_t const cells = training.cells();
    std::size_t const micro_batches = training.micro_batches();
    Programs programs(training.devices(), cells, micro_batches, cells * micro_batches);
    for (std::size_t c = 0; c < cells; ++c) programs.place(c, training.device_of(c));
    // One micro-batch after the other: every program follows this order, and so does every wait for
    // a slot, which a copy behind those of a later micro-batch on its stream would not.
    Array<std::size_t> order(cells * micro_batches);
    for (std::size_t d = 0; d < training.devices(); ++d) {
        for (std::size_t m = 0; m < micro_batches; ++m)
            for (std::size_t c = 0; c < cells; ++c) {
                if (training.device_of(c) != d) continue;
                order[m * cells + c] = programs.size();
                programs.add(forward(c, m));
            }
        programs.next_device();
    }
    Array<bool> offloads(cells); // nothing is kept, but there are the streams for it
    for (std::size_t c = 0; c < cells; ++c) offloads[c] = plan.offloaded[c].blocks > 0;
    ForwardPrograms result{lower(programs, plan.links, plan.crosses, order, offloads),
                           Array<std::size_t>(cells, 1)};
    constexpr auto kinds = static_cast<std::size_t>(Kind::update);
    Array<std::size_t> index(kinds * cells * micro_batches, no_action);
    auto const at = [&](Kind kind, std::size_t c, std::size_t m) -> std::size_t& {
        return index[(static_cast<std::size_t>(kind) * cells + c) * micro_batches + m];
    };
    for (std::size_t i = 0; i < result.lowered.programs.size(); ++i) {
        Action const& a = result.lowered.programs[i];
        at(a.kind, a.cell, a.micro_batch) = i;
    }
    for (std::size_t c = 1; c < cells; ++c) {
        // (writer, cell) of micro-batch m needs (reader, cell) of the one that had its slot before.
        auto const wait = [&](Kind writer, std::size_t written_by, Kind reader, std::size_t read_by,
                              std::size_t slots) {
            for (std::size_t m = slots; m < micro_batches; ++m)
                result.lowered.needs[at(writer, written_by, m)].add(at(reader, read_by, m - slots));
        };
        Link const link = plan.links[c];
        std::size_t const slots = result.slots[c] =
            std::min<std::size_t>(2, plan.boundaries[c].slots);
        if (link == Link::shared) {
            wait(Kind::forward, c - 1, Kind::forward, c, slots);
            continue;
        }
        wait(Kind::forward, c - 1, Kind::send_output, c - 1,
             std::min<std::size_t>(2, plan.transfers[c].outbox.slots));
        if (link == Link::copied) {
            wait(Kind::send_output, c - 1, Kind::forward, c, slots);
        } else {
            wait(Kind::send_output, c - 1, Kind::receive_input, c, plan.transfers[c].outputs.slots);
            wait(Kind::receive_input, c, Kind::forward, c, slots);
        }
    }
    return result;
}

} // namespace gpipe
