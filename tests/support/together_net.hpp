#pragma once

// A net with all kinds of layers that there are, and what it is trained on.

#include "buffer_layers.hpp"
#include "exchange_layers.hpp"
#include "net.hpp"
#include "skip_layers.hpp"

#include <gpipe/layer/batch.hpp>
#include <gpipe/layers/gradient_tap.hpp>
#include <gpipe/pipeline.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace toy {

/// One that throws when it is told to.
struct Trips : Limited<float, 6> {
    std::atomic<bool>* now = nullptr;

    Trips() { most = 3000; }
    void forward(auto& context, auto x, auto y) const {
        if (now && *now) throw std::range_error("now");
        Limited<float, 6>::forward(context, x, y);
    }
};
/// Reads a tensor of the mini-batch that no layer in front has seen, and a number of the step.
struct Heat {
    float value = 1;
};
struct MaskTag; ///< of the side input
struct Masked {
    using Input = gpipe::Tensor<float, 6>;
    using Output = Input;
    using Side = gpipe::SideInput<MaskTag, gpipe::Tensor<int, 6>>;
    using Constants = Heat;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;

    void forward(auto& ctx, auto x, auto y) const { multiply(ctx, x, y); }
    void backward(auto& ctx, auto dy, auto dx) const { multiply(ctx, dy, dx); }

  private:
    static void multiply(auto& ctx, auto from, auto to) {
        auto const mask = gpipe::side<MaskTag>(ctx);
        static_assert(std::is_same_v<decltype(mask.data()), int const*>); // promise P8
        float const heat = gpipe::constant<Heat>(ctx)->value;
        for (std::size_t i = 0; i < from.size(); ++i)
            to.data()[i] = from.data()[i] * (mask.data()[i] ? heat : heat / 2);
    }
};
/// Adds a tensor of the mini-batch, which may come without it.
struct Shifted {
    using Input = gpipe::Tensor<float, 6>;
    using Output = Input;
    using Side = gpipe::SideInput<Shifted, gpipe::Optional<Shifted, gpipe::Tensor<float, 6>>>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;

    void forward(auto& ctx, auto x, auto y) const {
        auto const shift = gpipe::side<Shifted>(ctx);
        for (std::size_t i = 0; i < x.size(); ++i)
            y.data()[i] = x.data()[i] + (shift ? shift.data()[i] : 0.5f);
    }
    void backward(auto&, auto dy, auto dx) const {
        for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = dy.data()[i];
    }
};
struct TogetherFactors; ///< of what is tied
template <class L> using TogetherTied = TiedTo<L, TogetherFactors>;
/// Of all kinds of layers that there are. The tap is no first layer: where that is frozen nothing
/// flows below.
using TogetherNet = gpipe::Pipeline<
    Linear<float, 5, 6>, gpipe::GradientTap<gpipe::Tensor<float, 6>>,
    OfOne<gpipe::SyncBatchNorm<gpipe::Tensor<float, 6>>>, TogetherTied<Give<float, 6, 1>>,
    Dropout<float, 6>, Counter<float, 6>, TogetherTied<Give<float, 6, 3>>, Tanh<float, 6>,
    Linear<float, 6, 6>, Times<float, 6, 3>, Trips, Plus<float, 6, 4>,
    OfOne<gpipe::BatchNorm<gpipe::Tensor<float, 6>, gpipe::RunningStatistics::micro_batch>>,
    Times<float, 6, 2>, StepCounter<float, 6>, Masked, Plus<float, 6, 1>, Masked, Shifted,
    StrictLinear<float, 6, 3>>;
/// A layer of a net which is no constant.
template <class L, std::size_t layer> L& layer_of(TogetherNet& net) {
    constexpr std::size_t leaf = TogetherNet::leaf_of(layer);
    return const_cast<L&>(*static_cast<L const*>(net.leaf_objects()[leaf]));
}
inline Trips& trips_of(TogetherNet& net) { return layer_of<Trips, 10>(net); }
inline auto& tap_of(TogetherNet& net) {
    return layer_of<gpipe::GradientTap<gpipe::Tensor<float, 6>>, 1>(net);
}

/// Random, of so many samples.
struct TogetherData : Data<float> {
    std::vector<int> mask;
    std::vector<float> shift;
    TogetherData(std::size_t samples, std::uint32_t seed)
        : Data<float>(samples, seed), shift(numbers<float>(6 * samples, seed + 500)) {
        for (std::size_t i = 0; i < 6 * samples; ++i) mask.push_back((i * i + seed) % 7 < 4);
    }
    /// `shifts`: whether with what may be absent.
    gpipe::Batch<gpipe::detail::inputs_of<TogetherNet>> batch(bool shifts = true) const {
        if (shifts) return {inputs, mask, shift};
        return {inputs, mask, gpipe::none};
    }
};
/// Calls f(it), or of a crew with each part.
template <class T, class F> void each_part(T& train, F f) {
    if constexpr (requires { train.ranks(); })
        for (std::size_t r = 0; r < train.ranks(); ++r) f(train[r]);
    else
        f(train);
}
/// Sets that number of the next step.
template <class T> void heat(T& train, float value) {
    each_part(train, [&](auto& part) { part.template constant<Heat>().value = value; });
}

} // namespace toy
