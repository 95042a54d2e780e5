#pragma once

// The layers of layers.hpp and the loss MeanSquare as a CUDA user writes them: every call enqueues
// kernels. On a device that does work when it is called a kernel is a loop, so that these layers
// are compared bit by bit with the plain ones without a GPU, too; see kernels.cuh.

#include "bodies.hpp"
#include "host_result.hpp"
#include "layers.hpp"
#include "losses.hpp"
#include "net.hpp"
#include "watch.hpp"

#include <gpipe/pipeline.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace toy {

namespace body {

/// Where a kernel that is a loop begins: its indices have no order. Even numbers go up from there,
/// odd ones down.
inline std::size_t first_index = 0;

/// A kernel that is a loop. Layers find this, or that for their stream, by the body's namespace.
template <class Stream, class Body>
void launch(Stream const&, std::size_t count, Body const& body) {
    for (std::size_t n = 0; n < count; ++n) {
        std::size_t const i = (first_index + n) % count;
        body(first_index % 2 ? count - 1 - i : i);
    }
}

} // namespace body

namespace kernel {

template <class T, std::size_t In, std::size_t Out> struct Linear : toy::Linear<T, In, Out> {
    void forward(auto& ctx, auto x, auto y) const {
        auto [w, b] = ctx.parameters();
        launch(ctx.stream(), y.size(),
               body::LinearForward<T, In, Out>{w.data(), b.data(), x.data(), y.data()});
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        weight_gradient(ctx, x, dy);
        input_gradient(ctx, x, dy, dx);
    }
    void input_gradient(auto& ctx, auto, auto dy, auto dx) const {
        if constexpr (!gpipe::is_none<decltype(dx)>)
            launch(ctx.stream(), dx.size(),
                   body::LinearBackward<T, In, Out>{gpipe::get<0>(ctx.parameters()).data(),
                                                    dy.data(), dx.data()});
    }
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        using Gradients = body::LinearGradients<T, In, Out>;
        auto [dw, db] = ctx.gradients();
        launch(ctx.stream(), Gradients::count,
               Gradients{x.samples(), x.data(), dy.data(), dw.data(), db.data()});
    }
};

template <class T, std::size_t In, std::size_t Out> struct StrictLinear : Linear<T, In, Out> {
    static constexpr bool accepts_none = false;
    void backward(auto& ctx, auto x, auto dy, gpipe::BatchView<T, In> dx) const {
        Linear<T, In, Out>::backward(ctx, x, dy, dx);
    }
    void input_gradient(auto& ctx, auto x, auto dy, gpipe::BatchView<T, In> dx) const {
        Linear<T, In, Out>::input_gradient(ctx, x, dy, dx);
    }
};

template <class T, std::size_t N> struct Softsign : toy::Softsign<T, N> {
    void forward(auto& ctx, auto x, auto y) const {
        launch(ctx.stream(), x.size(), body::SoftsignForward<T>{x.data(), y.data()});
    }
    void backward(auto& ctx, auto y, auto dy, auto dx) const {
        if constexpr (!gpipe::is_none<decltype(dx)>)
            launch(ctx.stream(), y.size(),
                   body::SoftsignBackward<T>{y.data(), dy.data(), dx.data()});
    }
};

template <class T, std::size_t N> struct Scale : toy::Scale<T, N> {
    void forward(auto& ctx, auto x, auto y) const {
        launch(ctx.stream(), x.size(), body::Scaled<T>{this->factor, x.data(), y.data()});
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        if constexpr (!gpipe::is_none<decltype(dx)>)
            launch(ctx.stream(), dy.size(), body::Scaled<T>{this->factor, dy.data(), dx.data()});
    }
};

