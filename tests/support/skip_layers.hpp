#pragma once

// Layers of every kind at the ends of skips: with parameters behind what is stashed, with halves,
// popped tensors that a backward reads or not, several at a layer, some without a gradient.

#include "layers.hpp"

#include <gpipe/layer/stash.hpp>
#include <gpipe/pipeline.hpp>

#include <cstddef>

namespace toy {

template <int number> struct SkipTag;

/// y[i] = a[i] x[i] + x[i + 1] / 8. Stashes a[i] x[i] x[i] / 2 and, under the next tag, x. Its
/// halves both read the gradient of what it stashes.
template <class T, std::size_t N, int tag> struct Give {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    using Parameters = Tensor<T, N>;
    using Stash = gpipe::Skips<gpipe::Skip<SkipTag<tag>, Tensor<T, N>>,
                               gpipe::Skip<SkipTag<tag + 1>, Tensor<T, N>>>;

    void initialize(auto& ctx) const {
        auto numbers = ctx.random(0);
        for (T& v : ctx.parameters()) v = static_cast<T>(numbers.uniform(0.5, 1));
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const a = ctx.parameters();
        auto const squares = gpipe::stash<SkipTag<tag>>(ctx);
        auto const same = gpipe::stash<SkipTag<tag + 1>>(ctx);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) {
                y(s, i) = a[i] * x(s, i) + x(s, (i + 1) % N) / 8;
                squares(s, i) = a[i] * x(s, i) * x(s, i) / 2;
                same(s, i) = x(s, i);
            }
    }
    void input_gradient(auto& ctx, auto x, auto dy, auto dx) const {
        auto const a = ctx.parameters();
        auto const squares = gpipe::stash_gradient<SkipTag<tag>>(ctx);
        auto const same = gpipe::stash_gradient<SkipTag<tag + 1>>(ctx);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i)
                dx(s, i) = a[i] * dy(s, i) + dy(s, (i + N - 1) % N) / 8 +
                           a[i] * x(s, i) * squares(s, i) + same(s, i);
    }
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        auto const da = ctx.gradients();
        auto const squares = gpipe::stash_gradient<SkipTag<tag>>(ctx);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i)
                da[i] += x(s, i) * dy(s, i) + x(s, i) * x(s, i) / 2 * squares(s, i);
    }
};

/// y[i] = x[i] / 2 + b[i] x[i] z[i], z what it pops; both halves of its backward read that.
template <class T, std::size_t N, int tag> struct Times {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    using Parameters = Tensor<T, N>;
    using Pop = gpipe::Skip<SkipTag<tag>, Tensor<T, N>>;

    void initialize(auto& ctx) const {
        auto numbers = ctx.random(0);
        for (T& v : ctx.parameters()) v = static_cast<T>(numbers.uniform(-1, 1));
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const b = ctx.parameters();
        auto const z = gpipe::pop<SkipTag<tag>>(ctx);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) y(s, i) = x(s, i) / 2 + b[i] * x(s, i) * z(s, i);
    }
    void input_gradient(auto& ctx, auto x, auto dy, auto dx) const {
        auto const b = ctx.parameters();
        auto const z = gpipe::pop<SkipTag<tag>>(ctx);
        auto const dz = gpipe::pop_gradient<SkipTag<tag>>(ctx);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) {
                dz(s, i) = dy(s, i) * b[i] * x(s, i);
                dx(s, i) = dy(s, i) * (T(0.5) + b[i] * z(s, i));
            }
    }
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        auto const db = ctx.gradients();
        auto const z = gpipe::pop<SkipTag<tag>>(ctx);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i) db[i] += dy(s, i) * x(s, i) * z(s, i);
    }
};

/// y = x + z / 2, z what it pops; its backward reads neither.
template <class T, std::size_t N, int tag> struct Plus {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    using Pop = gpipe::Skip<SkipTag<tag>, Tensor<T, N>>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    static constexpr bool backward_reads_pops = false;

    void forward(auto& ctx, auto x, auto y) const {
        auto const z = gpipe::pop<SkipTag<tag>>(ctx);
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = x.data()[i] + z.data()[i] / 2;
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        auto const dz = gpipe::pop_gradient<SkipTag<tag>>(ctx);
        for (std::size_t i = 0; i < dy.size(); ++i) {
            dz.data()[i] = dy.data()[i] / 2;
            dx.data()[i] = dy.data()[i];
        }
    }
};

