#pragma once

// Layers and losses with faults in what they say of gradients, such as people make.

#include <gpipe/layer/loss.hpp>
#include <gpipe/layer/traits.hpp>
#include <gpipe/layer/view.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace toy {

enum class GradientFault {
    none,
    forgotten,  ///< an input's gradient is not written, a parameter's not added to
    set,        ///< a parameter's gradient is set, not added to
    factor,     ///< twice what it should be
    little,     ///< 5 % more than it should be
    averaged,   ///< divided by the samples of the micro-batch
    transposed, ///< entries in another order
    last        ///< the last entry is left as it was
};
inline constexpr char const* fault_names[] = {"none",   "forgotten", "set",        "factor",
                                              "little", "averaged",  "transposed", "last"};
inline constexpr std::size_t fault_count = std::size(fault_names);

namespace detail {

/// Calls f(view) for each tensor of a group.
template <class F> void each_view(gpipe::None, F) {}
template <class T, std::size_t... Es, class F>
void each_view(gpipe::TensorView<T, Es...> const& view, F f) {
    f(view.data(), view.size());
}
template <class T, std::size_t... Es, class F>
void each_view(gpipe::BatchView<T, Es...> const& view, F f) {
    f(view.data(), view.size());
}
template <class... Ts, class F> void each_view(gpipe::Views<Ts...> const& views, F f) {
    [&]<std::size_t... Is>(std::index_sequence<Is...>) {
        (each_view(gpipe::get<Is>(views), f), ...);
    }
    (std::index_sequence_for<Ts...>{});
}

/// Runs `call`, which writes the tensors of `group`, or adds to them, and makes them wrong.
template <class Group, class Call>
void spoil(GradientFault fault, bool adds, std::size_t samples, Group const& group, Call call) {
    std::vector<double> before;
    each_view(group, [&](auto* data, std::size_t size) {
        for (std::size_t i = 0; i < size; ++i) before.push_back(double(data[i]));
    });
    call();
    std::size_t at = 0;
    each_view(group, [&]<class T>(T* data, std::size_t size) {
        std::vector<double> change(size);
        double* const old = before.data() + at;
        at += size;
        for (std::size_t i = 0; i < size; ++i) change[i] = double(data[i]) - (adds ? old[i] : 0);
        if (fault == GradientFault::transposed) std::reverse(change.begin(), change.end());
        for (std::size_t i = 0; i < size; ++i) {
            double const base = adds && fault != GradientFault::set ? old[i] : 0;
            double const factor = fault == GradientFault::factor     ? 2
                                  : fault == GradientFault::little   ? 1.05
                                  : fault == GradientFault::averaged ? 1 / double(samples)
                                                                     : 1;
            bool const left = fault == GradientFault::forgotten ||
                              (fault == GradientFault::last && i + 1 == size);
            double const value = left ? old[i] : base + factor * change[i];
            if constexpr (std::is_floating_point_v<T>)
                data[i] = static_cast<T>(value);
            else
                data[i] = T(static_cast<float>(value));
        }
    });
}

template <class L> struct FaultyForward : L { GradientFault fault = GradientFault::none; };
template <class L, bool = gpipe::detail::names_backward<L>> struct FaultyWhole : FaultyForward<L> {
    template <class Context, class... Tensors>
    void backward(Context& context, Tensors... tensors) const requires requires(L const& layer) {
        layer.backward(context, tensors...);
    }
    {
        auto const run = [&] { L::backward(context, tensors...); };
        if (this->fault == GradientFault::none) return run();
        auto const& dx = std::get<sizeof...(Tensors) - 1>(std::tie(tensors...));
        spoil(this->fault, true, context.samples(), context.gradients(),
              [&] { spoil(this->fault, false, context.samples(), dx, run); });
    }
};
template <class L> struct FaultyWhole<L, false> : FaultyForward<L> {};
template <class L, bool = gpipe::splits_backward<L>> struct FaultyHalves : FaultyWhole<L> {
    template <class Context, class... Tensors>
    void input_gradient(Context& context, Tensors... tensors) const requires
        requires(L const& layer) {
        layer.input_gradient(context, tensors...);
    }
    {
        auto const run = [&] { L::input_gradient(context, tensors...); };
        if (this->fault == GradientFault::none) return run();
        auto const& dx = std::get<sizeof...(Tensors) - 1>(std::tie(tensors...));
        spoil(this->fault, false, context.samples(), dx, run);
    }
    template <class Context, class... Tensors>
    void weight_gradient(Context& context, Tensors... tensors) const requires
        requires(L const& layer) {
        layer.weight_gradient(context, tensors...);
    }
    {
        auto const run = [&] { L::weight_gradient(context, tensors...); };
        if (this->fault == GradientFault::none) return run();
        spoil(this->fault, true, context.samples(), context.gradients(), run);
    }
};
template <class L> struct FaultyHalves<L, false> : FaultyWhole<L> {};

} // namespace detail

/// Layer L, with a fault in all of its gradients that can have it.
template <class L> struct Faulty : detail::FaultyHalves<L> {};
/// Whether that tensor's gradient comes out wrong in a layer with this fault, which leaves popped
/// ones as they are, and adds to none but parameters'.
inline bool spoils(GradientFault fault, std::string const& tensor) {
    return !tensor.starts_with("popped") &&
           (fault != GradientFault::set || tensor.starts_with("par"));
}
template <class Loss> struct FaultyLoss : Loss {
    GradientFault fault = GradientFault::none;

    auto operator()(auto& context, auto y, auto target, auto dy) const
        -> decltype(Loss::operator()(context, y, target, dy)) {
        auto const run = [&] { return Loss::operator()(context, y, target, dy); };
        if (fault == GradientFault::none) return run();
        if constexpr (std::is_void_v<decltype(run())>) {
            detail::spoil(fault, false, context.samples(), dy, run);
        } else {
            decltype(run()) value;
            detail::spoil(fault, false, context.samples(), dy, [&] { value = run(); });
            return value;
        }
    }
};

} // namespace toy
