#pragma once

#include <gpipe/call/call.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/reversal_calls.hpp>
#include <gpipe/schedule/offloads.hpp>

#include <algorithm>
#include <cstddef>

namespace gpipe {

/// One call of a layer or of the loss in a cell that is reversed, with its places.
struct PlacedCall {
    detail::CallKind kind = detail::CallKind::forward; ///< of which function
    bool saving = false;     ///< whether a backward will read what it saves
    std::uint32_t layer = 0; ///< in the cell; of the loss, their number
    /// Of the tensor that the name says, as in Call.
    ///@{
    Place x;
    Place y;
    Place dy;
    Place dx;
    Place saved;
    Place deferred;
    Place scratch;
    ///@}
    std::size_t skips = 0; ///< where those of its layer begin in ReversalLayout::skips
};

/// Where the tensors of a cell lie that runs layers again in its backward: see ReversalCalls for
/// the order of the calls.
struct ReversalLayout {
    Array<PlacedCall> calls; ///< in the order in which they run
    /// Of the calls' skips, as in SkipEnds. Of those to other cells what nobody wants, see
    /// CellLayout::skips.
    Array<SkipPlace> skips;
    std::size_t start = 0;         ///< index of the first call that a recompute runs
    std::size_t recompute_end = 0; ///< one past the last of these
    std::size_t backward = 0;      ///< index of the first call of the backward
    Place again;               ///< of the cell's output, in a recompute for which nobody reads that
    Place output;              ///< of the chain, in its last cell
    Place input_gradient;      ///< see CellLayout
    std::size_t retained = 0;  ///< bytes of a micro-batch's block from forward to backward
    std::size_t kept = 0;      ///< from the begin of its reversal on
    std::size_t temporary = 0; ///< see CellLayout, also for `adjacent`
};

namespace detail {

// Retained tensors lie one behind the other. Kept ones form a stack, since what is kept last is
// reversed first. The others lie at the low or the high end of the temporaries, by the parity of
// their layer, so that neighbours do not meet; scratch lies between. At an end they lie one on the
// other: a gradient that waits while layers run again lies under what those write. Where the
// temporaries share a region with the stack, the low end is what the stack leaves free.
class ReversalPlacer {
    using Role = ReversalTensor::Role;

  public:
    constexpr ReversalPlacer(ReversalCalls const& all, bool adjacent, bool even_lies_low)
        : all_(all), adjacent_(adjacent), even_lies_low_(even_lies_low), at_(all.tensor_count),
          stack_(all.call_count + 1), free_(all.call_count + 1, static_cast<std::size_t>(-1)),
          low_(all.call_count + 1), high_(all.call_count + 1) {
        stack_up();
        put_temporaries();
        put_scratch();
    }

    std::size_t retained = 0;
    std::size_t kept = 0;
    std::size_t temporary = 0;

    constexpr Place place(std::uint32_t t) const {
        if (t == no_tensor) return {};
        ReversalTensor const& tensor = all_.tensors[t];
        if (tensor.region != Region::temporary || tensor.role == Role::scratch || is_low(tensor))
            return {at_[t], tensor.region};
        return {temporary - at_[t], tensor.region}; // from the high end
    }

  private:
    constexpr bool is_low(ReversalTensor const& tensor) const {
        return tensor.even == even_lies_low_;
    }
    constexpr bool is_temporary(ReversalTensor const& tensor) const {
        return tensor.region == Region::temporary && tensor.role != Role::outside;
    }

