#pragma once

// Layers that read side inputs; and the same with these tensors carried through the chain, as part
// of every boundary.

#include "layers.hpp"
#include "losses.hpp"
#include "net.hpp"

#include <gpipe/pipeline.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace toy {

struct MaskTag;
struct PlaceTag;
using MaskTensor = Tensor<std::int32_t, 6>;
using PlaceTensor = Tensor<float>;
using Mask = gpipe::SideInput<MaskTag, MaskTensor>;
using Place = gpipe::SideInput<PlaceTag, PlaceTensor>;

/// A layer whose weight gradient takes longer than what else there is to do.
inline std::atomic<std::size_t> slow_masked = static_cast<std::size_t>(-1);

/// y = w x mask. Its backward comes in halves, which both read the mask.
template <class T> struct MaskedBody {
    using Input = Tensor<T, 6>;
    using Output = Input;
    using Parameters = Tensor<T, 6>;
    using Side = Mask;

    static void initialize(auto& ctx) {
        for (std::size_t i = 0; i < 6; ++i) ctx.parameters()[i] = static_cast<T>(3 + i) / 4;
    }
    static void forward(auto& ctx, auto x, auto y, auto mask, auto) {
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 6; ++i)
                y(s, i) = ctx.parameters()(i) * x(s, i) * static_cast<T>(mask(s, i));
    }
    static void input_gradient(auto& ctx, auto, auto dy, auto dx, auto mask, auto) {
        for (std::size_t s = 0; s < dy.samples(); ++s)
            for (std::size_t i = 0; i < 6; ++i)
                dx(s, i) = ctx.parameters()(i) * dy(s, i) * static_cast<T>(mask(s, i));
    }
    static void weight_gradient(auto& ctx, auto x, auto dy, auto mask, auto) {
        if (ctx.layer() == slow_masked) std::this_thread::sleep_for(std::chrono::microseconds(300));
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 6; ++i)
                ctx.gradients()(i) += x(s, i) * dy(s, i) * static_cast<T>(mask(s, i));
    }
};
/// y = x^2 / 2 place + mask / 8.
template <class T> struct PlacedBody {
    using Input = Tensor<T, 6>;
    using Output = Input;
    using Side = gpipe::SideInputs<Place, Mask>;

    static void forward(auto&, auto x, auto y, auto mask, auto place) {
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 6; ++i)
                y(s, i) = x(s, i) * x(s, i) / 2 * T(place(s)) + static_cast<T>(mask(s, i)) / 8;
    }
    static void input_gradient(auto&, auto x, auto dy, auto dx, auto, auto place) {
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 6; ++i) dx(s, i) = x(s, i) * T(place(s)) * dy(s, i);
    }
    static void weight_gradient(auto&, auto, auto, auto, auto) {}
};
/// L, which reads none, and in backward its input.
template <class L> struct Unaware : L {
    static void forward(auto& ctx, auto x, auto y, auto, auto) { L{}.forward(ctx, x, y); }
    static void input_gradient(auto& ctx, auto x, auto dy, auto dx, auto, auto) {
        if constexpr (gpipe::splits_backward<L>)
            L{}.input_gradient(ctx, x, dy, dx);
        else
            L{}.backward(ctx, x, dy, dx);
    }
    static void weight_gradient(auto& ctx, auto x, auto dy, auto, auto) {
        if constexpr (gpipe::splits_backward<L>) L{}.weight_gradient(ctx, x, dy);
    }
};
/// tanh in so many words.
template <class T> struct Bent {
    using Input = Tensor<T, 6>;
    using Output = Input;
    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = std::tanh(x.data()[i]);
    }
    void backward(auto&, auto x, auto dy, auto dx) const {
        for (std::size_t i = 0; i < x.size(); ++i) {
            T const v = std::tanh(x.data()[i]);
            dx.data()[i] = dy.data()[i] * (1 - v * v);
        }
    }
};

/// What a body declares, as a layer.
template <class Body> struct Bodied {
    using Input = typename Body::Input;
    using Output = typename Body::Output;
};
template <class Body>
    requires requires { typename Body::Parameters; }
struct Bodied<Body> {
    using Input = typename Body::Input;
    using Output = typename Body::Output;
    using Parameters = typename Body::Parameters;
    void initialize(auto& ctx) const { Body{}.initialize(ctx); }
};

