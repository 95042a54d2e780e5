#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>

#include <atomic>
#include <stdexcept>

namespace gpipe::detail {

// Holds for one object that its calls come one after another: a second thread would wait for marks
// that the first has taken away, and a call from within a step, also of one that was started and
// goes on by itself, for that step, for ever.
class OneCaller {
  public:
    // While a thread walks a run of the object.
    class Walk {
      public:
        explicit Walk(OneCaller const* of) : of_(of), around_(innermost_) { innermost_ = this; }
        Walk(Walk const&) = delete;
        Walk& operator=(Walk const&) = delete;
        ~Walk() { innermost_ = around_; }

        // Whether this thread does.
        static bool is_in(OneCaller const* of) {
            Walk const* walk = innermost_;
            while (walk && walk->of_ != of) walk = walk->around_;
            return walk;
        }

      private:
        static inline thread_local constinit Walk const* innermost_ = nullptr;
        OneCaller const* of_;
        Walk const* around_; // whose layer began another object's run in this thread
    };

    // A call, or one that a call of this thread consists of. Throws std::logic_error if there is
    // another one.
    class Call {
      public:
        explicit Call(OneCaller& of) : of_(of), around_(innermost_) {
            is_part_ = is_in(of);
            if (Walk::is_in(&of) ||
                (!is_part_ && of.inside_.exchange(true, std::memory_order_acquire)))
                refuse();
            innermost_ = this;
        }
        Call(Call const&) = delete;
        Call& operator=(Call const&) = delete;
        ~Call() {
            innermost_ = around_;
            if (!is_part_) of_.inside_.store(false, std::memory_order_release);
        }

      private:
        static bool is_in(OneCaller const& of) {
            Call const* call = innermost_;
            while (call && &call->of_ != &of) call = call->around_;
            return call;
        }

        static inline thread_local constinit Call const* innermost_ = nullptr;
        OneCaller& of_;
        Call const* around_;
        bool is_part_ = false;
    };

  private:
    [[noreturn]] static void refuse();

    std::atomic<bool> inside_{false};
};

GPIPE_INLINE void OneCaller::refuse() {
    throw_error<std::logic_error>(
        "gpipe: a call of an object that is in another call: by a second thread, or from within "
        "its own step (a layer, a loss, a hook); an object is used by one thread at a time");
}

} // namespace gpipe::detail
