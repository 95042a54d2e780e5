#pragma once

#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/traits.hpp>
#include <gpipe/layers/norm_loops.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

namespace gpipe {

/// When the running statistics of a BatchNorm move, if there are several micro-batches.
enum class RunningStatistics {
    /// Once per mini-batch, by the statistics of all of it (GPipe, section 2.2; torchgpipe's
    /// deferred batch normalisation): what a net without micro-batches would have.
    mini_batch,
    /// Once per micro-batch, in ascending order, by those of the micro-batch: what a plain layer
    /// that is called for each has, but recomputations move nothing.
    micro_batch,
};

namespace detail {

template <class Sample> inline constexpr bool has_channels = false;
template <class T, std::size_t channels, std::size_t... extents>
inline constexpr bool has_channels<Tensor<T, channels, extents...>> = true;
template <class Sample> struct CheckSample {
    static consteval bool ok() {
        static_assert(has_channels<Sample>,
                      "gpipe: BatchNorm<Sample> is for a gpipe::Tensor<T, channels, ...>");
        return has_channels<Sample>;
    }
};

} // namespace detail

/// Normalises each channel of a sample (Ioffe and Szegedy, 2015), the first extent of `Sample`: in
/// training by mean and biased variance of the micro-batch over samples and positions, in
/// evaluation by running statistics. These move at the end of a step that counts, by `momentum`
/// of the way to the statistics of all samples of the mini-batch, of all replicas; parts of it may
/// have any sizes, or be empty. Moments are in double, by two passes and merged as Chan, Golub and
/// LeVeque (1979) do: no offset of the inputs makes a variance wrong. Of one sample with one
/// position there is none: then all is the shift, and nothing below learns. Where a micro-batch
/// never has more, a step throws std::invalid_argument, unless `one_value` says that it may.
///
/// Its backward finds the moments once more from its input, so that nothing is kept. On a GPU it
/// needs `#include <gpipe/cuda/norm_work.cuh>`. It declares no cost: in a chain whose layers do,
/// derive from it and declare one, say ten times the elements of a sample.
template <class Sample, RunningStatistics running = RunningStatistics::mini_batch>
struct BatchNorm {
    static_assert(detail::CheckSample<Sample>::ok() || true); // one error, not two
    /// As it comes; where that is none, one for all that follows to have a sense.
    using Input = std::conditional_t<detail::has_channels<Sample>, Sample, Tensor<float, 1>>;
    using Output = Input;                    ///< normalised, then scaled and shifted
    using Element = typename Input::Element; ///< of the tensor
    static constexpr std::size_t channels = Input::extents[0];       ///< C
    static constexpr std::size_t positions = Input::size / channels; ///< of a channel in a sample
    /// Of scale and shift: of elements of 16 bits float, as optimizers want parameters.
    using Parameter = std::conditional_t<(sizeof(Element) < sizeof(float)), float, Element>;
    /// Scale and shift of each channel, 1 and 0 at first.
    using Parameters = Tensors<Tensor<Parameter, channels>, Tensor<Parameter, channels>>;
    /// Running mean and variance, 0 and 1 at first, and how often they have moved.
    using Buffers =
        Tensors<Tensor<double, channels>, Tensor<double, channels>, Tensor<std::int64_t>>;
    /// Of each channel what there is to say of the samples so far: how many, their mean and the sum
    /// of squares around it, or what moves the running statistics.
    using Statistics = Tensor<double, running == RunningStatistics::micro_batch ? 4 : 3, channels>;
    static constexpr char const* parameter_names[] = {"weight", "bias"}; ///< in saved states
    static constexpr char const* buffer_names[] = {"running_mean", "running_var",
                                                   "num_batches_tracked"}; ///< as PyTorch's
    static constexpr float decay[] = {0, 0};         ///< neither takes part in weight decay
    static constexpr bool accepts_none = true;       ///< for its input's gradient
    static constexpr bool recompute_is_cheap = true; ///< it is all traffic of memory

    double epsilon = 1e-5; ///< added to variances
    /// Of a batch in the running statistics; below 0 these are the plain average of all.
    double momentum = 0.1;
    bool biased = false;    ///< running variances are M2 / n (torchgpipe's), not M2 / (n - 1)
    bool one_value = false; ///< micro-batches may have one value of each channel
    /// Running statistics normalise in training, too, and nothing moves them: for fine-tuning
    /// (PyTorch's eval() of this layer alone). Scale and shift learn, unless they are frozen.
    bool fixed = false;

