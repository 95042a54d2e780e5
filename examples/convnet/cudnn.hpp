#pragma once

#include "convnet/convolution_shape.hpp"

#include <gpipe/device/cuda.hpp>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <cudnn.h>

namespace convnet {

/// Around every call: check_cudnn("cudnnCreate", cudnnCreate(...)). Throws std::runtime_error
/// unless it succeeded.
inline void check_cudnn(char const* call, cudnnStatus_t status) {
    if (status != CUDNN_STATUS_SUCCESS)
        throw std::runtime_error(std::string(call) + " failed: " + cudnnGetErrorString(status));
}

namespace detail {

// A descriptor of cuDNN's, which it destroys.
template <class D, cudnnStatus_t (*create)(D*), cudnnStatus_t (*destroy)(D)> class Described {
  public:
    Described() { check_cudnn("to create a descriptor", create(&descriptor_)); }
    Described(Described const&) = delete;
    Described& operator=(Described const&) = delete;
    ~Described() { static_cast<void>(destroy(descriptor_)); }
    D get() const { return descriptor_; }

  private:
    D descriptor_{};
};
using TensorDescriptor =
    Described<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor =
    Described<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    Described<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor,
              cudnnDestroyConvolutionDescriptor>;

// One part of a convolution for one number of samples. The algorithms are named, never timed: what
// is fastest may be another one each time, and so other bits. Of the backward ones ALGO_1 is the
// general one whose sums have one order (cuDNN's documentation of cudnnConvolutionBwdDataAlgo_t and
// cudnnConvolutionBwdFilterAlgo_t: ALGO_0 and the filter's ALGO_3 are not deterministic). Products
// of floats are those of floats, not TF32.
class CudnnConvolution {
  public:
    static constexpr auto forward_algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    static constexpr auto data_algorithm = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
    static constexpr auto filter_algorithm = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;

    // Throws std::runtime_error if it needs more than so many bytes of workspace.
    CudnnConvolution(cudnnHandle_t handle, ConvolutionShape const& shape, std::size_t samples,
                     ConvolutionPart part, cudnnDataType_t type, std::size_t bound)
        : shape_(shape), samples_(samples), part_(part), type_(type) {
        auto const size = [](std::size_t n) { return static_cast<int>(n); };
        auto const four = [&](TensorDescriptor const& tensor, std::size_t channels,
                              std::size_t side) {
            check_cudnn("cudnnSetTensor4dDescriptor",
                        cudnnSetTensor4dDescriptor(tensor.get(), CUDNN_TENSOR_NCHW, type,
                                                   size(samples), size(channels), size(side),
                                                   size(side)));
        };
        four(x_, shape.channels, shape.side);
        four(y_, shape.outputs, shape.result());
        check_cudnn("cudnnSetFilter4dDescriptor",
                    cudnnSetFilter4dDescriptor(weights_.get(), type, CUDNN_TENSOR_NCHW,
                                               size(shape.outputs), size(shape.channels),
                                               size(shape.kernel), size(shape.kernel)));
        int const padding = size(shape.padding()), stride = size(shape.stride);
        check_cudnn("cudnnSetConvolution2dDescriptor",
                    cudnnSetConvolution2dDescriptor(how_.get(), padding, padding, stride, stride, 1,
                                                    1, CUDNN_CROSS_CORRELATION, type));
        check_cudnn("cudnnSetConvolutionMathType",
                    cudnnSetConvolutionMathType(how_.get(), CUDNN_FMA_MATH));
        ask(handle);
        if (bytes_ > bound)
            throw std::runtime_error(describe(part, shape, samples) + " needs a workspace of " +
                                     std::to_string(bytes_) + " bytes, but its bound is " +
                                     std::to_string(bound));
    }

    bool is(ConvolutionShape const& shape, std::size_t samples, ConvolutionPart part,
            cudnnDataType_t type) const {
        return part == part_ && samples == samples_ && shape == shape_ && type == type_;
    }
    // Enqueues what reads a and b, and writes the result, or adds to it if it is the gradient of
    // the weights.
    template <class T>
    void operator()(cudnnHandle_t handle, T const* a, T const* b, T* result,
                    std::byte* workspace) const {
        T const one = 1, none = 0;
        if (part_ == ConvolutionPart::forward)
            check_cudnn("cudnnConvolutionForward",
                        cudnnConvolutionForward(handle, &one, x_.get(), a, weights_.get(), b,
                                                how_.get(), forward_algorithm, workspace, bytes_,
                                                &none, y_.get(), result));
        else if (part_ == ConvolutionPart::input_gradient)
            check_cudnn("cudnnConvolutionBackwardData",
                        cudnnConvolutionBackwardData(handle, &one, weights_.get(), a, y_.get(), b,
                                                     how_.get(), data_algorithm, workspace, bytes_,
                                                     &none, x_.get(), result));
        else
            check_cudnn("cudnnConvolutionBackwardFilter",
                        cudnnConvolutionBackwardFilter(handle, &one, x_.get(), a, y_.get(), b,
                                                       how_.get(), filter_algorithm, workspace,
                                                       bytes_, &one, weights_.get(), result));
    }

