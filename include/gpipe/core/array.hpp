#pragma once

#include <gpipe/core/version.hpp>

#include <cstddef>

namespace gpipe {

/// A heap array whose length is fixed when it is made. Unlike std::vector it costs next to nothing
/// in constant evaluation (one allocation, raw pointers), so the same function builds a table at
/// compile time and at construction.
template <class T> class Array {
  public:
    constexpr Array() = default;
    /// As std::vector; elements are value-initialized where no value is given.
    ///@{
    // Not inline what allocates: a hundred functions that plan would hold it, and no step does it.
    [[gnu::noinline]] constexpr explicit Array(std::size_t size)
        : data_(size ? new T[size]() : nullptr), size_(size) {}
    [[gnu::noinline]] constexpr Array(std::size_t size, T const& value) : Array(size) {
        for (std::size_t i = 0; i < size; ++i) data_[i] = value;
    }
    [[gnu::noinline]] constexpr Array(Array const& other) : Array(other.size_) {
        for (std::size_t i = 0; i < size_; ++i) data_[i] = other.data_[i];
    }
    // By hand: std::exchange and std::swap would be made anew for every T, in every program.
    constexpr Array(Array&& other) noexcept : data_(other.data_), size_(other.size_) {
        other.data_ = nullptr;
        other.size_ = 0;
    }
    constexpr Array& operator=(Array other) noexcept {
        T* const data = data_;
        data_ = other.data_;
        size_ = other.size_;
        other.data_ = data; // which goes with it
        return *this;
    }
    constexpr ~Array() { delete[] data_; }
    ///@}

    /// As std::vector.
    ///@{
    constexpr std::size_t size() const { return size_; }
    constexpr bool empty() const { return size_ == 0; }
    constexpr T* data() { return data_; }
    constexpr T const* data() const { return data_; }
    constexpr T* begin() { return data_; }
    constexpr T* end() { return data_ + size_; }
    constexpr T const* begin() const { return data_; }
    constexpr T const* end() const { return data_ + size_; }
    constexpr T& operator[](std::size_t i) { return data_[i]; }
    constexpr T const& operator[](std::size_t i) const { return data_[i]; }
    ///@}

  private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

/// So many elements of an array, from the first on.
template <class T> constexpr Array<T> first_of(Array<T> const& all, std::size_t size) {
    Array<T> result(size);
    for (std::size_t i = 0; i < size; ++i) result[i] = all[i];
    return result;
}

/// Elements of an array, one behind the other: a std::span whose iterators are pointers, which cost
/// constant evaluation a tenth.
template <class T> class Part {
  public:
    constexpr Part() = default;
    /// Of so many, from there on.
    constexpr Part(T const* first, std::size_t size) : first_(first), last_(first + size) {}

    /// As std::span.
    ///@{
    constexpr T const* begin() const { return first_; }
    constexpr T const* end() const { return last_; }
    constexpr T const* data() const { return first_; }
    constexpr std::size_t size() const { return static_cast<std::size_t>(last_ - first_); }
    constexpr T const& operator[](std::size_t i) const { return first_[i]; }
    ///@}

  private:
    T const* first_ = nullptr;
    T const* last_ = nullptr;
};

} // namespace gpipe
