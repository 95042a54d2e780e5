#pragma once

#include <gpipe/call/call.hpp>
#include <gpipe/layer/constants.hpp>
#include <gpipe/layer/handles.hpp>
#include <gpipe/layer/traits.hpp>
#include <gpipe/layer/view.hpp>

#include <array>
#include <cstddef>

namespace gpipe {

/// What a loss says of one micro-batch: sums over its samples, not means. The step adds them over
/// the micro-batches in ascending order and divides by the total weight, so that targets may be
/// ignored or weigh differently.
template <std::size_t metrics = 0> struct LossValue {
    double sum = 0;                       ///< the loss, over the samples
    double weight = 0;                    ///< e.g. samples, or tokens that count
    std::array<double, metrics> metric{}; ///< further sums, e.g. right answers
};

namespace policy {
struct Loss;
} // namespace policy

/// Policy: the loss of a training.
template <class Functor> struct Loss {
    using policy_kind = policy::Loss;
    using functor = Functor; ///< the loss's type
};

namespace detail {

template <class Loss> inline constexpr std::size_t declared_metrics = 0;
template <class Loss>
    requires requires { Loss::metrics; }
inline constexpr std::size_t declared_metrics<Loss> = Loss::metrics;

} // namespace detail

/// What a loss functor gets as its first argument.
template <class Loss, class Stream> class LossContext {
  public:
    using Value = TensorView<double, 2 + detail::declared_metrics<Loss>>; ///< see value()
    using HandleTypes = detail::handles_of<Loss>;     ///< what Loss declares as its Handles
    using ConstantTypes = detail::constants_of<Loss>; ///< and as its Constants

    /// Made by the engine for each call.
    LossContext(Frame const& frame, std::byte* scratch, double* value)
        : frame_(frame), scratch_(scratch), value_(value) {}

    /// Samples in this micro-batch, at least 1.
    std::size_t samples() const { return frame_.samples; }
    /// Position of the micro-batch's first sample in the mini-batch.
    std::size_t first_sample() const { return frame_.first_sample; }
    /// False in evaluate(): no gradient is wanted.
    bool training() const { return frame_.phase != Phase::evaluate; }
    /// The stream that the loss's work goes on.
    Stream const& stream() const { return *static_cast<Stream const*>(frame_.shared->stream); }
    /// For gpipe::handle<H>(context).
    HandleSet const* handles() const { return frame_.shared->handles; }
    /// For gpipe::constant<C>(context).
    StepConstants const& constants() const { return frame_.shared->constants; }
    /// Room for this call only (declared as Loss::Scratch, shape of one sample).
    auto scratch() const {
        return batch_views<typename detail::ScratchOf<Loss>::type, detail::Access::write>(
            {scratch_}, frame_.samples, frame_.shared->capacity);
    }
    /// Where a loss that returns nothing has its work write what a LossValue has: sum, weight, and
    /// as many metrics as it declares (`static constexpr std::size_t metrics`).
    Value value() const { return Value{value_}; }

  protected:
    /// @cond
    Frame const& frame_;
    std::byte* scratch_;
    double* value_;
    /// @endcond
};

} // namespace gpipe
