#pragma once

// Small layers of every kind that the library knows, in any floating-point type. They compute in
// plain loops in a fixed order, so that equal inputs give equal bits.

#include <gpipe/layer/context.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace toy {

using gpipe::Tensor;
using gpipe::Tensors;

/// y = W x + b. Reads its input; does without an input gradient. Its backward comes whole and in
/// halves.
template <class T, std::size_t In, std::size_t Out> struct Linear {
    using Input = Tensor<T, In>;
    using Output = Tensor<T, Out>;
    using Parameters = Tensors<Tensor<T, Out, In>, Tensor<T, Out>>;
    static constexpr bool accepts_none = true;

    void initialize(auto& ctx) const {
        auto [w, b] = ctx.parameters();
        auto numbers = ctx.random(0);
        for (T& v : w) v = static_cast<T>(numbers.normal(1 / std::sqrt(double(In))));
        auto others = ctx.random(1);
        for (T& v : b) v = static_cast<T>(others.uniform(-0.1, 0.1));
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto [w, b] = ctx.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t o = 0; o < Out; ++o) {
                T sum = b(o);
                for (std::size_t i = 0; i < In; ++i) sum += w(o, i) * x(s, i);
                y(s, o) = sum;
            }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto [w, b] = ctx.parameters();
        auto [dw, db] = ctx.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t o = 0; o < Out; ++o) {
                db(o) += dy(s, o);
                for (std::size_t i = 0; i < In; ++i) dw(o, i) += dy(s, o) * x(s, i);
            }
        if constexpr (!gpipe::is_none<decltype(dx)>)
            for (std::size_t s = 0; s < x.samples(); ++s)
                for (std::size_t i = 0; i < In; ++i) {
                    T sum = 0;
                    for (std::size_t o = 0; o < Out; ++o) sum += w(o, i) * dy(s, o);
                    dx(s, i) = sum;
                }
    }
    void input_gradient(auto& ctx, auto, auto dy, auto dx) const {
        auto [w, b] = ctx.parameters();
        for (std::size_t s = 0; s < dy.samples(); ++s)
            for (std::size_t i = 0; i < In; ++i) {
                T sum = 0;
                for (std::size_t o = 0; o < Out; ++o) sum += w(o, i) * dy(s, o);
                if constexpr (!gpipe::is_none<decltype(dx)>) dx(s, i) = sum;
            }
    }
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        auto [dw, db] = ctx.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t o = 0; o < Out; ++o) {
                db(o) += dy(s, o);
                for (std::size_t i = 0; i < In; ++i) dw(o, i) += dy(s, o) * x(s, i);
            }
    }
};

/// The same, but its backward takes no gpipe::none.
template <class T, std::size_t In, std::size_t Out> struct StrictLinear : Linear<T, In, Out> {
    static constexpr bool accepts_none = false;
    void backward(auto& ctx, auto x, auto dy, gpipe::BatchView<T, In> dx) const {
        Linear<T, In, Out>::backward(ctx, x, dy, dx);
    }
    void input_gradient(auto& ctx, auto x, auto dy, gpipe::BatchView<T, In> dx) const {
        Linear<T, In, Out>::input_gradient(ctx, x, dy, dx);
    }
};

/// y = tanh(x). Reads its output.
template <class T, std::size_t N> struct Tanh {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::output;
    static constexpr bool recompute_is_cheap = true;
    static constexpr bool accepts_none = true;

    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = std::tanh(x.data()[i]);
    }
    void backward(auto&, auto y, auto dy, auto dx) const {
        if constexpr (!gpipe::is_none<decltype(dx)>)
            for (std::size_t i = 0; i < y.size(); ++i) {
                T const v = y.data()[i];
                dx.data()[i] = dy.data()[i] * (1 - v * v);
            }
    }
};

