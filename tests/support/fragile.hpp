#pragma once

#include <gpipe/layer/tensor.hpp>
#include <gpipe/optimizer/optimizer.hpp>

#include <atomic>
#include <cstddef>
#include <type_traits>

namespace toy {

struct Broken {};

// A floating-point type of a user's own, whose operations throw when they are told to. The library
// itself converts it to float for norms, and multiplies gradients by the scale of a step.
struct Fragile {
    static inline std::atomic<int> left = -1; // operations before one throws; negative: none does
    static inline std::atomic<int> done = 0;
    float value;

    Fragile() = default;
    explicit Fragile(double v) : value(static_cast<float>(v)) {}
    explicit operator float() const { return operate(), value; }
    Fragile& operator*=(Fragile factor) { return operate(), value *= factor.value, *this; }

  private:
    static void operate() {
        ++done;
        if (left >= 0 && left-- == 0) throw Broken{};
    }
};
struct Factor {
    using Input = gpipe::Tensor<float, 2>;
    using Output = Input;
    using Parameters = gpipe::Tensors<gpipe::Tensor<Fragile, 2>, gpipe::Tensor<Fragile>>;
    void initialize(auto& ctx) const {
        auto [w, b] = ctx.parameters();
        for (Fragile& v : w) v.value = 0.5f;
        b().value = 1;
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto [w, b] = ctx.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 2; ++i) y(s, i) = w(i).value * x(s, i) + b().value;
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto [w, b] = ctx.parameters();
        auto [dw, db] = ctx.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 2; ++i) {
                dw(i).value += dy(s, i) * x(s, i);
                db().value += dy(s, i);
                dx(s, i) = dy(s, i) * w(i).value;
            }
    }
};
struct Descend {
    static constexpr std::size_t states = 0;
    template <class T>
    void operator()(gpipe::UpdateContext, gpipe::UpdateTensor<T, 0> tensor) const noexcept {
        if constexpr (std::is_same_v<T, Fragile>)
            for (std::size_t i = 0; i < tensor.size; ++i)
                tensor.parameter[i].value -= 0.01f * tensor.gradient[i].value;
    }
};

} // namespace toy

template <> struct gpipe::CarriesGradient<toy::Fragile> : std::true_type {};
