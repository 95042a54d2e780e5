#pragma once

#include <gpipe/schedule/action.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

namespace gpipe {

/// What a hook of actions is told, see Timed::on_action().
struct ActionEvent {
    Action action;           ///< what runs; of a transfer with its edge
    bool begins = true;      ///< else it has ended
    bool evaluates = false;  ///< of a forward only: no step, and no compute_gradients()
    std::size_t device = 0;  ///< whose action it is
    std::size_t replica = 0; ///< whose chain it is of
    std::size_t lane = 0;    ///< that walks it
    std::uint64_t step = 0;  ///< steps trained before
};

namespace detail {

// With the stream of the action, of the device's own type.
using ActionHook = std::function<void(ActionEvent const&, void const* stream)>;

} // namespace detail

/// What a type must offer to be a hook of actions; `Stream` is the device's.
template <class F, class Stream> struct CheckActionHook {
    static consteval bool ok() {
        constexpr bool called = std::invocable<F&, ActionEvent const&> ||
                                std::invocable<F&, ActionEvent const&, Stream const&>;
        constexpr bool copied = std::copy_constructible<F>;
        static_assert(called, "gpipe: a hook of actions (F) takes (gpipe::ActionEvent const&), or "
                              "that and the device's stream, constant");
        static_assert(copied || !called, "gpipe: a hook of actions (F) must be copyable, for each "
                                         "replica has its own");
        return called && copied;
    }
};

} // namespace gpipe
