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
// For their sentences alone.
template <class Stream, class... Any>
    requires(!std::is_convertible_v<Stream const&, cudaStream_t>)
void launch(Stream const&, Any const&...) {
    constexpr bool is_number = std::is_arithmetic_v<Stream>;
    static_assert(!is_number, "gpipe: this would be the default stream, which nobody waits for: "
                              "work goes on context.stream()");
    constexpr bool is_of_a_gpu = is_number || sizeof...(Any) == static_cast<std::size_t>(-1);
    static_assert(
        is_of_a_gpu,
        "gpipe: this stream is none of a GPU's: who has kernels names gpipe::device::Cuda, "
        "Training<Net, ..., gpipe::device::Cuda>, and so do profile<Net, "
        "gpipe::device::Cuda>() and the other functions that call layers");
}
template <class... Any> void launch(std::nullptr_t, Any const&... any) { launch(0, any...); }
template <class... Parameters, class... Arguments>
    requires(sizeof...(Parameters) != sizeof...(Arguments))
void launch(cudaStream_t, dim3, dim3, std::size_t, void (*)(Parameters...), Arguments const&...) {
    constexpr bool fits = sizeof...(Parameters) == sizeof...(Arguments);
    static_assert(fits, "gpipe: the kernel takes another number of arguments than it is given");
}
/// @endcond

} // namespace gpipe::cuda
