#pragma once

#include <gpipe/core/thread.hpp>
#include <gpipe/schedule/action.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace gpipe {

/// What a Failure was.
enum class FailureOf : std::uint8_t {
    call,     ///< a layer, or the loss, threw
    loss,     ///< its value over a micro-batch is not finite
    gradient, ///< that of a parameter tensor is not finite, or its elements' type threw
    norm,     ///< that of all gradients is not finite
    update,   ///< that of a parameter tensor: its elements' type threw
    before,   ///< the step before failed when this had begun already: see update::Immediate
};

/// Where a layer (or the loss) threw, or what was not finite. The exception itself leaves step() as
/// it was thrown.
struct Failure {
    std::size_t layer = 0;         ///< position in the chain; L for the loss
    std::string_view layer_name{}; ///< its type
    std::size_t cell = 0;          ///< that the action was of
    std::size_t micro_batch = 0;   ///< of a call or the loss; `all`: the sum over all of them
    Kind action = Kind::forward;   ///< what was being done, of a call or the loss
    std::exception_ptr error;      ///< as it was thrown
    /// In place of a micro-batch.
    static constexpr std::size_t all = static_cast<std::size_t>(-1);
    FailureOf of = FailureOf::call; ///< what failed
    std::size_t tensor = 0;         ///< of the layer's parameters, of a gradient or an update

    /// One line: "layer 3 (Linear<8, 8>) in the backward of micro-batch 2, cell 1", or "... in the
    /// update of parameter tensor 0, cell 1".
    std::string place() const {
        if (of == FailureOf::norm) return "norm of all gradients";
        if (of == FailureOf::before) return "step before";
        std::string const at = "layer " + std::to_string(layer) + " (" + std::string(layer_name) +
                               (of == FailureOf::loss ? "), its value over " : ") in the ");
        std::string const batch = micro_batch == all ? std::string("all micro-batches")
                                                     : "micro-batch " + std::to_string(micro_batch);
        std::string const what = of == FailureOf::loss ? batch
                                 : of == FailureOf::call
                                     ? std::string(name(action)) + " of " + batch
                                     : (of == FailureOf::update ? "update" : "gradient") +
                                           (" of parameter tensor " + std::to_string(tensor));
        return at + what + ", cell " + std::to_string(cell);
    }
};

/// The first failure of a run in the linear order of its actions, whatever the timing: all walkers
/// tell theirs, the first place stays.
class FirstFailure {
  public:
    /// No failure yet.
    void reset() {
        failure_.reset();
        place_.store(none, std::memory_order_release);
    }
    /// Whether any has been told.
    bool exists() const { return place_.load(std::memory_order_acquire) != none; }
    /// Whether the action at this place comes after it, and need not run.
    bool precedes(std::uint32_t at) const { return at > place(); }
    /// What it is as long as nothing has failed.
    static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();
    /// Its place, or none.
    std::uint32_t place() const { return place_.load(std::memory_order_relaxed); }
    /// That elsewhere the action at this place has failed.
    void hear(std::uint32_t at) {
        detail::Mutex::Lock const lock(telling_);
        if (at >= place()) return;
        place_.store(at, std::memory_order_relaxed);
        failure_.reset();
    }
    /// What it was, between runs: the first, of all that there are anywhere.
    void settle(std::uint32_t at, Failure failure) {
        place_.store(at, std::memory_order_relaxed);
        failure_ = std::move(failure);
    }
    /// The place of what comes behind all actions: updates, say, of which this is the n-th.
    static constexpr std::uint32_t behind_actions(std::size_t n) {
        return n < most_behind ? none - most_behind + static_cast<std::uint32_t>(n) : none - 1;
    }
    /// Keeps it if none of an earlier place has been told.
    void tell(std::uint32_t at, Failure failure) {
        detail::Mutex::Lock const lock(telling_);
        if (at >= place()) return;
        place_.store(at, std::memory_order_release);
        failure_ = std::move(failure);
    }
    /// To be read between runs.
    std::optional<Failure> const& get() const { return failure_; }

  private:
    static constexpr std::uint32_t most_behind = 1u << 20;

    std::atomic<std::uint32_t> place_{none};
    detail::Mutex telling_;
    std::optional<Failure> failure_;
};

} // namespace gpipe
