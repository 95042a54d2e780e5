#pragma once

#include <gpipe/schedule/action.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace gpipe {

/// Where a layer (or the loss) threw. The exception itself leaves step() as it was thrown.
struct Failure {
    std::size_t layer = 0;       ///< position in the chain; L for the loss
    std::string_view layer_name; ///< its type
    std::size_t cell = 0;        ///< that the action was of
    std::size_t micro_batch = 0; ///< that the action was of
    Kind action = Kind::forward; ///< what was being done
    std::exception_ptr error;    ///< as it was thrown

    /// One line: "layer 3 (Linear<8, 8>) in the backward of micro-batch 2, cell 1".
    std::string place() const {
        return "layer " + std::to_string(layer) + " (" + std::string(layer_name) + ") in the " +
               std::string(name(action)) + " of micro-batch " + std::to_string(micro_batch) +
               ", cell " + std::to_string(cell);
    }
};

/// The first failure of a run in the linear order of its actions, whatever the timing: all walkers
/// tell theirs, the lowest rank stays.
class FirstFailure {
  public:
    void reset() {
        failure_.reset();
        rank_.store(none, std::memory_order_relaxed);
    }
    bool exists() const { return rank() != none; }
    /// Whether an action of this rank comes after it, and need not run.
    bool precedes(std::uint32_t action_rank) const { return action_rank > rank(); }
    void tell(std::uint32_t action_rank, Failure failure) {
        std::lock_guard const lock(telling_);
        if (action_rank >= rank()) return;
        rank_.store(action_rank, std::memory_order_relaxed);
        failure_ = std::move(failure);
    }
    /// To be read between runs.
    std::optional<Failure> const& get() const { return failure_; }

  private:
    static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();
    std::uint32_t rank() const { return rank_.load(std::memory_order_relaxed); }

    std::atomic<std::uint32_t> rank_{none};
    std::mutex telling_;
    std::optional<Failure> failure_;
};

} // namespace gpipe