    /// As their names say.
    void initialize(auto& context) const {
        auto [scale, shift] = context.parameters();
        auto [mean, variance, moves] = context.buffers();
        for (std::size_t c = 0; c < channels; ++c) {
            scale[c] = Parameter(1);
            shift[c] = Parameter(0);
            mean[c] = 0;
            variance[c] = 1;
        }
        moves[0] = 0;
    }
    /// By the moments of the micro-batch, which it leaves as statistics; in evaluation by running
    /// ones.
    void forward(auto& context, auto x, auto y) const {
        auto const work = detail::norm_work(context.stream());
        auto [scale, shift] = context.parameters();
        detail::Channels const shape{x.samples(), channels, positions};
        if (context.training() && !fixed) {
            refuse_one_value(context, context.most_samples());
            detail::StatisticsRows const part = rows(context.statistics());
            work.moments(shape, x.data(), part);
            work.normalize(shape, x.data(), y.data(), scale.data(), shift.data(),
                           detail::OfMoments{part, epsilon});
            if (context.gathering()) leave(work, part);
        } else {
            work.normalize(shape, x.data(), y.data(), scale.data(), shift.data(),
                           of_running(context));
            if (context.training() && context.gathering())
                work.each(channels, detail::ClearStatistics{rows(context.statistics()),
                                                            Statistics::extents[0]});
        }
    }
    /// Finds the moments once more, unless they are fixed.
    void backward(auto& context, auto x, auto dy, auto dx) const {
        auto const work = detail::norm_work(context.stream());
        auto [scale, shift] = context.parameters();
        auto [dscale, dshift] = context.gradients();
        Element* to = nullptr;
        if constexpr (!is_none<decltype(dx)>) to = dx.data();
        detail::Channels const shape{x.samples(), channels, positions};
        if (fixed)
            work.backward(shape, x.data(), dy.data(), to, scale.data(), dscale.data(),
                          dshift.data(), of_running(context));
        else
            work.backward(shape, x.data(), dy.data(), to, scale.data(), dscale.data(),
                          dshift.data(), detail::OfSamples{epsilon});
    }
    /// In the order of the micro-batches.
    void merge_statistics(auto& context, auto sum, auto part) const {
        auto const work = detail::norm_work(context.stream());
        if constexpr (by_moves)
            work.each(channels, detail::MergeMoves{rows(sum), rows(part), rule()});
        else
            work.each(channels, detail::MergeMoments{rows(sum), rows(part)});
    }
    /// Moves running statistics.
    void update_buffers(auto& context, auto statistics, auto buffers) const {
        auto const work = detail::norm_work(context.stream());
        auto [mean, variance, moves] = buffers;
        detail::UpdateRunning const update{rows(statistics), mean.data(), variance.data(),
                                           moves.data(),     rule(),      by_moves};
        work.each(channels, update);
        work.each(1, detail::CountMoves{update});
    }

  protected:
    /// A micro-batch, of all replicas whose moments are one, has at most so many samples.
    void refuse_one_value(auto const& context, std::size_t most_samples) const {
        if (most_samples * positions == 1 && !one_value && !context.is_probe())
            throw std::invalid_argument(
                "gpipe: a micro-batch has one value for each channel of a BatchNorm, which makes "
                "it 0, and nothing below learns: choose fewer micro-batches, at least two samples "
                "each");
    }
    /// Makes of moments what a forward leaves as statistics.
    void leave(auto const& work, detail::StatisticsRows const& part) const {
        if constexpr (by_moves) work.each(channels, detail::MomentsToMove{part, rule()});
    }
    /// Of a tensor with some of them.
    template <class View> static detail::StatisticsRows rows(View const& view) {
        return {const_cast<double*>(view.data()), channels};
    }

  private:
    detail::OfRunning of_running(auto const& context) const {
        auto [mean, variance, moves] = context.buffers();
        return {mean.data(), variance.data(), epsilon};
    }
    static constexpr bool by_moves = running == RunningStatistics::micro_batch;
    detail::RunningRule rule() const { return {momentum, biased}; }
};

} // namespace gpipe
