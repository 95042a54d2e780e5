#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/memory_plan.hpp>
#include <gpipe/memory/moves.hpp>
#include <gpipe/schedule/order.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace gpipe {

/// What can be wrong with the copies to the host's memory and back.
enum class OffloadProblem : std::uint8_t {
    sound,
    out_of_turn, ///< one that does not wait for what it copies, or that nobody waits for
    block,       ///< a block on the device is written while what it holds is still needed
    host,        ///< room in the host's memory likewise
    input,       ///< the slot of an input that has come back likewise
    boundary,    ///< a slot of the boundary before the cell likewise
};

/// It in words.
GPIPE_INLINE constexpr std::string_view sentence(OffloadProblem problem) {
    constexpr std::string_view sentences[] = {
        "the copies are sound",
        "a copy does not wait for what it copies, or the reversal does not wait for it",
        "a block is written while what it holds is still needed",
        "room in the host's memory is written while what it holds is still needed",
        "the slot of an input that is back is written while what it holds is still needed",
        "a slot of a boundary is written while what it holds is still needed"};
    return sentences[static_cast<std::size_t>(problem)];
}

/// The first thing that is wrong, and in which cell.
struct OffloadVerdict {
    OffloadProblem problem = OffloadProblem::sound; ///< the first that was met
    std::size_t cell = 0;                           ///< whose copies they are

    /// Whether the copies are sound.
    constexpr explicit operator bool() const { return problem == OffloadProblem::sound; }
};

namespace detail {

// A place that holds something from the begin of one action to the end of others.
struct Stay {
    std::size_t place = 0;
    std::size_t first = no_action;
    std::size_t last = no_action;
    std::size_t other_last = no_action;
};

class OffloadProof {
  public:
    constexpr explicit OffloadProof(MemoryPlan const& plan)
        : plan_(plan), programs_(plan.lowered.programs), micro_batches_(programs_.micro_batches()),
          happens_before_(plan.lowered, linear_order(plan.lowered)), moves_(find_moves(programs_)) {
    }

    constexpr OffloadProblem prove(std::size_t cell) const {
        Offloaded const& moved = plan_.offloaded[cell];
        Array<Stay> blocks(2 * micro_batches_), host(micro_batches_), inputs(micro_batches_);
        for (std::size_t m = 0; m < micro_batches_; ++m) {
            Move const& move = moves_[cell * micro_batches_ + m];
            bool const leaves = moved.moved(m);
            blocks[2 * m] = {moved.block[m], move.forward, leaves ? move.offload : move.end};
            if (!leaves) continue;
            if (!in_turn(move)) return OffloadProblem::out_of_turn;
            blocks[2 * m + 1] = {moved.returned[m], move.fetch, move.end};
            host[m] = {moved.host.slot[m], move.offload, move.fetch};
            inputs[m] = {moved.inputs.slot[m], move.fetch, move.end};
        }
        if (!apart(blocks)) return OffloadProblem::block;
        if (!apart(host)) return OffloadProblem::host;
        if (!moved.with_input) return OffloadProblem::sound;
        if (!apart(inputs)) return OffloadProblem::input;
        BoundarySlots const& boundary = plan_.boundaries[cell];
        Array<Stay> slots(3 * micro_batches_);
        for (std::size_t m = 0; m < micro_batches_; ++m) {
            auto const stay = [&](std::size_t slot, BoundarySlots::Ends const& ends) {
                return slot == no_slot ? Stay{}
                                       : Stay{slot, ends.first, ends.last[0], ends.last[1]};
            };
            slots[3 * m] = stay(boundary.input[m], boundary.input_ends[m]);
            slots[3 * m + 1] = stay(boundary.gradient[m], boundary.gradient_ends[m]);
            Move const& move = moves_[cell * micro_batches_ + m];
            if (boundary.discarded_output[m] != no_slot)
                slots[3 * m + 2] = {boundary.discarded_output[m], move.reversal, move.reversal};
        }
        return apart(slots) ? OffloadProblem::sound : OffloadProblem::boundary;
    }

  private:
    constexpr bool in_turn(Move const& move) const {
        for (std::size_t const i : {move.forward, move.offload, move.fetch, move.reversal})
            if (i == no_action) return false;
        return happens_before_(move.forward, move.offload) &&
               happens_before_(move.offload, move.fetch) &&
               happens_before_(move.fetch, move.reversal);
    }
    constexpr bool ends_before(Stay const& a, Stay const& b) const {
        for (std::size_t const last : {a.last, a.other_last})
            if (last != no_action && last != b.first && !happens_before_(last, b.first))
                return false;
        return true;
    }
    // Whether of two stays in one place one always ends before the other begins.
    constexpr bool apart(Array<Stay> const& stays) const {
        for (std::size_t a = 0; a < stays.size(); ++a)
            for (std::size_t b = a + 1; b < stays.size(); ++b) {
                if (stays[a].first == no_action || stays[b].first == no_action) continue;
                if (stays[a].place == stays[b].place && !ends_before(stays[a], stays[b]) &&
                    !ends_before(stays[b], stays[a]))
                    return false;
            }
        return true;
    }

    MemoryPlan const& plan_;
    Programs const& programs_;
    std::size_t micro_batches_;
    HappensBefore happens_before_;
    Array<Move> moves_; // by cell and micro-batch
};

} // namespace detail

/// Proves that whatever the timing, everything that is offloaded is copied when it is there, comes
/// back before its reversal begins, and lies where nobody else writes meanwhile: on the device, in
/// the host's memory and in the boundaries whose inputs leave. Throws std::logic_error if the
/// programs wait for each other.
[[gnu::cold]] GPIPE_INLINE constexpr OffloadVerdict verify_offloads(MemoryPlan const& plan) {
    bool any = false;
    for (Offloaded const& cell : plan.offloaded) any = any || cell.moves();
    if (!any) return {};
    detail::OffloadProof const proof(plan);
    for (std::size_t c = 0; c < plan.offloaded.size(); ++c) {
        if (!plan.offloaded[c].moves()) continue;
        OffloadProblem const problem = proof.prove(c);
        if (problem != OffloadProblem::sound) return {problem, c};
    }
    return {};
}

} // namespace gpipe
