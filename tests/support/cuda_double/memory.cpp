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
    void* memory = mmap(nullptr, mapped + page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return cudaErrorMemoryAllocation;
    std::memset(memory, static_cast<int>(untouched), mapped);
    auto* data = static_cast<std::byte*>(memory);
    bool const hidden = device >= 0 && options.protects;
    mprotect(hidden ? data : data + mapped, hidden ? mapped + page : page, PROT_NONE);
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

// Only what differs is changed, and neighbours at once: such a call costs more than most work.
void World::allow(Pages pages) {
    Pages changes;
    for (auto const& [at, how] : allowed) changes[at] = PROT_NONE;
    for (auto const& [at, how] : pages) changes[at] = how;
    std::erase_if(changes, [&](auto const& change) {
        auto const now = allowed.find(change.first);
        return now != allowed.end() && now->second == change.second;
    });
    for (auto next = changes.begin(); next != changes.end();) {
        auto const [begin, how] = *next;
        std::byte* end = begin;
        for (; next != changes.end() && next->first == end && next->second == how; ++next)
            end += page;
        mprotect(begin, static_cast<std::size_t>(end - begin), how);
    }
    allowed = std::move(pages);
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
    if (!options.protects) return;
    Pages pages;
    auto const include = [&](Range const& range, int how) {
        Allocation const* a = find(range.data);
        if (!a || a->device < 0 || range.bytes == 0) return;
        auto const* data = static_cast<std::byte const*>(range.data);
        auto const last = static_cast<std::size_t>(data + range.bytes - 1 - a->data) / page;
        for (auto at = static_cast<std::size_t>(data - a->data) / page; at <= last; ++at)
            pages[a->data + at * page] |= how;
    };
    for (Range const& range : work.reads) include(range, PROT_READ);
    for (Range const& range : work.writes) include(range, PROT_READ | PROT_WRITE);
    allow(std::move(pages));
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
