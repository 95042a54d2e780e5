#pragma once

#include <gpipe/core/bytes.hpp>

#include <cstddef>
#include <cstdio>
#include <new>

#include <cuda_runtime.h>
#include <thrust/system/cuda/execution_policy.h>

namespace gpipe::cuda {

/// A Thrust algorithm wants more temporary memory than it was given.
class ThrustMemoryError : public std::bad_alloc {
  public:
    /// Both in bytes.
    ThrustMemoryError(std::size_t needed, std::size_t given) : needed_(needed) {
        std::snprintf(text_, sizeof text_,
                      "gpipe: this Thrust algorithm needs %zu bytes of temporary memory, and was "
                      "given %zu: gpipe::cuda::par(context, pointer, bytes)",
                      needed, given);
    }
    /// A sentence with both numbers.
    char const* what() const noexcept override { return text_; }
    /// Bytes that would have been enough.
    std::size_t needed() const noexcept { return needed_; }

  private:
    std::size_t needed_;
    char text_[192];
};

/// What Thrust allocates from during a call: planned memory, from one end; what is given back last
/// is the first to be used again, as the stream allows.
class ThrustMemory {
  public:
    /// As allocators have it.
    using value_type = char;

    ThrustMemory() = default;
    /// `memory` aligned to slot_alignment.
    ThrustMemory(void* memory, std::size_t bytes)
        : memory_(static_cast<char*>(memory)), bytes_(bytes) {}

    /// Throws ThrustMemoryError.
    char* allocate(std::ptrdiff_t size) {
        auto const bytes = static_cast<std::size_t>(size);
        if (bytes > bytes_ - used_) throw ThrustMemoryError(used_ + bytes, bytes_);
        char* const at = memory_ + used_;
        std::size_t const room = slot_bytes(bytes);
        used_ = room < bytes_ - used_ ? used_ + room : bytes_;
        return at;
    }
    /// What is given back in the reverse order can be used again.
    void deallocate(char* at, std::size_t size) {
        char* const end = at + slot_bytes(size);
        if (end >= memory_ + used_) used_ = static_cast<std::size_t>(at - memory_);
    }

  private:
    char* memory_ = nullptr;
    std::size_t bytes_ = 0;
    std::size_t used_ = 0;
};

/// Thrust's execution policy for a layer's call: on context.stream(), with `bytes` of `memory` (of
/// Scratch, aligned to slot_alignment) as temporary memory; Thrust's own way to it would allocate
/// in every step. Nothing waits for the algorithm, unless it returns what it computes to the host
/// (thrust::reduce, count, ...): leave these out of layers. It throws ThrustMemoryError, which says
/// what it needs.
template <class Context> auto par(Context const& context, void* memory, std::size_t bytes) {
    cudaStream_t const stream = context.stream();
    return thrust::cuda::par_nosync(ThrustMemory(memory, bytes)).on(stream);
}
/// The same for algorithms that need no temporary memory, as for_each and transform.
template <class Context> auto par(Context const& context) { return par(context, nullptr, 0); }

} // namespace gpipe::cuda
