// Devices, their attributes, and who has access to whose memory.
#include "world.hpp"

#include <algorithm>
#include <cstdio>

using namespace cuda_double::detail;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 0;
    return enter("cudaGetDeviceCount", plain, [&](World& w) {
        *count = w.options.devices;
        return cudaSuccess;
    });
}

cudaError_t cudaSetDevice(int device) {
    return enter("cudaSetDevice", plain, [&](World& w) {
        if (!w.is_device(device)) return cudaErrorInvalidDevice;
        w.note(" " + std::to_string(device));
        w.thread().device = device;
        return cudaSuccess;
    });
}

cudaError_t cudaGetDevice(int* device) {
    return enter("cudaGetDevice", plain, [&](World& w) {
        *device = w.thread().device;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    return enter("cudaDeviceGetAttribute", plain, [&](World& w) {
        if (!w.is_device(device)) return cudaErrorInvalidDevice;
        *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9
                 : attribute == cudaDevAttrMultiProcessorCount  ? 4
                 : attribute == cudaDevAttrMaxThreadsPerBlock   ? 1024
                 : attribute == cudaDevAttrWarpSize             ? 32
                 : attribute == cudaDevAttrUnifiedAddressing    ? 1
                 : attribute == cudaDevAttrAsyncEngineCount     ? 2
                                                                : 0;
        return cudaSuccess;
    });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    return enter("cudaGetDeviceProperties", plain, [&](World& w) {
        if (!w.is_device(device)) return cudaErrorInvalidDevice;
        *properties = {};
        std::snprintf(properties->name, sizeof properties->name, "double of a GPU");
        properties->totalGlobalMem = w.options.memory;
        properties->major = 9;
        properties->multiProcessorCount = 4;
        properties->maxThreadsPerBlock = 1024;
        properties->warpSize = 32;
        properties->unifiedAddressing = 1;
        properties->asyncEngineCount = 2;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return enter("cudaDeviceGetStreamPriorityRange", plain, [&](World&) {
        *least = 0;
        *greatest = -5;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    return enter("cudaDeviceCanAccessPeer", plain, [&](World& w) {
        if (!w.is_device(device) || !w.is_device(peer)) return cudaErrorInvalidDevice;
        *can = device != peer && (!w.options.peers || w.options.peers(device, peer));
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    return enter("cudaDeviceEnablePeerAccess", unsafe, [&](World& w) {
        int const device = w.thread().device;
        if (!w.is_device(peer)) return cudaErrorInvalidDevice;
        if (flags != 0) return cudaErrorInvalidValue;
        if (device == peer || (w.options.peers && !w.options.peers(device, peer)))
            return cudaErrorPeerAccessUnsupported;
        auto const has = std::count_if(w.peers.begin(), w.peers.end(),
                                       [&](auto const& pair) { return pair.first == device; });
        if (!w.peers.count({device, peer}) && has >= w.options.most_peers)
            return cudaErrorTooManyPeers;
        return w.peers.insert({device, peer}).second ? cudaSuccess
                                                     : cudaErrorPeerAccessAlreadyEnabled;
    });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    return enter("cudaDeviceDisablePeerAccess", unsafe | happens_anyway, [&](World& w) {
        if (!w.is_device(peer)) return cudaErrorInvalidDevice;
        return w.peers.erase({w.thread().device, peer}) ? cudaSuccess
                                                        : cudaErrorPeerAccessNotEnabled;
    });
}

cudaError_t cudaDeviceSynchronize() {
    return enter("cudaDeviceSynchronize", unsafe | happens_anyway, [&](World& w) {
        int const device = w.thread().device;
        for (auto const& [handle, s] : w.streams)
            if (s.device == device && s.capture) {
                s.capture->invalid = true;
                return cudaErrorStreamCaptureUnsupported;
            }
        if (!w.drops_synchronization()) w.run_device(device);
        return cudaSuccess;
    });
}

cudaError_t cudaDriverGetVersion(int* version) {
    return enter("cudaDriverGetVersion", plain, [&](World&) {
        *version = CUDART_VERSION;
        return cudaSuccess;
    });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    return enter("cudaRuntimeGetVersion", plain, [&](World&) {
        *version = CUDART_VERSION;
        return cudaSuccess;
    });
}

} // extern "C"