    constexpr void stack_up() {
        for (std::size_t t = 0; t < all_.tensor_count; ++t) {
            ReversalTensor const& tensor = all_.tensors[t];
            if (tensor.region == Region::retained) {
                at_[t] = retained;
                retained += tensor.bytes;
            }
            if (tensor.region != Region::kept) continue;
            // By now everything that began before is in stack_.
            at_[t] = stack_[tensor.begin];
            for (std::size_t time = tensor.begin; time <= tensor.end; ++time)
                stack_[time] = at_[t] + tensor.bytes;
        }
        for (std::size_t const height : stack_) kept = std::max(kept, height);
        if (!adjacent_)
            for (std::size_t& height : stack_) height = 0;
    }
    // In the order in which they are written, so that at each end the older ones lie outside.
    constexpr void put_temporaries() {
        for (std::size_t t = 0; t < all_.tensor_count; ++t) {
            ReversalTensor const& tensor = all_.tensors[t];
            if (!is_temporary(tensor) || tensor.role == Role::scratch) continue;
            Array<std::size_t>& end = is_low(tensor) ? low_ : high_;
            std::size_t base = end[tensor.begin];
            for (std::size_t time = tensor.begin; time <= tensor.end; ++time) {
                base = std::max(base, end[time]);
                if (is_low(tensor)) base = std::max(base, stack_[time]);
            }
            at_[t] = is_low(tensor) ? base : base + tensor.bytes;
            for (std::size_t time = tensor.begin; time <= tensor.end; ++time) {
                end[time] = base + tensor.bytes;
                if (is_low(tensor)) free_[time] = std::min(free_[time], base);
            }
        }
    }
    constexpr void put_scratch() {
        // Between the ends, or under the low one where the stack has left enough.
        for (std::size_t time = 0; time < all_.call_count; ++time)
            low_[time] = std::max(low_[time], stack_[time]);
        for (std::size_t t = 0; t < all_.tensor_count; ++t) {
            ReversalTensor const& tensor = all_.tensors[t];
            if (!is_temporary(tensor) || tensor.role != Role::scratch) continue;
            std::size_t& under = stack_[tensor.begin];
            std::size_t& above = low_[tensor.begin];
            std::size_t& edge = tensor.bytes <= free_[tensor.begin] - under ? under : above;
            at_[t] = edge;
            edge += tensor.bytes;
            above = std::max(above, edge);
        }
        for (std::size_t time = 0; time < all_.call_count; ++time)
            temporary = std::max(temporary, low_[time] + high_[time]);
    }

    ReversalCalls const& all_;
    bool adjacent_;
    bool even_lies_low_;
    Array<std::size_t> at_;    // by tensor: its offset; at the high end, of its low edge from there
    Array<std::size_t> stack_; // by time: the kept stack's height
    Array<std::size_t> free_;  // by time: up to where nothing lies on that
    Array<std::size_t> low_;   // by time: how far the low end is taken
    Array<std::size_t> high_;
};

} // namespace detail

/// Lays out the layers [first, last) of a chain that are reversed so.
[[gnu::cold]] GPIPE_INLINE constexpr ReversalLayout
lay_out_reversal(ChainShape const& chain, std::size_t first, std::size_t last, CellUse const& use,
                 Reversal const& reversal) {
    detail::ReversalCalls const all =
        detail::ReversalBuilder(chain, first, last, use, reversal).build();
    detail::ReversalPlacer const low(all, use.adjacent, true);
    detail::ReversalPlacer const high(all, use.adjacent, false);
    detail::ReversalPlacer const& best = high.temporary < low.temporary ? high : low;
    ReversalLayout layout;
    layout.calls = Array<PlacedCall>(all.call_count);
    for (std::size_t i = 0; i < all.call_count; ++i) {
        detail::ReversalCall const& call = all.calls[i];
        layout.calls[i] = {call.kind,
                           call.saving,
                           call.layer,
                           best.place(call.x),
                           best.place(call.y),
                           best.place(call.dy),
                           best.place(call.dx),
                           best.place(call.saved),
                           best.place(call.deferred),
                           best.place(call.scratch),
                           call.skips};
    }
    layout.skips = Array<SkipPlace>(all.skip_count);
    for (std::size_t i = 0; i < all.skip_count; ++i)
        layout.skips[i] = {best.place(all.skips[i].value), best.place(all.skips[i].gradient)};
    layout.start = all.start;
    layout.recompute_end = all.recompute_end;
    layout.backward = all.backward;
    layout.again = best.place(all.again);
    layout.input_gradient = best.place(all.input_gradient);
    if (all.backward > 0) layout.output = best.place(all.calls[all.backward - 1].y);
    layout.retained = best.retained;
    layout.kept = best.kept;
    layout.temporary = best.temporary;
    return layout;
}

/// What plans cells that are reversed piece by piece, or offloaded: a program whose policies do
/// neither has none, and no code for it.
struct Reversing {
    decltype(&lay_out_reversal) lay_out = nullptr; ///< of a cell
    decltype(&choose_offloads) offloads = nullptr; ///< of all
};
/// With these anything can be planned.
inline constexpr Reversing any_reversing{&lay_out_reversal, &choose_offloads};

} // namespace gpipe
