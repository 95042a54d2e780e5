#pragma once

#include <gpipe/device/cuda.hpp>
#include <gpipe/layer/handles.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>

#include <cublas_v2.h>

namespace gpipe::cuda {

/// A call of cuBLAS failed. what() has the call, cuBLAS's name of the status and its text.
class BlasError : public std::runtime_error {
  public:
    /// `call` must outlive the error: a literal.
    BlasError(char const* call, cublasStatus_t status)
        : std::runtime_error(std::string("gpipe: ") + call + " failed with " +
                             cublasGetStatusName(status) + ": " + cublasGetStatusString(status)),
          call_(call), status_(status) {}

    /// The function of cuBLAS that failed.
    char const* call() const noexcept { return call_; }
    /// What it returned.
    cublasStatus_t status() const noexcept { return status_; }

  private:
    char const* call_;
    cublasStatus_t status_;
};

/// Around every call: check_blas("cublasSgemm", cublasSgemm(...)). Throws BlasError unless it
/// succeeded.
inline void check_blas(char const* call, cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS) throw BlasError(call, status);
}

/// A cuBLAS handle on a stream, with a workspace of its own, as a layer declares it:
/// `using Handles = gpipe::cuda::Blas`. With cuBLAS's own pool, several streams at a time would
/// make results depend on timing (cuBLAS documentation, "Results Reproducibility"), and a step
/// could not be captured without memory being allocated. Programs link cuBLAS: CUDA::cublas.
class Blas {
  public:
    /// What cuBLAS gives itself on sm_90; before, it takes 4 MiB (documentation of CUDA 13.0,
    /// cublasSetWorkspace).
    static constexpr std::size_t workspace = std::size_t{32} << 20;

    /// Throws Error and BlasError.
    Blas(StreamRef stream, std::byte* memory) : Blas() {
        check("cudaStreamGetDevice", cudaStreamGetDevice(stream.get(), &gpu_));
        DeviceGuard const guard(gpu_);
        check_blas("cublasCreate", cublasCreate(&handle_));
        // In this order: a new stream puts a handle back to cuBLAS's own workspace.
        check_blas("cublasSetStream", cublasSetStream(handle_, stream.get()));
        check_blas("cublasSetWorkspace", cublasSetWorkspace(handle_, memory, workspace));
        check_blas("cublasSetMathMode", cublasSetMathMode(handle_, CUBLAS_DEFAULT_MATH));
    }
    Blas(Blas const&) = delete;
    Blas& operator=(Blas const&) = delete;
    ~Blas() {
        if (!handle_) return;
        int before = gpu_;
        detail::forget(cudaGetDevice(&before));
        if (before != gpu_) detail::forget(cudaSetDevice(gpu_));
        static_cast<void>(cublasDestroy(handle_));
        if (before != gpu_) detail::forget(cudaSetDevice(before));
    }

    /// To be given to cuBLAS's functions.
    cublasHandle_t get() const noexcept { return handle_; }

  private:
    Blas() = default;

    int gpu_ = 0;
    cublasHandle_t handle_ = nullptr;
};

/// The cuBLAS handle of a layer or a loss that declares Blas among its Handles: what is called with
/// it goes on context.stream().
template <class Context> cublasHandle_t blas(Context const& context) {
    return handle<Blas>(context).get();
}

} // namespace gpipe::cuda
