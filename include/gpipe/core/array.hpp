#pragma once

#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>

namespace gpipe {

namespace detail {

// Memory for so many elements of this size.
[[gnu::cold]] GPIPE_INLINE void* room_for(std::size_t count, std::size_t size) {
    if (count == 0) return nullptr;
    if (count > std::numeric_limits<std::ptrdiff_t>::max() / size)
        throw std::bad_array_new_length();
    return ::operator new[](size* count);
}
[[gnu::cold]] GPIPE_INLINE void* zeros(std::size_t count, std::size_t size) {
    void* const all = room_for(count, size);
    if (all) std::memset(all, 0, count * size);
    return all;
}
[[gnu::cold]] GPIPE_INLINE void* copy_of(void const* from, std::size_t count, std::size_t size) {
    void* const all = room_for(count, size);
    if (all) std::memcpy(all, from, count * size);
    return all;
}
// Each of them like this one.
[[gnu::cold]] GPIPE_INLINE void* copies_of(void const* one, std::size_t count, std::size_t size) {
    auto* const all = static_cast<std::byte*>(room_for(count, size));
    if (all) std::memcpy(all, one, size);
    for (std::size_t done = 1; done < count;) {
        std::size_t const more = done < count - done ? done : count - done;
        std::memcpy(all + done * size, all, more * size);
        done += more;
    }
    return all;
}

// What an element is where no value is given.
template <class T> inline constexpr T initial_element{};

// Elements that at run time are bytes like any others: a hundred types have the same few functions.
template <class T>
inline constexpr bool are_bytes = std::is_trivially_copyable_v<T> &&
                                  alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__;

} // namespace detail

/// A heap array whose length is fixed when it is made. Unlike std::vector it costs next to nothing
/// in constant evaluation (one allocation, raw pointers), so the same function builds a table at
/// compile time and at construction.
template <class T> class Array {
  public:
    constexpr Array() = default;
    /// As std::vector; elements are value-initialized where no value is given.
    ///@{
    constexpr explicit Array(std::size_t size) : data_(make(size)), size_(size) {}
    constexpr Array(std::size_t size, T const& value) : data_(make(size, value)), size_(size) {}
    constexpr Array(Array const& other)
        : data_(copy(other.data_, other.size_)), size_(other.size_) {}
    // By hand: std::exchange and std::swap would be made anew for every T, in every program.
    constexpr Array(Array&& other) noexcept : data_(other.data_), size_(other.size_) {
        other.data_ = nullptr;
        other.size_ = 0;
    }
    // Two: for one that takes a value compilers have what has an Array copy it noexcept.
    constexpr Array& operator=(Array const& other) { return *this = Array(other); }
    constexpr Array& operator=(Array&& other) noexcept {
        Array own(static_cast<Array&&>(other));
        T* const data = data_;
        data_ = own.data_;
        size_ = own.size_;
        own.data_ = data; // which goes with it
        return *this;
    }
    constexpr ~Array() { delete[] data_; }
    ///@}

    /// A copy of so many elements, from there on.
    static constexpr Array copy_of(T const* first, std::size_t size) {
        Array result;
        result.data_ = copy(first, size);
        result.size_ = size;
        return result;
    }

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
    static constexpr T* make(std::size_t size) {
        if constexpr (detail::are_bytes<T>)
            if (!std::is_constant_evaluated()) {
                if constexpr (std::is_trivially_default_constructible_v<T>)
                    return static_cast<T*>(detail::zeros(size, sizeof(T)));
                else
                    return static_cast<T*>(
                        detail::copies_of(&detail::initial_element<T>, size, sizeof(T)));
            }
        return build(size);
    }
    static constexpr T* make(std::size_t size, T const& value) {
        if (detail::are_bytes<T> && !std::is_constant_evaluated())
            return static_cast<T*>(detail::copies_of(&value, size, sizeof(T)));
        return build(size, &value, 0);
    }
    static constexpr T* copy(T const* first, std::size_t size) {
        if (detail::are_bytes<T> && !std::is_constant_evaluated())
            return static_cast<T*>(detail::copy_of(first, size, sizeof(T)));
        return build(size, first, 1);
    }
    // Not inline what allocates: a hundred functions that plan would hold it, and no step does it.
    [[gnu::noinline]] static constexpr T* build(std::size_t size) {
        // Else g++ warns of the sizes for which new throws where it optimises a whole program.
        if (size >= std::numeric_limits<std::ptrdiff_t>::max() / sizeof(T))
            throw std::bad_array_new_length();
        return size ? new T[size]() : nullptr;
    }
    [[gnu::noinline]] static constexpr T* build(std::size_t size, T const* first,
                                                std::size_t step) {
        Array all; // until then: copying an element may throw
        all.data_ = build(size);
        for (std::size_t i = 0; i < size; ++i) all.data_[i] = first[i * step];
        T* const data = all.data_;
        all.data_ = nullptr;
        return data;
    }

    T* data_ = nullptr;
    std::size_t size_ = 0;
};

/// So many elements of an array, from the first on.
template <class T> constexpr Array<T> first_of(Array<T> const& all, std::size_t size) {
    return Array<T>::copy_of(all.data(), size);
}

/// Gives an array room for so many elements, of which the first `count` are those that it has.
template <class T> constexpr void enlarge(Array<T>& all, std::size_t count, std::size_t size) {
    Array<T> more(size);
    for (std::size_t i = 0; i < count; ++i) more[i] = static_cast<T&&>(all[i]);
    all = static_cast<Array<T>&&>(more);
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
