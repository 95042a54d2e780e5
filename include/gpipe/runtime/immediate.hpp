#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/moves.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/runtime/table.hpp>

#include <cstddef>
#include <stdexcept>

namespace gpipe {

/// Prepares the table of a training step for update::Immediate: marks the action behind which the
/// step is committed and those behind which devices update, and has the first writer of every
/// boundary slot wait for who was the last to use it in the step before. What else two steps share
/// belongs to one device, whose program holds them apart: it waits for all that copies for it.
GPIPE_INLINE void make_immediate(StepTable& table, MemoryPlan const& plan) {
    Programs const& programs = plan.lowered.programs;
    Array<Step*> step_of(programs.size()); // by action
    Array<Step*> last(plan.devices.size());
    Step* loss = nullptr;
    for (Step& step : table.steps) {
        step_of[step.action] = &step;
        if (is_copy(step.kind)) continue;
        last[programs.device_of(step.cell)] = &step;
        if (step.cell + 1 == programs.cells() && gives_gradient(step.kind)) loss = &step;
    }
    loss->commits = loss->more = true;
    auto const moves = detail::find_moves(programs);
    for (std::size_t d = 0; d < last.size(); ++d)
        if (last[d]) last[d]->ends_device = last[d]->more = true;

    for (std::size_t c = 1; c < programs.cells(); ++c) {
        if (plan.links[c] != Link::shared) continue;
        for (BoundarySlots::Ends const& ends : plan.boundaries[c].ends) {
            Step& writer = *step_of[ends.first];
            for (std::size_t user : ends.last) {
                if (user == no_action) continue;
                // An offload is over when the reversal that it is for begins.
                Action const& a = programs[user];
                if (a.kind == Kind::offload)
                    user = moves[a.cell * programs.micro_batches() + a.micro_batch].reversal;
                if (step_of[user]->stream == writer.stream) continue;
                if (writer.last_step.position)
                    throw std::logic_error("gpipe: one action is the first in two slots");
                step_of[user]->publishes = step_of[user]->more = true;
                writer.waits = true;
                writer.last_step = {step_of[user]->stream, step_of[user]->position};
            }
        }
    }
}

} // namespace gpipe
