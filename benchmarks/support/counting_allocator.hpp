#pragma once

// Replaces the program's operator new by one that counts. For the one source file of a program.

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace benchmark {

inline std::atomic<std::size_t> allocations{0};
/// Bytes asked for with the alignment of a device's arena.
inline std::atomic<std::size_t> arena_bytes{0};

inline void* count_and_allocate(std::size_t bytes, std::size_t alignment) {
    ++allocations;
    if (alignment >= 256) arena_bytes += bytes;
    if (void* const data = std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment))
        return data;
    throw std::bad_alloc();
}

} // namespace benchmark

// Not inlined: g++ takes the pair of aligned_alloc and delete for a mistake.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
    return benchmark::count_and_allocate(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return benchmark::count_and_allocate(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t, std::align_val_t) noexcept {
    std::free(data);
}
