#pragma once

// Counts what the whole program allocates. For the one source file of a program. Not under clang's
// ThreadSanitizer, whose own operators new cannot be replaced: there nothing is counted.

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#if !defined(__has_feature)
#define GPIPE_COUNTS_ALLOCATIONS
#elif !__has_feature(thread_sanitizer)
#define GPIPE_COUNTS_ALLOCATIONS
#endif

namespace toy {

inline std::atomic<std::size_t> allocations{0};
inline std::atomic<std::size_t> allocated_bytes{0};
inline std::atomic<long> live_allocations{0};
/// There is no memory for the one behind so many more; negative: there is.
inline std::atomic<long> allocations_left{-1};

inline void* allocate(std::size_t bytes, std::size_t alignment) {
    if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
    ++allocations;
    ++live_allocations;
    allocated_bytes += bytes;
    std::size_t const rounded = (bytes + alignment) / alignment * alignment;
    if (void* const memory = std::aligned_alloc(alignment, rounded)) return memory;
    throw std::bad_alloc();
}
inline void release(void* memory) {
    if (memory) --live_allocations;
    std::free(memory);
}

} // namespace toy

#ifdef GPIPE_COUNTS_ALLOCATIONS
void* operator new(std::size_t bytes) { return toy::allocate(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return toy::allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return toy::allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
    return toy::allocate(bytes, static_cast<std::size_t>(alignment));
}
// As the standard library's algorithms ask for room that they could do without.
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept {
    try {
        return operator new(bytes);
    } catch (std::bad_alloc const&) {
        return nullptr;
    }
}
void operator delete(void* memory) noexcept { toy::release(memory); }
void operator delete[](void* memory) noexcept { toy::release(memory); }
void operator delete(void* memory, std::size_t) noexcept { toy::release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { toy::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { toy::release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { toy::release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { toy::release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
    toy::release(memory);
}
#endif
