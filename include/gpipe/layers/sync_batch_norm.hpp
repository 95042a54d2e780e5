#pragma once

#include <gpipe/layers/batch_norm.hpp>
#include <gpipe/layers/replica_moments.hpp>

namespace gpipe {

/// A BatchNorm that in training normalises by the moments of a micro-batch in all replicas (GPipe,
/// section 2.2; PyTorch's SyncBatchNorm): as if their parts of it were one. Running statistics move
/// as those of a BatchNorm of all of it; with one replica all is as there, in every bit.
///
/// Replicas wait for each other once in each forward and once in each backward, and tell 3 and 2
/// doubles per channel. Of a layer of your own that does such a thing see LayerTraits::Exchanged.
template <class Sample, RunningStatistics running = RunningStatistics::mini_batch>
struct SyncBatchNorm : BatchNorm<Sample, running> {
    using Plain = BatchNorm<Sample, running>; ///< what it is with one replica
    using Plain::channels;                    ///< C
    using Plain::positions;                   ///< of a channel in a sample
    using typename Plain::Element;            ///< of the tensor
    /// Count, mean and sum of squared distances from it.
    using Exchanged = Tensor<double, 3, channels>;
    /// The gradients of shift and scale.
    using ExchangedGradient = Tensor<double, 2, channels>;

    /// As a layer has them.
    ///@{
    void exchange(auto& context, auto x, auto part) const {
        detail::norm_work(context.stream()).moments(shape(x), x.data(), Plain::rows(part));
    }
    void forward(auto& context, auto x, auto y) const {
        if (!context.training() || this->fixed) return Plain::forward(context, x, y);
        Plain::refuse_one_value(context, context.most_samples() * context.replicas());
        auto const work = detail::norm_work(context.stream());
        auto [scale, shift] = context.parameters();
        detail::MomentsOfReplicas const moments = moments_of(context);
        work.normalize(shape(x), x.data(), y.data(), scale.data(), shift.data(), moments);
        if (!context.gathering()) return;
        detail::StatisticsRows const part = Plain::rows(context.statistics());
        if constexpr (running == RunningStatistics::micro_batch) {
            // One move by all of them, which the first has.
            bool const first = context.replica() == 0;
            work.each(channels, detail::MomentsOfAll{part, moments, first});
            if (first) Plain::leave(work, part);
        } else {
            work.each(channels, detail::CopyMoments{part, moments.of.rows(context.replica())});
        }
    }
    void exchange_gradient(auto& context, auto x, auto dy, auto part) const {
        detail::norm_work(context.stream())
            .gradient_sums(shape(x), x.data(), dy.data(), moments_of(context), Plain::rows(part));
    }
    void backward(auto& context, auto x, auto dy, auto dx) const {
        if (this->fixed) return Plain::backward(context, x, dy, dx);
        auto const work = detail::norm_work(context.stream());
        auto [scale, shift] = context.parameters();
        auto [dscale, dshift] = context.gradients();
        detail::SumsOfReplicas const sums{
            told<ExchangedGradient>(context, context.exchanged_gradient(0))};
        work.each(channels, detail::AddGradients<typename Plain::Parameter>{
                                sums.of.rows(context.replica()), dscale.data(), dshift.data()});
        if constexpr (!is_none<decltype(dx)>)
            work.input_gradients(shape(x), x.data(), dy.data(), dx.data(), scale.data(),
                                 moments_of(context), sums);
    }
    ///@}

  private:
    static detail::Channels shape(auto const& x) { return {x.samples(), channels, positions}; }
    template <class Told>
    static detail::OfReplicas told(auto const& context, auto const& of_the_first) {
        return {of_the_first.data(), slot_bytes(Told::bytes) / sizeof(double), context.replicas(),
                channels};
    }
    detail::MomentsOfReplicas moments_of(auto const& context) const {
        return {told<Exchanged>(context, context.exchanged(0)), this->epsilon};
    }
};

} // namespace gpipe
