#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/programs.hpp>

#include <concepts>
#include <cstddef>
#include <string_view>

namespace gpipe {

namespace policy {
struct Checkpointing;
} // namespace policy

/// A checkpointing policy: a pass over a schedule's programs that puts recomputations in, each in
/// front of its backward and so of the wait for the gradient: it runs in the bubble. What is kept
/// follows from the result: the activations of a forward or recompute until the next backward of
/// the same micro-batch, if no recompute comes between.
template <class C>
concept CheckpointingPass = requires(C const& policy, Programs const& schedule) {
    { policy.lower(schedule) } -> std::same_as<Programs>;
};

namespace checkpoint {

/// Keeps every activation of every micro-batch in flight; recomputes nothing.
struct Never {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "never"; ///< what it is found by
    /// The programs with its recomputes: none.
    static constexpr Programs lower(Programs const& schedule) { return schedule; }
};

/// Keeps boundary inputs only and recomputes before every backward, as torchgpipe's "always".
struct Always {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "always"; ///< what it is found by
    /// The programs with its recomputes, one before every backward.
    static GPIPE_INLINE constexpr Programs lower(Programs const& schedule);
};

/// One working set per cell: a forward or recompute makes its micro-batch the holder, and a
/// backward recomputes if and only if it is not the holder. Under GPipe that spares the last
/// micro-batch, as torchgpipe's "except_last"; under 1F1B it spares every micro-batch in the last
/// cell. In the last cell a forward whose result would be recomputed is not run early at all:
/// nobody waits for it, so it takes the place of its recomputation.
struct ExceptLast {
    using policy_kind = policy::Checkpointing;
    static constexpr std::string_view name = "except-last"; ///< what it is found by
    /// The programs with its recomputes.
    static GPIPE_INLINE constexpr Programs lower(Programs const& schedule);
};

} // namespace checkpoint

namespace detail {

// An empty copy of the schedule's shape with room for a recompute before every backward.
GPIPE_INLINE constexpr Programs same_shape(Programs const& schedule) {
    return {schedule, schedule.devices(),
            schedule.size() + schedule.cells() * schedule.micro_batches()};
}

} // namespace detail

GPIPE_INLINE constexpr Programs checkpoint::Always::lower(Programs const& schedule) {
    Programs result = detail::same_shape(schedule);
    for (std::size_t d = 0; d < schedule.devices(); ++d) {
        std::size_t const size = schedule.size(d);
        Action const* const from = schedule.program(d).data();
        std::size_t recomputes = 0;
        for (std::size_t i = 0; i < size; ++i) recomputes += gives_gradient(from[i].kind);
        Action* to = result.append(size + recomputes);
        for (std::size_t i = 0; i < size; ++i) {
            if (gives_gradient(from[i].kind)) *to++ = recompute(from[i].cell, from[i].micro_batch);
            *to++ = from[i];
        }
        result.next_device();
    }
    return result;
}

/// By cell how many micro-batches are no longer the holder when their backward comes.
GPIPE_INLINE constexpr Array<std::size_t> not_held_by_cell(Programs const& schedule) {
    Array<std::size_t> count(schedule.cells());
    Array<std::size_t> holder(schedule.cells(), schedule.micro_batches());
    for (Action const& a : schedule) {
        bool const gradient = gives_gradient(a.kind);
        if (gradient && holder[a.cell] != a.micro_batch) ++count[a.cell];
        if (gradient || a.kind == Kind::forward) holder[a.cell] = a.micro_batch;
    }
    return count;
}

/// The rule of checkpoint::ExceptLast in those cells c that have something to recompute: where
/// `recomputes[c]`; empty: all.
GPIPE_INLINE constexpr Programs recompute_if_not_held(Programs const& schedule,
                                                      Array<bool> const& recomputes) {
    Programs result = detail::same_shape(schedule);
    std::size_t const micro_batches = schedule.micro_batches();
    std::size_t const last_cell = schedule.cells() - 1;
    // Backwards whose micro-batch is no longer the holder of its cell.
    Array<bool> not_held(schedule.cells() * micro_batches);
    Array<std::size_t> holders(schedule.cells(), micro_batches);
    bool* const again = not_held.data();
    std::size_t* const holder = holders.data();
    for (std::size_t d = 0; d < schedule.devices(); ++d) {
        std::size_t const size = schedule.size(d);
        Action const* const from = schedule.program(d).data();
        std::size_t added = 0;
        for (std::size_t i = 0; i < size; ++i) {
            Action const& a = from[i];
            bool const gradient = gives_gradient(a.kind);
            bool const able = recomputes.empty() || recomputes[a.cell];
            if (gradient && able && holder[a.cell] != a.micro_batch) {
                again[a.cell * micro_batches + a.micro_batch] = true;
                added += a.cell != last_cell;
            }
            if (gradient || a.kind == Kind::forward) holder[a.cell] = a.micro_batch;
        }
        Action* to = result.append(size + added);
        for (std::size_t i = 0; i < size; ++i) {
            Action const& a = from[i];
            if (again[a.cell * micro_batches + a.micro_batch]) {
                if (a.cell == last_cell && a.kind == Kind::forward) continue;
                if (gives_gradient(a.kind))
                    *to++ = a.cell == last_cell ? forward(a.cell, a.micro_batch)
                                                : recompute(a.cell, a.micro_batch);
            }
            *to++ = a;
        }
        result.next_device();
    }
    return result;
}

GPIPE_INLINE constexpr Programs checkpoint::ExceptLast::lower(Programs const& schedule) {
    return recompute_if_not_held(schedule, {});
}

} // namespace gpipe
