#pragma once

// Layers that have buffers.

#include "layers.hpp"

#include <gpipe/layers/batch_norm.hpp>
#include <gpipe/pipeline.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace toy {

/// Which function of a Counter is to throw, and whether it is the one of this layer; of all there
/// are.
struct Counting {
    enum Function { nothing, forward, merge, update };
    std::atomic<Function> throws = nothing;
    std::atomic<int> updates = 0; ///< calls of update_buffers
};

/// The identity, which counts: samples and micro-batches that it has seen in training, by
/// statistics, and mini-batches, by none. What it had counted when the step began is in its y.
template <class T, std::size_t N> struct Counter {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    using Buffers = Tensors<Tensor<std::int64_t>, Tensor<std::int64_t, 2>>;
    using Statistics = Tensor<std::int64_t, 2>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    Counting* counting = nullptr;

    void initialize(auto& ctx) const {
        auto [steps, seen] = ctx.buffers();
        steps[0] = 1;
        seen[0] = seen[1] = 0;
    }
    void forward(auto& ctx, auto x, auto y) const {
        check(Counting::forward);
        auto [steps, seen] = ctx.buffers();
        for (std::size_t i = 0; i < x.size(); ++i)
            y.data()[i] =
                x.data()[i] * (1 + static_cast<T>(steps[0]) / 64) + static_cast<T>(seen[0]) / 16;
        auto part = ctx.statistics();
        part[0] = static_cast<std::int64_t>(ctx.samples());
        part[1] = 1;
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        auto const steps = get<0>(ctx.buffers());
        for (std::size_t i = 0; i < dy.size(); ++i)
            dx.data()[i] = dy.data()[i] * (1 + static_cast<T>(steps[0]) / 64);
    }
    void merge_statistics(auto&, auto sum, auto part) const {
        check(Counting::merge);
        for (std::size_t i = 0; i < 2; ++i) sum[i] = 3 * sum[i] + part[i]; // not commutative
    }
    void update_buffers(auto&, auto statistics, auto buffers) const {
        if (counting) ++counting->updates;
        auto [steps, seen] = buffers;
        ++steps[0];
        for (std::size_t i = 0; i < 2; ++i) seen[i] = (seen[i] + statistics[i]) % 97;
        check(Counting::update);
    }

  private:
    void check(Counting::Function function) const {
        if (counting && counting->throws == function) throw std::range_error("counted too far");
    }
};
/// The identity, which counts steps, and has no statistics.
template <class T, std::size_t N> struct StepCounter {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    using Buffers = Tensor<std::int32_t>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;

    void initialize(auto& ctx) const { ctx.buffers()[0] = 5; }
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i)
            y.data()[i] = x.data()[i] * (1 + static_cast<T>(ctx.buffers()[0]) / 128);
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        for (std::size_t i = 0; i < dy.size(); ++i)
            dx.data()[i] = dy.data()[i] * (1 + static_cast<T>(ctx.buffers()[0]) / 128);
    }
    void update_buffers(auto&, gpipe::None, auto steps) const { ++steps[0]; }
};

/// Running statistics of both kinds, counters, and layers without buffers between; each wrapped in
/// W.
template <class T, template <class> class W>
using BufferNetOf =
    gpipe::Pipeline<W<Linear<T, 5, 6>>, W<OfOne<gpipe::BatchNorm<Tensor<T, 6>>>>, W<Tanh<T, 6>>,
                    W<Counter<T, 6>>, W<Linear<T, 6, 6>>,
                    W<OfOne<gpipe::BatchNorm<Tensor<T, 6>, gpipe::RunningStatistics::micro_batch>>>,
                    W<StepCounter<T, 6>>, W<Dropout<T, 6>>, W<Linear<T, 6, 3>>>;
template <class L> using Itself = L;
template <class T> using BufferNet = BufferNetOf<T, Itself>;

} // namespace toy
