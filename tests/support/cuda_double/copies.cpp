// What is enqueued: copies, fills, functions of the host, and stand-ins for kernels.
#include "world.hpp"

#include <cstring>
#include <string>

using namespace cuda_double::detail;

namespace {

cudaError_t wrong(World& w, char const* sentence) {
    w.fault(w.describe(w.log.size() - 1) + sentence);
    return cudaErrorInvalidValue;
}

// As the direction of a copy says: is this memory of a device?
bool fits(Allocation const* to, Allocation const* from, cudaMemcpyKind kind) {
    bool const to_device = to && to->device >= 0;
    bool const from_device = from && from->device >= 0;
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
        return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
        return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
        return to_device && from_device;
    default:
        return true;
    }
}

// Pageable memory is read while the call is made, and written before it returns.
cudaError_t copy(World& w, Stream& s, void* to, void const* from, std::size_t bytes) {
    Allocation const* const target = w.whole(to, bytes);
    Allocation const* const source = w.whole(from, bytes);
    if (s.capture && (!target || !source)) {
        s.capture->invalid = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    Work work;
    work.kind = Kind::copy;
    if (source) {
        work.reads.push_back({from, bytes});
        work.run = [to, from, bytes] { std::memcpy(to, from, bytes); };
    } else {
        auto const* begin = static_cast<std::byte const*>(from);
        work.run = [to, staged = std::vector<std::byte>(begin, begin + bytes)] {
            std::memcpy(to, staged.data(), staged.size());
        };
    }
    if (target) work.writes.push_back({to, bytes});
    work.lasts = w.lasts(work, "");
    for (Allocation const* a : {target, source})
        if (a && a->device >= 0 && a->device != s.device && !w.peers.count({s.device, a->device}))
            w.note(" through the host");
    cudaError_t const status = w.enqueue(s, std::move(work));
    if (status == cudaSuccess && !target) w.host_waits_for(s.tail);
    return status;
}

cudaError_t check_copy(World& w, void* to, void const* from, std::size_t bytes,
                       cudaMemcpyKind kind) {
    Allocation const* const target = w.whole(to, bytes);
    Allocation const* const source = w.whole(from, bytes);
    if ((!target && w.find(to)) || (!source && w.find(from)))
        return wrong(w, " copies beyond an allocation, or freed memory");
    if (!fits(target, source, kind)) return wrong(w, " copies in another direction than it says");
    return cudaSuccess;
}

} // namespace

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return enter("cudaMemcpyAsync", plain, [&](World& w) {
        Stream* s = w.stream(stream);
        w.note(" of " + std::to_string(bytes) + " bytes");
        if (!s) return cudaErrorInvalidResourceHandle;
        if (bytes == 0) return cudaSuccess;
        cudaError_t const status = check_copy(w, to, from, bytes, kind);
        if (status != cudaSuccess || w.drops_call()) return status;
        return copy(w, *s, to, from, bytes);
    });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, void const* from, int from_device,
                                std::size_t bytes, cudaStream_t stream) {
    return enter("cudaMemcpyPeerAsync", plain, [&](World& w) {
        Stream* s = w.stream(stream);
        w.note(" of " + std::to_string(bytes) + " bytes");
        if (!s) return cudaErrorInvalidResourceHandle;
        if (!w.is_device(to_device) || !w.is_device(from_device)) return cudaErrorInvalidDevice;
        if (s->capture) return cudaErrorStreamCaptureUnsupported; // which does not spoil it
        if (bytes == 0) return cudaSuccess;
        Allocation const* const target = w.whole(to, bytes);
        Allocation const* const source = w.whole(from, bytes);
        if (!target || !source || target->device != to_device || source->device != from_device)
            return wrong(w, " copies other memory than that of the devices it names");
        return w.drops_call() ? cudaSuccess : copy(w, *s, to, from, bytes);
    });
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
    return enter("cudaMemsetAsync", plain, [&](World& w) {
        Stream* s = w.stream(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        if (bytes == 0) return cudaSuccess;
        if (!w.whole(data, bytes))
            return wrong(w, " fills what is neither of a device nor pinned, or beyond it");
        Work work;
        work.kind = Kind::fill;
        work.run = [=] { std::memset(data, value, bytes); };
        work.writes.push_back({data, bytes});
        return w.enqueue(*s, std::move(work));
    });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
    return enter("cudaLaunchHostFunc", plain, [&](World& w) {
        Stream* s = w.stream(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        Work work;
        work.kind = Kind::host_function;
        work.run = [=] { function(argument); };
        return w.enqueue(*s, std::move(work));
    });
}

} // extern "C"

namespace cuda_double {

cudaError_t launch(cudaStream_t stream, std::function<void()> work, std::vector<Range> reads,
                   std::vector<Range> writes, std::string const& name) {
    return enter("cudaLaunchKernel", plain, [&](World& w) {
        w.note(" of " + name);
        Stream* s = w.stream(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        if (!w.is_current(s->device)) return cudaErrorInvalidResourceHandle;
        Work enqueued;
        enqueued.kind = Kind::kernel;
        enqueued.run = std::move(work);
        enqueued.reads = std::move(reads);
        enqueued.writes = std::move(writes);
        enqueued.lasts = w.lasts(enqueued, name);
        return w.enqueue(*s, std::move(enqueued));
    });
}

namespace {

void behind_back(void* to, void const* from, std::size_t bytes, void const* device_memory) {
    std::lock_guard const lock(mutex());
    Work work;
    work.writes.push_back({device_memory, bytes});
    work.kind = Kind::copy;
    world().open(work);
    std::memcpy(to, from, bytes);
    world().close();
}

} // namespace

void peek(void* to, void const* device_memory, std::size_t bytes) {
    behind_back(to, device_memory, bytes, device_memory);
}
void poke(void* device_memory, void const* from, std::size_t bytes) {
    behind_back(device_memory, from, bytes, device_memory);
}

} // namespace cuda_double