/// The body as a layer that reads side inputs.
template <class Body> struct BySide : Bodied<Body> {
    using Side = typename Body::Side;
    static auto mask(auto& ctx) { return gpipe::side<MaskTag>(ctx); }
    static auto place(auto& ctx) {
        if constexpr (std::is_same_v<Side, Mask>)
            return gpipe::none;
        else
            return gpipe::side<PlaceTag>(ctx);
    }
    void forward(auto& ctx, auto x, auto y) const {
        Body::forward(ctx, x, y, mask(ctx), place(ctx));
    }
    void input_gradient(auto& ctx, auto x, auto dy, auto dx) const {
        Body::input_gradient(ctx, x, dy, dx, mask(ctx), place(ctx));
    }
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        Body::weight_gradient(ctx, x, dy, mask(ctx), place(ctx));
    }
};
template <class L> struct BySide<Unaware<L>> : L {};
/// The same with both carried along.
template <class Body> struct CarriedBy : Bodied<Body> {
    using Input = gpipe::Tensors<typename Body::Input, MaskTensor, PlaceTensor>;
    using Output = gpipe::Tensors<typename Body::Output, MaskTensor, PlaceTensor>;
    void forward(auto& ctx, auto x, auto y) const {
        auto const& [own, mask, place] = x;
        Body::forward(ctx, own, gpipe::get<0>(y), mask, place);
        for (std::size_t i = 0; i < mask.size(); ++i) gpipe::get<1>(y).data()[i] = mask.data()[i];
        for (std::size_t i = 0; i < place.size(); ++i) gpipe::get<2>(y).data()[i] = place.data()[i];
    }
    void input_gradient(auto& ctx, auto x, auto dy, auto dx) const {
        auto const& [own, mask, place] = x;
        Body::input_gradient(ctx, own, gpipe::get<0>(dy), gpipe::get<0>(dx), mask, place);
        for (std::size_t i = 0; i < place.size(); ++i)
            gpipe::get<2>(dx).data()[i] = gpipe::get<2>(dy).data()[i];
    }
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        auto const& [own, mask, place] = x;
        Body::weight_gradient(ctx, own, gpipe::get<0>(dy), mask, place);
    }
};
/// The last layer drops them.
template <class L> struct Drops : L {
    using Input = gpipe::Tensors<typename L::Input, MaskTensor, PlaceTensor>;
    static constexpr bool accepts_none = false;
    void forward(auto& ctx, auto x, auto y) const { L::forward(ctx, gpipe::get<0>(x), y); }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        weight_gradient(ctx, x, dy);
        input_gradient(ctx, x, dy, dx);
    }
    void input_gradient(auto& ctx, auto x, auto dy, auto dx) const {
        L::input_gradient(ctx, gpipe::get<0>(x), dy, gpipe::get<0>(dx));
        for (std::size_t s = 0; s < dy.samples(); ++s) gpipe::get<2>(dx)(s) = 0;
    }
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        L::weight_gradient(ctx, gpipe::get<0>(x), dy);
    }
};
/// A layer of these tensors that reads none, to be planned beside the others.
template <class Body> struct Sideless : Bodied<Body> {
    void forward(auto&, auto, auto) const {}
    void input_gradient(auto&, auto, auto, auto) const {}
    void weight_gradient(auto&, auto, auto) const {}
};
template <class L> struct Sideless<Unaware<L>> : L {};

template <class T, template <class> class In, class First, class Last>
using MaskedNetOf =
    gpipe::Pipeline<First, In<MaskedBody<T>>, In<Unaware<Bent<T>>>, In<PlacedBody<T>>,
                    In<Unaware<Bent<T>>>, In<MaskedBody<T>>, In<PlacedBody<T>>, Last>;
/// BySide in another wrapper.
template <template <class> class On> struct BySideOn {
    template <class Body> using In = On<BySide<Body>>;
};
template <class T> using MaskedNet = MaskedNetOf<T, BySide, Linear<T, 5, 6>, Linear<T, 6, 3>>;
template <class T>
using CarriedNet =
    MaskedNetOf<T, CarriedBy, CarriedBy<Unaware<Linear<T, 5, 6>>>, Drops<Linear<T, 6, 3>>>;
template <class T> using SidelessNet = MaskedNetOf<T, Sideless, Linear<T, 5, 6>, Linear<T, 6, 3>>;

/// With side inputs.
template <class T> struct MaskedData : Data<T> {
    std::vector<std::int32_t> mask;
    std::vector<float> place;
    explicit MaskedData(std::size_t samples, std::uint32_t seed = 1)
        : Data<T>(samples, seed), place(numbers<float>(samples, seed + 7)) {
        for (float const x : numbers<float>(samples * 6, seed + 13))
            mask.push_back(static_cast<std::int32_t>((x + 1) * 1.5f));
    }
    /// As a training takes them.
    template <class Train> gpipe::Batch<typename Train::Input> batch() const {
        return {this->inputs, mask, place};
    }
};

} // namespace toy
