#pragma once

// A net through which a tensor goes that may be absent: at boundaries, past layers, and as it comes
// into the chain where it is read; and the same net with that tensor always there, and never.

#include "layers.hpp"
#include "losses.hpp"
#include "net.hpp"

#include <gpipe/gpipe.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace toy {

struct HintTag;  // of the optional tensors
struct HintSide; // of the side input
struct HintSkip; // of the skip

template <class T> using Hint = Tensor<T, 4>;
using Marks = Tensor<std::int32_t, 2>;
/// What the tensor is: one that may be absent, that is always there, that never is.
template <class T> struct Maybe {
    using type = gpipe::Optional<HintTag, Hint<T>>;
    using side = gpipe::Optional<HintTag, Marks>;
};
template <class T> struct There {
    using type = Hint<T>;
    using side = Marks;
};
template <class T> struct Gone {};

/// A with it beside.
template <class A, class How> struct WithHint {
    using type = gpipe::Tensors<A, typename How::type>;
};
template <class A, class T> struct WithHint<A, Gone<T>> { using type = A; };

template <class View> auto own(View view) {
    if constexpr (requires { gpipe::get<0>(view); })
        return gpipe::get<0>(view);
    else
        return view;
}
/// gpipe::none if it never is there.
template <class View> auto hint(View view) {
    if constexpr (requires { gpipe::get<1>(view); })
        return gpipe::get<1>(view);
    else
        return gpipe::none;
}
template <class View> bool is_there(View const& view) {
    if constexpr (gpipe::is_none<View>)
        return false;
    else if constexpr (requires { static_cast<bool>(view); })
        return static_cast<bool>(view);
    else
        return true;
}

/// y = w x + p hint, and the hint becomes 2 hint + q.
template <class T, std::size_t in, std::size_t out, class How> struct Hinted {
    using Input = typename WithHint<Tensor<T, in>, How>::type;
    using Output = typename WithHint<Tensor<T, out>, How>::type;
    using Parameters = gpipe::Tensors<Tensor<T, out, in>, Tensor<T, 2>>;

    void initialize(auto& ctx) const {
        auto random = ctx.random(0);
        auto const [w, p] = ctx.parameters();
        for (T& value : w) value = static_cast<T>(random.normal()) / 2;
        p[0] = T(0.5);
        p[1] = T(0.25);
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const [w, p] = ctx.parameters();
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            for (std::size_t i = 0; i < out; ++i) {
                T sum = 0;
                for (std::size_t j = 0; j < in; ++j) sum += w(i, j) * own(x)(s, j);
                if constexpr (!std::is_same_v<How, Gone<T>>)
                    if (is_there(hint(x))) sum += p(0) * hint(x)(s, i % 4);
                own(y)(s, i) = sum;
            }
        if constexpr (!std::is_same_v<How, Gone<T>>)
            for (std::size_t i = 0; i < hint(x).size(); ++i)
                hint(y).data()[i] = 2 * hint(x).data()[i] + p(1);
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto const [w, p] = ctx.parameters();
        auto const [dw, dp] = ctx.gradients();
        if constexpr (!std::is_same_v<How, Gone<T>>)
            for (std::size_t i = 0; i < hint(dy).size(); ++i) {
                dp(1) += hint(dy).data()[i];
                hint(dx).data()[i] = 2 * hint(dy).data()[i];
            }
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            for (std::size_t j = 0; j < in; ++j) own(dx)(s, j) = 0;
            for (std::size_t i = 0; i < out; ++i) {
                T const d = own(dy)(s, i);
                for (std::size_t j = 0; j < in; ++j) {
                    dw(i, j) += d * own(x)(s, j);
                    own(dx)(s, j) += d * w(i, j);
                }
                if constexpr (!std::is_same_v<How, Gone<T>>)
                    if (is_there(hint(x))) {
                        dp(0) += d * hint(x)(s, i % 4);
                        hint(dx)(s, i % 4) += p(0) * d;
                    }
            }
        }
    }
};

/// What of the hint leaves the way to go past layers.
template <class How> struct Stashes { using Stash = gpipe::Skip<HintSkip, typename How::type>; };
template <class T> struct Stashes<Gone<T>> {};
template <class How> struct Pops {
    using Pop = gpipe::Skip<HintSkip, typename How::type>;
    using Side = gpipe::SideInput<HintSide, typename How::side>;
};
template <class T> struct Pops<Gone<T>> {};

