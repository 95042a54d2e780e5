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

/// Layer L, which throws when it is told to, at once, whatever L puts on a stream.
template <class L> struct Trips : L {
    std::atomic<bool>* now = nullptr;

    Trips() { this->most = 3000; }
    void forward(auto& context, auto x, auto y) const {
        if (now && *now) throw std::range_error("now");
        L::forward(context, x, y);
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
/// Of all kinds of layers that there are, each wrapped in W. The tap is no first layer: where that
/// is frozen nothing flows below.
template <template <class> class W>
using TogetherNetOf = gpipe::Pipeline<
    W<Linear<float, 5, 6>>, W<gpipe::GradientTap<gpipe::Tensor<float, 6>>>,
    W<OfOne<gpipe::SyncBatchNorm<gpipe::Tensor<float, 6>>>>, W<TogetherTied<Give<float, 6, 1>>>,
    W<Dropout<float, 6>>, W<Counter<float, 6>>, W<TogetherTied<Give<float, 6, 3>>>,
    W<Tanh<float, 6>>, W<Linear<float, 6, 6>>, W<Times<float, 6, 3>>, Trips<W<Limited<float, 6>>>,
    W<Plus<float, 6, 4>>,
    W<OfOne<gpipe::BatchNorm<gpipe::Tensor<float, 6>, gpipe::RunningStatistics::micro_batch>>>,
    W<Times<float, 6, 2>>, W<StepCounter<float, 6>>, W<Masked>, W<Plus<float, 6, 1>>, W<Masked>,
    W<Shifted>, W<StrictLinear<float, 6, 3>>>;
using TogetherNet = TogetherNetOf<Bare>;
/// A layer of such a net which is no constant.
template <std::size_t layer, class Net> auto& layer_of(Net& net) {
    using L = typename Net::template Layer<layer>;
    return const_cast<L&>(*static_cast<L const*>(net.leaf_objects()[Net::leaf_of(layer)]));
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
/// Calls f(it), or of a crew with all parts at once.
template <class T, class F> void each_part(T& train, F f) {
    if constexpr (requires { train.ranks(); }) {
        train.each([&](std::size_t r) { f(train[r]); });
        train.rethrow();
    } else {
        f(train);
    }
}

} // namespace toy
