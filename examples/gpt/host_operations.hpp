#pragma once

#include "gpt/attention_head.hpp"
#include "gpt/blas.hpp"
#include "gpt/math.hpp"
#include "gpt/operations.hpp"

#include <gpipe/core/host_device.hpp>
#include <gpipe/layer/handles.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace gpt {

/// The elements of a row that are calculated with before they are written.
template <class T, std::size_t most_elements> struct HostHeldRow {
    std::size_t n;
    T values[(most_elements + lanes - 1) / lanes * lanes]; // as sum_over takes them

    GPIPE_HOST_DEVICE HostHeldRow(std::size_t count, T const* from) : n(count) {
        for (std::size_t i = 0; i < n; ++i) values[i] = from[i];
    }
    template <class F> GPIPE_HOST_DEVICE void change(F f) {
        for (std::size_t i = 0; i < n; ++i) values[i] = f(values[i]);
    }
    GPIPE_HOST_DEVICE T sum() const {
        return sum_over(n, [this](std::size_t i) { return values[i]; });
    }
    GPIPE_HOST_DEVICE T most() const { return most_of(values, n); }
    GPIPE_HOST_DEVICE void write(std::size_t columns, T* to) const {
        for (std::size_t i = 0; i < columns; ++i) to[i] = i < n ? values[i] : T{0};
    }
};

/// Of a row's work: the calling thread alone.
struct HostTeam {
    static constexpr bool alone = true;

    template <class F> GPIPE_HOST_DEVICE void each(std::size_t n, F f) const {
        for (std::size_t i = 0; i < n; ++i) f(i);
    }
    template <class F> GPIPE_HOST_DEVICE void once(F f) const { f(); }
    template <class To, class F, class... From>
    GPIPE_HOST_DEVICE void map(std::size_t n, To* to, F f, From const*... from) const {
        for (std::size_t i = 0; i < n; ++i) to[i] = f(i, from[i]...);
    }
    template <class To, class F, class... From>
    GPIPE_HOST_DEVICE void map_both(std::size_t n, To* first, To* second, F f,
                                    From const*... from) const {
        for (std::size_t i = 0; i < n; ++i) {
            auto const both = f(i, from[i]...);
            first[i] = both.first, second[i] = both.second;
        }
    }
    template <std::size_t most_elements, class T>
    GPIPE_HOST_DEVICE HostHeldRow<T, most_elements> hold(std::size_t n, T const* from) const {
        return {n, from};
    }
    template <class F, class... From>
    GPIPE_HOST_DEVICE auto sum(std::size_t n, F f, From const*... from) const {
        return sum_over(n, [=](std::size_t i) { return f(i, from[i]...); });
    }
    template <class T> GPIPE_HOST_DEVICE T most(T const* values, std::size_t n) const {
        return most_of(values, n);
    }
};

/// What layers are made of, as oneDNN and loops on the calling thread.
struct HostOperations {
    using Handles = gpipe::Handles<>;
    template <class T, std::size_t weights> using HandlesFor = Handles;
    /// What multiplies, for the user to read.
    static std::string kernels() { return gpt::kernels(); }
    template <class Context> static HostOperations on(Context const&) { return {}; }

    template <class T>
    void multiply(Extents extents, Factor<T> a, Factor<T> b, T* c, std::size_t stride,
                  bool add = false, T scale = T{1}) const {
        gpt::multiply<T>(extents, a, b, c, stride, add, scale);
    }
    template <class T, class... Weights>
    std::array<T const*, sizeof...(Weights)> factors(Weights const&... weights) const {
        return {weights.data()...};
    }
    template <class Each> void for_each_index(std::size_t count, Each each) const {
        for (std::size_t i = 0; i < count; ++i) each(i);
    }
    template <class To, class F, class... From>
    void map(std::size_t n, To* to, F f, From const*... from) const {
        HostTeam{}.map(n, to, f, from...);
    }
    template <class Row> void for_each_row(std::size_t rows, std::size_t, Row row) const {
        for (std::size_t r = 0; r < rows; ++r) row(HostTeam{}, r);
    }
    template <class T, class F, class... From>
    void sum_columns(std::size_t rows, std::size_t columns, T* to, bool add, F f,
                     From const*... from) const {
        constexpr std::size_t strip = 256;
        for (std::size_t first = 0; first < columns; first += strip) {
            std::size_t const n = std::min(strip, columns - first);
            T sums[strip] = {};
            for (std::size_t row = 0; row < rows; ++row)
                for (std::size_t i = 0; i < n; ++i)
                    sums[i] += f(row, from[row * columns + first + i]...);
            for (std::size_t i = 0; i < n; ++i)
                to[first + i] = add ? to[first + i] + sums[i] : sums[i];
        }
    }
    template <class T>
    void scatter_add(std::size_t rows, std::size_t vocabulary, std::size_t width,
                     std::int32_t const* indices, T const* from, T* to) const {
        for (std::size_t row = 0; row < rows; ++row, from += width) {
            auto const index = static_cast<std::size_t>(indices[row]);
            if (index >= vocabulary) continue;
            T* __restrict const entry = to + index * width;
            for (std::size_t i = 0; i < width; ++i) entry[i] += from[i];
        }
    }
    template <class F> void check(std::size_t count, F f) const {
        for (std::size_t i = 0; i < count; ++i) f(i);
    }

    /// Scores live on the stack, a strip at a time.
    template <class T, std::size_t context, std::size_t heads>
    static constexpr std::size_t score_elements = 0;
    template <std::size_t context, std::size_t width, std::size_t heads, class T>
    void attend(std::size_t samples, T const* qkv, T* out, T* log_sums, T*) const {
        for (std::size_t i = 0; i < samples * heads; ++i) {
            auto const at = place<context, width, heads>(i);
            T const* const q = qkv + at.qkv;
            Head<T, context, width, heads>::forward(q, q + width, q + 2 * width, out + at.out,
                                                    log_sums + i * context);
        }
    }
    template <std::size_t context, std::size_t width, std::size_t heads, class T>
    void attend_backward(std::size_t samples, T const* qkv, T const* out, T const* log_sums,
                         T const* dout, T* dqkv, T*) const {
        for (std::size_t i = 0; i < samples * heads; ++i) {
            auto const at = place<context, width, heads>(i);
            T const* const q = qkv + at.qkv;
            T* const dq = dqkv + at.qkv;
            Head<T, context, width, heads>::backward(q, q + width, q + 2 * width, out + at.out,
                                                     log_sums + i * context, dout + at.out, dq,
                                                     dq + width, dq + 2 * width);
        }
    }

  private:
    template <class T, std::size_t context, std::size_t width, std::size_t heads>
    using Head = AttentionHead<T, context, width / heads, 3 * width, width>;

    // Where a head of a sample begins.
    struct Place {
        std::size_t qkv, out;
    };
    template <std::size_t context, std::size_t width, std::size_t heads>
    static Place place(std::size_t i) {
        std::size_t const row = i / heads * context;
        std::size_t const column = i % heads * (width / heads);
        return {row * 3 * width + column, row * width + column};
    }
};

} // namespace gpt
