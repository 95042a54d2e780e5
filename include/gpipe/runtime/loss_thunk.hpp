#pragma once

#include <gpipe/chain/check_loss.hpp>
#include <gpipe/chain/thunk.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/finite.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <stdexcept>
#include <type_traits>

namespace gpipe {

namespace detail {

// Of a loss that gives nothing beside its sum.
struct NoMetrics : std::array<double, 0> {
    double operator[](std::size_t) const {
        throw_error<std::out_of_range>(
            "gpipe: this loss has no metrics: LossValue<n> has n, LossValue<> none");
    }
};

} // namespace detail

/// What a step or an evaluation says: the loss and the loss functor's further numbers, each the sum
/// over the mini-batch divided by the total weight.
template <std::size_t metrics> struct StepResult {
    double loss = 0;   ///< the mean over the mini-batch
    double weight = 0; ///< total over the mini-batch
    /// Of the mean gradients, as they were; 0 unless Options::clip_norm, finite_gradients or
    /// loss_scale asks, and with update::Immediate, where it is not known in time.
    double gradient_norm = 0;
    /// What the loss gives beside its sum, as means. Asked for one of none it throws
    /// std::out_of_range.
    std::conditional_t<metrics == 0, detail::NoMetrics, std::array<double, metrics>> metric{};

    /// Whether the step did not count, for the gradients were not finite, and nobody took that for
    /// a fault: see Options::loss_scale, not_finite.
    constexpr bool skipped() const { return !detail::is_finite(gradient_norm); }
    /// The loss, so that `float loss = train.step(...)` reads as it should.
    template <std::floating_point T> constexpr operator T() const { return static_cast<T>(loss); }
};

namespace detail {

template <class> inline constexpr std::size_t metric_count = 0;
template <std::size_t n> inline constexpr std::size_t metric_count<LossValue<n>> = n;
template <std::size_t n> inline constexpr std::size_t metric_count<StepResult<n>> = n;

/// Whether Loss returns its value; else it has work write that, some time.
template <class Loss, class Output>
inline constexpr bool returns_value =
    !std::is_void_v<LossResult<Loss, Output, OutputGradientOf<Output>>>;

/// Numbers that Loss gives beside sum and weight.
template <class Loss, class Output>
inline constexpr std::size_t loss_metrics =
    returns_value<Loss, Output> ? metric_count<LossResult<Loss, Output, OutputGradientOf<Output>>>
                                : declared_metrics<Loss>;

template <class Loss, class Output, class Stream, bool wants_gradient>
void loss_thunk(Call const& call, Frame const& frame) {
    LossContext<Loss, Stream> context{frame, call.scratch.in(frame), frame.sums()};
    auto const output_gradient = [&] {
        if constexpr (!wants_gradient && accepts_none<Loss>)
            return None{};
        else
            return gradients_in<Output, Access::write>(frame, call.dy);
    }();
    auto const measure = [&] {
        return (*static_cast<Loss const*>(call.layer))(
            context, views_in<Output, Access::read>(frame, {call.y.in(frame)}),
            views_in<typename Loss::Target, Access::read>(frame, frame.targets()), output_gradient);
    };
    if constexpr (returns_value<Loss, Output>) {
        auto const value = measure();
        double* at = frame.sums();
        *at++ = value.sum;
        *at++ = value.weight;
        for (double metric : value.metric) *at++ = metric;
    } else {
        measure();
    }
    check_call<Stream>(frame);
}

} // namespace detail
} // namespace gpipe
