#pragma once

#include <gpipe/device/cuda_error.hpp>

#include <cstddef>
#include <type_traits>

#include <cuda_runtime.h>

namespace gpipe::cuda {

/// Enqueues kernel(arguments...) on `stream`: a grid of blocks of threads, with `shared` bytes of
/// dynamic shared memory per block. In place of kernel<<<grid, block, shared, stream>>>(...), which
/// returns nothing: this throws Error with the launch's own status, whatever failed before, and is
/// plain C++, so that kernels also run where another compiler and no GPU is. A launch into a
/// capture that something has spoilt before throws nothing: the step then names who did.
template <class... Parameters>
void launch(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared,
            void (*kernel)(Parameters...), std::type_identity_t<Parameters>... arguments) {
    cudaLaunchConfig_t const config{grid, block, shared, stream, nullptr, 0};
    cudaError_t const status = cudaLaunchKernelEx(&config, kernel, arguments...);
    if (status == cudaErrorStreamCaptureInvalidated) return detail::forget(status);
    check("a kernel launch", status);
}

} // namespace gpipe::cuda