template <class T, std::size_t N> struct Square : toy::Square<T, N> {
    void forward(auto& ctx, auto x, auto y) const {
        launch(ctx.stream(), x.size(),
               body::SquareForward<T, N>{ctx.parameters().data(), x.data(), y.data()});
    }
    void input_gradient(auto& ctx, auto x, auto y, auto dy, auto dx) const {
        auto [change, mark] = ctx.deferred();
        launch(ctx.stream(), x.size(),
               body::SquareDefers<T, N>{x.data(), y.data(), dy.data(), change.data(), mark.data(),
                                        ctx.first_sample()});
        if constexpr (!gpipe::is_none<decltype(dx)>)
            launch(ctx.stream(), x.size(),
                   body::SquareBackward<T, N>{ctx.parameters().data(), x.data(), dy.data(),
                                              dx.data()});
    }
    void weight_gradient(auto& ctx, auto x, auto, auto) const {
        auto [change, mark] = ctx.deferred();
        launch(ctx.stream(), N,
               body::SquareGradients<T, N>{x.samples(), ctx.parameters().data(), change.data(),
                                           mark.data(), ctx.first_sample(),
                                           ctx.gradients().data()});
    }
};

template <class T, std::size_t N> struct Saver : toy::Saver<T, N> {
    void forward(auto& ctx, auto x, auto y) const {
        T* const square = ctx.scratch().data();
        launch(ctx.stream(), x.size(), body::Squares<T>{x.data(), square});
        launch(ctx.stream(), x.size(), body::SaverForward<T>{x.data(), square, y.data()});
        if (!ctx.saving()) return;
        auto [slope, mark] = ctx.saved();
        launch(ctx.stream(), x.size(),
               body::SaverSaves<T, N>{square, slope.data(), mark.data(), ctx.first_sample()});
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        T* const copy = ctx.scratch().data();
        launch(ctx.stream(), dy.size(), body::Copied<T>{dy.data(), copy});
        if constexpr (!gpipe::is_none<decltype(dx)>) {
            auto [slope, mark] = ctx.saved();
            launch(ctx.stream(), dy.size(),
                   body::SaverBackward<T, N>{copy, slope.data(), mark.data(), ctx.first_sample(),
                                             dx.data()});
        }
    }
};

template <class T, std::size_t N> struct Dropout : toy::Dropout<T, N> {
    void forward(auto& ctx, auto x, auto y) const {
        if (ctx.training())
            drop(ctx, x, y);
        else
            launch(ctx.stream(), x.size(), body::Copied<T>{x.data(), y.data()});
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        if constexpr (!gpipe::is_none<decltype(dx)>) drop(ctx, dy, dx);
    }

  private:
    void drop(auto& ctx, auto from, auto to) const {
        auto const random = ctx.random();
        launch(ctx.stream(), from.size(),
               body::Dropped<T, N, std::remove_const_t<decltype(random)>>{random, this->rate,
                                                                          from.data(), to.data()});
    }
};

template <class T, std::size_t N> struct Tag : toy::Tag<T, N> {
    void forward(auto& ctx, auto x, auto y) const {
        auto [values, tags] = y;
        launch(ctx.stream(), x.samples(),
               body::TagForward<T, N>{x.data(), values.data(), tags.data()});
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        auto const& values = gpipe::get<0>(dy);
        if constexpr (!gpipe::is_none<decltype(dx)>)
            launch(ctx.stream(), values.size(), body::Copied<T>{values.data(), dx.data()});
    }
};

template <class T, std::size_t N> struct Carry : toy::Carry<T, N> {
    void forward(auto& ctx, auto x, auto y) const {
        auto [values, tags] = x;
        auto [out, out_tags] = y;
        launch(ctx.stream(), values.samples(),
               body::CarryForward<T, N>{ctx.parameters().data(), values.data(), tags.data(),
                                        out.data(), out_tags.data()});
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto [values, tags] = x;
        auto const& dvalues = gpipe::get<0>(dy);
        launch(ctx.stream(), 2,
               body::CarryGradients<T, N>{values.samples(), values.data(), dvalues.data(),
                                          tags.data(), ctx.gradients().data()});
        if constexpr (!gpipe::is_none<decltype(dx)>)
            launch(ctx.stream(), dvalues.size(),
                   body::CarryBackward<T, N>{ctx.parameters().data(), dvalues.data(), tags.data(),
                                             gpipe::get<0>(dx).data()});
    }
};

template <class T, std::size_t N> struct Untag : toy::Untag<T, N> {
    void forward(auto& ctx, auto x, auto y) const {
        auto [values, tags] = x;
        launch(ctx.stream(), values.size(),
               body::UntagForward<T, N>{values.data(), tags.data(), y.data()});
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        if constexpr (!gpipe::is_none<decltype(dx)>)
            launch(ctx.stream(), dy.size(), body::Copied<T>{dy.data(), gpipe::get<0>(dx).data()});
    }
};

