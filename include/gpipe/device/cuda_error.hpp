#pragma once

#include <gpipe/core/version.hpp>

#include <cuda_runtime_api.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace gpipe::cuda {

/// A call of the CUDA runtime failed. what() has the call, CUDA's name of the error and its text.
class Error : public std::runtime_error {
  public:
    /// `call` must outlive the error: a literal.
    Error(char const* call, cudaError_t code, char const* sentence = "")
        : std::runtime_error(std::string("gpipe: ") + sentence + call + " failed with " +
                             cudaGetErrorName(code) + ": " + cudaGetErrorString(code)),
          call_(call), code_(code) {}

    /// The function of CUDA that failed.
    char const* call() const noexcept { return call_; }
    /// What it returned.
    cudaError_t code() const noexcept { return code_; }

  private:
    char const* call_;
    cudaError_t code_;
};

/// This machine has no GPU, or no driver that this program can use.
class NoDevice : public Error {
  public:
    using Error::Error;
};

/// There are GPUs, but not as many as were asked for.
class TooFewDevices : public std::runtime_error {
  public:
    /// GPUs.
    TooFewDevices(int needed, int present)
        : std::runtime_error("gpipe: " + std::to_string(needed) +
                             " GPUs are needed, but CUDA sees only " + std::to_string(present) +
                             ": Options::device.gpus may name one for several devices"),
          needed_(needed), present_(present) {}
    /// GPUs that were asked for.
    int needed() const noexcept { return needed_; }
    /// GPUs that CUDA sees.
    int present() const noexcept { return present_; }

  private:
    int needed_;
    int present_;
};

namespace detail {

/// For destructors: nobody can be told, and an error that CUDA remembers must not be taken for that
/// of a later call.
inline void forget(cudaError_t status) noexcept {
    if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
}

/// What owns a handle, or memory, that this function of CUDA gives back.
template <auto destroy> struct Destroys {
    template <class T> void operator()(T* owned) const noexcept { forget(destroy(owned)); }
};
template <class Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroys<destroy>>;

} // namespace detail

/// Around every call: check("cudaMalloc", cudaMalloc(&data, bytes)). Throws Error unless it
/// succeeded; CUDA then no longer remembers the error as its last one, except where nothing can be
/// done on the device any more.
inline void check(char const* call, cudaError_t status) {
    if (status == cudaSuccess) return;
    detail::forget(status);
    throw Error(call, status);
}

/// What CUDA remembers of the calling thread's calls; it is then forgotten, unless nothing can be
/// done on the device any more. That something was not ready yet is no error, but it may remember
/// that, too.
inline cudaError_t last_error() noexcept {
    cudaError_t const status = cudaGetLastError();
    return status == cudaErrorNotReady ? cudaSuccess : status;
}

/// Throws an Error that says so if CUDA remembers an error of the calling thread from before: of a
/// call of somebody who did not look, or who did and left it. It is then forgotten, as above. Who
/// asks whether his launches went well asks this first, or he takes it for theirs.
inline void check_earlier() {
    cudaError_t const status = last_error();
    if (status != cudaSuccess)
        throw Error("a call of CUDA", status,
                    "nothing was done, because of an error from before this step, which nobody has "
                    "taken from cudaGetLastError(): ");
}

/// The number of GPUs that CUDA sees, at least 1. Throws NoDevice where there is none.
inline int device_count() {
    int count = 0;
    cudaError_t const status = cudaGetDeviceCount(&count);
    detail::forget(status);
    if (status == cudaErrorInsufficientDriver || status == cudaErrorStubLibrary)
        throw NoDevice("cudaGetDeviceCount", status,
                       "there is no NVIDIA driver here, or one too old for this program; ");
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
        throw NoDevice("cudaGetDeviceCount", cudaErrorNoDevice, "there is no GPU here; ");
    check("cudaGetDeviceCount", status);
    return count;
}

/// Throws TooFewDevices if CUDA sees fewer than `needed` GPUs, NoDevice if it sees none.
inline void require_devices(int needed) {
    int const present = device_count();
    if (present < needed) throw TooFewDevices(needed, present);
}

} // namespace gpipe::cuda
