#pragma once

#include "convnet/convolution_loops.hpp"
#include "convnet/convolution_shape.hpp"
#include "convnet/onednn.hpp"
#include "convnet/operations.hpp"
#include "gpt/host_operations.hpp"

#include <gpipe/layer/handles.hpp>

#include <cstddef>
#include <type_traits>

namespace convnet {

namespace detail {

// What a call of a layer does on the calling thread.
template <class Context> class HostOn : public gpt::HostOperations {
  public:
    explicit HostOn(Context const& context) : context_(context) {}

    template <class T>
    void convolve(ConvolutionShape const& shape, std::size_t samples, T const* x, T const* weights,
                  T* y) const {
        if constexpr (std::is_same_v<T, float>)
            run(shape, samples, ConvolutionPart::forward, x, weights, y);
        else
            ConvolutionLoops{shape, samples}.forward(x, weights, y);
    }
    template <class T>
    void convolve_input_gradient(ConvolutionShape const& shape, std::size_t samples,
                                 T const* weights, T const* dy, T* dx) const {
        if constexpr (std::is_same_v<T, float>)
            run(shape, samples, ConvolutionPart::input_gradient, weights, dy, dx);
        else
            ConvolutionLoops{shape, samples}.input_gradient(weights, dy, dx);
    }
    template <class T>
    void convolve_weight_gradient(ConvolutionShape const& shape, std::size_t samples, T const* x,
                                  T const* dy, T* dw) const {
        if constexpr (std::is_same_v<T, float>)
            run(shape, samples, ConvolutionPart::weight_gradient, x, dy, dw);
        else
            ConvolutionLoops{shape, samples}.weight_gradient(x, dy, dw);
    }

  private:
    void run(ConvolutionShape const& shape, std::size_t samples, ConvolutionPart part,
             float const* a, float const* b, float* result) const {
        gpipe::handle<OneDnn>(context_).run(shape, samples, part, a, b, result);
    }

    Context const& context_;
};

} // namespace detail

/// What layers are made of, as oneDNN and loops on the calling thread; convolutions of other types
/// than float, which only tests use, as loops.
struct HostOperations : gpt::HostOperations {
    using ConvolutionHandles = gpipe::Handles<OneDnn>;
    using WorkspaceCheck = OneDnnWorkspaceCheck;
    template <class Context> static detail::HostOn<Context> on(Context const& context) {
        return detail::HostOn<Context>(context);
    }
};

} // namespace convnet
