#pragma once

#include <gpipe/layer/context.hpp>
#include <gpipe/layers/running_statistics.hpp>

#include <algorithm>
#include <cstddef>

namespace gpipe::detail {

// The work of such layers as loops. A channel's elements are next to each other within a sample,
// and so are the lanes that they fall into: loops over a constant number of them are what compilers
// make vector instructions of, at -O2, too. The order of all sums is as if they were taken one by
// one.
struct NormLoops {
    template <class F> void each(std::size_t count, F f) const {
        for (std::size_t i = 0; i < count; ++i) f(i);
    }
    template <class T>
    void moments(Channels const& shape, T const* x, StatisticsRows const& to) const {
        for (std::size_t c = 0; c < shape.channels; ++c) to.set(c, moments_of_channel(shape, x, c));
    }
    // `normal_of_channel(c)`: a Normal.
    template <class T, class P, class F>
    void normalize(Channels const& shape, T const* x, T* y, P const* scale, P const* shift,
                   F normal_of_channel) const {
        for (std::size_t c = 0; c < shape.channels; ++c) {
            Normal const normal = normal_of_channel(c);
            double const factor = static_cast<double>(scale[c]);
            double const offset = static_cast<double>(shift[c]);
            each_element(shape, c, x, x, y, [=](T value, T) {
                return element_of<T>(normal(static_cast<double>(value)) * factor + offset);
            });
        }
    }
    // dx: null where nobody wants it. `moments`: OfSamples, or OfRunning, which no sample moves, as
    // if they were of endlessly many.
    template <class T, class P, class M>
    void backward(Channels const& shape, T const* x, T const* dy, T* dx, P const* scale, P* dscale,
                  P* dshift, M moments) const {
        double const count = count_of(shape, moments);
        for (std::size_t c = 0; c < shape.channels; ++c) {
            Normal const normal = normal_in(shape, x, c, moments);
            TwoSums const sums = sum<true>(shape, c, x, dy, SumGradients<T>{x, dy, normal});
            dshift[c] += static_cast<P>(sums.a);
            dscale[c] += static_cast<P>(sums.b);
            if (!dx) continue;
            auto const gradient = input_gradient(x, dy, dx, scale[c], normal, sums, count);
            each_element(shape, c, x, dy, dx,
                         [=](T value, T slope) { return gradient.of(value, slope); });
        }
    }
    // The same in two steps, for moments and sums that are not those of these samples alone: of
    // each channel the gradients of shift and scale; then dx.
    ///@{
    template <class T, class F>
    void gradient_sums(Channels const& shape, T const* x, T const* dy, F normal_of_channel,
                       StatisticsRows const& to) const {
        for (std::size_t c = 0; c < shape.channels; ++c) {
            TwoSums const sums =
                sum<true>(shape, c, x, dy, SumGradients<T>{x, dy, normal_of_channel(c)});
            to(0, c) = sums.a;
            to(1, c) = sums.b;
        }
    }
    // `sums_of_channel(c)`: TwoSums, over moments.all(c).count elements.
    template <class T, class P, class M, class S>
    void input_gradients(Channels const& shape, T const* x, T const* dy, T* dx, P const* scale,
                         M moments, S sums_of_channel) const {
        for (std::size_t c = 0; c < shape.channels; ++c) {
            auto const gradient = input_gradient(x, dy, dx, scale[c], moments(c),
                                                 sums_of_channel(c), moments.all(c).count);
            each_element(shape, c, x, dy, dx,
                         [=](T value, T slope) { return gradient.of(value, slope); });
        }
    }
    ///@}

