#pragma once

// Replaces the program's operator new by one that counts. For the one source file of a program.

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include <malloc.h>

namespace benchmark {

inline std::atomic<std::size_t> allocations{0};
/// Bytes that are allocated now with the alignment of a device's arena, as the C library counts.
inline std::atomic<std::size_t> arena_bytes{0};
/// Bytes that are allocated now, and the most that were since restart_peak().
inline std::atomic<std::size_t> live_bytes{0};
inline std::atomic<std::size_t> peak_bytes{0};

/// Returns live_bytes.
inline std::size_t restart_peak() { return peak_bytes = live_bytes.load(); }

inline void* count_and_allocate(std::size_t bytes, std::size_t alignment) {
    ++allocations;
    void* const data = std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
    if (!data) throw std::bad_alloc();
    if (alignment >= 256) arena_bytes += malloc_usable_size(data);
    std::size_t const live = live_bytes += malloc_usable_size(data);
    for (std::size_t peak = peak_bytes; peak < live;)
        if (peak_bytes.compare_exchange_weak(peak, live)) break;
    return data;
}
inline void count_and_free(void* data) {
    live_bytes -= malloc_usable_size(data); // 0 of a null pointer
    std::free(data);
}

} // namespace benchmark

// Not inlined: g++ takes the pair of aligned_alloc and delete for a mistake.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
    return benchmark::count_and_allocate(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return benchmark::count_and_allocate(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* data) noexcept { benchmark::count_and_free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept {
    benchmark::count_and_free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::align_val_t alignment) noexcept {
    if (static_cast<std::size_t>(alignment) >= 256)
        benchmark::arena_bytes -= malloc_usable_size(data);
    benchmark::count_and_free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::size_t,
                                       std::align_val_t alignment) noexcept {
    operator delete(data, alignment);
}
