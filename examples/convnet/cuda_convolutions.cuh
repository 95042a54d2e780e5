#pragma once

#include "convnet/convolution_shape.hpp"
#include "convnet/cudnn.hpp"
#include "convnet/operations.hpp"
#include "gpt/cuda_operations.cuh"

#include <gpipe/cuda/norm_work.cuh>
#include <gpipe/layer/handles.hpp>

#include <cstddef>
#include <string>

namespace convnet {

namespace detail {

// What a call of a layer enqueues.
template <class Context> class CudaOn : public gpt::detail::CudaOn<Context, gpt::Precision::fp32> {
  public:
    explicit CudaOn(Context const& context)
        : gpt::detail::CudaOn<Context, gpt::Precision::fp32>(context), context_(context) {}

    template <class T>
    void convolve(ConvolutionShape const& shape, std::size_t samples, T const* x, T const* weights,
                  T* y) const {
        run(shape, samples, ConvolutionPart::forward, x, weights, y);
    }
    template <class T>
    void convolve_input_gradient(ConvolutionShape const& shape, std::size_t samples,
                                 T const* weights, T const* dy, T* dx) const {
        run(shape, samples, ConvolutionPart::input_gradient, weights, dy, dx);
    }
    template <class T>
    void convolve_weight_gradient(ConvolutionShape const& shape, std::size_t samples, T const* x,
                                  T const* dy, T* dw) const {
        run(shape, samples, ConvolutionPart::weight_gradient, x, dy, dw);
    }

  private:
    template <class T>
    void run(ConvolutionShape const& shape, std::size_t samples, ConvolutionPart part, T const* a,
             T const* b, T* result) const {
        gpipe::handle<Cudnn>(context_).run(shape, samples, part, a, b, result);
    }

    Context const& context_;
};

} // namespace detail

/// What layers are made of, as cuDNN, cuBLAS and kernels: each call enqueues, and nothing else, and
/// results do not depend on timing.
struct CudaOperations : gpt::CudaOperations {
    using ConvolutionHandles = gpipe::Handles<Cudnn>;
    using WorkspaceCheck = CudnnWorkspaceCheck;
    static std::string kernels() {
        std::size_t const version = cudnnGetVersion(); // 10000 times major, 100 times minor
        return "cuDNN " + std::to_string(version / 10'000) + '.' +
               std::to_string(version / 100 % 100) + '.' + std::to_string(version % 100) + ", " +
               gpt::CudaOperations::kernels();
    }
    template <class Context> static detail::CudaOn<Context> on(Context const& context) {
        return detail::CudaOn<Context>(context);
    }
};

} // namespace convnet
