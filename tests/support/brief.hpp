#pragma once

#include <gpipe/layer/loss.hpp>
#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/traits.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace toy {

/// A type of a user's own: the upper half of a float, rounded to nearest: what CUDA calls bf16.
struct Brief {
    std::uint16_t bits;

    Brief() = default;
    explicit Brief(float value) {
        auto const word = std::bit_cast<std::uint32_t>(value);
        bits = static_cast<std::uint16_t>((word + 0x7FFF + (word >> 16 & 1)) >> 16);
    }
    operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

/// y = tanh(w x): activations of T and Brief, parameters and sums of float.
template <class T, std::size_t in, std::size_t out> struct Dense {
    using Input = gpipe::Tensor<T, in>;
    using Output = gpipe::Tensor<Brief, out>;
    using Parameters = gpipe::Tensor<float, out, in>;
    static constexpr auto backward_reads = gpipe::Reads::both;

    void initialize(auto& ctx) const {
        auto random = ctx.random(0);
        for (float& w : ctx.parameters()) w = static_cast<float>(random.normal(0.7));
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const w = ctx.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t o = 0; o < out; ++o) {
                float sum = 0;
                for (std::size_t i = 0; i < in; ++i) sum += w(o, i) * x(s, i);
                y(s, o) = Brief(std::tanh(sum));
            }
    }
    void backward(auto& ctx, auto x, auto y, auto dy, auto dx) const {
        auto const w = ctx.parameters();
        auto const dw = ctx.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s) {
            float sums[in] = {};
            for (std::size_t o = 0; o < out; ++o) {
                float const d = (1 - y(s, o) * y(s, o)) * dy(s, o);
                for (std::size_t i = 0; i < in; ++i) {
                    dw(o, i) += d * x(s, i);
                    sums[i] += d * w(o, i);
                }
            }
            for (std::size_t i = 0; i < in; ++i) dx(s, i) = T(sums[i]);
        }
    }
};
/// The sum of squares of differences.
template <std::size_t N> struct BriefSquares {
    using Target = gpipe::Tensor<float, N>;
    gpipe::LossValue<> operator()(auto&, auto y, auto target, auto dy) const {
        double sum = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
            float const d = y.begin()[i] - target.begin()[i];
            sum += d * d;
            dy.begin()[i] = Brief(2 * d);
        }
        return {sum, static_cast<double>(y.samples())};
    }
};

} // namespace toy

template <> struct gpipe::CarriesGradient<toy::Brief> : std::true_type {};
