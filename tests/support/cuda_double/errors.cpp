// Errors: their names, which of them are for good, and the last one.
#include "world.hpp"

#include <array>

namespace cuda_double::detail {

namespace {

struct Name {
    cudaError_t code;
    char const* name;
    char const* text;
};
std::array<Name, 29> const names{{
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled",
     "peer access has not been enabled"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorStubLibrary, "cudaErrorStubLibrary", "CUDA driver is a stub library"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
}};

Name const* name_of(cudaError_t code) {
    for (Name const& name : names)
        if (name.code == code) return &name;
    return nullptr;
}

} // namespace

// After these nothing works any more in the process.
bool is_sticky(cudaError_t error) {
    return (error >= cudaErrorIllegalAddress && error <= cudaErrorLaunchTimeout &&
            error != cudaErrorLaunchOutOfResources) ||
           (error >= cudaErrorAssert && error <= cudaErrorLaunchFailure &&
            error != cudaErrorTooManyPeers && error != cudaErrorHostMemoryAlreadyRegistered &&
            error != cudaErrorHostMemoryNotRegistered) ||
           error == cudaErrorECCUncorrectable;
}

} // namespace cuda_double::detail

using namespace cuda_double::detail;

extern "C" {

char const* cudaGetErrorName(cudaError_t error) {
    Name const* name = name_of(error);
    return name ? name->name : "an error whose name the double does not know";
}

char const* cudaGetErrorString(cudaError_t error) {
    Name const* name = name_of(error);
    return name ? name->text : "an error whose text the double does not know";
}

cudaError_t cudaPeekAtLastError() {
    std::lock_guard const lock(mutex());
    World& w = world();
    return w.sticky != cudaSuccess ? w.sticky : w.thread().last;
}

cudaError_t cudaGetLastError() {
    std::lock_guard const lock(mutex());
    cudaError_t const last = cudaPeekAtLastError();
    world().thread().last = cudaSuccess;
    return last;
}

} // extern "C"
