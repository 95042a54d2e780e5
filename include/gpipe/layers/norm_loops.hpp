#pragma once

#include <gpipe/layer/context.hpp>
#include <gpipe/layers/running_statistics.hpp>

#include <cstddef>

namespace gpipe::detail {

// The work of such layers as loops.
struct NormLoops {
    template <class F> void each(std::size_t count, F f) const {
        for (std::size_t i = 0; i < count; ++i) f(i);
    }
    template <class T>
    void moments(Channels const& shape, T const* x, StatisticsRows const& to) const {
        for (std::size_t c = 0; c < shape.channels; ++c) to.set(c, moments_of_channel(shape, x, c));
    }
    // `normal_of_channel(c)`: a Normal.
    template <class T, class F>
    void normalize(Channels const& shape, T const* x, T* y, T const* scale, T const* shift,
                   F normal_of_channel) const {
        for (std::size_t c = 0; c < shape.channels; ++c) {
            Normal const normal = normal_of_channel(c);
            double const factor = static_cast<double>(scale[c]);
            double const offset = static_cast<double>(shift[c]);
            each_element(shape, c, [&](std::size_t at, std::size_t) {
                y[at] = static_cast<T>(normal(static_cast<double>(x[at])) * factor + offset);
            });
        }
    }
    // dx: null where nobody wants it.
    template <class T>
    void backward(Channels const& shape, T const* x, T const* dy, T* dx, T const* scale, T* dscale,
                  T* dshift, double epsilon) const {
        auto const count = static_cast<double>(shape.elements());
        for (std::size_t c = 0; c < shape.channels; ++c) {
            Normal const normal = normal_of(moments_of_channel(shape, x, c), epsilon);
            TwoSums const sums = sum(shape, c, SumGradients<T>{x, dy, normal});
            dshift[c] += static_cast<T>(sums.a);
            dscale[c] += static_cast<T>(sums.b);
            double const factor = static_cast<double>(scale[c]) * normal.inverse;
            if (dx)
                each_element(shape, c, InputGradient<T>{x, dy, dx, normal, sums, factor, count});
        }
    }

  private:
    template <class F> static void each_element(Channels const& shape, std::size_t c, F f) {
        std::size_t element = 0;
        for (std::size_t s = 0; s < shape.samples; ++s) {
            std::size_t const begin = (s * shape.channels + c) * shape.positions;
            for (std::size_t p = 0; p < shape.positions; ++p) f(begin + p, element++);
        }
    }
    template <class F> static TwoSums sum(Channels const& shape, std::size_t c, F f) {
        TwoSums lanes[sum_lanes];
        each_element(shape, c, [&](std::size_t at, std::size_t element) {
            TwoSums& lane = lanes[element % sum_lanes];
            lane = lane + f(at, element);
        });
        for (std::size_t half = sum_lanes / 2; half > 0; half /= 2)
            for (std::size_t l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
        return lanes[0];
    }
    template <class T>
    static Moments moments_of_channel(Channels const& shape, T const* x, std::size_t c) {
        auto const count = static_cast<double>(shape.elements());
        double const mean = sum(shape, c, SumElements<T>{x}).a / count;
        return moments_of(count, mean, sum(shape, c, SumDistances<T>{x, mean}));
    }
};
// On a stream. For a GPU see cuda/norm_work.cuh.
template <class Stream> struct NormWork : NormLoops {
    static_assert(!replays<Stream>, "gpipe: on this device BatchNorm has kernels: #include "
                                    "<gpipe/cuda/norm_work.cuh>");
    explicit NormWork(Stream const&) {}
};
template <class Stream> NormWork<Stream> norm_work(Stream const& stream) {
    return NormWork<Stream>{stream};
}

} // namespace gpipe::detail
