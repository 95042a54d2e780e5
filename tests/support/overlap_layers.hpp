#pragma once

// Layers and a loss for steps that overlap.

#include "net.hpp"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <thread>

namespace toy {

/// Two layers that meet: the second ends its part of the first step, of so many samples, only when
/// the first has begun the next.
struct Overlap {
    std::size_t samples = 0;
    int first_step = 4; // forwards
    int seconds = 3;    // that the second waits for the first
    std::atomic<int> forwards{0};
    std::atomic<bool> met{false};
};
struct FirstToMeet : Linear<float, 2, 2> {
    Overlap* meeting = nullptr;
    void forward(auto& ctx, auto x, auto y) const {
        ++meeting->forwards;
        Linear<float, 2, 2>::forward(ctx, x, y);
    }
};
struct SecondToMeet : Linear<float, 2, 2> {
    Overlap* meeting = nullptr;
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        Linear<float, 2, 2>::weight_gradient(ctx, x, dy);
        if (ctx.state()->step > 0 || ctx.first_sample() + ctx.samples() < meeting->samples) return;
        auto const deadline =
            std::chrono::steady_clock::now() + std::chrono::seconds(meeting->seconds);
        while (meeting->forwards <= meeting->first_step &&
               std::chrono::steady_clock::now() < deadline)
            std::this_thread::yield();
        meeting->met = meeting->forwards > meeting->first_step;
    }
};

/// Of large targets the value is infinite, or, of larger ones, the gradient alone; of negative ones
/// there is no weight.
struct Spoils {
    using Target = gpipe::Tensor<float, 3>;
    gpipe::LossValue<> operator()(auto&, auto y, auto target, auto dy) const {
        double sum = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
            float const aims = target.data()[i], off = y.data()[i] - aims;
            sum += aims > 1000 ? 1 : aims > 100 ? HUGE_VAL : double{off * off};
            if constexpr (!gpipe::is_none<decltype(dy)>)
                dy.data()[i] = aims > 1000 ? HUGE_VALF : 2 * off;
        }
        return {sum, target.data()[0] < -100 ? 0 : static_cast<double>(y.samples())};
    }
};

} // namespace toy
