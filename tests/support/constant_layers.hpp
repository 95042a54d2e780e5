#pragma once

// Layers and a loss that read constants of a step, and the same with members in their place.

#include "layers.hpp"
#include "losses.hpp"

#include <gpipe/pipeline.hpp>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <thread>

namespace toy {

struct Temperature {
    float value = 1.5f;
};
/// Larger, with gaps, and of another alignment.
struct Table {
    char used = 2;
    double rows[12] = {1, 2, 3};
};
/// What a step has.
struct Settings {
    Temperature temperature;
    Table table;

    /// Another for each number.
    static Settings of(std::size_t number) {
        Settings result;
        result.temperature.value = 0.75f + static_cast<float>(number % 5) / 8;
        result.table.used = static_cast<char>(number % 12);
        for (std::size_t i = 0; i < 12; ++i)
            result.table.rows[i] = static_cast<double>((number * 7 + i) % 13) / 16;
        return result;
    }
};

/// Where layers have it from.
struct OfTheStep {
    using Constants = gpipe::Constants<Temperature, Table>;
    static Settings settings(auto& ctx) {
        return {*gpipe::constant<Temperature>(ctx), *gpipe::constant<Table>(ctx)};
    }
};
struct OfTheLayer {
    Settings own{};
    Settings settings(auto&) const { return own; }
};

/// Of the layers that follow, one whose second half takes longer than what else there is to do.
inline std::atomic<std::size_t> slow_layer = static_cast<std::size_t>(-1);

/// y = w t x^2 + rows[i], element by element. Its backward comes in halves, which both read t.
template <class T, std::size_t N, class From> struct Heated : From {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    using Parameters = Tensor<T, N>;

    void initialize(auto& ctx) const {
        for (std::size_t i = 0; i < N; ++i) ctx.parameters()[i] = static_cast<T>(1 + i) / 8;
    }
    void forward(auto& ctx, auto x, auto y) const {
        Settings const all = this->settings(ctx);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i)
                y(s, i) = ctx.parameters()(i) * T(all.temperature.value) * x(s, i) * x(s, i) +
                          T(all.table.rows[(i + static_cast<std::size_t>(all.table.used)) % 12]);
    }
    void input_gradient(auto& ctx, auto x, auto dy, auto dx) const {
        T const t = T(this->settings(ctx).temperature.value);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i)
                dx(s, i) = 2 * ctx.parameters()(i) * t * x(s, i) * dy(s, i);
    }
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        if (ctx.layer() == slow_layer) std::this_thread::sleep_for(std::chrono::microseconds(300));
        T const t = T(this->settings(ctx).temperature.value);
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < N; ++i)
                ctx.gradients()(i) += t * x(s, i) * x(s, i) * dy(s, i);
    }
};
/// y = x / t: has one of them, and no parameters.
template <class T, std::size_t N, class From> struct Cooled : From {
    using Input = Tensor<T, N>;
    using Output = Tensor<T, N>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    void forward(auto& ctx, auto x, auto y) const {
        T const t = T(this->settings(ctx).temperature.value);
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = x.data()[i] / t;
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        T const t = T(this->settings(ctx).temperature.value);
        for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = dy.data()[i] / t;
    }
};
/// Of t times what there is.
template <class T, std::size_t N, class From> struct HeatedSquare : From {
    using Target = gpipe::Tensor<T, N>;
    gpipe::LossValue<1> operator()(auto& ctx, auto y, auto target, auto dy) const {
        T const t = T(this->settings(ctx).temperature.value);
        gpipe::LossValue<1> value;
        value.weight = double(ctx.samples());
        for (std::size_t i = 0; i < y.size(); ++i) {
            T const d = y.data()[i] - target.data()[i];
            value.sum += double(t * d * d);
            value.metric[0] += double(std::abs(d));
            dy.data()[i] = 2 * t * d;
        }
        return value;
    }
};

/// `In` makes something of each layer.
template <class T, class From, template <class> class In>
using HeatedNetOf = gpipe::Pipeline<In<Linear<T, 5, 6>>, In<Heated<T, 6, From>>, In<Tanh<T, 6>>,
                                    In<Cooled<T, 6, From>>, In<Dropout<T, 6>>,
                                    In<Heated<T, 6, From>>, In<Tanh<T, 6>>, In<Linear<T, 6, 3>>>;
template <class L> using Plainly = L;
template <class T, class From> using HeatedNet = HeatedNetOf<T, From, Plainly>;

/// Gives a training what a step is to have: of either kind.
template <class Train> void set(Train& train, Settings const& all) {
    if constexpr (requires { train.template constant<Table>(); }) {
        train.template constant<Temperature>() = all.temperature;
        train.template constant<Table>() = all.table;
    }
}
template <class Train> void set_members(Train& train, Settings const& all) {
    auto const change = [&](auto& layer) { layer.own = all; };
    train.template change_layer<1>(change);
    train.template change_layer<3>(change);
    train.template change_layer<5>(change);
    train.change_loss(change);
}

} // namespace toy
