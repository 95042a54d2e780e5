#pragma once

// Layers whose replicas tell each other something within a micro-batch.

#include "layers.hpp"

#include <gpipe/layers/sync_batch_norm.hpp>
#include <gpipe/pipeline.hpp>

#include <atomic>
#include <cstddef>
#include <stdexcept>

namespace toy {

/// Which function of a Meeting is to throw, of the layer that has this.
struct Meetings {
    enum Function { nothing, exchange, forward, exchange_gradient, backward };
    std::atomic<Function> throws = nothing;
    std::atomic<std::size_t> sample = 0;       ///< the first of the micro-batch where it does
    std::atomic<std::size_t> thrower = nobody; ///< the replica that did so last, in exchange
    std::atomic<std::size_t> strays = 0;       ///< how often others were told something by it then
    static constexpr std::size_t nobody = ~std::size_t{0};
};

/// Subtracts w[i] times the mean of element i in all replicas' samples; by halves. That of a
/// replica without samples must be told as zeros. Sums go by the replicas' order.
template <class T, std::size_t N> struct Meeting {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    using Parameters = Tensor<T, N>;
    using Exchanged = Tensors<Tensor<T, N>, Tensor<double>>;
    using ExchangedGradient = Tensors<Tensor<double>, Tensor<T, N>>;
    using Deferred = Tensor<T>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    Meetings* meetings = nullptr;

    void initialize(auto& ctx) const {
        for (std::size_t i = 0; i < N; ++i) ctx.parameters()[i] = T(0.5) + static_cast<T>(i) / 16;
    }
    void exchange(auto& ctx, auto x, auto part) const {
        auto [sums, count] = part;
        add_up(x, sums);
        count[0] = static_cast<double>(x.samples());
        check(ctx, Meetings::exchange);
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const w = ctx.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) y(s, i) = x(s, i);
        if (!ctx.training()) return;
        check(ctx, Meetings::forward);
        if (std::size_t const by = meetings ? meetings->thrower.load() : Meetings::nobody;
            by < ctx.replicas() && get<1>(ctx.exchanged(by))[0] != 0)
            ++meetings->strays;
        for (std::size_t i = 0; i < N; ++i) {
            T const mean = mean_of(ctx, i);
            for (std::size_t s = 0; s < x.samples(); ++s) y(s, i) -= w[i] * mean;
        }
    }
    void exchange_gradient(auto& ctx, auto dy, auto part) const {
        auto [unused, sums] = part;
        unused[0] = 0;
        add_up(dy, sums);
        check(ctx, Meetings::exchange_gradient);
    }
    void input_gradient(auto& ctx, auto dy, auto dx) const {
        check(ctx, Meetings::backward);
        auto const w = ctx.parameters();
        for (std::size_t s = 0; s < dy.samples(); ++s) {
            for (std::size_t i = 0; i < N; ++i) {
                T sum = 0;
                for (std::size_t r = 0; r < ctx.replicas(); ++r)
                    sum += get<1>(ctx.exchanged_gradient(r))[i];
                dx(s, i) = dy(s, i) - w[i] * sum / count(ctx);
            }
            ctx.deferred()(s) = 0;
        }
    }
    void weight_gradient(auto& ctx, auto dy) const {
        for (std::size_t i = 0; i < N; ++i)
            for (std::size_t s = 0; s < dy.samples(); ++s)
                ctx.gradients()[i] -= dy(s, i) * mean_of(ctx, i);
    }

  private:
    static void add_up(auto const& from, auto const& sums) {
        for (std::size_t i = 0; i < N; ++i) {
            sums[i] = 0;
            for (std::size_t s = 0; s < from.samples(); ++s) sums[i] += from(s, i);
        }
    }
    static T count(auto const& ctx) {
        double all = 0;
        for (std::size_t r = 0; r < ctx.replicas(); ++r) all += get<1>(ctx.exchanged(r))[0];
        return static_cast<T>(all);
    }
    static T mean_of(auto const& ctx, std::size_t i) {
        T sum = 0;
        for (std::size_t r = 0; r < ctx.replicas(); ++r) sum += get<0>(ctx.exchanged(r))[i];
        return sum / count(ctx);
    }
    void check(auto const& ctx, Meetings::Function function) const {
        if (!meetings || meetings->throws != function || meetings->sample != ctx.first_sample())
            return;
        if (function == Meetings::exchange) meetings->thrower = ctx.replica();
        throw std::range_error("nobody was met");
    }
};

/// With running statistics of both kinds, two that meet in one cell, and layers that do not
/// between.
template <class T, template <class> class W>
using ExchangeNetOf = gpipe::Pipeline<
    W<Meeting<T, 5>>, W<Linear<T, 5, 6>>, W<OfOne<gpipe::SyncBatchNorm<Tensor<T, 6>>>>,
    W<Meeting<T, 6>>, W<Tanh<T, 6>>, W<Dropout<T, 6>>,
    W<OfOne<gpipe::SyncBatchNorm<Tensor<T, 6>, gpipe::RunningStatistics::micro_batch>>>,
    W<Linear<T, 6, 3>>>;
template <class L> using AsItIs = L;
template <class T> using ExchangeNet = ExchangeNetOf<T, AsItIs>;

} // namespace toy
