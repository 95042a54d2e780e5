#pragma once

// One product y = W x, W of out x in, as a chain of blocks of W, each a layer and so on a device of
// its own where the chain is cut there. With one part: the product as it is.

#include <gpipe/layer/random.hpp>
#include <gpipe/layer/stash.hpp>
#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/traits.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace wide {

using gpipe::Skip;
using gpipe::Skips;
using gpipe::Tensor;

template <std::size_t part> struct Rows;    // of y: from the block that finds them to the last one
template <std::size_t part> struct Columns; // of W, those of x: from the first block to theirs

inline void add(float a, float const* x, float* y, std::size_t n) { // y += a x
    for (std::size_t i = 0; i < n; ++i) y[i] += a * x[i];
}
inline float product(float const* x, float const* y, std::size_t n) {
    float lanes[16] = {}; // for the compiler to have them in registers
    for (std::size_t i = 0; i < n; i += 16)
        for (std::size_t l = 0; l < 16; ++l) lanes[l] += x[i + l] * y[i + l];
    for (std::size_t half = 8; half > 0; half /= 2)
        for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    return lanes[0];
}
// By the place in W as a whole: however that is cut, it begins the same.
inline float initial(std::size_t row, std::size_t column, std::size_t in) {
    auto const word = gpipe::philox(
        {static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(column), 0, 0}, 1)[0];
    return (static_cast<float>(word >> 8) * 0x1p-23f - 1) / std::sqrt(static_cast<float>(in));
}

/// Rows of W. x is what goes on along the chain: every block keeps it for its backward anyway, so
/// that it lies nowhere twice. Rows of y skip what is between their block and the last: along the
/// chain each of them would be sent, and kept, once for every block that is left. The gradient of x
/// comes back along the chain and grows from block to block, the last rows first.
template <std::size_t in, std::size_t out, std::size_t parts = 1, std::size_t part = 0>
struct RowBlock {
    static_assert(out % parts == 0 && in % 16 == 0, "equal blocks, whole lanes");
    static constexpr std::size_t rows = out / parts;
    static constexpr bool is_last = part + 1 == parts;

    using Input = Tensor<float, in>;
    using Output = std::conditional_t<is_last, Tensor<float, out>, Input>;
    using Parameters = Tensor<float, rows, in>;
    using Stash = std::conditional_t<is_last, Skips<>, Skip<Rows<part>, Tensor<float, rows>>>;
    template <std::size_t... earlier>
    static Skips<Skip<Rows<earlier>, Tensor<float, rows>>...> pops(std::index_sequence<earlier...>);
    using Pop = decltype(pops(std::make_index_sequence < is_last ? part : 0 > {}));
    static constexpr bool backward_reads_pops = false;
    static constexpr double cost = 2.0 * rows * in;

    void initialize(auto& ctx) const {
        auto const w = ctx.parameters();
        for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t i = 0; i < in; ++i) w(r, i) = initial(part * rows + r, i, in);
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const w = ctx.parameters();
        auto const own = own_rows(ctx, y, [](auto& c) { return gpipe::stash<Rows<part>>(c); });
        for (std::size_t s = 0; s < x.samples(); ++s) {
            for (std::size_t r = 0; r < rows; ++r) own(s)[r] = product(&w(r, 0), &x(s, 0), in);
            if constexpr (!is_last) std::copy(x[s].begin(), x[s].end(), &y(s, 0));
            each_earlier([&]<std::size_t p>() {
                auto const theirs = gpipe::pop<Rows<p>>(ctx);
                std::copy(theirs[s].begin(), theirs[s].end(), &y(s, p * rows));
            });
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto const w = ctx.parameters();
        auto const dw = ctx.gradients();
        auto const own =
            own_rows(ctx, dy, [](auto& c) { return gpipe::stash_gradient<Rows<part>>(c); });
        for (std::size_t s = 0; s < x.samples(); ++s) {
            if constexpr (is_last)
                std::fill(dx[s].begin(), dx[s].end(), 0.f);
            else
                std::copy(dy[s].begin(), dy[s].end(), &dx(s, 0));
            for (std::size_t r = rows; r-- > 0;) {
                add(own(s)[r], &w(r, 0), &dx(s, 0), in);
                add(own(s)[r], &x(s, 0), &dw(r, 0), in);
            }
            each_earlier([&]<std::size_t p>() {
                auto const theirs = gpipe::pop_gradient<Rows<p>>(ctx);
                std::copy(&dy(s, p * rows), &dy(s, p * rows) + rows, &theirs(s, 0));
            });
        }
    }