/// y = x x / 2, and the hint goes past layers.
template <class T, class How> struct Parting : Stashes<How> {
    using Input = typename WithHint<Tensor<T, 6>, How>::type;
    using Output = Tensor<T, 6>;
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t i = 0; i < y.size(); ++i)
            y.data()[i] = own(x).data()[i] * own(x).data()[i] / 2;
        if constexpr (!std::is_same_v<How, Gone<T>>) {
            auto const away = gpipe::stash<HintSkip>(ctx);
            for (std::size_t i = 0; i < away.size(); ++i) away.data()[i] = hint(x).data()[i];
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        for (std::size_t i = 0; i < dy.size(); ++i)
            own(dx).data()[i] = own(x).data()[i] * dy.data()[i];
        if constexpr (!std::is_same_v<How, Gone<T>>) {
            auto const back = gpipe::stash_gradient<HintSkip>(ctx);
            for (std::size_t i = 0; i < back.size(); ++i) hint(dx).data()[i] = back.data()[i];
        }
    }
};
/// y = x (1 + marks) + hint, with the hint that went past.
template <class T, class How> struct Rejoining : Pops<How> {
    using Input = Tensor<T, 6>;
    using Output = Input;
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 6; ++i) {
                y(s, i) = x(s, i) * factor(ctx, s, i);
                if constexpr (!std::is_same_v<How, Gone<T>>)
                    if (auto const popped = gpipe::pop<HintSkip>(ctx); is_there(popped))
                        y(s, i) += popped(s, i % 4);
            }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 6; ++i) dx(s, i) = dy(s, i) * factor(ctx, s, i);
        if constexpr (!std::is_same_v<How, Gone<T>>)
            if (auto const back = gpipe::pop_gradient<HintSkip>(ctx); is_there(back)) {
                for (T& value : back) value = 0;
                for (std::size_t s = 0; s < x.samples(); ++s)
                    for (std::size_t i = 0; i < 6; ++i) back(s, i % 4) += dy(s, i);
            }
    }

  private:
    static T factor([[maybe_unused]] auto& ctx, [[maybe_unused]] std::size_t s,
                    [[maybe_unused]] std::size_t i) {
        if constexpr (!std::is_same_v<How, Gone<T>>)
            if (auto const marks = gpipe::side<HintSide>(ctx); is_there(marks))
                return 1 + static_cast<T>(marks(s, i % 2)) / 8;
        return 1;
    }
};

/// With layers as Wrap makes them.
template <class T, class How, template <class> class Wrap>
using HintedNetOf =
    gpipe::Pipeline<Wrap<Hinted<T, 5, 6, How>>, Wrap<Hinted<T, 6, 6, How>>, Wrap<Parting<T, How>>,
                    Wrap<Tanh<T, 6>>, Wrap<Rejoining<T, How>>, Wrap<Linear<T, 6, 3>>>;
template <class L> using AsItIs = L;
template <class T, class How> using HintedNet = HintedNetOf<T, How, AsItIs>;

struct WeightTag;
/// Squares, weighed by a target that may be absent.
template <class T> struct Weighted {
    using Target = gpipe::Tensors<Tensor<T, 3>, gpipe::Optional<WeightTag, Tensor<T>>>;
    gpipe::LossValue<1> operator()(auto& ctx, auto y, auto target, auto dy) const {
        auto const& [wanted, weights] = target;
        gpipe::LossValue<1> value;
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            T const weight = weights ? weights(s) : T(1);
            for (std::size_t i = 0; i < 3; ++i) {
                T const off = y(s, i) - wanted(s, i);
                value.sum += static_cast<double>(weight * off * off);
                if constexpr (!gpipe::is_none<decltype(dy)>) dy(s, i) = 2 * weight * off;
            }
            value.weight += static_cast<double>(weight);
        }
        return value;
    }
};
/// A mini-batch for any of them: `with` says whether one that may be absent is there.
template <class T> struct HintedData {
    std::vector<T> inputs, hints, targets;
    std::vector<std::int32_t> marks;

    explicit HintedData(std::size_t samples, std::uint32_t seed = 1)
        : inputs(numbers<T>(samples * 5, seed)), hints(numbers<T>(samples * 4, seed + 500)),
          targets(numbers<T>(samples * 3, seed + 1000)), marks(samples * 2) {
        for (std::size_t i = 0; i < marks.size(); ++i)
            marks[i] = static_cast<std::int32_t>((i * 7 + seed) % 5) - 2;
    }
    template <class Train> gpipe::Batch<typename Train::Input> batch(bool with) const {
        using Batch = gpipe::Batch<typename Train::Input>;
        if constexpr (Batch::count == 1)
            return {inputs};
        else if constexpr (!Batch::may_lack)
            return {inputs, hints, marks};
        else
            return with ? Batch{inputs, hints, marks} : Batch{inputs, gpipe::none, gpipe::none};
    }
};

} // namespace toy
