#pragma once

#include <gpipe/core/shared.hpp>
#include <gpipe/schedule/action.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

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

// A hook of any type, or none. (A std::function takes a tenth of a second to compile.)
struct ActionHook {
    Shared<Counted> hook;
    void (*call)(Counted& hook, ActionEvent const&, void const* stream) = nullptr;

    explicit operator bool() const { return call != nullptr; }
    // With the stream of the action, of the device's own type.
    void operator()(ActionEvent const& event, void const* stream) const {
        call(*hook, event, stream);
    }
};
template <class Stream, class F> ActionHook action_hook(F f) {
    return {Shared<Counted>(new CountedValue<F>(std::move(f))),
            [](Counted& hook, ActionEvent const& event, [[maybe_unused]] void const* stream) {
                F& own = static_cast<CountedValue<F>&>(hook).value;
                if constexpr (std::invocable<F&, ActionEvent const&, Stream const&>)
                    own(event, *static_cast<Stream const*>(stream));
                else
                    own(event);
            }};
}

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
