#pragma once

// A net with all kinds of layers that there are, and what it is trained on.

#include "buffer_layers.hpp"
#include "exchange_layers.hpp"
#include "net.hpp"
#include "skip_layers.hpp"

#include <gpipe/layer/batch.hpp>
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
struct TogetherFactors; ///< of what is tied
template <class L> using TogetherTied = TiedTo<L, TogetherFactors>;
/// Of all kinds of layers that there are.
using TogetherNet = gpipe::Pipeline<
    Linear<float, 5, 6>, OfOne<gpipe::SyncBatchNorm<gpipe::Tensor<float, 6>>>,
    TogetherTied<Give<float, 6, 1>>, Dropout<float, 6>, Counter<float, 6>,
    TogetherTied<Give<float, 6, 3>>, Tanh<float, 6>, Linear<float, 6, 6>, Times<float, 6, 3>, Trips,
    Plus<float, 6, 4>,
    OfOne<gpipe::BatchNorm<gpipe::Tensor<float, 6>, gpipe::RunningStatistics::micro_batch>>,
    Times<float, 6, 2>, StepCounter<float, 6>, Masked, Plus<float, 6, 1>, Masked,
    StrictLinear<float, 6, 3>>;
inline constexpr std::size_t trips = 9; ///< where that stands
/// That of a net which is no constant.
inline Trips& trips_of(TogetherNet& net) {
    constexpr std::size_t leaf = TogetherNet::leaf_of(trips);
    return const_cast<Trips&>(*static_cast<Trips const*>(net.leaf_objects()[leaf]));
}

/// Random, of so many samples.
struct TogetherData : Data<float> {
    std::vector<int> mask;
    TogetherData(std::size_t samples, std::uint32_t seed) : Data<float>(samples, seed) {
        for (std::size_t i = 0; i < 6 * samples; ++i) mask.push_back((i * i + seed) % 7 < 4);
    }
    gpipe::Batch<gpipe::detail::inputs_of<TogetherNet>> batch() const { return {inputs, mask}; }
};
/// Sets that number of the next step, in all parts of a crew.
template <class T> void heat(T& train, float value) {
    if constexpr (requires { train.ranks(); })
        for (std::size_t r = 0; r < train.ranks(); ++r)
            train[r].template constant<Heat>().value = value;
    else
        train.template constant<Heat>().value = value;
}

} // namespace toy
