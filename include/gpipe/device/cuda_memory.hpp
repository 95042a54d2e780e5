#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/device/cuda_stream.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace gpipe::cuda {

namespace detail {

/// On the current GPU, which is this one. Throws Error, where there is no room with how much.
[[gnu::cold]] inline void* allocated(int device, std::size_t bytes) {
    void* data = nullptr;
    cudaError_t const status = cudaMalloc(&data, bytes);
    if (status == cudaErrorMemoryAllocation) {
        forget(status);
        std::size_t free = 0, all = 0;
        forget(cudaMemGetInfo(&free, &all));
        gpipe::detail::Message const sentence("GPU %d is to hold %zu bytes more, and has %zu of "
                                              "%zu left: ",
                                              device, bytes, free, all);
        throw Error("cudaMalloc", status, sentence.text);
    }
    check("cudaMalloc", status);
    return data;
}

} // namespace detail

/// Memory of one GPU, zeroed. Giving it back waits for what that GPU still has to do.
class Buffer {
  public:
    Buffer() = default;
    /// Throws Error where the GPU has no room for it, with how much it has. Waits until it is zero.
    Buffer(int device, std::size_t bytes) : data_(nullptr, {device}), size_(bytes) {
        if (bytes == 0) return;
        DeviceGuard const guard(device);
        Stream const stream(device);
        data_.reset(static_cast<std::byte*>(detail::allocated(device, bytes)));
        check("cudaMemsetAsync", cudaMemsetAsync(data(), 0, bytes, stream.get()));
        stream.synchronize();
    }

    /// On the GPU; null if it is empty, or was moved from.
    std::byte* data() const { return data_.get(); }
    /// Bytes.
    std::size_t size() const { return data_ ? size_ : 0; }
    /// The GPU.
    int device() const { return data_.get_deleter().device; }

  private:
    struct Free {
        int device; // 0 where nothing says which

        void operator()(std::byte* data) const noexcept {
            int before = device;
            detail::forget(cudaGetDevice(&before));
            if (before != device) detail::forget(cudaSetDevice(device));
            detail::forget(cudaFree(data));
            if (before != device) detail::forget(cudaSetDevice(before));
        }
    };
    std::unique_ptr<std::byte, Free> data_;
    std::size_t size_ = 0;
};

/// Memory of the host, zeroed, that every GPU can copy from and to without anybody's waiting.
class PinnedBuffer {
  public:
    PinnedBuffer() = default;
    /// Throws Error where the host has no room for it.
    explicit PinnedBuffer(std::size_t bytes) : size_(bytes) {
        if (bytes == 0) return;
        void* data = nullptr;
        check("cudaHostAlloc", cudaHostAlloc(&data, bytes, cudaHostAllocPortable));
        data_.reset(static_cast<std::byte*>(std::memset(data, 0, bytes)));
    }

    /// In the host's memory; null if it is empty, or was moved from.
    std::byte* data() const { return data_.get(); }
    /// Bytes.
    std::size_t size() const { return data_ ? size_ : 0; }

  private:
    detail::Owned<std::byte*, cudaFreeHost> data_;
    std::size_t size_ = 0;
};

/// Bytes that the current GPU has left. Throws Error.
inline std::size_t free_bytes() {
    std::size_t free = 0, all = 0;
    check("cudaMemGetInfo", cudaMemGetInfo(&free, &all));
    return free;
}

/// Where memory is. Copies of pageable memory are not asynchronous; managed memory moves.
enum class Memory : std::uint8_t { pageable, pinned, device, managed };

/// Where a pointer points.
struct PointerKind {
    Memory memory = Memory::pageable; ///< of which sort
    int device = -1;                  ///< of memory of a GPU

    friend bool operator==(PointerKind const&, PointerKind const&) = default;
};

/// Where the memory at `pointer` is. Throws Error.
inline PointerKind pointer_kind(void const* pointer) {
    cudaPointerAttributes attributes{};
    check("cudaPointerGetAttributes", cudaPointerGetAttributes(&attributes, pointer));
    switch (attributes.type) {
    case cudaMemoryTypeDevice:
        return {Memory::device, attributes.device};
    case cudaMemoryTypeHost:
        return {Memory::pinned, -1};
    case cudaMemoryTypeManaged:
        return {Memory::managed, -1};
    default:
        return {};
    }
}

} // namespace gpipe::cuda