  private:
    // to = f(x, y), element by element.
    template <class T, class F>
    static void each_element(Channels const& shape, std::size_t c, T const* x, T const* y, T* to,
                             F f) {
        std::size_t const all = shape.samples * shape.channels, n = shape.positions;
        if (n == 1)
            for (std::size_t at = c; at < all; at += shape.channels) to[at] = f(x[at], y[at]);
        else
            for (std::size_t at = c * n; at < all * n; at += shape.channels * n)
                compute_all(n, to + at, x + at, y + at, f);
    }
    template <class T, class F>
    static void compute_all(std::size_t count, T* to, T const* x, T const* y, F f) {
        std::size_t i = 0;
        for (std::size_t n = count / 16; n > 0; --n, i += 16) compute<16>(to + i, x + i, y + i, f);
        for (std::size_t n = count % 16 / 4; n > 0; --n, i += 4)
            compute<4>(to + i, x + i, y + i, f);
        for (std::size_t n = count % 4; n > 0; --n, ++i) compute<1>(to + i, x + i, y + i, f);
    }
    // What is written is read under no other name, so that these loops have one version.
    template <std::size_t n, class T, class F>
    static void compute(T* __restrict to, T const* x, T const* y, F f) {
        for (std::size_t l = 0; l < n; ++l) to[l] = f(x[l], y[l]);
    }
    // To lanes of both sums, or of the first only.
    template <std::size_t n, bool both, class T, class F>
    static void add(double* __restrict a, double* __restrict b, T const* x, T const* y, F f) {
        for (std::size_t l = 0; l < n; ++l) {
            TwoSums const more = f.of(x[l], y[l]);
            a[l] += more.a;
            if constexpr (both) b[l] += more.b;
        }
    }
    template <bool both, class T, class F>
    static void add_all(std::size_t count, double* a, double* b, T const* x, T const* y, F f) {
        std::size_t i = 0;
        for (std::size_t n = count / 16; n > 0; --n, i += 16)
            add<16, both>(a + i, b + i, x + i, y + i, f);
        for (std::size_t n = count % 16 / 4; n > 0; --n, i += 4)
            add<4, both>(a + i, b + i, x + i, y + i, f);
        for (std::size_t n = count % 4; n > 0; --n, ++i)
            add<1, both>(a + i, b + i, x + i, y + i, f);
    }
    // The same lanes, and then these by halves, as TwoSums says. What no element falls into is 0,
    // and adds nothing. `both`: else the second sum is 0.
    template <bool both, class T, class F>
    static TwoSums sum(Channels const& shape, std::size_t c, T const* x, T const* y, F f) {
        double a[sum_lanes], b[sum_lanes];
        std::size_t used = 1;
        while (used < sum_lanes && used < shape.elements()) used *= 2;
        for (std::size_t l = 0; l < used; ++l) a[l] = b[l] = 0;
        std::size_t const all = shape.samples * shape.channels, n = shape.positions;
        std::size_t lane = 0;
        for (std::size_t at = c; n == 1 && at < all; at += shape.channels) {
            add<1, both>(a + lane, b + lane, x + at, y + at, f);
            lane = (lane + 1) % sum_lanes;
        }
        for (std::size_t at = c * n; n > 1 && at < all * n; at += shape.channels * n)
            for (std::size_t done = 0; done < n;) {
                std::size_t const count = std::min(sum_lanes - lane, n - done);
                add_all<both>(count, a + lane, b + lane, x + at + done, y + at + done, f);
                done += count;
                lane = (lane + count) % sum_lanes;
            }
        for (std::size_t half = used / 2; half > 0; half /= 2)
            for (std::size_t l = 0; l < half; ++l) {
                a[l] += a[l + half];
                if constexpr (both) b[l] += b[l + half];
            }
        return {a[0], b[0]};
    }
    template <class T>
    static Normal normal_in(Channels const& shape, T const* x, std::size_t c, OfSamples of) {
        return normal_of(moments_of_channel(shape, x, c), of.epsilon);
    }
    template <class T>
    static Normal normal_in(Channels const&, T const*, std::size_t c, OfRunning of) {
        return of(c);
    }
    template <class T>
    static Moments moments_of_channel(Channels const& shape, T const* x, std::size_t c) {
        auto const count = static_cast<double>(shape.elements());
        double const mean = sum<false>(shape, c, x, x, SumElements<T>{x}).a / count;
        return moments_of(count, mean, sum<true>(shape, c, x, x, SumDistances<T>{x, mean}));
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