  private:
    // Where this block's rows of a sample are: the end of y, or what goes to the last block.
    template <class View, class Skipped>
    static auto own_rows(auto& ctx, View const& y, Skipped const& skipped) {
        if constexpr (is_last)
            return [y](std::size_t s) { return &y(s, part * rows); };
        else
            return [z = skipped(ctx)](std::size_t s) { return &z(s, 0); };
    }
    template <class F> static void each_earlier(F const& f) {
        [&]<std::size_t... p>(std::index_sequence<p...>) { (f.template operator()<p>(), ...); }
        (std::make_index_sequence < is_last ? part : 0 > {});
    }
};

/// Columns of W. The sum goes along the chain, and each block adds its columns, so all adds are
/// those of one product, in its order. Columns of x skip what is between the first block and
/// theirs.
template <std::size_t in, std::size_t out, std::size_t parts = 1, std::size_t part = 0>
struct ColumnBlock {
    static_assert(in % parts == 0 && out % 16 == 0, "equal blocks, whole lanes");
    static constexpr std::size_t columns = in / parts;
    static constexpr bool is_first = part == 0;

    using Input = std::conditional_t<is_first, Tensor<float, in>, Tensor<float, out>>;
    using Output = Tensor<float, out>;
    using Parameters = Tensor<float, columns, out>; // transposed
    template <std::size_t... before>
    static Skips<Skip<Columns<before + 1>, Tensor<float, columns>>...>
        stashes(std::index_sequence<before...>);
    using Stash = decltype(stashes(std::make_index_sequence < is_first ? parts - 1 : 0 > {}));
    using Pop = std::conditional_t<is_first, Skips<>, Skip<Columns<part>, Tensor<float, columns>>>;
    static constexpr auto backward_reads =
        is_first ? gpipe::Reads::input : gpipe::Reads::neither; // nobody keeps a sum
    static constexpr double cost = 2.0 * columns * out;

    void initialize(auto& ctx) const {
        auto const w = ctx.parameters();
        for (std::size_t c = 0; c < columns; ++c)
            for (std::size_t o = 0; o < out; ++o) w(c, o) = initial(o, part * columns + c, in);
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const w = ctx.parameters();
        auto const own = own_columns(ctx, x);
        for (std::size_t s = 0; s < y.samples(); ++s) {
            if constexpr (is_first)
                std::fill(y[s].begin(), y[s].end(), 0.f);
            else
                std::copy(x[s].begin(), x[s].end(), &y(s, 0));
            for (std::size_t c = 0; c < columns; ++c) add(own(s, c), &w(c, 0), &y(s, 0), out);
            each_later([&]<std::size_t p>() {
                auto const theirs = gpipe::stash<Columns<p>>(ctx);
                std::copy(&x(s, p * columns), &x(s, p * columns) + columns, &theirs(s, 0));
            });
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const requires is_first {
        gradients(ctx, x, dy, dx);
        for (std::size_t s = 0; s < dy.samples(); ++s)
            each_later([&]<std::size_t p>() {
                auto const theirs = gpipe::stash_gradient<Columns<p>>(ctx);
                std::copy(theirs[s].begin(), theirs[s].end(), &dx(s, p * columns));
            });
    }
    void backward(auto& ctx, auto dy, auto dx) const requires(!is_first) {
        gradients(ctx, gpipe::pop<Columns<part>>(ctx), dy, gpipe::pop_gradient<Columns<part>>(ctx));
        std::copy(dy.begin(), dy.end(), dx.begin());
    }

  private:
    static auto own_columns(auto& ctx, auto x) {
        if constexpr (is_first)
            return x;
        else
            return gpipe::pop<Columns<part>>(ctx);
    }
    static void gradients(auto& ctx, auto x, auto dy, auto dx) {
        auto const w = ctx.parameters();
        auto const dw = ctx.gradients();
        for (std::size_t s = 0; s < dy.samples(); ++s)
            for (std::size_t c = 0; c < columns; ++c) {
                add(x(s, c), &dy(s, 0), &dw(c, 0), out);
                dx(s, c) = product(&w(c, 0), &dy(s, 0), out);
            }
    }
    template <class F> static void each_later(F const& f) {
        [&]<std::size_t... p>(std::index_sequence<p...>) { (f.template operator()<p + 1>(), ...); }
        (std::make_index_sequence < is_first ? parts - 1 : 0 > {});
    }
};

} // namespace wide
