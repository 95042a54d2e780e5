#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/core/finite.hpp>
#include <gpipe/runtime/loss_thunk.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <span>
#include <stdexcept>
#include <utility>

namespace gpipe {

/// Where an engine leaves what became of a step. It may be moved meanwhile, and go before the step
/// is done.
class StepOutcome {
  public:
    /// `totals`: where the sums of the step are to be left.
    explicit StepOutcome(double* totals) : totals_(totals) {}
    StepOutcome(StepOutcome const&) = delete;
    StepOutcome& operator=(StepOutcome const&) = delete;
    ~StepOutcome() { forget(); }

    /// Is told what the other would have been told.
    void take_over(StepOutcome& other) noexcept {
        if (this == &other) return;
        forget();
        error_ = std::exchange(other.error_, nullptr);
        place_ = std::exchange(other.place_, nullptr);
        if (place_) *place_ = this;
    }

    /// Whether the step is still to tell.
    bool waits() const { return place_ != nullptr; }
    /// Rethrows what went wrong, if anything did.
    void check() const {
        if (error_) std::rethrow_exception(error_);
    }

    /// `place` will point to this until it is told.
    void wait_at(StepOutcome*& place) {
        place_ = &place;
        place = this;
    }
    /// The step is done, with these sums.
    void tell(std::span<double const> totals) {
        std::copy(totals.begin(), totals.end(), totals_);
        forget();
    }
    /// The step has failed.
    void tell(std::exception_ptr error) {
        error_ = std::move(error);
        forget();
    }

  private:
    void forget() {
        if (place_) *place_ = nullptr;
        place_ = nullptr;
    }

    double* totals_;
    std::exception_ptr error_;
    StepOutcome** place_ = nullptr;
};

namespace detail {

// Of the loss's sum, its weight, the metrics and the norm of the gradients.
template <std::size_t metrics> StepResult<metrics> mean(double const* sums) {
    double const weight = sums[1];
    if (!is_finite(weight) || weight < least_weight)
        detail::throw_error<std::domain_error>(
            "gpipe: the loss's total weight over the mini-batch is %g, not %s", weight,
            !is_finite(weight) ? "finite"
            : weight > 0       ? "2^-126 or more: one over it has to be finite"
                               : "positive");
    StepResult<metrics> result{sums[0] / weight, weight, sums[2 + metrics], {}};
    double const* sum = sums + 2;
    for (double& metric : result.metric) metric = *sum++ / weight;
    return result;
}

} // namespace detail

/// A run that has been started, on a device that enqueues perhaps not more. May be dropped, and
/// outlive who started it. `numbers`: what it leaves.
template <std::size_t numbers> class PendingRun {
  public:
    /// The other then has no run to wait for.
    PendingRun(PendingRun&& other) noexcept : outcome_(totals_.data()) { *this = std::move(other); }
    /// The other then has no run to wait for.
    PendingRun& operator=(PendingRun&& other) noexcept {
        totals_ = other.totals_;
        outcome_.take_over(other.outcome_);
        engine_ = this == &other ? engine_ : std::exchange(other.engine_, nullptr);
        finish_ = other.finish_;
        return *this;
    }

    /// Whether nobody would have to wait. A run also gets done when later ones need its place.
    bool ready() const { return !outcome_.waits(); }
    /// Waits until it is done. Throws what a call that waits for it would have thrown.
    void wait() {
        if (outcome_.waits()) finish_(engine_, outcome_);
        outcome_.check();
    }

  protected:
    /// Throws std::logic_error if another has taken its place.
    void check_here() const {
        if (!engine_)
            detail::throw_error<std::logic_error>(
                "gpipe: this step has been moved from: who has it now has its result");
    }
    /// Of an Engine.
    template <class Engine>
    explicit PendingRun(Engine& engine)
        : outcome_(totals_.data()), engine_(&engine),
          finish_([](void* whose, StepOutcome const& outcome) {
              static_cast<Engine*>(whose)->finish(outcome);
          }) {}

    std::array<double, numbers> totals_{}; ///< once it is done
    StepOutcome outcome_;                  ///< what became of it

  private:
    template <class Net, class... Policies> friend class Inference;

    void* engine_ = nullptr;
    void (*finish_)(void*, StepOutcome const&) = nullptr;
};

/// A training step that has been started: sum, weight and metrics of the loss, and the norm of the
/// gradients.
template <std::size_t metrics> class PendingStep : public PendingRun<3 + metrics> {
  public:
    /// Waits until the step is done. Throws what Training::step would have thrown, and
    /// std::logic_error of what has been moved from.
    StepResult<metrics> result() {
        this->check_here();
        this->wait();
        return detail::mean<metrics>(this->totals_.data());
    }
    /// As result(), so that `float loss = pending` reads as it should.
    template <std::floating_point T> operator T() { return result(); }

  private:
    template <class Net, class... Policies> friend class Training;
    using PendingRun<3 + metrics>::PendingRun;
};

} // namespace gpipe
