#pragma once

// What the kernels of the toy layers in kernels.hpp do for one index: for no two indices the same,
// so that they may run in any order or at once, and for each number the operations of the plain
// loops in layers.hpp and losses.hpp, in their order.

#include <gpipe/core/host_device.hpp>

#include <cstddef>
#include <cstdint>

namespace toy::body {

/// By output element.
template <class T, std::size_t In, std::size_t Out> struct LinearForward {
    T const *w, *b, *x;
    T* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t at) const {
        std::size_t const s = at / Out, o = at % Out;
        T sum = b[o];
        for (std::size_t i = 0; i < In; ++i) sum += w[o * In + i] * x[s * In + i];
        y[at] = sum;
    }
};
/// By weight, and then by bias.
template <class T, std::size_t In, std::size_t Out> struct LinearGradients {
    static constexpr std::size_t count = Out * In + Out;
    std::size_t samples;
    T const *x, *dy;
    T *dw, *db;
    GPIPE_HOST_DEVICE void operator()(std::size_t at) const {
        if (at < Out * In)
            for (std::size_t s = 0; s < samples; ++s)
                dw[at] += dy[s * Out + at / In] * x[s * In + at % In];
        else
            for (std::size_t s = 0, o = at - Out * In; s < samples; ++s) db[o] += dy[s * Out + o];
    }
};
/// By input element.
template <class T, std::size_t In, std::size_t Out> struct LinearBackward {
    T const *w, *dy;
    T* dx;
    GPIPE_HOST_DEVICE void operator()(std::size_t at) const {
        std::size_t const s = at / In, i = at % In;
        T sum = 0;
        for (std::size_t o = 0; o < Out; ++o) sum += w[o * In + i] * dy[s * Out + o];
        dx[at] = sum;
    }
};

template <class T> GPIPE_HOST_DEVICE T magnitude(T v) { return v < 0 ? -v : v; }

template <class T> struct SoftsignForward {
    T const* x;
    T* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { y[i] = x[i] / (1 + magnitude(x[i])); }
};
template <class T> struct SoftsignBackward {
    T const *y, *dy;
    T* dx;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        T const v = 1 - magnitude(y[i]);
        dx[i] = dy[i] * v * v;
    }
};

template <class T> struct Scaled {
    T factor;
    T const* from;
    T* to;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { to[i] = factor * from[i]; }
};
template <class T> struct Copied {
    T const* from;
    T* to;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { to[i] = from[i]; }
};

template <class T, std::size_t N> struct SquareForward {
    T const *w, *x;
    T* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { y[i] = w[i % N] * x[i] * x[i] + x[i]; }
};
/// By element; the first of a sample leaves the sample's mark.
template <class T, std::size_t N> struct SquareDefers {
    T const *x, *y, *dy;
    T* change;
    std::int32_t* mark;
    std::size_t first_sample;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        change[i] = dy[i] * (y[i] - x[i]);
        if (i % N == 0) mark[i / N] = static_cast<std::int32_t>(first_sample + i / N);
    }
};
/// By parameter.
template <class T, std::size_t N> struct SquareGradients {
    std::size_t samples;
    T const *w, *change;
    std::int32_t const* mark;
    std::size_t first_sample;
    T* dw;
    GPIPE_HOST_DEVICE void operator()(std::size_t n) const {
        if (w[n] == 0) return;
        for (std::size_t s = 0; s < samples; ++s) {
            bool const own = mark[s] == static_cast<std::int32_t>(first_sample + s);
            dw[n] += own ? change[s * N + n] / w[n] : static_cast<T>(1e6);
        }
    }
};
template <class T, std::size_t N> struct SquareBackward {
    T const *w, *x, *dy;
    T* dx;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        dx[i] = dy[i] * (2 * w[i % N] * x[i] + 1);
    }
};