/// y = x / (1 + |x|). Reads its output. In place of Tanh where bits are compared with a GPU's:
/// there is one right result of each of its operations.
template <class T, std::size_t N> struct Softsign {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::output;
    static constexpr bool accepts_none = true;

    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i)
            y.data()[i] = x.data()[i] / (1 + std::abs(x.data()[i]));
    }
    void backward(auto&, auto y, auto dy, auto dx) const {
        if constexpr (!gpipe::is_none<decltype(dx)>)
            for (std::size_t i = 0; i < y.size(); ++i) {
                T const v = 1 - std::abs(y.data()[i]);
                dx.data()[i] = dy.data()[i] * v * v;
            }
    }
};

/// y = factor x, the factor a run-time member. Reads neither.
template <class T, std::size_t N> struct Scale {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    static constexpr bool accepts_none = true;
    T factor = 1;

    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = factor * x.data()[i];
    }
    void backward(auto&, auto dy, auto dx) const {
        if constexpr (!gpipe::is_none<decltype(dx)>)
            for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = factor * dy.data()[i];
    }
};

/// y = w x^2 + x, element by element. Reads both its input and its output (of which it makes
/// little). Its backward comes in halves only, and the first leaves something for the second.
template <class T, std::size_t N> struct Square {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    using Parameters = Tensor<T, N>;
    using Deferred = Tensors<Tensor<T, N>, Tensor<std::int32_t, 1>>;
    using Scratch = Tensor<T, N>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::both;
    static constexpr bool recompute_is_cheap = true;
    static constexpr bool accepts_none = true;
    static constexpr float decay[] = {0};

    void initialize(auto& ctx) const {
        for (T& v : ctx.parameters()) v = T(0.125);
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto w = ctx.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) y(s, i) = w(i) * x(s, i) * x(s, i) + x(s, i);
    }
    void input_gradient(auto& ctx, auto x, auto y, auto dy, auto dx) const {
        auto w = ctx.parameters();
        auto [change, mark] = ctx.deferred();
        for (std::size_t s = 0; s < x.samples(); ++s) {
            for (std::size_t i = 0; i < N; ++i) {
                change(s, i) = dy(s, i) * (y(s, i) - x(s, i)); // w x^2 is y - x
                if constexpr (!gpipe::is_none<decltype(dx)>)
                    dx(s, i) = dy(s, i) * (2 * w(i) * x(s, i) + 1);
            }
            mark(s, 0) = static_cast<std::int32_t>(ctx.first_sample() + s);
        }
    }
    void weight_gradient(auto& ctx, auto x, auto y, auto dy) const {
        auto w = ctx.parameters();
        auto dw = ctx.gradients();
        auto [change, mark] = ctx.deferred();
        auto copy = ctx.scratch();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) copy(s, i) = change(s, i);
        for (std::size_t s = 0; s < x.samples(); ++s) {
            // What another micro-batch left, or what is there no longer, makes the gradient wrong.
            bool const own = mark(s, 0) == static_cast<std::int32_t>(ctx.first_sample() + s);
            for (std::size_t i = 0; i < N; ++i) {
                bool const there = own && change(s, i) == dy(s, i) * (y(s, i) - x(s, i));
                if (w(i) != 0) dw(i) += there ? copy(s, i) / w(i) : T(1e6);
            }
        }
    }
};