/// Leaves its value in context.value().
template <class T, std::size_t N> struct MeanSquare {
    using Target = gpipe::Tensor<T, N>;
    using Scratch = gpipe::Tensor<T, N>;
    static constexpr bool accepts_none = true;
    static constexpr std::size_t metrics = 1;
    Watch* watch = nullptr;

    void operator()(auto& ctx, auto y, auto target, auto dy) const {
        if (watch)
            watch->enter({Watch::loss, ctx.first_sample(), ctx.samples(),
                          ctx.training() ? Phase::backward : Phase::evaluate, false, ctx.training(),
                          !gpipe::is_none<decltype(dy)>});
        T* const difference = ctx.scratch().data();
        launch(ctx.stream(), y.size(), body::Differences<T>{y.data(), target.data(), difference});
        launch(ctx.stream(), 1,
               body::MeanSquareValue<T>{ctx.samples(), y.size(), difference, ctx.value().data()});
        if constexpr (!gpipe::is_none<decltype(dy)>)
            launch(ctx.stream(), y.size(), body::Scaled<T>{2, difference, dy.data()});
    }
};

/// Ten layers: every `backward_reads`, Saved and Scratch, dropout, two tensors at a boundary.
/// Without `dropout` another Scale takes its place.
template <class T, bool dropout>
using Net = gpipe::Pipeline<Watched<Linear<T, 5, 6>>, Watched<Softsign<T, 6>>, Watched<Saver<T, 6>>,
                            Watched<Tag<T, 6>>, Watched<Carry<T, 6>>, Watched<Untag<T, 6>>,
                            Watched<Square<T, 6>>,
                            Watched<std::conditional_t<dropout, Dropout<T, 6>, Scale<T, 6>>>,
                            Watched<Scale<T, 6>>, Watched<StrictLinear<T, 6, 3>>>;

} // namespace kernel

/// The same of the plain layers.
template <class T, bool dropout>
using PlainNet = gpipe::Pipeline<Watched<Linear<T, 5, 6>>, Watched<Softsign<T, 6>>,
                                 Watched<Saver<T, 6>>, Watched<Tag<T, 6>>, Watched<Carry<T, 6>>,
                                 Watched<Untag<T, 6>>, Watched<Square<T, 6>>,
                                 Watched<std::conditional_t<dropout, Dropout<T, 6>, Scale<T, 6>>>,
                                 Watched<Scale<T, 6>>, Watched<StrictLinear<T, 6, 3>>>;

/// One of the nets above, all layers reporting to `watch`; it scales by 1.5 near its end.
template <class... Layers>
gpipe::Pipeline<Layers...> watched(gpipe::Pipeline<Layers...>, Watch& watch) {
    constexpr std::size_t scale = sizeof...(Layers) - 2;
    auto const layer = [&]<std::size_t i, class L>(std::integral_constant<std::size_t, i>,
                                                   std::type_identity<L>) {
        L result(watch);
        if constexpr (i == scale) result.factor *= 1.5f;
        return result;
    };
    return [&]<std::size_t... Is>(std::index_sequence<Is...>) {
        return gpipe::Pipeline<Layers...>(
            layer(std::integral_constant<std::size_t, Is>{}, std::type_identity<Layers>{})...);
    }
    (std::index_sequence_for<Layers...>{});
}

template <class T, bool dropout, class Optimizer, class Device>
using KernelTrain = Training<kernel::Net<T, dropout>, kernel::MeanSquare<T, 3>, Optimizer, Device>;

/// What the plain layers give on the host.
template <class T, bool dropout, class Optimizer>
struct PlainResult : HostResult<PlainNet<T, dropout>, MeanSquare<T, 3>, Optimizer> {
    PlainResult(Optimizer optimizer, std::size_t micro_batches, gpipe::schedule::Dynamic schedule,
                std::vector<std::size_t> sizes)
        : PlainResult::HostResult(
              [](Watch& watch) { return watched(PlainNet<T, dropout>{}, watch); }, optimizer,
              micro_batches, std::move(schedule), std::move(sizes)) {}
};

} // namespace toy
