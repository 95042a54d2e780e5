#pragma once

#include <gpipe/device/device.hpp>
#include <gpipe/runtime/poison.hpp>
#include <gpipe/runtime/update.hpp>
#include <gpipe/runtime/work.hpp>

#include <cstddef>
#include <exception>

namespace gpipe {

/// What the library itself does in a step, called in the order of a stream: host functions. For a
/// device on which calls put work on a stream it is to be specialised, with EnqueuingWork as its
/// base and commit(CommitCall), revoke(RevokeCall), keep(KeepCall), scale<T>(ScaleCall),
/// add<T>(AddCall, UpdateRow), squares<T>(SquaresCall, UpdateRow const* rows, count) and update<T,
/// Optimizer>(UpdateCall, UpdateRow const* rows, count), which put that on the call's stream; and
/// what PoisonWork has.
template <class Device> struct StepWork {
    /// Whether the functions of layers put work on a stream, instead of doing it.
    static constexpr bool enqueues = false;
    /// Whether a walk stops where layers have failed: not before all their calls have been made.
    static constexpr bool stops(bool) { return false; }
    /// How many tensors are updated, or summed up, at once, at most: one, so that what throws
    /// names it.
    static constexpr std::size_t rows_at_once = 1;
    /// Whether attempt() throws nothing.
    static constexpr bool catches = true;
    /// Does it. What throws is told and goes no further: other lanes wait for the marks behind.
    template <class Work, class Tell> static void attempt(Work work, Tell tell) noexcept {
        try {
            work();
        } catch (...) {
            tell(std::current_exception());
        }
    }
    /// Tells which of these gradients is the first that is not finite, if one is: tell(i, squares).
    /// Not of a step that is not committed: what is wrong with its loss or weight is told.
    template <class Tell> static void check(RevokeCall const& call, Tell tell) noexcept {
        if (!call.state->committed) return;
        for (std::size_t i = 0; i < call.tensors; ++i)
            if (!detail::is_finite(call.squares[i])) return tell(i, call.squares[i]);
    }
    /// See above.
    ///@{
    static void commit(CommitCall const& call) noexcept { detail::commit(call); }
    static bool keep(KeepCall const& call) noexcept { return detail::keep(call); }
    template <class T> static void scale(ScaleCall const& call) { detail::scale_gradient<T>(call); }
    template <class T>
    static void squares(SquaresCall const& call, UpdateRow const* row, std::size_t) {
        detail::sum_squares<T>(call, *row);
    }
    template <class T> static void add(AddCall const& call, UpdateRow const& row) {
        detail::add_gradient<T>(call, row);
    }
    template <class T, class Optimizer>
    static bool update(UpdateCall const& call, UpdateRow const* row, std::size_t) {
        if (row->elements == 0) return false; // another replica's
        return detail::update_tensor<T, Optimizer>(call, *row);
    }
    static void fill_poison(StepFrame const&, PoisonedBytes const& bytes) {
        detail::fill_poison(bytes);
    }
    static PoisonFinding find_poison(StepFrame const&, PoisonedBytes const& bytes) {
        return detail::find_poison(bytes);
    }
    ///@}
};

/// The base of what is specialised: by the end of a step all layers have been called, and whether
/// one threw is known; what the device finds, later, is in the step's state. `Work` is the
/// specialisation.
template <class Work> struct EnqueuingWork {
    /// As StepWork says.
    static constexpr bool enqueues = true;
    /// A walk stops where layers have failed.
    static constexpr bool stops(bool failed) { return failed; }
    /// A tensor is looked at by itself, unless the specialisation says otherwise.
    static constexpr std::size_t rows_at_once = 1;
    /// What throws is the walk's to catch: there is no other lane.
    static constexpr bool catches = false;
    /// Does it.
    template <class F, class Tell> static void attempt(F work, Tell) { work(); }
    /// The device finds out, and tells it in the step's state.
    template <class Tell> static void check(RevokeCall const& call, Tell) { Work::revoke(call); }
};

/// Whether the functions of layers put work on a stream, instead of doing it.
template <class Device> inline constexpr bool calls_enqueue = StepWork<Device>::enqueues;

} // namespace gpipe