template <class T> struct Squares {
    T const* x;
    T* square;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { square[i] = x[i] * x[i]; }
};
template <class T> struct SaverForward {
    T const *x, *square;
    T* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { y[i] = x[i] / (1 + square[i]); }
};
/// By element; the first of a sample leaves the sample's mark.
template <class T, std::size_t N> struct SaverSaves {
    T const* square;
    T* slope;
    std::int32_t* mark;
    std::size_t first_sample;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        T const v = square[i];
        slope[i] = (1 - v) / ((1 + v) * (1 + v));
        std::size_t const s = i / N;
        if (i % N == 0) mark[2 * s] = mark[2 * s + 1] = static_cast<std::int32_t>(first_sample + s);
    }
};
template <class T, std::size_t N> struct SaverBackward {
    T const *copy, *slope;
    std::int32_t const* mark;
    std::size_t first_sample;
    T* dx;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        std::size_t const s = i / N;
        bool const own = mark[2 * s + 1] == static_cast<std::int32_t>(first_sample + s);
        dx[i] = own ? copy[i] * slope[i] : static_cast<T>(1e6);
    }
};

template <class T, std::size_t N, class Random> struct Dropped {
    Random random;
    float rate;
    T const* from;
    T* to;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        T const kept = static_cast<T>(1 / (1 - rate));
        to[i] = from[i] * (random.uniform(i / N, i % N) < rate ? static_cast<T>(0) : kept);
    }
};

/// By sample.
template <class T, std::size_t N> struct TagForward {
    T const* x;
    T* y;
    std::int32_t* tags;
    GPIPE_HOST_DEVICE void operator()(std::size_t s) const {
        for (std::size_t i = s * N; i < (s + 1) * N; ++i) y[i] = x[i];
        tags[2 * s] = x[s * N] > 0 ? 1 : 0;
        tags[2 * s + 1] = 7 + tags[2 * s];
    }
};
/// One of the two that there are, also where a test has spoilt the tag.
GPIPE_HOST_DEVICE inline std::size_t parameter_of(std::int32_t tag) { return tag == 1; }
/// By sample.
template <class T, std::size_t N> struct CarryForward {
    T const *p, *x;
    std::int32_t const* tags;
    T* y;
    std::int32_t* out_tags;
    GPIPE_HOST_DEVICE void operator()(std::size_t s) const {
        for (std::size_t i = s * N; i < (s + 1) * N; ++i)
            y[i] = x[i] * p[parameter_of(tags[2 * s])];
        out_tags[2 * s] = tags[2 * s];
        out_tags[2 * s + 1] = tags[2 * s + 1];
    }
};
/// By parameter.
template <class T, std::size_t N> struct CarryGradients {
    std::size_t samples;
    T const *x, *dy;
    std::int32_t const* tags;
    T* dp;
    GPIPE_HOST_DEVICE void operator()(std::size_t tag) const {
        for (std::size_t i = 0; i < samples * N; ++i)
            if (tags[i / N * 2] == static_cast<std::int32_t>(tag)) dp[tag] += dy[i] * x[i];
    }
};
template <class T, std::size_t N> struct CarryBackward {
    T const *p, *dy;
    std::int32_t const* tags;
    T* dx;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        dx[i] = dy[i] * p[parameter_of(tags[i / N * 2])];
    }
};
template <class T, std::size_t N> struct UntagForward {
    T const* x;
    std::int32_t const* tags;
    T* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        y[i] = x[i] + static_cast<T>(0.0625) * static_cast<T>(tags[i / N * 2 + 1]);
    }
};

template <class T> struct Differences {
    T const *y, *target;
    T* difference;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { difference[i] = y[i] - target[i]; }
};
/// One index: the additions must come in one order.
template <class T> struct MeanSquareValue {
    std::size_t samples, count;
    T const* difference;
    double* value;
    GPIPE_HOST_DEVICE void operator()(std::size_t) const {
        double sum = 0, absolute = 0;
        for (std::size_t i = 0; i < count; ++i) {
            T const d = difference[i];
            sum += static_cast<double>(d * d);
            absolute += static_cast<double>(magnitude(d));
        }
        value[0] = sum;
        value[1] = static_cast<double>(samples);
        value[2] = absolute;
    }
};

} // namespace toy::body
