#pragma once

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/checkpoint/reversal_costs.hpp>
#include <gpipe/checkpoint/revolve.hpp>
#include <gpipe/layer/info.hpp>

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace gpipe {

/// The layers of a training, cut into cells, as a checkpointing policy sees them.
struct CutChain {
    LayerInfo const* layers = nullptr;
    std::size_t size = 0;
    std::size_t const* first = nullptr; ///< layer that each cell begins with, and `size`
};

namespace detail {

/// What the layers [first, last) cost, for micro-batches of one sample.
constexpr ReversalCosts reversal_costs(CutChain const& chain, std::size_t first, std::size_t last) {
    std::size_t const count = last - first;
    LayerInfo const* const layers = chain.layers + first;
    ReversalCosts costs{Array<double>(count),      Array<double>(count),
                        Array<std::size_t>(count), Array<std::size_t>(count),
                        Array<std::size_t>(count), Array<std::size_t>(count)};
    for (std::size_t i = 0; i < count; ++i) {
        LayerInfo const& layer = layers[i];
        bool const top = i + 1 == count;
        std::size_t const output = layer.output.slots(1);
        bool const keeps =
            layer.reads_output || (top ? last == chain.size : layers[i + 1].reads_input);
        costs.forward[i] = layer.cost;
        costs.backward[i] = 2 * layer.cost;
        costs.input[i] = layer.input.slots(1);
        costs.all[i] = layer.saved.slots(1) + (keeps ? output : 0);
        costs.forward_temporary[i] = layer.scratch.slots(1) + (keeps || top ? 0 : output);
        costs.backward_temporary[i] = layer.scratch.slots(1) + layer.input_gradient.slots(1) +
                                      (top ? 0 : layer.output_gradient.slots(1));
    }
    return costs;
}

// By cell: the most micro-batches that are between their forward and the end of their backward.
constexpr Array<std::size_t> in_flight_by_cell(Programs const& schedule) {
    Array<std::size_t> now(schedule.cells());
    Array<std::size_t> most(schedule.cells(), 1);
    for (std::size_t d = 0; d < schedule.devices(); ++d)
        for (Action const& a : schedule.program(d)) {
            if (a.kind == Kind::forward) most[a.cell] = std::max(most[a.cell], ++now[a.cell]);
            if (ends_backward(a.kind)) --now[a.cell];
        }
    return most;
}

} // namespace detail

/// A cell that a checkpointing policy is to reverse.
struct CellToReverse {
    ReversalCosts costs;       ///< for micro-batches of one sample
    std::size_t in_flight = 1; ///< the most micro-batches between forward and backward at a time
};

/// A checkpointing policy that decides how the layers inside of a cell are reversed: what its
/// forward keeps, and what its backward runs again. Everything follows from `reversal`: the
/// recompute is what that has in front of its first backward, and is left out for the holder (see
/// checkpoint::ExceptLast) and where there is nothing. In these cells backwards run whole.
template <class C>
concept ReversingPolicy = requires(CellToReverse const& cell) {
    { C::reversal(cell) } -> std::same_as<Reversal>;
};

/// That a policy offers what a checkpointing policy must.
template <class C> struct CheckCheckpointing {
    static constexpr bool ok = CheckpointingPass<C> || ReversingPolicy<C>;
    static_assert(ok, "gpipe: a checkpointing policy needs: static constexpr gpipe::Programs "
                      "lower(gpipe::Programs const& schedule)");
};

namespace checkpoint {

/// Segments of n layers inside of each cell, the last one of what is left: the forward keeps their
/// inputs; each, the last first, is run again right before its backwards.
template <std::size_t n> struct EverySegment {
    static_assert(n > 0, "gpipe: EverySegment<n> needs segments of at least one layer");
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "every-segment";
    static constexpr Reversal reversal(CellToReverse const& cell) {
        return every_segment(cell.costs.layers(), n);
    }
};

/// As many segments as take the least memory by the square root rule, with all micro-batches in
/// flight counted: see square_root().
struct SquareRoot {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "square-root";
    static constexpr Reversal reversal(CellToReverse const& cell) {
        return square_root(cell.costs, cell.in_flight);
    }
};

/// The fewest forwards with `slots` inputs of layers stored inside of each cell, for layers of
/// equal cost: see revolve(). One layer at a time is kept whole.
template <std::size_t slots> struct Revolve {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "revolve";
    static constexpr Reversal reversal(CellToReverse const& cell) {
        return revolve(cell.costs.layers(), slots);
    }
};

} // namespace checkpoint

/// By cell how a policy reverses it; none where it leaves that to the default.
template <class Checkpointing>
constexpr Array<Reversal> reversals_of(CutChain const& chain, Programs const& schedule) {
    if constexpr (!ReversingPolicy<Checkpointing>) {
        return {};
    } else {
        Array<Reversal> result(schedule.cells());
        Array<std::size_t> const in_flight = detail::in_flight_by_cell(schedule);
        for (std::size_t c = 0; c < result.size(); ++c)
            result[c] = Checkpointing::reversal(
                {detail::reversal_costs(chain, chain.first[c], chain.first[c + 1]), in_flight[c]});
        return result;
    }
}

/// The recomputes that reversals need, put into a schedule's programs.
constexpr Programs lower_reversed(Programs const& schedule, Array<Reversal> const& reversals) {
    Array<bool> recomputes(reversals.size());
    for (std::size_t c = 0; c < reversals.size(); ++c)
        recomputes[c] = !reversals[c].steps.empty() && !reversals[c].steps[0].backward;
    return recompute_if_not_held(schedule, recomputes);
}

/// What a checkpointing policy makes of a schedule.
struct Checkpointed {
    Programs programs;         ///< with recomputes
    Array<Reversal> reversals; ///< by cell, or none
};

template <class Checkpointing>
constexpr Checkpointed apply_checkpointing(CutChain const& chain, Programs const& schedule) {
    if constexpr (ReversingPolicy<Checkpointing>) {
        Array<Reversal> reversals = reversals_of<Checkpointing>(chain, schedule);
        Programs programs = lower_reversed(schedule, reversals);
        return {static_cast<Programs&&>(programs), static_cast<Array<Reversal>&&>(reversals)};
    } else {
        return {Checkpointing::lower(schedule), {}};
    }
}

namespace checkpoint {

/// A policy that is chosen at construction; also the type that holds the choice.
class Dynamic {
  public:
    using policy_kind = policy::Checkpointing;
    constexpr Dynamic() = default;
    template <class C>
        requires(!std::is_same_v<C, Dynamic> && (CheckpointingPass<C> || ReversingPolicy<C>))
    constexpr Dynamic(C) : apply_(&apply_checkpointing<C>), reverses_(ReversingPolicy<C>) {}

    constexpr explicit operator bool() const { return apply_ != nullptr; }
    /// Whether it is a ReversingPolicy.
    constexpr bool reverses() const { return reverses_; }
    /// Of a policy that does not reverse cells.
    constexpr Programs lower(Programs const& schedule) const {
        return apply_({}, schedule).programs;
    }
    constexpr Checkpointed apply(CutChain const& chain, Programs const& schedule) const {
        return apply_(chain, schedule);
    }

  private:
    Checkpointed (*apply_)(CutChain const&, Programs const&) = nullptr;
    bool reverses_ = false;
};

} // namespace checkpoint
} // namespace gpipe
