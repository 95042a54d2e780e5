#pragma once

#include <gpipe/layer/check.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>

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
    using HandleTypes = detail::handles_of<Loss>; ///< what Loss declares as its Handles

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

namespace detail {

template <class T> inline constexpr bool is_loss_value = false;
template <std::size_t n> inline constexpr bool is_loss_value<LossValue<n>> = true;

template <class Loss>
concept NamesTarget = requires {
    typename Loss::Target;
}
&&is_tensors<typename Loss::Target>;

template <class Net> using OutputGradientOf = GradientViews<typename Net::Output, Access::write>;

template <class Loss, class Net, class DY>
using LossResult =
    std::invoke_result_t<Loss const&, LossContext<Loss, AnyStream>&, OutputReadViews<Net>,
                         BatchViews<typename Loss::Target, Access::read>, DY>;

template <class Loss, class Net, class DY> consteval bool measures() {
    if constexpr (requires { typename LossResult<Loss, Net, DY>; })
        return is_loss_value<LossResult<Loss, Net, DY>> ||
               std::is_void_v<LossResult<Loss, Net, DY>>;
    else
        return false;
}

template <class Loss, class Net> consteval bool loss_fits() {
    return measures<Loss, Net, OutputGradientOf<Net>>() &&
           (!accepts_none<Loss> || measures<Loss, Net, None>());
}

// Whether it can be called, const or not, whatever it returns.
template <class Loss, class Net, class DY = OutputGradientOf<Net>>
concept CallsLoss = std::is_invocable_v < Loss&,
        LossContext<Loss, AnyStream>
&, OutputReadViews<Net>, BatchViews<typename Loss::Target, Access::read>, DY > ;

// What is wrong with a loss: the first of these.
enum class LossFault { none, no_target, not_const, returns, refuses_none, arguments };
template <class Loss, class Net> consteval LossFault loss_fault() {
    if constexpr (!NamesTarget<Loss>)
        return LossFault::no_target;
    else if constexpr (loss_fits<Loss, Net>())
        return LossFault::none;
    else if constexpr (measures<Loss, Net, OutputGradientOf<Net>>())
        return LossFault::refuses_none;
    else if constexpr (CallsLoss<Loss const, Net>)
        return LossFault::returns;
    else if constexpr (CallsLoss<Loss, Net>)
        return LossFault::not_const;
    else
        return LossFault::arguments;
}

} // namespace detail

/// What a type must offer to be the loss of a chain; Net is the Pipeline.
template <class L, class Net, class Output = typename Net::Output> struct CheckLoss {
    static consteval bool ok() {
        using detail::LossFault;
        constexpr LossFault fault = detail::loss_fault<L, Net>();
        static_assert(fault != LossFault::no_target,
                      "gpipe: a loss must name its target: using Target = gpipe::Tensor<...>, the "
                      "shape of one sample");
        static_assert(fault != LossFault::not_const,
                      "gpipe: the operator() of the loss (L) is not const: gpipe::LossValue<n> "
                      "operator()(auto& context, auto y, auto target, auto dy) const");
        static_assert(fault != LossFault::returns,
                      "gpipe: the loss (L) returns something else than a gpipe::LossValue<n>: "
                      "gpipe::LossValue<n> operator()(auto& context, auto y, auto target, auto dy) "
                      "const");
        static_assert(fault != LossFault::refuses_none,
                      "gpipe: the loss (L) declares accepts_none, but does not take gpipe::none "
                      "for dy");
        static_assert(fault != LossFault::arguments,
                      "gpipe: the loss (L) takes other arguments: gpipe::LossValue<n> "
                      "operator()(auto& context, auto y, auto target, auto dy) const; y and dy "
                      "have the shape of the last layer's output, Output");
        return fault == LossFault::none;
    }
};

} // namespace gpipe
