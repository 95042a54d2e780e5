#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/device/cuda_stream.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

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
    Buffer(int device, std::size_t bytes) : device_(device) {
        if (bytes == 0) return;
        DeviceGuard const guard(device);
        Stream const stream(device);
        Buffer fresh;
        fresh.device_ = device;
        fresh.data_ = static_cast<std::byte*>(detail::allocated(device, bytes));
        check("cudaMemsetAsync", cudaMemsetAsync(fresh.data_, 0, bytes, stream.get()));
        stream.synchronize();
        fresh.size_ = bytes;
        *this = std::move(fresh);
    }
    /// What is moved from is empty.
    Buffer(Buffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)),
          device_(other.device_) {}
    /// The two change places.
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(device_, other.device_);
        return *this;
    }
    ~Buffer() {
        if (!data_) return;
        int before = device_;
        detail::forget(cudaGetDevice(&before));
        if (before != device_) detail::forget(cudaSetDevice(device_));
        detail::forget(cudaFree(data_));
        if (before != device_) detail::forget(cudaSetDevice(before));
    }

    /// On the GPU; null if it is empty.
    std::byte* data() const { return data_; }
    /// Bytes.
    std::size_t size() const { return size_; }
    /// The GPU.
    int device() const { return device_; }

  private:
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    int device_ = 0;
};

/// Memory of the host, zeroed, that every GPU can copy from and to without anybody's waiting.
class PinnedBuffer {
  public:
    PinnedBuffer() = default;
    /// Throws Error where the host has no room for it.
    explicit PinnedBuffer(std::size_t bytes) {
        if (bytes == 0) return;
        check("cudaHostAlloc",
              cudaHostAlloc(reinterpret_cast<void**>(&data_), bytes, cudaHostAllocPortable));
        std::memset(data_, 0, bytes);
        size_ = bytes;
    }
    /// What is moved from is empty.
    PinnedBuffer(PinnedBuffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    /// The two change places.
    PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~PinnedBuffer() {
        if (data_) detail::forget(cudaFreeHost(data_));
    }

    /// In the host's memory; null if it is empty.
    std::byte* data() const { return data_; }
    /// Bytes.
    std::size_t size() const { return size_; }

  private:
    std::byte* data_ = nullptr;
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