  private:
    void ask(cudnnHandle_t handle) {
        if (part_ == ConvolutionPart::forward)
            check_cudnn("cudnnGetConvolutionForwardWorkspaceSize",
                        cudnnGetConvolutionForwardWorkspaceSize(handle, x_.get(), weights_.get(),
                                                                how_.get(), y_.get(),
                                                                forward_algorithm, &bytes_));
        else if (part_ == ConvolutionPart::input_gradient)
            check_cudnn("cudnnGetConvolutionBackwardDataWorkspaceSize",
                        cudnnGetConvolutionBackwardDataWorkspaceSize(handle, weights_.get(),
                                                                     y_.get(), how_.get(), x_.get(),
                                                                     data_algorithm, &bytes_));
        else
            check_cudnn("cudnnGetConvolutionBackwardFilterWorkspaceSize",
                        cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, x_.get(), y_.get(),
                                                                       how_.get(), weights_.get(),
                                                                       filter_algorithm, &bytes_));
    }

    ConvolutionShape shape_;
    std::size_t samples_;
    ConvolutionPart part_;
    cudnnDataType_t type_;
    std::size_t bytes_ = 0;
    TensorDescriptor x_, y_;
    FilterDescriptor weights_;
    ConvolutionDescriptor how_;
};

} // namespace detail

/// cuDNN's convolutions for the layers of one device, on its stream, each made at its first call,
/// in a workspace that they share: `using Handles = gpipe::Handles<Cudnn>`.
class Cudnn {
  public:
    /// A bound: what the named algorithms need is asked and compared with it.
    static constexpr std::size_t workspace = std::size_t{64} << 20;

    /// Throws gpipe::cuda::Error and std::runtime_error.
    Cudnn(gpipe::cuda::StreamRef stream, std::byte* memory) : memory_(memory) {
        gpipe::cuda::check("cudaStreamGetDevice", cudaStreamGetDevice(stream.get(), &gpu_));
        gpipe::cuda::DeviceGuard const guard(gpu_);
        check_cudnn("cudnnCreate", cudnnCreate(&handle_));
        auto const status = cudnnSetStream(handle_, stream.get());
        if (status != CUDNN_STATUS_SUCCESS) static_cast<void>(cudnnDestroy(handle_));
        check_cudnn("cudnnSetStream", status);
    }
    Cudnn(Cudnn const&) = delete;
    Cudnn& operator=(Cudnn const&) = delete;
    ~Cudnn() {
        made_.clear();
        int before = gpu_;
        gpipe::cuda::detail::forget(cudaGetDevice(&before));
        if (before != gpu_) gpipe::cuda::detail::forget(cudaSetDevice(gpu_));
        static_cast<void>(cudnnDestroy(handle_));
        if (before != gpu_) gpipe::cuda::detail::forget(cudaSetDevice(before));
    }

    /// As OneDnn::run, enqueued. Throws std::runtime_error.
    template <class T>
    void run(ConvolutionShape const& shape, std::size_t samples, ConvolutionPart part, T const* a,
             T const* b, T* result) {
        constexpr auto type = std::is_same_v<T, double> ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
        static_assert(std::is_same_v<T, double> || std::is_same_v<T, float>);
        for (auto const& each : made_)
            if (each->is(shape, samples, part, type))
                return (*each)(handle_, a, b, result, memory_);
        made_.push_back(std::make_unique<detail::CudnnConvolution>(handle_, shape, samples, part,
                                                                   type, workspace));
        (*made_.back())(handle_, a, b, result, memory_);
    }

  private:
    int gpu_ = 0;
    cudnnHandle_t handle_ = nullptr;
    std::byte* memory_;
    std::vector<std::unique_ptr<detail::CudnnConvolution>> made_;
};

/// Whether the workspaces of layers are large enough, on the current GPU.
class CudnnWorkspaceCheck {
  public:
    /// Throws gpipe::cuda::Error, if there is no GPU, and std::runtime_error.
    CudnnWorkspaceCheck() {
        static_cast<void>(gpipe::cuda::device_count()); // which has better words for that
        check_cudnn("cudnnCreate", cudnnCreate(&handle_));
    }
    CudnnWorkspaceCheck(CudnnWorkspaceCheck const&) = delete;
    CudnnWorkspaceCheck& operator=(CudnnWorkspaceCheck const&) = delete;
    ~CudnnWorkspaceCheck() { static_cast<void>(cudnnDestroy(handle_)); }

    /// Throws std::runtime_error if a convolution of so many samples needs more than `bound` bytes.
    void operator()(ConvolutionShape const& shape, std::size_t samples,
                    std::size_t bound = Cudnn::workspace) const {
        for (auto const part : every_part)
            detail::CudnnConvolution(handle_, shape, samples, part, CUDNN_DATA_FLOAT, bound);
    }

  private:
    cudnnHandle_t handle_ = nullptr;
};

} // namespace convnet
