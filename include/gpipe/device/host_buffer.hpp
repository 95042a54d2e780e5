#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/core/error.hpp>

#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

namespace gpipe::device {

/// The host has no room for a buffer; says for how many bytes.
class HostMemoryError : public std::bad_alloc {
  public:
    /// Of so many.
    explicit HostMemoryError(std::size_t bytes)
        : message_("gpipe: the host has no %zu bytes for what a device, or copies, are to hold",
                   bytes) {}
    /// In words.
    char const* what() const noexcept override { return message_.text; }

  private:
    gpipe::detail::Message message_;
};

/// Memory of the host, zeroed, aligned to slot_alignment.
class HostBuffer {
  public:
    HostBuffer() = default;
    /// Of so many bytes; empty for 0. Throws HostMemoryError.
    explicit HostBuffer(std::size_t bytes) : data_(allocated(bytes)), size_(bytes) {
        if (bytes) std::memset(data_, 0, bytes);
    }
    /// What is moved from is empty.
    ///@{
    HostBuffer(HostBuffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    HostBuffer& operator=(HostBuffer other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ///@}
    ~HostBuffer() { ::operator delete (data_, std::align_val_t{slot_alignment}); }

    /// Null if it is empty, or was moved from.
    std::byte* data() const { return data_; }
    /// Bytes.
    std::size_t size() const { return size_; }

  private:
    static std::byte* allocated(std::size_t bytes) try {
        if (bytes == 0) return nullptr;
        return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{slot_alignment}));
    } catch (std::bad_alloc const&) {
        throw HostMemoryError(bytes);
    }
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

} // namespace gpipe::device
