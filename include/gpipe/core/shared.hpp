#pragma once

#include <gpipe/core/version.hpp>

#include <atomic>
#include <cstddef>

namespace gpipe::detail {

/// What Shared may hold.
class Counted {
  public:
    Counted() = default;
    /// A copy is held by nobody yet.
    Counted(Counted const&) {}
    Counted& operator=(Counted const&) = delete;
    virtual ~Counted() = default;

  private:
    template <class T> friend class Shared;
    mutable std::atomic<std::size_t> holders_{0};
};

/// A value of any type for Shared to hold.
template <class T> struct CountedValue : Counted {
    T value; ///< whatever it is
    /// Moved here.
    explicit CountedValue(T own) : value(static_cast<T&&>(own)) {}
};

/// Null, or one of those that hold the same object: the last one deletes it. As std::shared_ptr,
/// for which a program would parse a twentieth of a second, and as much for what it points to.
template <class T> class Shared {
  public:
    Shared() = default;
    /// Of an object made by new.
    explicit Shared(T* object) : object_(object) {
        if (object_) object_->holders_.fetch_add(1, std::memory_order_relaxed);
    }
    template <class U> Shared(Shared<U> const& other) : Shared(other.get()) {}
    Shared(Shared const& other) : Shared(other.object_) {}
    Shared(Shared&& other) noexcept : object_(other.object_) { other.object_ = nullptr; }
    Shared& operator=(Shared other) noexcept {
        T* const object = object_;
        object_ = other.object_;
        other.object_ = object; // which goes with it
        return *this;
    }
    ~Shared() {
        if (object_ && object_->holders_.fetch_sub(1, std::memory_order_acq_rel) == 1)
            delete object_;
    }

    explicit operator bool() const { return object_ != nullptr; }
    T* get() const { return object_; }
    T& operator*() const { return *object_; }
    T* operator->() const { return object_; }

  private:
    T* object_ = nullptr;
};

} // namespace gpipe::detail
