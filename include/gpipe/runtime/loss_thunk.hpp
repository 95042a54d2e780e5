#pragma once

#include <gpipe/layer/loss.hpp>
#include <gpipe/layer/thunk.hpp>
#include <gpipe/runtime/cell_row.hpp>

#include <array>
#include <concepts>
#include <cstddef>

namespace gpipe {

/// What a step or an evaluation says: the loss and the loss functor's further numbers, each the sum
/// over the mini-batch divided by the total weight.
template <std::size_t metrics> struct StepResult {
    double loss = 0;
    double weight = 0; ///< total over the mini-batch
    /// Of the mean gradients, as they were; 0 unless they are clipped by it.
    double gradient_norm = 0;
    std::array<double, metrics> metric{};

    /// The loss, so that `float loss = train.step(...)` reads as it should.
    template <std::floating_point T> constexpr operator T() const { return static_cast<T>(loss); }
};

namespace detail {

template <class> inline constexpr std::size_t metric_count = 0;
template <std::size_t n> inline constexpr std::size_t metric_count<LossValue<n>> = n;

/// Whether Loss returns its value; else it has work write that, some time.
template <class Loss, class Net>
inline constexpr bool returns_value = !std::is_void_v<LossResult<Loss, Net, OutputGradientOf<Net>>>;

/// Numbers that Loss gives beside sum and weight.
template <class Loss, class Net>
inline constexpr std::size_t loss_metrics =
    returns_value<Loss, Net> ? metric_count<LossResult<Loss, Net, OutputGradientOf<Net>>>
                             : declared_metrics<Loss>;

template <class Loss, class Net, class Stream, bool wants_gradient>
void loss_thunk(void const* loss, Frame const& frame, std::byte* y, GroupAddress target,
                std::byte* dy, std::byte* scratch, double* sums) {
    LossContext<Loss, Stream> context{frame, scratch, sums};
    auto const output_gradient = [&] {
        if constexpr (!wants_gradient && accepts_none<Loss>)
            return None{};
        else
            return gradient_views<typename Net::Output, Access::write>(dy, frame.samples,
                                                                       frame.shared->capacity);
    }();
    auto const measure = [&] {
        return (*static_cast<Loss const*>(loss))(context,
                                                 batch_views<typename Net::Output, Access::read>(
                                                     {y}, frame.samples, frame.shared->capacity),
                                                 batch_views<typename Loss::Target, Access::read>(
                                                     target, frame.samples, frame.shared->capacity),
                                                 output_gradient);
    };
    if constexpr (returns_value<Loss, Net>) {
        auto const value = measure();
        sums[0] = value.sum;
        sums[1] = value.weight;
        double* at = sums + 2;
        for (double metric : value.metric) *at++ = metric;
    } else {
        measure();
    }
    check_call<Stream>(frame);
}

} // namespace detail
} // namespace gpipe
