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

/// @cond
// For their sentence alone.
template <class... Any> void launch(int, Any const&...) {
    constexpr bool is_a_stream = sizeof...(Any) == static_cast<std::size_t>(-1);
    static_assert(is_a_stream, "gpipe: this would be the default stream, which nobody waits for: "
                               "work goes on context.stream()");
}
template <class... Any> void launch(std::nullptr_t, Any const&... any) { launch(0, any...); }
/// @endcond

} // namespace gpipe::cuda
