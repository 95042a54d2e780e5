// Memory of the devices and of the host, pinned. An address is never given out twice between two
// reset(), and what has been freed can be touched by nobody.
#include "world.hpp"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>

namespace cuda_double::detail {

namespace {

std::size_t constexpr page = 4096;
std::byte constexpr untouched{0xA5}; // what fresh memory holds, and what lies behind it

std::size_t pages(std::size_t bytes) { return (bytes + page - 1) / page * page; }

bool overlaps(Range const& range, Allocation const& a) {
    auto const* begin = static_cast<std::byte const*>(range.data);
    return begin < a.data + a.bytes && a.data < begin + range.bytes;
}

bool touches(Work const& work, Allocation const& a) {
    auto const here = [&](Range const& range) { return overlaps(range, a); };
    return std::any_of(work.reads.begin(), work.reads.end(), here) ||
           std::any_of(work.writes.begin(), work.writes.end(), here);
}

} // namespace

// Also those that are freed.
Allocation* World::find(void const* pointer) {
    auto next = allocations.upper_bound(static_cast<std::byte const*>(pointer));
    if (next == allocations.begin()) return nullptr;
    Allocation& a = std::prev(next)->second;
    return a.contains(pointer) ? &a : nullptr;
}

// The living allocation that holds all of these bytes.
Allocation* World::whole(void const* pointer, std::size_t bytes) {
    Allocation* a = find(pointer);
    auto const* begin = static_cast<std::byte const*>(pointer);
    return a && a->live && begin + bytes <= a->data + a->bytes ? a : nullptr;
}

std::string World::place(void const* pointer) {
    Allocation const* a = find(pointer);
    if (!a) return "memory of the host";
    auto const offset = static_cast<std::byte const*>(pointer) - a->data;
    return "byte " + std::to_string(offset) + " of allocation " + std::to_string(a->number) +
           (a->device < 0 ? " (pinned)" : " (device " + std::to_string(a->device) + ")");
}

cudaError_t World::allocate(void** pointer, std::size_t bytes, int device) {
    if (!pointer) return cudaErrorInvalidValue;
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (device >= 0) {
        std::size_t& used = allocated[static_cast<std::size_t>(device)];
        if (bytes > options.memory - used) return cudaErrorMemoryAllocation;
        used += bytes;
    }
    std::size_t const mapped = pages(bytes);
    void* memory =
        mmap(nullptr, mapped + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return cudaErrorMemoryAllocation;
    mprotect(memory, mapped, PROT_READ | PROT_WRITE);
    std::memset(memory, static_cast<int>(untouched), mapped);
    if (device >= 0 && options.protects) mprotect(memory, mapped, PROT_NONE);
    auto* data = static_cast<std::byte*>(memory);
    Allocation const& a =
        allocations.emplace(data, Allocation{data, bytes, device, ++made, mapped}).first->second;
    note(": allocation " + std::to_string(a.number) + ", " + std::to_string(bytes) + " bytes" +
         (device < 0 ? ", pinned" : " of device " + std::to_string(device)));
    *pointer = memory;
    return cudaSuccess;
}

cudaError_t World::release(void* pointer, bool of_device) {
    if (!pointer) return cudaSuccess;
    Allocation* a = find(pointer);
    char const* const wrong = !a || a->data != pointer        ? " of what was never allocated"
                              : !a->live                      ? " of what has been freed before"
                              : (a->device >= 0) != of_device ? " of the other kind of memory"
                                                              : nullptr;
    if (wrong) {
        fault(describe(log.size() - 1) + wrong);
        return cudaErrorInvalidValue;
    }
    note(": allocation " + std::to_string(a->number));
    if (of_device) run_device(a->device);
    for (auto const& [node, owner] : pending)
        if (touches(node->work, *a)) {
            fault(describe(log.size() - 1) + " while " + describe(node->work.call) +
                  " has not run yet");
            node->work = Work{Kind::graph, node->work.device, node->work.call};
        }
    mprotect(a->data, a->mapped, PROT_READ | PROT_WRITE);
    if (std::any_of(a->data + a->bytes, a->data + a->mapped,
                    [](std::byte b) { return b != untouched; }))
        fault("somebody wrote behind allocation " + std::to_string(a->number));
    madvise(a->data, a->mapped, MADV_DONTNEED);
    mprotect(a->data, a->mapped, PROT_NONE);
    a->live = false;
    if (of_device) allocated[static_cast<std::size_t>(a->device)] -= a->bytes;
    return cudaSuccess;
}

void World::protect(Range range, int how) {
    Allocation const* a = find(range.data);
    if (!options.protects || !a || a->device < 0 || !a->live || range.bytes == 0) return;
    auto const offset =
        static_cast<std::size_t>(static_cast<std::byte const*>(range.data) - a->data);
    std::size_t const first = offset / page * page;
    mprotect(a->data + first, pages(offset + range.bytes) - first, how);
}

// Makes what the work may touch accessible, or breaks down if it must not touch it.
void World::open(Work const& work) {
    for (auto const* ranges : {&work.reads, &work.writes})
        for (Range const& range : *ranges) {
            if (range.bytes == 0) continue;
            Allocation const* a = whole(range.data, range.bytes);
            char const* wrong = nullptr;
            if (!a && find(range.data))
                wrong = find(range.data)->live ? " goes beyond " : " uses freed memory, ";
            else if (!a && work.kind != Kind::copy)
                wrong = " uses pageable ";
            else if (a && a->device >= 0 && a->device != work.device && work.kind != Kind::copy &&
                     !peers.count({work.device, a->device}))
                wrong = " has no peer access to ";
            if (!wrong) continue;
            fault(describe(work.call) + wrong + place(range.data));
            return break_down(cudaErrorIllegalAddress);
        }
    for (Range const& range : work.reads) protect(range, PROT_READ);
    for (Range const& range : work.writes) protect(range, PROT_READ | PROT_WRITE);
}

void World::close(Work const& work) {
    for (Range const& range : work.reads) protect(range, PROT_NONE);
    for (Range const& range : work.writes) protect(range, PROT_NONE);
}

World::~World() {
    watch_crashes(false);
    for (auto const& [data, a] : allocations) munmap(a.data, a.mapped + page);
}

} // namespace cuda_double::detail

using namespace cuda_double::detail;

extern "C" {

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
    return enter("cudaMalloc", unsafe,
                 [&](World& w) { return w.allocate(pointer, bytes, w.thread().device); });
}

cudaError_t cudaFree(void* pointer) {
    return enter("cudaFree", unsafe | happens_anyway,
                 [&](World& w) { return w.release(pointer, true); });
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
    return enter("cudaHostAlloc", unsafe, [&](World& w) { return w.allocate(pointer, bytes, -1); });
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
    return enter("cudaMallocHost", unsafe,
                 [&](World& w) { return w.allocate(pointer, bytes, -1); });
}

cudaError_t cudaFreeHost(void* pointer) {
    return enter("cudaFreeHost", unsafe | happens_anyway,
                 [&](World& w) { return w.release(pointer, false); });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    return enter("cudaMemGetInfo", plain, [&](World& w) {
        *total = w.options.memory;
        *free = w.options.memory - w.allocated[static_cast<std::size_t>(w.thread().device)];
        return cudaSuccess;
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, void const* pointer) {
    return enter("cudaPointerGetAttributes", plain, [&](World& w) {
        *attributes = {};
        auto* p = const_cast<void*>(pointer);
        Allocation const* a = w.find(pointer);
        attributes->device = -2; // cudaInvalidDeviceId
        if (!a || !a->live) {
            attributes->type = cudaMemoryTypeUnregistered;
            attributes->hostPointer = p;
            return cudaSuccess;
        }
        attributes->type = a->device < 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
        attributes->device = a->device < 0 ? 0 : a->device;
        attributes->devicePointer = p;
        attributes->hostPointer = a->device < 0 ? p : nullptr;
        return cudaSuccess;
    });
}

} // extern "C"
