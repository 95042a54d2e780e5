#pragma once

#include "gpt/math.hpp"
#include "gpt/operations.hpp"

#include <gpipe/core/host_device.hpp>
#include <gpipe/layer/loss.hpp>
#include <gpipe/layer/tensor.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpt {

namespace detail {

// One row: its loss, its weight and whether it is right; the gradient, unless that is null.
template <std::size_t vocabulary, class T> struct CrossEntropyRow {
    std::size_t classes;
    T const* y;
    std::int32_t const* target;
    T* dy;
    double* terms;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        T const* const logits = y + row * vocabulary;
        T* const gradient = dy ? dy + row * vocabulary : nullptr;
        double* const to = terms + 3 * row;
        std::int32_t const wanted = target[row];
        auto const answer = static_cast<std::size_t>(wanted);
        if (answer >= classes) { // ignored if -1; another one the host has refused
            if (gradient) team.map(vocabulary, gradient, [](std::size_t) { return Real<T>{0}; });
            team.once([=] {
                to[0] = wanted == -1 ? 0 : static_cast<double>(NAN);
                to[1] = to[2] = 0;
            });
            return;
        }
        using R = Real<T>;
        R const most = team.most(logits, classes);
        R const sum = team.sum(
            classes, [=](std::size_t, R logit) { return exponential(logit - most); }, logits);
        team.once([=] {
            R const logit = real(logits[answer]);
            to[0] = static_cast<double>(most - logit + std::log(sum));
            to[1] = 1;
            to[2] = logit == most ? 1 : 0;
        });
        if (!gradient) return;
        R const factor = R{1} / sum;
        auto const share = [=](R logit) { return exponential(logit - most) * factor; };
        if constexpr (Team::alone) { // which vectorises
            team.map(
                classes, gradient, [=](std::size_t, R logit) { return share(logit); }, logits);
            gradient[answer] -= R{1};
        } else {
            team.map(
                classes, gradient,
                [=](std::size_t i, R logit) { return share(logit) - (i == answer ? R{1} : R{0}); },
                logits);
        }
        team.map(vocabulary - classes, gradient + classes, [](std::size_t) { return R{0}; });
    }
};

} // namespace detail

/// The mean of -log softmax(y)[target] over the tokens, in nats; a target of -1 is ignored. The
/// metric is the number of tokens whose target got the greatest logit. Only the first `classes`
/// logits take part. Throws std::out_of_range for any other target that is no class; on a GPU,
/// which cannot, the loss is then no number.
template <class T, std::size_t context, std::size_t vocabulary, class Operations = HostOperations>
struct CrossEntropy {
    using Target = gpipe::Tensor<std::int32_t, context>;
    /// Of each token: loss, weight, right or not.
    using Scratch = gpipe::Tensor<double, context, 3>;
    static constexpr std::size_t metrics = 1;

    std::size_t classes = vocabulary;

    void operator()(auto& ctx, gpipe::BatchView<T const, context, vocabulary> y,
                    gpipe::BatchView<std::int32_t const, context> target,
                    gpipe::BatchView<T, context, vocabulary> dy) const {
        auto const on = Operations::on(ctx);
        double* const terms = ctx.scratch().data();
        on.check(target.size(), [this, target](std::size_t i) { check(target.data()[i]); });
        on.for_each_row(target.size(), vocabulary,
                        detail::CrossEntropyRow<vocabulary, T>{classes, y.data(), target.data(),
                                                               ctx.training() ? dy.data() : nullptr,
                                                               terms});
        on.sum_columns(target.size(), 3, ctx.value().data(), false, Itself{}, terms);
    }

  private:
    void check(std::int32_t target) const {
        if (target < -1 || (target >= 0 && static_cast<std::size_t>(target) >= classes))
            throw std::out_of_range("gpt: target " + std::to_string(target) + " is none of the " +
                                    std::to_string(classes) + " classes");
    }
};

} // namespace gpt
