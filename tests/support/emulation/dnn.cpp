// cuDNN's convolutions as loops, enqueued as kernels of the double of the CUDA runtime. Stricter
// than cuDNN: only algorithms whose sums have one order, only in the types of the tensors, and only
// with the workspace that was asked for; the order of a sum is another.
#include "../cuda_double/cuda_double.hpp"

#include <convnet/convolution_loops.hpp>

#include <cstddef>

#include <cudnn.h>

struct cudnnContext {
    cudaStream_t stream = nullptr;
};
struct cudnnTensorStruct {
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    int samples = 0, channels = 0, height = 0, width = 0;
};
struct cudnnFilterStruct {
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    int outputs = 0, channels = 0, height = 0, width = 0;
};
struct cudnnConvolutionStruct {
    int padding = 0, stride = 0;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

namespace {

// A convolution as its descriptors say, all squares, with as much padding as keeps the side.
struct Asked {
    cudnnTensorDescriptor_t x;
    cudnnFilterDescriptor_t weights;
    cudnnConvolutionDescriptor_t how;
    cudnnTensorDescriptor_t y;

    convnet::ConvolutionLoops loops() const {
        auto const size = [](int n) { return static_cast<std::size_t>(n); };
        return {{size(x->channels), size(x->height), size(weights->outputs), size(weights->height),
                 size(how->stride)},
                size(x->samples)};
    }
    bool fits() const {
        auto const shape = loops().shape;
        auto const is = [](int a, std::size_t b) {
            return a > 0 && static_cast<std::size_t>(a) == b;
        };
        return x->samples > 0 && y->samples == x->samples && x->height == x->width &&
               weights->channels == x->channels && weights->height == weights->width &&
               weights->height % 2 == 1 && how->padding == weights->height / 2 && how->stride > 0 &&
               is(y->channels, shape.outputs) && is(y->height, shape.result()) &&
               y->width == y->height && x->type == how->type && y->type == how->type &&
               weights->type == how->type && how->math == CUDNN_FMA_MATH;
    }
    // More for more samples.
    std::size_t bytes() const { return 1024 + 256 * static_cast<std::size_t>(x->samples); }
    cudnnStatus_t answer(bool deterministic, std::size_t* to) const {
        if (!deterministic) return CUDNN_STATUS_NOT_SUPPORTED;
        if (!fits()) return CUDNN_STATUS_BAD_PARAM;
        *to = bytes();
        return CUDNN_STATUS_SUCCESS;
    }
    // work(loops, a T)
    template <class Work>
    cudnnStatus_t enqueue(cudnnHandle_t handle, bool deterministic, void const* workspace,
                          std::size_t room, Work work) const {
        std::size_t needed = 0;
        if (auto const status = answer(deterministic, &needed); status != CUDNN_STATUS_SUCCESS)
            return status;
        if (!workspace || room < needed) return CUDNN_STATUS_BAD_PARAM;
        auto const run = [=, loops = loops(), type = how->type] {
            type == CUDNN_DATA_DOUBLE ? work(loops, double{}) : work(loops, float{});
        };
        return cuda_double::launch(handle->stream, run, {}, {}, "a convolution") == cudaSuccess
                   ? CUDNN_STATUS_SUCCESS
                   : CUDNN_STATUS_EXECUTION_FAILED;
    }
};

template <class S> cudnnStatus_t create(S** to) {
    *to = new S;
    return CUDNN_STATUS_SUCCESS;
}
template <class S> cudnnStatus_t destroy(S* what) {
    delete what;
    return CUDNN_STATUS_SUCCESS;
}
bool is_one(cudnnDataType_t type, void const* factor, double one = 1) {
    return type == CUDNN_DATA_DOUBLE
               ? *static_cast<double const*>(factor) == one
               : *static_cast<float const*>(factor) == static_cast<float>(one);
}
bool is_none(cudnnDataType_t type, void const* factor) { return is_one(type, factor, 0); }

} // namespace

extern "C" {

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
char const* cudnnGetErrorString(cudnnStatus_t) { return "a status of the emulation"; }
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return create(handle); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return destroy(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* d) { return create(d); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d) { return destroy(d); }
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* d) { return create(d); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t d) { return destroy(d); }
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* d) {
    return create(d);
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t d) {
    return destroy(d);
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
    *d = {type, n, c, h, w};
    return format == CUDNN_TENSOR_NCHW ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
    *d = {type, k, c, h, w};
    return format == CUDNN_TENSOR_NCHW ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w,
                                              int u, int v, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t type) {
    *d = {pad_h, u, type, CUDNN_DEFAULT_MATH};
    return pad_h == pad_w && u == v && dilation_h == 1 && dilation_w == 1 &&
                   mode == CUDNN_CROSS_CORRELATION
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math) {
    d->math = math;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                      cudnnFilterDescriptor_t w,
                                                      cudnnConvolutionDescriptor_t how,
                                                      cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t,
                                                      std::size_t* bytes) {
    return Asked{x, w, how, y}.answer(true, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t dy,
                                                           cudnnConvolutionDescriptor_t how,
                                                           cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm,
                                                           std::size_t* bytes) {
    return Asked{dx, w, how, dy}.answer(algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
    cudnnConvolutionDescriptor_t how, cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algorithm, std::size_t* bytes) {
    return Asked{x, dw, how, dy}.answer(algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, bytes);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, void const* alpha,
                                      cudnnTensorDescriptor_t x, void const* x_data,
                                      cudnnFilterDescriptor_t w, void const* w_data,
                                      cudnnConvolutionDescriptor_t how, cudnnConvolutionFwdAlgo_t,
                                      void* workspace, std::size_t bytes, void const* beta,
                                      cudnnTensorDescriptor_t y, void* y_data) {
    if (!is_one(how->type, alpha) || !is_none(how->type, beta)) return CUDNN_STATUS_NOT_SUPPORTED;
    return Asked{x, w, how, y}.enqueue(
        handle, true, workspace, bytes, [=]<class T>(convnet::ConvolutionLoops loops, T) {
            loops.forward(static_cast<T const*>(x_data), static_cast<T const*>(w_data),
                          static_cast<T*>(y_data));
        });
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, void const* alpha,
                                           cudnnFilterDescriptor_t w, void const* w_data,
                                           cudnnTensorDescriptor_t dy, void const* dy_data,
                                           cudnnConvolutionDescriptor_t how,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace,
                                           std::size_t bytes, void const* beta,
                                           cudnnTensorDescriptor_t dx, void* dx_data) {
    if (!is_one(how->type, alpha) || !is_none(how->type, beta)) return CUDNN_STATUS_NOT_SUPPORTED;
    return Asked{dx, w, how, dy}.enqueue(
        handle, algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, workspace, bytes,
        [=]<class T>(convnet::ConvolutionLoops loops, T) {
            loops.input_gradient(static_cast<T const*>(w_data), static_cast<T const*>(dy_data),
                                 static_cast<T*>(dx_data));
        });
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, void const* alpha,
                                             cudnnTensorDescriptor_t x, void const* x_data,
                                             cudnnTensorDescriptor_t dy, void const* dy_data,
                                             cudnnConvolutionDescriptor_t how,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm,
                                             void* workspace, std::size_t bytes, void const* beta,
                                             cudnnFilterDescriptor_t dw, void* dw_data) {
    if (!is_one(how->type, alpha) || !is_one(how->type, beta)) return CUDNN_STATUS_NOT_SUPPORTED;
    return Asked{x, dw, how, dy}.enqueue(
        handle, algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, workspace, bytes,
        [=]<class T>(convnet::ConvolutionLoops loops, T) {
            loops.weight_gradient(static_cast<T const*>(x_data), static_cast<T const*>(dy_data),
                                  static_cast<T*>(dw_data));
        });
}

} // extern "C"
