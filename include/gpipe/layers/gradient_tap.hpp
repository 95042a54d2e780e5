#pragma once

#include <gpipe/layer/context.hpp>
#include <gpipe/layer/tensor.hpp>

#include <cstddef>
#include <type_traits>

namespace gpipe {

namespace detail {

// What a tap does, as loops; for a stream that work is enqueued on it is to be specialised.
template <class Stream> struct TapWork {
    static_assert(!replays<Stream>, "gpipe: on this device GradientTap has kernels: #include "
                                    "<gpipe/cuda/tap_work.cuh>");
    explicit TapWork(Stream const&) {}

    template <class T> void copy(T const* from, T* to, std::size_t count) const {
        for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
    }
    // Without the scale of the loss.
    template <class T>
    void unscale(T const* from, T* to, std::size_t count, StepState const* state) const {
        for (std::size_t i = 0; i < count; ++i)
            to[i] = static_cast<T>(static_cast<double>(from[i]) / state->loss_scale);
    }
};

template <class Sample> struct CheckTap {
    static consteval bool ok() {
        static_assert(is_tensor<Sample>, "gpipe: GradientTap<Sample> is for one gpipe::Tensor");
        return is_tensor<Sample>;
    }
};

} // namespace detail

/// The identity, which puts the gradient that flows back through it into an array of the caller's:
/// as the first layer of a chain that of its inputs. It flows as far, whatever learns below (see
/// gpipe::wants_gradient). Sample: one Tensor.
///
/// train.change_layer<i>() sets `to`: room for a whole mini-batch, with all parts that accumulate()
/// is given, written by every step and compute_gradients() at the samples' places, in memory that
/// the device can write. It is the gradient of the loss's sum, not of its mean, by sample: whatever
/// the other samples weigh, and without Options::loss_scale. On a GPU it needs
/// gpipe/cuda/tap_work.cuh.
template <class Sample> struct GradientTap {
    static_assert(detail::CheckTap<Sample>::ok() || true); // one error, not two
    /// As it comes; where that is none, one for all that follows to have a sense.
    using Input = std::conditional_t<detail::is_tensor<Sample>, Sample, Tensor<float>>;
    using Output = Input;                    ///< of a sample
    using Element = typename Input::Element; ///< of the array
    /// See gpipe::wants_gradient, Reads, accepts_none.
    ///@{
    static constexpr bool wants_gradient = true;
    static constexpr Reads backward_reads = Reads::neither;
    static constexpr bool accepts_none = true;
    ///@}
    Element* to = nullptr; ///< null: nowhere

    /// As a layer has them.
    ///@{
    void forward(auto& context, auto x, auto y) const {
        work(context).copy(x.data(), y.data(), x.size());
    }
    void backward(auto& context, auto dy, auto dx) const {
        if (to && !context.is_probe())
            work(context).unscale(static_cast<Element const*>(dy.data()),
                                  to + context.first_sample() * Input::size, dy.size(),
                                  context.state());
        if constexpr (!is_none<decltype(dx)>)
            work(context).copy(static_cast<Element const*>(dy.data()), dx.data(), dy.size());
    }
    ///@}

  private:
    template <class Context> static auto work(Context& context) {
        using Stream = std::remove_cvref_t<decltype(context.stream())>;
        return detail::TapWork<Stream>(context.stream());
    }
};

} // namespace gpipe