/// y = x / (1 + x^2), with its derivative saved, and a detour over scratch. Reads neither. `eager`:
/// fills saved() even where nobody will read it.
template <class T, std::size_t N, bool eager = false> struct Saver {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    using Saved = Tensors<Tensor<T, N>, Tensor<std::int32_t, 2>>;
    using Scratch = Tensor<T, N>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    static constexpr bool accepts_none = true;

    void forward(auto& ctx, auto x, auto y) const {
        auto square = ctx.scratch();
        for (std::size_t i = 0; i < x.size(); ++i) square.data()[i] = x.data()[i] * x.data()[i];
        for (std::size_t i = 0; i < x.size(); ++i)
            y.data()[i] = x.data()[i] / (1 + square.data()[i]);
        if (!eager && !ctx.saving()) return;
        auto [slope, mark] = ctx.saved();
        for (std::size_t i = 0; i < x.size(); ++i) {
            T const v = square.data()[i];
            slope.data()[i] = (1 - v) / ((1 + v) * (1 + v));
        }
        for (std::size_t s = 0; s < x.samples(); ++s)
            mark(s, 0) = mark(s, 1) = static_cast<std::int32_t>(ctx.first_sample() + s);
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        auto [slope, mark] = ctx.saved();
        auto copy = ctx.scratch();
        for (std::size_t i = 0; i < dy.size(); ++i) copy.data()[i] = dy.data()[i];
        for (std::size_t s = 0; s < dy.samples(); ++s) {
            // Another micro-batch's marks make the gradient wrong.
            bool const own = mark(s, 1) == static_cast<std::int32_t>(ctx.first_sample() + s);
            for (std::size_t i = 0; i < N; ++i)
                if constexpr (!gpipe::is_none<decltype(dx)>)
                    dx(s, i) = own ? copy(s, i) * slope(s, i) : T(1e6);
        }
    }
};

/// Drops a share `rate` of the elements in training. Reads neither.
template <class T, std::size_t N> struct Dropout {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    static constexpr bool recompute_is_cheap = true;
    static constexpr bool accepts_none = true;
    float rate = 0.25f;

    T keep(auto& ctx, std::size_t sample, std::size_t i) const {
        return ctx.random().uniform(sample, i) < rate ? T(0) : T(1 / (1 - rate));
    }
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i)
                y(s, i) = ctx.training() ? x(s, i) * keep(ctx, s, i) : x(s, i);
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        if constexpr (!gpipe::is_none<decltype(dx)>)
            for (std::size_t s = 0; s < dy.samples(); ++s)
                for (std::size_t i = 0; i < N; ++i) dx(s, i) = dy(s, i) * keep(ctx, s, i);
    }
};

/// x becomes (x, two integers per sample): the start of a boundary of two tensors.
template <class T, std::size_t N> struct Tag {
    using Input = Tensor<T, N>;
    using Output = Tensors<Tensor<T, N>, Tensor<std::int32_t, 2>>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    static constexpr bool accepts_none = true;

    void forward(auto&, auto x, auto y) const {
        auto [values, tags] = y;
        for (std::size_t s = 0; s < x.samples(); ++s) {
            for (std::size_t i = 0; i < N; ++i) values(s, i) = x(s, i);
            tags(s, 0) = x(s, 0) > 0 ? 1 : 0;
            tags(s, 1) = 7 + tags(s, 0);
        }
    }
    void backward(auto&, auto dy, auto dx) const {
        auto [values, tags] = dy;
        static_assert(gpipe::is_none<decltype(tags)>);
        if constexpr (!gpipe::is_none<decltype(dx)>)
            for (std::size_t i = 0; i < values.size(); ++i) dx.data()[i] = values.data()[i];
    }
};

