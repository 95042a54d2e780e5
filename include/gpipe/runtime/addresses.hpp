#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/runtime/step.hpp>

#include <cstddef>

namespace gpipe::detail {

// Where a plan's tensors are.
class Addresses {
  public:
    Addresses(MemoryPlan const& plan, Array<std::byte*> const& arenas, std::byte* host)
        : plan_(plan), arenas_(arenas), host_(host) {}

    std::byte* arena(std::size_t cell) const {
        return arenas_[plan_.lowered.programs.device_of(cell)];
    }
    // On the receiving side of the boundary before `cell`.
    std::byte* slot(std::size_t cell, std::size_t s) const {
        if (s == no_slot) return nullptr;
        return arena(cell) + plan_.slots_at[cell] + s * plan_.slot_size[cell];
    }
    std::byte* gradient(std::size_t cell, std::size_t m) const {
        if (!plan_.holds_gradient[cell]) return slot(cell, plan_.boundaries[cell].gradient[m]);
        return arena(cell) + plan_.temporaries_at[cell] + plan_.layouts[cell].input_gradient.offset;
    }
    // On its sending side.
    std::byte* outbox(std::size_t cell, std::size_t s) const {
        Transfers const& transfers = plan_.transfers[cell];
        if (s == no_slot) return nullptr;
        return arena(cell - 1) + transfers.outbox_at + s * transfers.slot_size;
    }
    // Of a cell's input that has been fetched.
    std::byte* fetched_input(std::size_t cell, std::size_t m) const {
        Offloaded const& moved = plan_.offloaded[cell];
        return arena(cell) + moved.inputs_at + moved.inputs.slot[m] * moved.input;
    }
    // In the host's memory: what the cell has moved there.
    std::byte* offloaded(std::size_t cell, std::size_t m) const {
        Offloaded const& moved = plan_.offloaded[cell];
        return host_ + moved.host_at + moved.host.slot[m] * moved.bytes();
    }
    std::byte* host(std::size_t cell, std::size_t at, std::size_t s) const {
        return host_ + at + s * plan_.transfers[cell].slot_size;
    }

  private:
    MemoryPlan const& plan_;
    Array<std::byte*> const& arenas_;
    std::byte* host_;
};

// From where to where a transfer goes; `output` and `input` are the tensors on either side of the
// boundary, `gradient` the one that arrives.
struct Ends {
    std::byte* output = nullptr;
    std::byte* input = nullptr;
    std::byte* gradient = nullptr;
    std::byte* input_gradient = nullptr;
    std::byte* staged_output = nullptr; // null unless the link is staged
    std::byte* staged_gradient = nullptr;
};
GPIPE_INLINE void fill_transfer(Step& step, Ends const& ends) {
    auto const over = [](std::byte* staged, std::byte* else_there) {
        return staged ? staged : else_there;
    };
    if (step.kind == Kind::send_output) {
        step[Region::input] = ends.output;
        step[Region::output] = over(ends.staged_output, ends.input);
    } else if (step.kind == Kind::receive_input) {
        step[Region::input] = ends.staged_output;
        step[Region::output] = ends.input;
    } else if (step.kind == Kind::send_gradient) {
        step[Region::input] = ends.input_gradient;
        step[Region::output] = over(ends.staged_gradient, ends.gradient);
    } else {
        step[Region::input] = ends.staged_gradient;
        step[Region::output] = ends.gradient;
    }
}
// The cell behind the boundary that a transfer is for.
GPIPE_INLINE std::size_t boundary_of(Step const& step) {
    return step.kind == Kind::send_output || step.kind == Kind::receive_gradient ? step.cell + 1u
                                                                                 : step.cell;
}

} // namespace gpipe::detail