/// y = z - x, and stashes x + z; it cannot run in halves, and needs scratch and what it has saved.
template <class T, std::size_t N, int pops, int stashes> struct Swap {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    using Saved = Tensor<T, N>;
    using Scratch = Tensor<T, N>;
    using Pop = gpipe::Skip<SkipTag<pops>, Tensor<T, N>>;
    using Stash = gpipe::Skip<SkipTag<stashes>, Tensor<T, N>>;

    void forward(auto& ctx, auto x, auto y) const {
        auto const z = gpipe::pop<SkipTag<pops>>(ctx);
        auto const given = gpipe::stash<SkipTag<stashes>>(ctx);
        for (std::size_t i = 0; i < x.size(); ++i) {
            ctx.scratch().data()[i] = z.data()[i];
            ctx.saved().data()[i] = x.data()[i];
            given.data()[i] = x.data()[i] + ctx.scratch().data()[i];
            y.data()[i] = ctx.scratch().data()[i] - x.data()[i];
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto const dz = gpipe::pop_gradient<SkipTag<pops>>(ctx);
        auto const given = gpipe::stash_gradient<SkipTag<stashes>>(ctx);
        for (std::size_t i = 0; i < dy.size(); ++i) {
            bool const as_it_was = ctx.saved().data()[i] == x.data()[i];
            ctx.scratch().data()[i] = as_it_was ? given.data()[i] : T(1000);
            dz.data()[i] = dy.data()[i] + ctx.scratch().data()[i];
            dx.data()[i] = ctx.scratch().data()[i] - dy.data()[i];
        }
    }
};

/// y = x. Stashes which numbers are positive: integers, without a gradient.
template <class T, std::size_t N, int tag> struct Signs {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    using Stash = gpipe::Skip<SkipTag<tag>, Tensor<int, N>>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;

    void forward(auto& ctx, auto x, auto y) const {
        auto const signs = gpipe::stash<SkipTag<tag>>(ctx);
        for (std::size_t i = 0; i < x.size(); ++i) {
            y.data()[i] = x.data()[i];
            signs.data()[i] = x.data()[i] > 0;
        }
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        static_assert(gpipe::is_none<decltype(gpipe::stash_gradient<SkipTag<tag>>(ctx))>);
        for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = dy.data()[i];
    }
};
/// y = x where these were positive, else x / 4.
template <class T, std::size_t N, int tag> struct BySigns {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    using Pop = gpipe::Skip<SkipTag<tag>, Tensor<int, N>>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;

    void forward(auto& ctx, auto x, auto y) const {
        auto const signs = gpipe::pop<SkipTag<tag>>(ctx);
        for (std::size_t i = 0; i < x.size(); ++i)
            y.data()[i] = signs.data()[i] ? x.data()[i] : x.data()[i] / 4;
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        auto const signs = gpipe::pop<SkipTag<tag>>(ctx);
        static_assert(gpipe::is_none<decltype(gpipe::pop_gradient<SkipTag<tag>>(ctx))>);
        for (std::size_t i = 0; i < dy.size(); ++i)
            dx.data()[i] = signs.data()[i] ? dy.data()[i] : dy.data()[i] / 4;
    }
};

/// y = x, without parameters, and stashes x: below the lowest learner nobody wants the gradient.
template <class T, std::size_t N, int tag> struct Copy {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    using Stash = gpipe::Skip<SkipTag<tag>, Tensor<T, N>>;

    void forward(auto& ctx, auto x, auto y) const {
        auto const same = gpipe::stash<SkipTag<tag>>(ctx);
        for (std::size_t i = 0; i < x.size(); ++i) same.data()[i] = y.data()[i] = x.data()[i];
    }
    void backward(auto& ctx, auto, auto dy, auto dx) const {
        auto const same = gpipe::stash_gradient<SkipTag<tag>>(ctx);
        for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = dy.data()[i] + same.data()[i];
    }
};

/// Layer L with its parameter tensor `place` tied.
template <class L, class Tag, std::size_t place = 0> struct TiedTo : L {
    using Tied = gpipe::Tie<Tag, place>;
};
struct Factors;
struct Offsets;

/// Seven skips one in the other, two of a layer, one without a gradient, one from below the lowest
/// learner; and a block with a skip of its own, twice. Two parameters are tied, one of four layers,
/// among them both of the block, and one of three. Each layer wrapped in W.
template <class T, template <class> class W>
using SkipNetOf = gpipe::Pipeline<
    W<Copy<T, 5, 0>>, W<TiedTo<Give<T, 5, 1>, Factors>>, W<Signs<T, 5, 3>>, W<Give<T, 5, 4>>,
    W<TiedTo<Linear<T, 5, 5>, Offsets, 1>>, W<TiedTo<Give<T, 5, 6>, Factors>>, W<Tanh<T, 5>>,
    W<Swap<T, 5, 6, 8>>, W<Plus<T, 5, 7>>, W<TiedTo<Times<T, 5, 5>, Offsets>>,
    gpipe::Repeat<2, W<TiedTo<Give<T, 5, 1>, Factors>>, W<Times<T, 5, 2>>, W<Plus<T, 5, 1>>>,
    W<TiedTo<Times<T, 5, 8>, Offsets>>, W<Plus<T, 5, 4>>, W<BySigns<T, 5, 3>>, W<Times<T, 5, 2>>,
    W<Plus<T, 5, 1>>, W<Plus<T, 5, 0>>, W<StrictLinear<T, 5, 3>>>;
template <class L> using Bare = L;
template <class T> using SkipNet = SkipNetOf<T, Bare>;

} // namespace toy
