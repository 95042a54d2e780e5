#pragma once

#include "gpt/math.hpp"

#include <gpipe/layer/loss.hpp>
#include <gpipe/layer/tensor.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpt {

/// The mean of -log softmax(y)[target] over the tokens, in nats; a target of -1 is ignored. The
/// metric is the number of tokens whose target got the greatest logit. Only the first `classes`
/// logits take part. Throws std::out_of_range for any other target that is no class.
template <class T, std::size_t context, std::size_t vocabulary> struct CrossEntropy {
    using Target = gpipe::Tensor<std::int32_t, context>;

    std::size_t classes = vocabulary;

    template <class DY>
    gpipe::LossValue<1>
    operator()([[maybe_unused]] auto& ctx, gpipe::BatchView<T const, context, vocabulary> y,
               gpipe::BatchView<std::int32_t const, context> target, [[maybe_unused]] DY dy) const {
        gpipe::LossValue<1> value;
        for (std::size_t row = 0; row < y.samples() * context; ++row) {
            T const* const logits = y.data() + row * vocabulary;
            T* gradient = nullptr;
            if constexpr (!gpipe::is_none<DY>)
                if (ctx.training()) gradient = dy.data() + row * vocabulary;
            std::int32_t const wanted = target[row / context][row % context];
            if (wanted == -1) {
                for (std::size_t i = 0; gradient && i < vocabulary; ++i) gradient[i] = 0;
                continue;
            }
            std::size_t const answer = index(wanted);
            T exponentials[vocabulary + lanes]; // room for whole lanes
            T const most = most_of(logits, classes);
            for (std::size_t i = 0; i < classes; ++i)
                exponentials[i] = exponential(logits[i] - most);
            T const sum = sum_over(classes, [&](std::size_t i) { return exponentials[i]; });
            value.sum += static_cast<double>(most - logits[answer] + std::log(sum));
            value.weight += 1;
            value.metric[0] += logits[answer] == most ? 1 : 0;
            if (!gradient) continue;
            T const factor = T{1} / sum;
            for (std::size_t i = 0; i < classes; ++i) gradient[i] = exponentials[i] * factor;
            for (std::size_t i = classes; i < vocabulary; ++i) gradient[i] = 0;
            gradient[answer] -= T{1};
        }
        return value;
    }

  private:
    std::size_t index(std::int32_t target) const {
        if (target < 0 || static_cast<std::size_t>(target) >= classes)
            throw std::out_of_range("gpt: target " + std::to_string(target) + " is none of the " +
                                    std::to_string(classes) + " classes");
        return static_cast<std::size_t>(target);
    }
};

} // namespace gpt