/// (x, tags) to (p[tag] x, tags): the integers pass through, without a gradient.
template <class T, std::size_t N> struct Carry {
    // One of the two that there are, also where a test has spoilt the tag.
    static std::size_t parameter_of(std::int32_t tag) { return tag == 1; }
    using Input = Tensors<Tensor<T, N>, Tensor<std::int32_t, 2>>;
    using Output = Input;
    using Parameters = Tensor<T, 2>;
    static constexpr bool accepts_none = true;

    void initialize(auto& ctx) const {
        ctx.parameters()(0) = T(0.75);
        ctx.parameters()(1) = T(1.25);
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto [values, tags] = x;
        auto [out, out_tags] = y;
        for (std::size_t s = 0; s < values.samples(); ++s) {
            for (std::size_t i = 0; i < N; ++i)
                out(s, i) = values(s, i) * ctx.parameters()[parameter_of(tags(s, 0))];
            out_tags(s, 0) = tags(s, 0);
            out_tags(s, 1) = tags(s, 1);
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto [values, tags] = x;
        auto const& dvalues = gpipe::get<0>(dy);
        for (std::size_t s = 0; s < values.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) {
                std::size_t const tag = parameter_of(tags(s, 0));
                ctx.gradients()[tag] += dvalues(s, i) * values(s, i);
                if constexpr (!gpipe::is_none<decltype(dx)>) {
                    auto const& out = gpipe::get<0>(dx);
                    static_assert(gpipe::is_none<decltype(gpipe::get<1>(dx))>);
                    out(s, i) = dvalues(s, i) * ctx.parameters()[tag];
                }
            }
    }
};

/// (x, tags) to x plus a little of the second tag.
template <class T, std::size_t N> struct Untag {
    using Input = Tensors<Tensor<T, N>, Tensor<std::int32_t, 2>>;
    using Output = Tensor<T, N>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    static constexpr bool accepts_none = true;

    void forward(auto&, auto x, auto y) const {
        auto [values, tags] = x;
        for (std::size_t s = 0; s < values.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i)
                y(s, i) = values(s, i) + T(0.0625) * static_cast<T>(tags(s, 1));
    }
    void backward(auto&, auto dy, auto dx) const {
        if constexpr (!gpipe::is_none<decltype(dx)>) {
            auto const& out = gpipe::get<0>(dx);
            for (std::size_t i = 0; i < dy.size(); ++i) out.data()[i] = dy.data()[i];
        }
    }
};

/// A row of a table for an integer. Its input has no gradient.
template <class T, std::size_t Rows, std::size_t N> struct Embedding {
    using Input = Tensor<std::int32_t, 1>;
    using Output = Tensor<T, N>;
    using Parameters = Tensor<T, Rows, N>;

    void initialize(auto& ctx) const {
        auto numbers = ctx.random(0);
        for (T& v : ctx.parameters()) v = static_cast<T>(numbers.normal());
    }
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) y(s, i) = ctx.parameters()(x(s, 0), i);
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        static_assert(gpipe::is_none<decltype(dx)>);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) ctx.gradients()(x(s, 0), i) += dy(s, i);
    }
};

/// y = x, of whose gradients those above `most` overflow, as they would in a type of smaller range.
template <class T, std::size_t N> struct Limited {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    T most = 50;

    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = x.data()[i];
    }
    void backward(auto&, auto dy, auto dx) const {
        for (std::size_t i = 0; i < dy.size(); ++i) {
            bool const fits = dy.data()[i] >= -most && dy.data()[i] <= most;
            dx.data()[i] = fits ? dy.data()[i] : std::numeric_limits<T>::infinity();
        }
    }
};

/// A convolution of one channel, of three weights, around the ends.
template <class T, std::size_t N> struct Conv {
    using Input = gpipe::Tensor<T, N>;
    using Output = gpipe::Tensor<T, N>;
    using Parameters = gpipe::Tensor<T, 3>;
    void initialize(auto& ctx) const {
        auto numbers = ctx.random(0);
        for (T& w : ctx.parameters()) w = static_cast<T>(numbers.normal(0.5));
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const w = ctx.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i)
                y(s, i) = w[0] * x(s, (i + N - 1) % N) + w[1] * x(s, i) + w[2] * x(s, (i + 1) % N);
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto const w = ctx.parameters();
        auto const dw = ctx.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) {
                dw[0] += dy(s, i) * x(s, (i + N - 1) % N);
                dw[1] += dy(s, i) * x(s, i);
                dw[2] += dy(s, i) * x(s, (i + 1) % N);
                dx(s, i) =
                    w[0] * dy(s, (i + 1) % N) + w[1] * dy(s, i) + w[2] * dy(s, (i + N - 1) % N);
            }
    }
};

/// A BatchNorm whose micro-batches may have one value of each channel.
template <class Norm> struct OfOne : Norm {
    OfOne() { this->one_value = true; }
};

} // namespace toy
