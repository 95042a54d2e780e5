#pragma once

#include <gpipe/core/version.hpp>

#include <cmath>
#include <cstdint>
#include <numbers>

/// Learning rates over a training, as values: rate(step) is that of the step after `step` others,
/// for `train.optimizer().learning_rate = curve.rate(train.steps())` before each.
namespace gpipe::rates {

/// Always the same.
struct Constant {
    double value = 1e-3; ///< the rate

    /// Of the step after so many others.
    float rate(std::uint64_t) const { return static_cast<float>(value); }
};

/// From one to another, in a straight line over so many steps, and then that.
struct Linear {
    double first = 1e-3;        ///< of the first step
    double last = 0;            ///< from `steps` on
    std::uint64_t steps = 1000; ///< on the way

    /// Of the step after so many others.
    float rate(std::uint64_t step) const {
        double const way =
            step < steps ? static_cast<double>(step) / static_cast<double>(steps) : 1;
        return static_cast<float>(first + (last - first) * way);
    }
};

/// Falls by a factor every so many steps.
struct Steps {
    double first = 1e-3;        ///< of the first step
    double factor = 0.1;        ///< at each fall
    std::uint64_t every = 1000; ///< steps between two falls; 0: it never falls

    /// Of the step after so many others.
    float rate(std::uint64_t step) const {
        auto const falls = every > 0 ? static_cast<double>(step / every) : 0;
        return static_cast<float>(first * std::pow(factor, falls));
    }
};

/// A straight warm-up of the first `warm_up` steps, times half a cosine over all `steps`, from
/// `peak` down to the share `last` of it (Loshchilov and Hutter, 2017), and then that.
struct WarmUpCosine {
    double peak = 1e-3;   ///< what the cosine starts from
    double warm_up = 100; ///< the rate of step s is multiplied by (s + 1) / warm_up until that is 1
    std::uint64_t steps = 1000; ///< of half a cosine
    double last = 0.01;         ///< share of the peak from then on

    /// Of the step after so many others.
    float rate(std::uint64_t step) const {
        double const done = static_cast<double>(step) + 1;
        double const way =
            step < steps ? static_cast<double>(step) / static_cast<double>(steps) : 1;
        double const cosine = (1 + last) / 2 + (1 - last) / 2 * std::cos(std::numbers::pi * way);
        return static_cast<float>(peak * (done < warm_up ? done / warm_up : 1) * cosine);
    }
};

/// One curve for so many steps, and behind it another, which begins there, as PyTorch's
/// SequentialLR: Then{Linear{.first = 0, .last = 1e-3, .steps = 100}, 100, WarmUpCosine{...}}.
template <class First, class Next> struct Then {
    First first{};              ///< of the first steps
    std::uint64_t steps = 1000; ///< how many these are
    Next next{};                ///< of its step s at step `steps` + s

    /// Of the step after so many others.
    float rate(std::uint64_t step) const {
        return step < steps ? first.rate(step) : next.rate(step - steps);
    }
};
/// As its members are given.
template <class First, class Next> Then(First, std::uint64_t, Next) -> Then<First, Next>;

} // namespace gpipe::rates
