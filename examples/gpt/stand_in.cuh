#pragma once

// STAND-IN, to be removed: see stand_in.hpp.

#include "gpt/stand_in.hpp"

#include <gpipe/device/cuda.hpp>

#include <map>
#include <stdexcept>
#include <string>

#include <cublas_v2.h>

namespace gpipe::cuda {

struct Blas {};

inline void check_blas(char const* call, cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS)
        throw std::runtime_error("gpipe: " + std::string(call) + " failed with " +
                                 cublasGetStatusName(status));
}

// One per stream, made at its first use and never given back.
template <class Context> cublasHandle_t blas(Context const& context) {
    constexpr std::size_t workspace = std::size_t{32} << 20;
    static thread_local std::map<cudaStream_t, cublasHandle_t> handles;
    cudaStream_t const stream = context.stream();
    cublasHandle_t& handle = handles[stream];
    if (!handle) {
        void* memory = nullptr;
        check("cudaMalloc", cudaMalloc(&memory, workspace));
        check_blas("cublasCreate", cublasCreate(&handle));
        check_blas("cublasSetStream", cublasSetStream(handle, stream));
        check_blas("cublasSetWorkspace", cublasSetWorkspace(handle, memory, workspace));
    }
    return handle;
}

} // namespace gpipe::cuda
