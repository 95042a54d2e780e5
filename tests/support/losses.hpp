#pragma once

#include "watch.hpp"

#include <gpipe/layer/loss.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace toy {

/// The square of the distance, summed; the weight is the number of samples. One metric: the sum of
/// |y - t|. Uses its scratch.
template <class T, std::size_t N> struct MeanSquare {
    using Target = gpipe::Tensor<T, N>;
    using Scratch = gpipe::Tensor<T, N>;
    static constexpr bool accepts_none = true;
    Watch* watch = nullptr;

    gpipe::LossValue<1> operator()(auto& ctx, auto y, auto target, auto dy) const {
        if (watch)
            watch->enter({Watch::loss, ctx.first_sample(), ctx.samples(),
                          ctx.training() ? Phase::backward : Phase::evaluate, false, ctx.training(),
                          !gpipe::is_none<decltype(dy)>});
        auto difference = ctx.scratch();
        gpipe::LossValue<1> value;
        value.weight = double(ctx.samples());
        for (std::size_t i = 0; i < y.size(); ++i)
            difference.data()[i] = y.data()[i] - target.data()[i];
        for (std::size_t i = 0; i < y.size(); ++i) {
            T const d = difference.data()[i];
            value.sum += double(d * d);
            value.metric[0] += double(std::abs(d));
            if constexpr (!gpipe::is_none<decltype(dy)>) dy.data()[i] = 2 * d;
        }
        return value;
    }
};

/// Cross-entropy over N classes. A target is a class, or negative: ignored; class c weighs 1 + c.
/// Takes no gpipe::none for the gradient, so that an evaluation has to give it room.
template <class T, std::size_t N> struct CrossEntropy {
    using Target = gpipe::Tensor<std::int32_t>;

    gpipe::LossValue<> operator()(auto&, auto y, auto target, gpipe::BatchView<T, N> dy) const {
        gpipe::LossValue<> value;
        for (std::size_t s = 0; s < y.samples(); ++s) {
            std::int32_t const c = target(s);
            double const weight = c < 0 ? 0.0 : 1.0 + c;
            T top = y(s, 0);
            for (std::size_t i = 1; i < N; ++i) top = y(s, i) > top ? y(s, i) : top;
            T sum = 0;
            for (std::size_t i = 0; i < N; ++i) sum += std::exp(y(s, i) - top);
            for (std::size_t i = 0; i < N; ++i)
                dy(s, i) = static_cast<T>(weight) * (std::exp(y(s, i) - top) / sum -
                                                     (static_cast<std::int32_t>(i) == c ? 1 : 0));
            if (c < 0) continue;
            value.sum += weight * double(std::log(sum) + top - y(s, std::size_t(c)));
            value.weight += weight;
        }
        return value;
    }
};

} // namespace toy
